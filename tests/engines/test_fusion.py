"""Rules of fusions: how they are written, and which are refused."""

import re

import pytest

from netbuilder.engines.fusion import Condition, Fusion, Part


def rule(operators, kernel, **options):
    return Fusion(operators, kernel, lambda op, ctx, *specs: None, **options)


def test_parts_and_values():
    found = rule("Conv+Sum: *x -> a; Sum: {a other} -> y", "*x other -> y")
    assert found.parts == (
        Part(("Conv", "Sum"), ("*x",), ("a",)),
        Part(("Sum",), ("a", "other"), ("y",), either_order=True),
    )
    assert found.types == ("Conv", "Sum", "Sum")
    assert (found.inputs, found.outputs) == (("*x", "other"), ("y",))


@pytest.mark.parametrize(
    "operators, kernel, options, said",
    [
        ("A: x -> s; B: s -> y", "z -> y", {}, "no operator has the value 'z' of its kernel"),
        ("A: x -> s; B: s -> y", "x -> y", {"conditions": {"t": Condition.READ_LAST}}, "no operator has the value 't'"),
        ("A: x -> s t; B: s -> y", "x -> y", {}, "A writes 't', which must be written by the kernel, or read by"),
        ("A: x -> s; B: s -> y z", "x -> y", {}, "B writes 'z', which must be written by the kernel, or read by"),
        ("A: x -> s; B: x -> y", "x -> s y", {}, "no later operator reads what A writes"),
    ],
)
def test_a_rule_that_cannot_be(operators, kernel, options, said):
    with pytest.raises(ValueError, match=f"fusion {re.escape(repr(operators))}: {said}"):
        rule(operators, kernel, **options)
