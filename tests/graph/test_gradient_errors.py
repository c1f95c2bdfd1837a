"""Backward passes that are refused, callbacks while one is built, and operators made up for these tests."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from netbuilder.graph import BlobReference, DeviceScope, NameScope, Net, differentiate
from netbuilder.graph.blob import EMPTY_GRADIENT
from netbuilder.ops.core.operator import Operator
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, DeviceOption, GradientError, NetDef
from netbuilder.proto.arguments import make_argument, make_op


def text(op) -> str:
    return f"{op.type} {' '.join(op.input)} -> {' '.join(op.output)}"


def refused(net, losses, **options) -> str:
    """Check that the gradients of ``losses`` are refused and the net is unchanged; return the message."""
    before = net.Proto().SerializeToString()
    with pytest.raises(GradientError) as error:
        net.AddGradientOperators(losses, **options)
    assert isinstance(error.value, RuntimeError) and isinstance(error.value, ValueError)
    assert net.Proto().SerializeToString() == before
    assert f"net {net}: " in str(error.value)
    return str(error.value)


def test_overwritten_blobs_come_with_their_history():
    net = Net("n")
    net.Sigmoid("x", "r")
    net.AveragedLoss("r", "loss1")
    net.Relu("r", "r")
    net.AveragedLoss("r", "loss2")
    message = refused(net, ["loss1", "loss2"])
    assert "operator 1 AveragedLoss -> ['loss1']" in message
    assert "AveragedLossGradient needs version 0 of blob 'r'" in message
    assert "operator 2 Relu -> ['r'], made at" in message and "overwrites it with version 1" in message
    history = message.split("Versions of 'r':\n")[1]
    assert [line.split(", made at")[0].strip() for line in history.splitlines()] == [
        "version 0: written by operator 0 Sigmoid -> ['r']",
        "read by operator 1 AveragedLoss -> ['loss1']",
        "read by operator 2 Relu -> ['r']",
        "version 1: written by operator 2 Relu -> ['r']",
        "read by operator 3 AveragedLoss -> ['loss2']",
    ]


def test_overwritten_inputs():
    net = Net("n")
    net.FC(["x", "w", "b"], "y")
    net.Relu("x", "x")
    message = refused(net, ["y"])
    assert "needs version 0 of blob 'x'" in message and "version 0: exists before the net runs" in message


def test_overwriting_what_is_not_needed_is_fine():
    net = Net("n")
    net.Scale("x", "y", scale=2.0)
    net.Relu("x", "x")
    assert net.AddGradientOperators(["y"])["x"] == "x_grad"


def test_an_operator_without_gradient_is_named_with_the_path():
    net = Net("n")
    net.Relu("x", "r")
    net.Conditional(["c", "r", "r"], "chosen")
    net.Sigmoid("chosen", "p")
    net.AveragedLoss("p", "loss")
    message = refused(net, ["loss"])
    assert "operator 1 Conditional -> ['chosen'], made at" in message and "test_gradient_errors.py:" in message
    assert "operator 'Conditional' has no gradient" in message
    assert "Conditional -> 'chosen' -> Sigmoid -> 'p' -> AveragedLoss -> 'loss'" in message
    assert "StopGradient" in message


def test_long_paths_are_cut():
    net = Net("n")
    x = net.Conditional(["c", "x", "x"], "y0")
    for i in range(40):
        x = net.Scale(x, f"y{i + 1}", scale=2.0)
    message = refused(net, [x])
    start, end = "Conditional -> 'y0' -> Scale -> 'y1' -> Scale -> 'y2'", "'y38' -> Scale -> 'y39' -> Scale -> 'y40'"
    assert f"{start} -> ... -> {end}" in message


def test_an_operator_without_gradient_off_the_path_is_fine():
    net = Net("n")
    net.Conditional(["c", "x", "x"], "chosen")
    net.AveragedLoss("y", "loss")
    assert net.AddGradientOperators(["loss"])["y"] == "y_grad"


def test_gradients_twice():
    net = Net("n")
    net.AveragedLoss(net.Relu("x", "y"), "loss")
    net.AddGradientOperators(["loss"])
    message = refused(net, ["loss"])
    assert "would overwrite blob 'y_grad', which operator 3 AveragedLossGradient -> ['y_grad']" in message
    assert "give all losses in one call" in message
    assert "'y_grad', which the net writes" in refused(_more(net), ["loss2"], skip=net.op_len - 1)


def test_gradients_twice_from_a_seed_that_is_overwritten():
    net = Net("n")
    loss = net.Scale(net.AveragedLoss(net.Relu("x", "y"), "loss"), "loss", scale=0.5)
    seeds = {loss: net.ConstantFill(loss, "loss_grad", value=1.0)}
    net.AddGradientOperators(seeds)
    assert "can be added only once" in refused(net, seeds)
    assert "can be added only once" in refused(net, [loss])


def test_a_seed_that_the_net_reads_is_not_overwritten():
    net = Net("n")
    loss = net.Scale(net.AveragedLoss("x", "loss"), "loss", scale=0.5)
    seed = net.ConstantFill(loss, "loss_grad", value=1.0)
    net.Relu(seed, "other")
    assert "would overwrite blob 'loss_grad'" in refused(net, {loss: seed})


def _more(net):
    net.AveragedLoss("y", "loss2")
    return net


def test_gradients_of_separate_parts_may_be_added_one_after_the_other():
    net = Net("n")
    net.AveragedLoss(net.Relu("x", "y"), "loss")
    net.AddGradientOperators(["loss"])
    before = net.op_len
    net.AveragedLoss(net.Relu("u", "v"), "other")
    assert set(net.AddGradientOperators(["other"], skip=before)) == {"other", "v", "u"}


def test_branches_on_different_devices():
    net = Net("n")
    for i in range(2):
        with DeviceScope(DeviceOption(device_type=PROTO_CUDA, device_id=i)), NameScope(f"gpu_{i}"):
            net.Relu(BlobReference("x"), "y")
    message = refused(net, ["gpu_0/y", "gpu_1/y"])
    assert "blob 'x': its gradient is a sum over different devices, GPU 1 and GPU 0" in message
    net = Net("n")
    net.Relu("x", "y", device_option=DeviceOption(device_type=PROTO_CUDA))
    net.Relu("x", "z", device_option=DeviceOption(device_type=PROTO_CPU))
    assert "CPU 0 and GPU 0" in refused(net, ["y", "z"])


def test_unknown_losses():
    net = Net("n")
    net.AveragedLoss("x", "loss")
    assert "no operator writes or reads loss 'los'; did you mean 'loss'" in refused(net, ["los"])
    for ys in ("loss", b"loss", BlobReference("loss"), 3, None):
        with pytest.raises(TypeError, match="must be a list of losses, or a mapping"):
            net.AddGradientOperators(ys)
    with pytest.raises(TypeError, match="BlobReference or a string, got 3"):
        net.AddGradientOperators([3])
    with pytest.raises(GradientError, match="skip must be in \\[0, 1\\], the number of operators, got 2"):
        net.AddGradientOperators(["loss"], skip=2)


def test_orphaned_stop_gradient():
    net = Net("n")
    net.StopGradient("x", "stopped")
    net.AveragedLoss(net.Relu("x", "y"), "loss")
    assert "StopGradient's output 'stopped' is orphan" in refused(net, ["loss"])


# -- callbacks ----------------------------------------------------------------------------------


@pytest.fixture
def net():
    net = Net("n")
    net.AveragedLoss(net.FC(["x", "w", "b"], "y"), "loss")
    return net


def test_callbacks_are_called_in_order_after_each_operator(net):
    calls = []

    def first(where, op):
        assert where is net and net.Proto().op[-1] == op  # it was just appended
        calls.append(("first", op.type))

    net.AddGradientOperators(["loss"], callbacks=[first, lambda where, op: calls.append(("second", op.type))])
    types = ["ConstantFill", "AveragedLossGradient", "FCGradient"]
    assert calls == [(name, op_type) for op_type in types for name in ("first", "second")]


def test_what_callbacks_append_follows_the_operator(net):
    def clip(where, op):
        if "w_grad" in op.output:
            where.Clip("w_grad", "w_grad", min=-1.0, max=1.0)

    def scale(where, op):
        if "w_grad" in op.output:
            where.Scale("w_grad", "w_grad", scale=0.5)

    found = net.AddGradientOperators(["loss"], callbacks=(clip, scale))
    assert [op.type for op in net.Proto().op[-3:]] == ["FCGradient", "Clip", "Scale"]
    assert found["w"] == "w_grad"


@pytest.mark.parametrize("callbacks", [print, [print, "clip"], [None], None, 3])
def test_callbacks_that_are_no_list_of_functions(net, callbacks):
    before = net.Proto().SerializeToString()
    with pytest.raises(TypeError, match="callbacks"):
        net.AddGradientOperators(["loss"], callbacks=callbacks)
    assert net.Proto().SerializeToString() == before


def test_a_callback_that_raises_leaves_the_net_as_it_was(net):
    before = net.Proto().SerializeToString()

    def fail(where, op):
        where.Relu("fresh", "fresh2")
        if op.type == "FCGradient":
            raise KeyError("stop")

    with pytest.raises(KeyError):
        net.AddGradientOperators(["loss"], callbacks=[fail])
    assert net.Proto().SerializeToString() == before
    assert not net.BlobIsDefined("fresh2") and net.AddGradientOperators(["loss"])["w"] == "w_grad"


# -- operators made up for these tests ----------------------------------------------------------


@dataclass(frozen=True)
class Holding(Operator):
    """Runs a net; its gradient runs the net's gradient."""

    signature = "X -> Y"
    copy_arguments = False
    net: NetDef | None = None

    def gradient(self, g):
        backward = g.differentiate(self.net, {"inner_y": g.d_output("Y")})
        assert backward.gradients["inner_x"] == "inner_x_grad"
        net = _writing(g.d_input("X"))
        return [make_op("HoldingGradient", [g.input("X"), g.d_output("Y")], [g.d_input("X")], net=net)]


def _writing(blob):
    net = NetDef(name="inner", external_output=[blob])
    net.op.add(type="Scale", input=["inner_x"], output=[blob])
    net.op.add(type="Relu", input=[blob], output=[blob])
    return net


@dataclass(frozen=True)
class Dropping(Operator):
    """Gives the gradient of A only."""

    signature = "A, B -> Y"

    def gradient(self, g):
        g.set_d_input("A", g.d_output("Y"))
        g.set_d_input("B", EMPTY_GRADIENT)
        return []


@dataclass(frozen=True)
class Reading(Operator):
    """Its gradient reads a blob that is not there."""

    signature = "X -> Y"

    def gradient(self, g):
        return [make_op("Sum", ["elsewhere", g.d_output("Y")], [g.d_input("X")])]


@dataclass(frozen=True)
class Rows(Operator):
    """A lookup whose sparse gradient is computed, indices and values."""

    signature = "T, I -> Y"

    def gradient(self, g):
        table = g.input("T")
        g.set_d_input_sparse("T", table + "_grad_indices", table + "_grad_values")
        inputs = [g.input("I"), g.d_output("Y")]
        return [make_op("RowsGradient", inputs, [table + "_grad_indices", table + "_grad_values"])]


@pytest.fixture
def made_up(own_operators):
    for cls in (Holding, Dropping, Reading, Rows):
        own_operators.register(cls)
    return Net("n")


def test_dropped_gradients_are_no_gradients(made_up):
    made_up.Dropping(["a", "b"], "y")
    made_up.Sum(["y", "b"], "z")
    found = made_up.AddGradientOperators(["z"])
    assert found["a"] == "z_autogen_grad" and found["b"] == "z_autogen_grad"  # by Sum alone: nothing to add
    assert made_up.op_len == 3
    other = Net("n")
    other.Dropping(["a", "b"], "y")
    assert "b" not in other.AddGradientOperators(["y"])


def test_a_gradient_that_reads_an_unknown_blob(made_up):
    made_up.Reading("x", "y")
    assert "gradient operator Sum reads blob 'elsewhere', which is neither a blob of the net" in refused(made_up, ["y"])


def test_computed_sparse_gradients_are_kept_apart(made_up):
    made_up.Sum([made_up.Rows(["t", "i"], "e"), made_up.Rows(["t", "j"], "f")], "s")
    made_up.AddGradientOperators(["s"])
    indices, values = (f"_t_grad_{part}_autosplit_" for part in ("indices", "values"))
    assert [text(op) for op in made_up.Proto().op[4:]] == [
        f"RowsGradient j s_autogen_grad -> {indices}0 {values}0",
        f"RowsGradient i s_autogen_grad -> {indices}1 {values}1",
        f"Concat {indices}0 {indices}1 -> t_grad_indices_concat t_grad_indices_concat_split",
        f"Concat {values}0 {values}1 -> t_grad_values_concat t_grad_values_concat_split",
    ]


def _inner() -> NetDef:
    inner = Net("inner")
    inner.Scale("inner_x", "inner_y", scale=2.0)
    return inner.Proto()


def test_operators_that_hold_nets(made_up):
    made_up.Holding("x", "y", net=_inner())
    made_up.Holding("x", "z", net=_inner())
    calls = []
    made_up.AddGradientOperators(["y", "z"], callbacks=[lambda net, op: calls.append(op.type)])
    assert calls == ["ConstantFill", "ConstantFill", "HoldingGradient", "HoldingGradient", "Sum"]  # none of inner ones
    first, second, total = made_up.Proto().op[4:]
    assert text(total) == "Sum x_grad _x_grad_autosplit_0 -> x_grad"
    assert [text(op) for op in first.arg[0].n.op] == ["Scale inner_x -> x_grad", "Relu x_grad -> x_grad"]
    renamed = second.arg[0].n
    assert [text(op) for op in renamed.op] == [
        "Scale inner_x -> _x_grad_autosplit_0",
        "Relu _x_grad_autosplit_0 -> _x_grad_autosplit_0",
    ]
    assert renamed.external_output == ["_x_grad_autosplit_0"]


def test_errors_inside_held_nets_name_them(made_up):
    inner = NetDef(name="inner")
    inner.op.add(type="Conditional", input=["c", "inner_x", "inner_x"], output=["inner_y"])
    made_up.Holding("x", "y", net=inner)
    message = refused(made_up, ["y"])
    assert "operator 0 Holding -> ['y']" in message and "net 'inner': operator 0 Conditional" in message


def test_a_held_net_that_stays_as_it_is():
    net = NetDef(name="held", type="dag")
    net.op.add(type="Scale", input=["x"], output=["y"]).arg.append(make_argument("scale", 2.0))
    net.external_input.append("x")
    result = differentiate(net, ["y"], name="back")
    assert (result.net.name, result.net.type, len(net.op)) == ("back", "dag", 1)
    assert [op.type for op in result.net.op] == ["ConstantFill", "Scale"] and result.net.external_output == ["x_grad"]


@pytest.mark.parametrize("nested", [False, True])
def test_a_local_blob_with_the_name_of_a_gradient(nested):
    """The gradient of the second branch would overwrite what that of the first one reads."""
    net = Net("branches")
    inside = Net("inside") if nested else net
    for number, (source, local) in enumerate([("x", "x_grad"), ("o0", "local")]):
        branch, other = Net("branch"), Net("other")
        branch.Tanh(source, local)
        branch.Mul([local, "x"], f"o{number}")
        other.Copy("x", f"o{number}")
        inside.If(["c", "x", source], [f"o{number}"], then_net=branch.Proto(), else_net=other.Proto())
    if nested:
        other = Net("other")
        other.Copy("x", "o1")
        net.If(["c", "x"], ["o1"], then_net=inside.Proto(), else_net=other.Proto())
    loss = net.SumElements("o1", "loss")
    with pytest.raises(GradientError, match="'x_grad' would overwrite a local blob of a branch or loop"):
        net.AddGradientOperators([loss])
