"""The backward pass: devices of what it makes, its other callers, and what it costs."""

import numpy as np
import pytest

from cost import cpu_seconds
from netbuilder.graph import DeviceScope, GradientRegistry, GradientSlice, NameScope, Net
from netbuilder.graph.gradients import IR, differentiate
from netbuilder.ops.core.contexts import Sparse
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, DeviceOption, NetDef
from netbuilder.proto.arguments import arguments, make_op
from netbuilder.runtime import Workspace


def text(op) -> str:
    return f"{op.type} {' '.join(op.input)} -> {' '.join(op.output)}"


def on(device_type, device_id):
    return DeviceScope(DeviceOption(device_type=device_type, device_id=device_id))


def test_sums_and_seeds_sit_where_the_gradients_are():
    net = Net("n")
    with on(PROTO_CUDA, 1):
        net.Sum([net.Relu("x", "a"), net.Tanh("x", "b")], "s")
        net.AveragedLoss("s", "loss")
    net.AddGradientOperators(["loss"])
    for op in net.Proto().op:
        assert (op.device_option.device_type, op.device_option.device_id) == (PROTO_CUDA, 1)
    assert net.Proto().op[-1].type == "Sum"
    assert net.Proto().op[-1].device_option.extra_info == ["is_auto_gen_sum_ops:1"]
    assert not net.Proto().op[-1].is_gradient_op and net.Proto().op[-2].is_gradient_op


def test_a_given_gradient_is_not_overwritten_by_a_sum_of_its_name():
    net = NetDef(name="n", op=[make_op("Scale", ["x"], ["y"], scale=2.0), make_op("Scale", ["y"], ["loss"], scale=3.0)])
    done = differentiate(net, {"loss": "g", "y": "y_grad"})
    assert done.gradients["y"] == "_y_grad_autosplit_0"
    net.op.extend(done.net.op)
    workspace = Workspace()
    for blob, value in {"x": 1, "g": 1, "y_grad": 10}.items():
        workspace.feed(blob, np.float32([value]))
    workspace.run_net_once(net)
    assert [float(workspace.fetch(blob)[0]) for blob in ("y_grad", done.gradients["y"], done.gradients["x"])] == [
        10,
        13,
        26,
    ]


def test_losses_of_several_devices_have_seeds_on_each():
    net = Net("n")
    losses = []
    for i in range(2):
        with on(PROTO_CPU, i), NameScope(f"cpu_{i}"):
            losses.append(net.AveragedLoss(net.Relu("x", "y"), "loss"))
    net.AddGradientOperators(losses)
    made = net.Proto().op[4:]
    assert [text(op) for op in made[:2]] == [
        f"ConstantFill cpu_{i}/loss -> cpu_{i}/loss_autogen_grad" for i in range(2)
    ]
    for op in made:
        assert op.output[0].startswith(f"cpu_{op.device_option.device_id}/")
    assert [arguments(op) for op in made[:2]] == [{"value": 1.0}] * 2


def test_a_seed_of_the_net_under_an_operator_in_place_is_overwritten():
    net = Net("n")
    loss = net.Scale(net.AveragedLoss("x", "loss"), "loss", scale=0.5)
    found = net.AddGradientOperators({loss: net.ConstantFill(loss, "loss_grad", value=1.0)})
    assert [text(op) for op in net.Proto().op[2:]] == [
        "ConstantFill loss -> loss_grad",
        "Scale loss_grad -> loss_grad",
        "AveragedLossGradient x loss_grad -> x_grad",
    ]
    assert found == {"loss": "loss_grad", "x": "x_grad"}


def test_cpu_devices_share_memory():
    net = Net("n")
    for i in range(2):
        with on(PROTO_CPU, i):
            net.Relu("x", f"y{i}")
    found = net.AddGradientOperators(["y0", "y1"])
    assert text(net.Proto().op[-1]) == "Sum x_grad _x_grad_autosplit_0 -> x_grad"
    assert net.Proto().op[-1].device_option.device_id == 1 and found["x"] == "x_grad"


# -- other callers ------------------------------------------------------------------------------


def test_backward_pass_of_a_list_of_operators():
    net = Net("n")
    net.AveragedLoss(net.FC(["x", "w", "b"], "y"), "loss")
    operators, found = GradientRegistry.GetBackwardPass(net.Proto().op, ["loss"])
    assert [text(op) for op in operators] == [
        "ConstantFill loss -> loss_autogen_grad",
        "AveragedLossGradient y loss_autogen_grad -> y_grad",
        "FCGradient x w y_grad -> w_grad b_grad x_grad",
    ]
    assert found["w"] == "w_grad"
    assert [op.type for op in IR(net.Proto().op).GetBackwardPass({"loss": "g"})[0]] == [op.type for op in operators[1:]]
    assert net.op_len == 2


def test_gradient_of_one_operator():
    net = Net("n")
    net.Gather(["t", "i"], "e")
    net.Sum(["e", "x"], "s")
    gather, total = net.Proto().op
    assert GradientRegistry.GetGradientForOp(total, ["g"]) == ([], ["g", "g"])
    assert GradientRegistry.GetGradientForOp(gather, ["g"]) == ([], [GradientSlice("i", "g"), None])


def test_differentiating_a_net_by_itself():
    net = Net("inner")
    net.FC(["x", "w", "b"], "y")
    before = net.Proto().SerializeToString()
    result = differentiate(net.Proto(), {"y": "dy"})
    assert result.net.name == "inner_grad" and net.Proto().SerializeToString() == before
    assert [text(op) for op in result.net.op] == ["FCGradient x w dy -> w_grad b_grad x_grad"]
    assert result.net.external_input == ["x", "w", "dy"] and result.net.external_output == [
        "x_grad",
        "w_grad",
        "b_grad",
    ]
    assert result.gradients == {"y": "dy", "w": "w_grad", "b": "b_grad", "x": "x_grad"}


def test_given_sparse_gradients_are_passed_on():
    net = Net("n")
    net.Gather(["t", "i"], "e")
    found = differentiate(net.Proto(), {"t": ("ti", "tv"), "e": "de"}).gradients
    assert found["t"] == Sparse("t_grad_indices_concat", "t_grad_values_concat")


# -- cost ---------------------------------------------------------------------------------------


def _chain(count):
    net = Net("chain")
    x = net.AddExternalInput("x")
    for i in range(count // 2):
        x = net.FC([x, f"w{i}", "b"], f"h{i}")  # all share one bias: as many shares as layers
        x = net.Relu(x, x)
    return net, cpu_seconds(lambda: net.AddGradientOperators([x])) / count


@pytest.mark.slow
def test_the_cost_is_linear_and_there_is_no_recursion():
    _chain(100)
    few = min(_chain(1000)[1] for _ in range(2))
    net, many = _chain(20_000)
    assert net.op_len == 40_002
    assert many < 8 * few  # quadratic growth would be 20 times
