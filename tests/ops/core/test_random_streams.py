"""Random streams: the numbers that an operator draws depend on its argument, not on names."""

from types import SimpleNamespace

import numpy as np
import pytest

from netbuilder import ModelHelper, Parallelize_CPU, Workspace, brew, parallel
from netbuilder.graph import CreateOperator, NameScope, Net, ScopedName
from netbuilder.graph.gradients import differentiate
from netbuilder.graph.net_copy import copy_net, prefixed
from netbuilder.ops.core.operator import arity
from netbuilder.ops.core.random_streams import (
    RANDOM_ARGUMENTS,
    RANDOM_FIRST_SAMPLE,
    RANDOM_REPLICA,
    RANDOM_STREAM,
    draws,
    stream_of,
)
from netbuilder.ops.core.registry import find, operator_types
from netbuilder.passes import Devices
from netbuilder.passes.replicate import draw_as
from netbuilder.passes.share_memory import share_memory
from netbuilder.proto import PROTO_CPU, ArgumentError, NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import arguments, make_op
from netbuilder.runtime.plan.run_context import KernelContext
from parallel_models import no_input
from switches import single

DRAWING = [name for name in operator_types() if find(name).draws]


def test_which_operators_draw():
    assert len(DRAWING) == 18 and {"Dropout", "XavierFill", "WeightedSample", "ImageInput"} < set(DRAWING)
    assert all(find(name).stateful or name == "CollectTensor" for name in DRAWING)


def drawn(op, **more):
    context = KernelContext(op, clock=SimpleNamespace(iteration=3), seed=5, **more)
    inner = context.inner(op, 2)
    numbers = [each.uniform((4, 2), per_sample=True) for each in (context, inner)]
    return np.concatenate([*numbers, context.normal((4, 2)), np.reshape(context.position((3,)), (1, 2)) % 2**32])


@pytest.mark.parametrize("op_type", DRAWING)
def test_copies_under_other_names_draw_the_same_numbers(op_type):
    cls = find(op_type)
    inputs, outputs = (
        [f"{what}{i}" for i in range(max(arity(names)[0], 1 if names is cls.outputs else 0))]
        for what, names in (("x", cls.inputs), ("y", cls.outputs))
    )
    op = make_op(op_type, inputs, outputs, random_stream="y0")
    net = NetDef(op=[op])
    renamed = copy_net(net, names={name: f"other/{name}" for name in (*inputs, *outputs)}).op[0]
    assert renamed.output[0] == "other/y0"
    np.testing.assert_array_equal(drawn(op), drawn(renamed))
    for copy in (op, renamed):
        del copy.arg[:]
    assert (drawn(op) != drawn(renamed)).any()


ARRAYS = {
    "Dropout": ([np.ones((8, 5), np.float32)], {}),
    "SparseDropoutWithReplacement": ([np.arange(40), np.full(8, 5, np.int32)], {"ratio": 0.5}),
    "SparseItemwiseDropoutWithReplacement": ([np.arange(40), np.full(8, 5, np.int32)], {"ratio": 0.5}),
    "WeightedSample": ([np.ones((8, 50), np.float32)], {}),
    "WeightedMultiSampling": ([np.linspace(0, 1, 50, dtype=np.float32)], {"num_samples": 20}),
    "FloatToFusedRandRowwiseQuantized": ([np.linspace(0, 1, 80, dtype=np.float32).reshape(2, 40)], {"bitwidth": 2}),
    "UniqueUniformFill": ([], {"shape": [9], "min": 0, "max": 90}),
    "UniformIntFill": ([], {"shape": [9], "min": 0, "max": 90}),
} | {
    name: ([], {"shape": [4, 5]})
    for name in ("XavierFill", "MSRAFill", "GaussianFill", "UniformFill", "Float16UniformFill")
}  # fmt: skip


@pytest.mark.parametrize("op_type", ARRAYS)
def test_kernels_draw_by_the_stream(op_type):
    arrays, args = ARRAYS[op_type]
    workspace = Workspace(seed=2)
    for i, array in enumerate(arrays):
        workspace.feed(f"x{i}", array)
    least = arity(find(op_type).outputs)[0]
    net = Net("net")
    names = [f"x{i}" for i in range(len(arrays))]
    for scope in ("a", "b", "c"):
        more = {"random_stream": "a/y0"} if scope == "b" else {}
        net.Proto().op.append(CreateOperator(op_type, names, [f"{scope}/y{i}" for i in range(least)], **args, **more))
    net.Proto().external_input.extend(names)
    workspace.run_net_once(net)
    first, same, other = (workspace.fetch(f"{scope}/y0") for scope in ("a", "b", "c"))
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)


def test_builders_write_the_name_of_the_first_output():
    net = Net("net")
    with NameScope("scope"):
        net.Dropout("x", ["y", "mask"], ratio=0.5)
        net.Relu("y", "z")
    dropout, relu = net.Proto().op
    assert arguments(dropout)[RANDOM_STREAM] == b"scope/y" and not RANDOM_ARGUMENTS & arguments(relu).keys()
    assert stream_of(CreateOperator("Dropout", "x", ["y", "mask"], random_stream="mine")) == "mine"
    with pytest.raises(ArgumentError, match="Relu: unknown argument 'random_stream'"):
        CreateOperator("Relu", "x", "y", random_stream="mine")


@pytest.mark.parametrize(
    "name, value",
    [(RANDOM_STREAM, 5), (RANDOM_REPLICA, -1), (RANDOM_REPLICA, "one"), (RANDOM_FIRST_SAMPLE, -1)],
)
def test_wrong_arguments_are_refused(name, value):
    workspace = Workspace()
    workspace.feed("x", np.ones((2, 3), np.float32))
    op = make_op("Dropout", ["x"], ["y", "mask"], **{name: value})
    with pytest.raises((NetError, RuntimeError), match=f"Dropout: argument '{name}' must be"):
        workspace.run_net_once(NetDef(name="net", op=[op], external_input=["x"]))


def test_an_operator_that_does_not_say_that_it_draws_is_named():
    with pytest.raises(NetError, match="'Relu' draws random numbers, but its class does not declare it; set draws"):
        KernelContext(make_op("Relu", ["x"], ["y"])).uniform((2,))


def dropped(net, name, seed=3):
    workspace = Workspace(seed=seed)
    for blob in net.external_input:
        workspace.feed(blob, np.ones((6, 50), np.float32))
    workspace.create_net(net)
    for _ in range(2):
        workspace.run_net(net.name)
    return workspace.fetch(name)


def test_passes_keep_the_stream():
    net = Net("net")
    x = net.AddExternalInput("x")
    for i in range(4):
        x, _ = net.Dropout(x, [f"y{i}", f"mask{i}"], ratio=0.5)
    net.Copy("mask3", "last")
    proto = net.Proto()
    want = dropped(proto, "last")
    np.testing.assert_array_equal(dropped(prefixed(proto, "scope"), "scope/last"), want)
    np.testing.assert_array_equal(dropped(copy_net(proto, names={"y3": "z", "mask3": "m"}), "last"), want)
    shared, names = share_memory(proto, lambda name: True, keep=["last"])
    assert {"y3", "mask3"} <= names.keys()
    np.testing.assert_array_equal(dropped(shared, "last"), want)
    assert (dropped(proto, "last", seed=4) != want).any()


def test_gradient_operators_do_not_get_it():
    net = NetDef(name="net", op=[CreateOperator("Dropout", "x", ["y", "mask"], ratio=0.5)], external_input=["x"])
    gradient = differentiate(net, {"y": "y_grad"}).net.op[-1]
    assert gradient.type == "DropoutGrad" and arguments(gradient).keys() == {"ratio"}


def branching(model, loss_scale):
    """Dropout in a net that an operator holds, and one outside."""
    held = NetDef(name="then", external_input=[ScopedName("data")])
    held.op.append(CreateOperator("Dropout", "data", ["y", "mask"], ratio=0.5))
    held.external_output.extend(held.op[0].output)
    yes = model.net.ConstantFill([], "yes", shape=[], value=True, dtype=5)
    model.net.If([yes, "data"], ["y", "mask"], then_net=held)
    brew.dropout(model, "y", "z", ratio=0.5, is_test=False)
    return []


def masks_of(devices, change=lambda net: None):
    model = ModelHelper("net", init_params=False)
    record = Parallelize_CPU(model, no_input, branching, devices=devices)
    net = NetDef.FromString(model.net.Proto().SerializeToString())
    change(net)
    workspace = Workspace(seed=1)
    for scope in record.devices.scopes:
        workspace.feed(scope + "data", np.ones((8 // len(devices), 50), np.float32))
    workspace.create_net(net)
    for _ in range(2):
        workspace.run_net(net.name)
    return [np.concatenate([workspace.fetch(s + name) for s in record.devices.scopes]) for name in ("mask", "_z_mask")]


@pytest.mark.filterwarnings("ignore:model .* is in training mode")
@pytest.mark.parametrize("devices", [[0, 1], [3, 1, 0, 7]])
def test_masks_agree_over_device_counts_in_held_nets_too(devices):
    for one, other in zip(masks_of([0]), masks_of(devices)):
        np.testing.assert_array_equal(one, other)
        assert (one[:4] != one[4:]).any()


@pytest.mark.filterwarnings("ignore:model .* is in training mode")
def test_stored_nets_without_the_argument_draw_what_they_drew():
    def as_before(net):
        for op in net.op:
            kept = [argument for argument in op.arg if argument.name not in RANDOM_ARGUMENTS]
            del op.arg[:]
            op.arg.extend(kept)

    np.testing.assert_array_equal(masks_of([0, 1])[1], masks_of([0, 1], as_before)[1])


def test_a_net_moved_to_a_replica_draws_for_it():
    net = Net("net")
    net.AddExternalInput("x")
    net.Dropout("x", ["y", "mask"], ratio=0.5)
    moved = [parallel.ConvertNetForDevice(net, option).Proto() for option in Devices(PROTO_CPU, (0, 1)).options]
    found = [dropped(proto, f"cpu_{i}/mask") for i, proto in enumerate(moved)]
    np.testing.assert_array_equal(found[0], dropped(net.Proto(), "mask"))
    assert (found[0] != found[1]).any()


def test_what_a_builder_wrote_for_all_is_a_replicas_then():
    op = OperatorDef()
    op.CopyFrom(CreateOperator("Dropout", "cpu_1/x", ["rnn/cpu_1/y", "rnn/cpu_1/mask"]))
    draw_as(op, "cpu_1/", 6)
    assert draws(op) and (arguments(op)[RANDOM_STREAM], arguments(op)[RANDOM_REPLICA]) == (b"rnn/y", 6)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("without", [(), single("bound_kernels")])
@pytest.mark.parametrize("steps", [1, 3])
def test_replicas_of_different_sizes_draw_what_one_draws(axis, without, steps):
    """Masks of 3, 2 and 2 of 7 samples."""
    x = np.ones((7, steps, 5) if axis == 0 else (steps, 7, 5), np.float32)

    def mask(part, first):
        workspace = Workspace(seed=3, without=without)
        workspace.feed("x", part)
        op = make_op("Dropout", ["x"], ["y", "mask"], random_stream="s", sample_axis=axis)
        if first is not None:
            draw_as(op, "", 9, first)
        workspace.run_net_once(NetDef(name="net", op=[op]))
        return workspace.fetch("mask")

    parts = [mask(part, first) for part, first in zip(np.split(x, [3, 5], axis), (0, 3, 5))]
    np.testing.assert_array_equal(np.concatenate(parts, axis), mask(x, None))
