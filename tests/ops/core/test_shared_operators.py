"""Layers with equal arguments share one decoded operator; what differs, or keeps something, does not."""

import pytest

from netbuilder.ops.core.operator import decode
from netbuilder.ops.core.registry import find
from netbuilder.ops.core.shared_operators import shared_operator
from netbuilder.proto import NetDef, NetError
from netbuilder.proto.arguments import make_op


def shared(*given, **arguments):
    op = make_op(*given, **arguments)
    found = shared_operator(find(op.type), op)
    known = decode(find(op.type), op)
    assert found == known and (found.n_in, found.n_out) == (known.n_in, known.n_out)
    return found


def test_equal_arguments_share_an_operator():
    one = shared("Softmax", ["x"], ["y"], axis=2)
    assert shared("Softmax", ["a"], ["b"], axis=2) is one
    assert shared("Softmax", ["a"], ["b"], axis=1) is not one


def test_other_numbers_of_blobs_are_another_operator():
    assert shared("Sum", ["a", "b"], ["y"]) is not shared("Sum", ["a", "b", "c"], ["y"])
    assert shared("Slice", ["a"], ["y"], starts=[0], ends=[1]).dynamic is False
    assert shared("Slice", ["a", "s", "e"], ["y"]).dynamic is True


def test_blobs_are_checked_each_time():
    shared("MatMul", ["a", "b"], ["y"])
    with pytest.raises(NetError, match="may not overwrite"):
        shared("MatMul", ["a", "b"], ["a"])
    with pytest.raises(NetError, match="takes 2"):
        shared("MatMul", ["a"], ["y"])


def test_what_keeps_something_is_not_shared():
    given = ("Dropout", ["x"], ["y", "mask"])
    assert shared(*given, ratio=0.5) is not shared(*given, ratio=0.5)
    branch = NetDef(name="then")
    given = ("If", ["c"], ["y"])
    assert shared(*given, then_net=branch) is not shared(*given, then_net=branch)


def test_large_operators_are_not_kept():
    given = ("GivenTensorFill", [], ["y"])
    values = [0.5] * 1000
    assert shared(*given, shape=[1000], values=values) is not shared(*given, shape=[1000], values=values)
