"""Each ``infer`` that a class writes by hand says something that its signature does not."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from all_suites import all_suites
from netbuilder.ops.core.operator import Operator, TensorSpec, spec_of
from netbuilder.ops.core.registry import find, operator_types
from netbuilder.proto import NetError
from suite import f32

Sample = tuple[Operator, list[TensorSpec]]


def writer(cls: type[Operator]) -> type[Operator]:
    """Return the class whose ``infer`` an operator has."""
    return next(base for base in cls.__mro__ if "infer" in base.__dict__)


def samples(cls: type[Operator]) -> Iterator[Sample]:
    """Yield what the operator's suite refuses, and what it draws."""
    suite = all_suites().get(cls.__name__)
    if suite is None:
        return
    for bad in suite.refusals if isinstance(suite.refusals, tuple) else ():
        try:
            op = bad.op.with_arity(len(bad.inputs), bad.n_out or bad.op.n_out)
            op.check()
        except NetError:
            continue  # its arguments are wrong
        yield op, list(bad.inputs)
    found: list[Sample] = []

    @settings(max_examples=5, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(data=st.data())
    def draw(data: Any) -> None:
        with contextlib.suppress(NotImplementedError, NetError, TypeError, AttributeError, OSError):
            op, arrays = suite().draw(data)
            found.append((op.with_arity(len(arrays), op.n_out), [spec_of(np.asarray(x)) for x in arrays]))

    draw()
    yield from found


def outcome(infer: Any, inputs: list[TensorSpec]) -> Any:
    """Return the specs, with the elements that are known, or that the inputs are refused."""
    try:
        return [(spec, spec.known) for spec in infer(*inputs)]
    except (NetError, NotImplementedError):
        return "refused"


def differs(cls: type[Operator]) -> bool:
    """Whether the signature does not say what ``infer`` gives, or, for a sample, says something else."""
    rules = cls.shape_rules()
    if not rules.determines_outputs:
        return True
    return any(
        outcome(op.infer, inputs) != outcome(lambda *given, op=op: rules.infer(op, given), inputs)
        for op, inputs in samples(cls)
    )


def repeats(classes: list[type[Operator]]) -> list[type[Operator]]:
    """Return the classes whose ``infer`` repeats what follows from the signatures of all their operators."""
    users = defaultdict(list)
    for cls in classes:
        users[writer(cls)].append(cls)
    del users[Operator]
    collectives = "netbuilder.ops.collectives."  # their bases check inputs in groups, one for each device
    return [
        one
        for one, operators in users.items()
        if not one.__module__.startswith(collectives) and not any(map(differs, operators))
    ]


def test_what_follows_from_a_signature_is_not_written():
    found = repeats([Operator, *map(find, operator_types())])
    assert not found, f"these follow from the signatures: infer of {', '.join(cls.__qualname__ for cls in found)}"


@dataclass(frozen=True)
class Doubled(Operator):
    """Y = 2 X."""

    signature = "X (N): float -> Y (N): as X"

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (x.plain,)


@dataclass(frozen=True)
class Paired(Doubled):
    """Y = X twice."""

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (x.with_shape((2 * x.shape[0],)),)


@pytest.mark.parametrize(("cls", "found"), [(Doubled, [Doubled]), (Paired, [])])
def test_a_repetition_is_found(cls, found, monkeypatch):
    monkeypatch.setitem(globals(), "samples", lambda _: [(cls(), [f32(3)])])
    assert repeats([Operator, cls]) == found
