"""Gradients that a script registers for operators without a gradient."""

import numpy as np
import pytest

from netbuilder.caffe2.python import core, workspace
from netbuilder.graph.gradient_context import gradient_functions
from netbuilder.proto import GradientError


@pytest.fixture(autouse=True)
def no_functions_left():
    before = dict(gradient_functions)
    yield
    gradient_functions.clear()
    gradient_functions.update(before)


def grads(op):
    return [f"{name}_grad" for name in op.input]


def test_of_an_operator_that_is_not_known():
    @core.GradientRegistry.RegisterGradient("Doubled")
    def doubled(op, g_output):
        assert g_output == [core.BlobReference(f"{op.output[0]}_grad")]
        return core.CreateOperator("DoubledGradient", [op.input[0], *g_output], grads(op)), grads(op)

    ops = [core.CreateOperator("Doubled", "x", "h"), core.CreateOperator("Doubled", "h", "y")]
    made, found = core.GradientRegistry.GetBackwardPass(ops, {"y": "y_grad"})
    assert [(op.type, list(op.input), list(op.output)) for op in made] == [
        ("DoubledGradient", ["h", "y_grad"], ["h_grad"]),
        ("DoubledGradient", ["x", "h_grad"], ["x_grad"]),
    ]
    assert found == {"y": "y_grad", "h": "h_grad", "x": "x_grad"}
    assert core.GradientRegistry.GetGradientForOp(ops[0], ["h_grad"])[1] == ["x_grad"]


def test_sparse_none_and_several_operators():
    @core.GradientRegistry.RegisterGradient("Rows")
    def rows(op, g_output):
        return None, [core.GradientSlice(op.input[1], g_output[0]), None]

    made, found = core.GradientRegistry.GetBackwardPass([core.CreateOperator("Rows", ["w", "i"], "y")], {"y": "dy"})
    assert made == [] and found["w"] == core.GradientSlice("i", "dy") and "i" not in found


def test_a_function_computes_numbers():
    @core.GradientRegistry.RegisterGradient("Floor")
    def floor(op, g_output):  # passed straight through
        return [core.CreateOperator("Copy", g_output, grads(op))], grads(op)

    net = core.Net("straight_through")
    net.Floor("x", "y")
    gradients = net.AddGradientOperators(["y"])
    workspace.FeedBlob("x", np.float32([1.5, -0.5]))
    workspace.RunNetOnce(net)
    assert workspace.FetchBlob(gradients["x"]).tolist() == [1, 1]


def test_an_operators_own_gradient_goes_first():
    @core.GradientRegistry.RegisterGradient("Relu")
    def relu(op, g_output):
        raise AssertionError("Relu has a gradient")

    made, _ = core.GradientRegistry.GetBackwardPass([core.CreateOperator("Relu", "x", "y")], ["y"])
    assert [op.type for op in made] == ["ConstantFill", "ReluGradient"]


def test_too_many_gradients_are_refused():
    core.GradientRegistry.RegisterGradient("One")(lambda op, g_output: ([], ["a", "b"]))
    with pytest.raises(GradientError, match=r"the gradient function returned 2 gradients for the 1 inputs \['x'\]"):
        core.GradientRegistry.GetBackwardPass([core.CreateOperator("One", "x", "y")], {"y": "dy"})


def test_errors_of_a_function_reach_the_caller():
    @core.GradientRegistry.RegisterGradient("Picky")
    def picky(op, g_output):
        raise KeyError("needs both")

    with pytest.raises(KeyError, match="needs both"):
        core.GradientRegistry.GetBackwardPass([core.CreateOperator("Picky", "x", "y")], {"y": "dy"})


@pytest.mark.parametrize("only", [False, True])
def test_sums_keep_the_operators_device_or_the_tag_alone(only):
    infos = ["mine"] + [f"{core.IR.ONLY_KEEP_IS_AUTO_GEN_SUM_OPS_TAG}:1"] * only
    net = core.Net("tagged")
    with core.DeviceScope(core.DeviceOption(0, extra_info=infos)):
        net.Relu("x", "a")
        net.Relu("x", "b")
    net.Add(["a", "b"], "y")
    net.AddGradientOperators(["y"])
    tagged = list(net.Proto().op[-1].device_option.extra_info)
    assert net.Proto().op[-1].type == "Sum" and tagged[-1] == f"{core.IR.IS_AUTO_GEN_SUM_OPS_TAG}:1"
    assert tagged[:-1] == ([] if only else infos)
