"""The gradients of Do, If and While under Caffe2's names."""

import numpy as np
import pytest

from netbuilder.caffe2.python import core, workspace
from netbuilder.caffe2.python.control_ops_grad import (
    dedupe_g_output,
    disambiguate_grad_if_op_output,
    gen_do_gradient,
    gen_if_gradient,
    gen_while_gradient,
    getNetArgument,
)
from netbuilder.caffe2.python.net_builder import NetBuilder, ops


def branch(factor):
    net = core.Net("branch")
    net.Scale("x", "y", scale=factor)
    return net


def test_an_if():
    op = core.CreateOperator("If", ["c", "x"], ["y"], then_net=branch(2.0).Proto(), else_net=branch(3.0).Proto())
    made, inputs = gen_if_gradient(op, ["dy"])
    assert [one.type for one in made] == ["If"] and inputs == [None, "x_grad"]
    assert getNetArgument(op, "then_net").op[0].type == "Scale" and getNetArgument(op, "no_net") is None


def test_a_while_is_told_what_to_keep():
    net = core.Net("loop")
    net.Mul(["y", "x"], "y")
    op = core.CreateOperator("While", ["c", "x", "y"], ["y"], loop_net=net.Proto())
    made, inputs = gen_while_gradient(op, ["dy"])
    assert [one.type for one in made] == ["WhileGradient"] and inputs == [None, "x_grad", "y_grad"]
    assert [a.strings[:] for a in op.arg if a.name == "kept_blobs"] == [[b"y"]]


@pytest.mark.parametrize("function", [gen_do_gradient, gen_while_gradient])
def test_other_operators_are_refused(function):
    op = core.CreateOperator("If", ["c"], ["y"], then_net=branch(2.0).Proto())
    with pytest.raises(AssertionError, match=r"got 1 gradients for a If with the outputs \['y'\]"):
        function(op, ["dy"])


def test_gradients_that_come_twice():
    op = core.CreateOperator("If", ["c"], ["a", "b", "d"], then_net=branch(2.0).Proto())
    copies, gradients = dedupe_g_output(op, ["g", "g", None])
    assert gradients == ["g", "b_g_DEDUP", None]
    assert [(one.type, one.input[0], one.output[0]) for one in copies] == [("Copy", "g", "b_g_DEDUP")]


def test_another_name_for_an_output_of_a_gradient():
    op = core.CreateOperator("If", ["c", "x"], ["y"], then_net=branch(2.0).Proto(), else_net=branch(3.0).Proto())
    disambiguate_grad_if_op_output(op, 0, "z")
    assert op.output[0] == "z" and [argument.n.op[0].output[0] for argument in op.arg] == ["z", "z"]


def test_the_gradient_of_a_loop_of_the_tutorial():
    """y = x w**3 by a WhileNet that overwrites y."""
    with NetBuilder(_use_control_ops=True, initial_scope=["x", "w"]) as builder:
        ops.Copy(ops.Const(0.0), "i")
        ops.Copy("x", "y")
        with ops.WhileNet():
            with ops.Condition():
                ops.LT(["i", ops.Const(3.0)])
            ops.Add(["i", ops.Const(1.0)], "i")
            ops.Mul(["y", "w"], "y")
    (net,) = builder.get()
    gradients = net.AddGradientOperators(["y"])
    workspace.ResetWorkspace()
    workspace.FeedBlob("x", np.float32([2.0]))
    workspace.FeedBlob("w", np.float32([3.0]))
    workspace.RunNetOnce(net)
    assert workspace.FetchBlob("y").item() == 54
    assert workspace.FetchBlob(gradients["w"]).item() == 3 * 2 * 9
    assert workspace.FetchBlob(gradients["x"]).item() == 27
