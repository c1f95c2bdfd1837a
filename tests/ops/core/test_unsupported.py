"""Unsupported operators of Caffe2: errors name them, and suggest no similar name."""

import re
from pathlib import Path

import pytest

from netbuilder.ops.core.registry import find, is_registered, operator_types
from netbuilder.ops.core.unsupported import ABSENT, GROUPS, instead_of
from netbuilder.proto import NetError


def test_what_is_registered_is_not_absent():
    assert not [name for name in ABSENT if is_registered(name)]
    assert len(ABSENT) == sum(len(names.split()) for _, names in GROUPS), "a name is listed twice"


def caffe2_operators():
    """The names of Caffe2's operators, of its last release."""
    lines = (Path(__file__).parent / "data" / "caffe2_operators.txt").read_text().splitlines()
    return {line for line in lines if not line.startswith("#")}


def test_every_operator_of_caffe2_is_registered_or_absent():
    names = caffe2_operators()
    assert len(names) > 800 and {"Conv", "Int8Conv"} <= names
    assert not names - ABSENT.keys() - set(operator_types())
    assert ABSENT.keys() - names == {"VideoInput"}, "its wheel for CPUs has no videos"


@pytest.mark.parametrize(
    ("op_type", "text"),
    [
        (
            "VideoInput",
            "unknown operator 'VideoInput'; Caffe2's operator VideoInput is not in this version: feed arrays",
        ),
        ("NCCLReduceScatter", "Caffe2's operator NCCLReduceScatter is not in this version: NCCLAllreduce sums"),
        (
            "Int8Conv",
            "Int8Conv is not in this version: 8-bit integer nets .* netbuilder.ops.core.unsupported.ABSENT lists",
        ),
        ("Softmacks", "unknown operator 'Softmacks'; did you mean 'Softmax' or "),
        ("Qwerty", r"unknown operator 'Qwerty' \(netbuilder"),
    ],
)
def test_messages(op_type, text):
    with pytest.raises(NetError) as error:
        find(op_type)
    assert re.search(text, str(error.value))


def test_no_unrelated_names():
    assert "did you mean" not in "".join(instead_of(name, operator_types()) for name in ABSENT)
