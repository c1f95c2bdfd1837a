"""Checks of values: Assert, EnforceFinite, NanCheck, IsNaN, ReplaceNaN."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.control.assertions import Assert, EnforceFinite, IsNaN, NanCheck, ReplaceNaN
from netbuilder.proto import NetDef, NetError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, i32, refusal

BAD = [np.nan, np.inf, -np.inf]


def with_holes(data):
    x = data.draw(floats((1, 3), (1, 4)))
    x[data.draw(floats(*x.shape)) > 1] = np.nan
    return x


class TestAssert(OperatorSuite):
    operator = Assert
    wrt = ()
    no_gradient = "no outputs"
    refusals = (refusal(Assert(), [f32(3)], "X must have elements of type int or bool, got float32"),)

    def draw(self, data):
        values = data.draw(st.lists(st.integers(1, 9), max_size=4))
        return Assert(), [np.array(values, data.draw(st.sampled_from([bool, np.int32, np.int64])))]

    def reference(self, op, x):
        return []


class TestEnforceFinite(OperatorSuite):
    operator = EnforceFinite
    wrt = ()
    no_gradient = "no outputs"
    refusals = (refusal(EnforceFinite(), [i32(3)], "one floating type"),)

    def draw(self, data):
        return EnforceFinite(), [data.draw(floats((0, 3), 2))]

    def reference(self, op, x):
        return []


class TestNanCheck(OperatorSuite):
    operator = NanCheck
    refusals = (refusal(NanCheck(), [i32(3)], "one floating type"),)

    def draw(self, data):
        x = data.draw(floats((0, 3), 2))
        return NanCheck(), [x, x[:1]][: data.draw(st.integers(1, 2))]

    def reference(self, op, x, *others):
        return [x]


class TestIsNaN(OperatorSuite):
    operator = IsNaN
    wrt = ()
    no_gradient = "its output is no number"
    refusals = (refusal(IsNaN(), [i32(3)], "one floating type"),)

    def draw(self, data):
        return IsNaN(), [with_holes(data)]

    def reference(self, op, x):
        return [np.array([[v != v for v in row] for row in x.tolist()])]


class TestReplaceNaN(OperatorSuite):
    operator = ReplaceNaN
    wrt = ()
    no_gradient = "Caffe2 has none"
    refusals = (refusal(ReplaceNaN(), [i32(3)], "one floating type"),)

    def draw(self, data):
        return ReplaceNaN(value=data.draw(st.sampled_from([0.0, 2.5]))), [with_holes(data)]

    def reference(self, op, x):
        return [np.array([[op.value if v != v else v for v in row] for row in x.tolist()])]


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("op", [EnforceFinite(), NanCheck()])
def test_what_is_not_finite_ends_the_run(op, value):
    x = np.zeros((2, 3), np.float32)
    x[1, 0] = value
    with pytest.raises(NetError, match=rf"{op.type}: 1 of the 6 elements of 'x0' .* the first is {value} at \(1, 0\)"):
        run_plain(op, [x])


def test_assert_says_which_element_and_the_message():
    with pytest.raises(NetError, match=r"element 1 of 'x0', of shape \(2,\), is not true: counts must be positive"):
        run_plain(Assert(error_msg="counts must be positive"), [np.int32([1, 0])])


def test_checks_run_within_a_net():
    """They have no outputs, but are not removed, and run in the net's order."""
    net = NetDef(name="checked")
    net.op.extend([make_op("Relu", ["x"], ["y"]), make_op("EnforceFinite", ["y"], []), make_op("Relu", ["y"], ["z"])])
    workspace = Workspace()
    workspace.feed("x", np.float32([1, 2]))
    workspace.create_net(net)
    workspace.run_net("checked")
    assert workspace.fetch("z").tolist() == [1, 2]
    workspace.feed("x", np.float32([1, np.inf]))
    with pytest.raises(NetError, match="net 'checked', operator 1: EnforceFinite"):
        workspace.run_net("checked")
