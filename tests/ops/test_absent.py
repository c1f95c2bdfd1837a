"""Operators of Caffe2 that are not there: refused by name, never taken for a misspelt other."""

import pytest

import golden_data
import netbuilder.ops.all  # noqa: F401  (fills the registry)
from netbuilder.ops.absent import ABSENT, GROUPS, instead_of
from netbuilder.ops.registry import find, is_registered, operator_types
from netbuilder.proto import NetError


def test_what_is_registered_is_not_absent():
    assert not [name for name in ABSENT if is_registered(name)]
    assert len(ABSENT) == sum(len(names.split()) for _, names in GROUPS), "a name stands twice"


def test_every_operator_that_caffe2_computed_is_registered_or_absent():
    left = {case.operator.type for case in golden_data.cases()} - ABSENT.keys() - set(operator_types())
    assert not left


@pytest.mark.parametrize(
    ("op_type", "text"),
    [
        (
            "VideoInput",
            "unknown operator 'VideoInput'; Caffe2's operator VideoInput is not in this version: feed arrays",
        ),
        ("SparseLengthsMaxGradient", "Caffe2's operator SparseLengthsMaxGradient is not in this version (netbuilder"),
        ("Int8Conv", "Caffe2's operator Int8Conv is not in this version: quantised nets are not served"),
        ("Softmacks", "unknown operator 'Softmacks'; did you mean Softmax?"),
        ("Qwerty", "unknown operator 'Qwerty' (netbuilder"),
    ],
)
def test_messages(op_type, text):
    with pytest.raises(NetError) as error:
        find(op_type)
    assert text in str(error.value)


def test_no_unrelated_names():
    assert instead_of("Prulu", operator_types()) == ""  # PRelu is nearest, and not near enough
    assert "did you mean" not in "".join(instead_of(name, operator_types()) for name in ABSENT)
