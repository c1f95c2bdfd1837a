"""Operators that overwrite what their gradient reads: a copy in the compatibility layer, an error in the native API."""

import numpy as np
import pytest

import netbuilder
from netbuilder.caffe2.python import brew, core, model_helper, workspace
from netbuilder.proto import GradientError
from netbuilder.proto.arguments import make_op

A, B = np.float32([[1, -2, 3], [0.5, 4, -6]]) + 7, np.float32([[2, 3, 4], [5, 6, 7]])

# Operators in place on "a", and the gradient of the sum of what they make.
IN_PLACE = {
    "Mul": (["a", "b"], {}, B),
    "Div": (["a", "b"], {}, 1 / B),
    "Sqr": (["a"], {}, 2 * A),
    "Log": (["a"], {}, 1 / A),
    "Sqrt": (["a"], {}, 0.5 / np.sqrt(A)),
    "Pow": (["a"], {"exponent": 3.0}, 3 * A**2),
    "Clip": (["a"], {"min": 2.0, "max": 9.0}, ((A > 2) & (A < 9)).astype(np.float32)),
    "Relu": (["a"], {}, np.ones_like(A)),
    "Exp": (["a"], {}, np.exp(A)),
}


@pytest.mark.parametrize("op_type", IN_PLACE)
def test_an_operator_in_place_has_the_right_gradient(op_type):
    inputs, arguments, want = IN_PLACE[op_type]
    net = core.Net("in_place")
    net.AddExternalInput("a0", "b")
    net.Scale("a0", "a")
    getattr(net, op_type)(inputs, "a", **arguments)
    net.SumElements("a", "loss")
    found = net.AddGradientOperators(["loss"])
    workspace.ResetWorkspace()
    workspace.FeedBlob("a0", A)
    workspace.FeedBlob("b", B)
    workspace.RunNetOnce(net)
    np.testing.assert_allclose(workspace.FetchBlob(str(found[core.BlobReference("a0")])), want, 1e-5)
    if "b" in inputs:
        slope = A if op_type == "Mul" else -A / B**2
        np.testing.assert_allclose(workspace.FetchBlob(str(found[core.BlobReference("b")])), slope, 1e-5)


def test_the_copy_is_on_the_device_of_the_operator():
    net = core.Net("placed")
    net.AddExternalInput("a")
    with core.DeviceScope(core.DeviceOption(1, 3)):
        net.Sqr("a", "a")
        net.SumElements("a", "loss")
    net.AddGradientOperators(["loss"])
    copy, square = net.Proto().op[:2]
    assert (copy.type, copy.input[:], square.input[:]) == ("Sum", ["a"], copy.output[:])
    assert copy.device_option == square.device_option and copy.device_option.device_id == 3


def test_of_several_operators_each_keeps_its_own_input():
    net = core.Net("twice")
    net.AddExternalInput("a0")
    for op_type, inputs in (("Scale", "a0"), ("Sqr", "a"), ("Sqr", "a"), ("Log", "a")):
        getattr(net, op_type)(inputs, "a")
    net.SumElements("a", "loss")
    found = net.AddGradientOperators(["loss"])
    workspace.FeedBlob("a0", A)
    workspace.RunNetOnce(net)
    np.testing.assert_allclose(workspace.FetchBlob(str(found[core.BlobReference("a0")])), 4 / A, 1e-5)
    assert np.array_equal(workspace.FetchBlob("a"), np.log((A * A) ** 2))


@pytest.mark.filterwarnings("ignore:model 'replicas'. optimizer_builder_fun:UserWarning")
def test_replicas_keep_copies_of_their_own():
    from netbuilder.caffe2.python import data_parallel_model

    def forward(model, loss_scale):
        brew.fc(model, "data", "y", 3, 2)
        model.net.Sqr("y", "y")
        return [model.Scale(model.net.AveragedLoss("y", "loss"), "loss", scale=loss_scale)]

    found = []
    for devices in (1, 2):
        workspace.ResetWorkspace()
        model = model_helper.ModelHelper(name="replicas")
        data_parallel_model.Parallelize_CPU(
            model,
            input_builder_fun=lambda model: None,
            forward_pass_builder_fun=forward,
            optimizer_builder_fun=lambda model: None,
            devices=list(range(devices)),
        )
        workspace.RunNetOnce(model.param_init_net)
        weights = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
        for device, share in enumerate(np.split(np.tile(A, (2, 1)), devices)):
            workspace.FeedBlob(f"cpu_{device}/data", share)
            workspace.FeedBlob(f"cpu_{device}/y_w", weights)
        workspace.CreateNet(model.net)
        workspace.RunNet(model.net)
        found.append(workspace.FetchBlob("cpu_0/y_w_grad"))
    np.testing.assert_allclose(found[0], found[1], 1e-5)
    assert np.abs(found[0]).max() > 1


def test_a_net_that_has_no_gradient_stays_as_it_was():
    net = core.Net("stays")
    net.AddExternalInput("a")
    net.Accuracy(["a", "label"], "b")
    net.Mul(["b", "b"], "b")
    before = net.Proto().SerializeToString()
    with pytest.raises(GradientError, match="Accuracy"):
        net.AddGradientOperators(["b"])
    assert net.Proto().SerializeToString() == before


def test_the_native_api_refuses_it_and_names_the_way_out():
    net = netbuilder.Net("native")
    net.Mul(["a", "b"], "a")
    before = net.Proto().SerializeToString()
    with pytest.raises(
        GradientError, match=r"net native\w*: .*Mul \['a', 'b'\] -> \['a'\].*another name.*net\.Sum\(\['a'\], "
    ):
        net.AddGradientOperators(["a"])
    assert net.Proto().SerializeToString() == before
    way_out = netbuilder.Net("way_out")
    way_out.Scale("a0", "a")
    way_out.Mul([way_out.Sum(["a"], "a_kept"), "b"], "a")
    assert netbuilder.BlobReference("a0") in way_out.AddGradientOperators(["a"])
    with pytest.raises(GradientError, match="overwrites"):
        core.GradientRegistry.GetGradientForOp(make_op("Sqr", ["a"], ["a"]), ["a_grad"])


def test_after_an_error_the_kept_copies_are_gone():
    net = core.Net("gone")
    net.AddExternalInput("a")
    net.Accuracy(["a", "label"], "b")
    net.Mul(["b", "a"], "b")
    before = net.Proto().SerializeToString()
    with pytest.raises(GradientError, match="Accuracy"):
        net.AddGradientOperators(["b"])
    assert net.Proto().SerializeToString() == before
