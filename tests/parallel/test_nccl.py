"""Data parallelism over GPUs that exchange gradients by NCCL."""

import re

import numpy as np
import pytest

import toy_models
from netbuilder import parallel
from netbuilder.engines import nccl
from netbuilder.model import Initializer, ModelHelper, brew
from netbuilder.ops.core.instructions import Role
from netbuilder.proto import PROTO_CUDA, DeviceError, NetDef
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan import joined_exchanges
from on_gpu import gpus
from parallel_models import OPTIMIZERS, Task, distance, no_input
from switches import single
from toy_models import convnet, looked_up, mlp, normalized, scaled_loss

IMAGES = (8, 3, 8, 8)
TASKS = {
    "mlp": Task(mlp),
    "convnet": Task(convnet, IMAGES, steps=3),
    "normalized": Task(normalized, IMAGES, steps=3),
    "many normalizations": Task(toy_models.chain(3, 4), IMAGES, steps=3),
    "sparse": Task(looked_up),
    "micro-batches": Task(mlp, options={"accumulate_steps": 2}),
}


def trained(name, count, *, steps=None, without=(), dtype=None, **options):
    """Train over GPUs; return the parameters of each replica, the model and the workspace."""
    task = TASKS[name]
    model, optimizer = ModelHelper("net"), OPTIMIZERS["sgd" if name == "sparse" else "momentum"]
    options = {**task.options, **options, "devices": list(range(count))}
    record = parallel.Parallelize_GPU(model, no_input, task.forward, optimizer_builder_fun=optimizer, **options)
    workspace = Workspace(threads=4, without=without)
    for number, batch in enumerate(task.batches()):
        for blob, whole in batch.items():
            for part, name, place in zip(np.split(whole, count), record.devices.copies(blob), record.devices.options):
                workspace.feed(name, part, place)
        if number == 0:
            parallel.RunInitNet(model, workspace=workspace)
        parallel.RunNet(model, steps or 1, workspace=workspace)
    names = (*record.parameters, *record.computed)
    held = [[workspace.fetch(record.blobs(each)[replica]) for each in names] for replica in range(count)]
    return held, model, workspace


def plan_steps(workspace, model):
    plans = workspace.net(model.net.Name()).plans
    return [step for plan in plans for step in plan.steps]


@pytest.mark.one_in(8)
@pytest.mark.parametrize("net_type", ["simple", "dag"])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", TASKS)
def test_nccl_trains_as_sums_and_copies_do(four_gpus, name, count, net_type):
    want, *_ = trained(name, count, net_type=net_type)
    got, *_ = trained(name, count, net_type=net_type, use_nccl=True)
    for replica in got:
        assert all(np.array_equal(a, b) for a, b in zip(replica, got[0]))
        if count == 2:  # the same two numbers are added
            assert all(np.array_equal(a, b) for a, b in zip(replica, want[0]))
        assert distance(replica, want[0]) < 1e-6


@pytest.mark.emulated
@pytest.mark.parametrize("without", [single("joined_exchanges"), "all"])
def test_groups_are_fewer_than_calls(without):
    counts = []
    for options in ({}, {"without": without}):
        with gpus(2):
            trained("convnet", 2, use_nccl=True, **options)
            counts.append(len(nccl.nccl().groups))
    assert counts[1] > counts[0] or without == "all"  # whose plain kernels need no NCCL


@pytest.mark.emulated
def test_communicators_are_made_once_in_many_steps(monkeypatch):
    """Each gradient has a call of its own, and so have the copies of running statistics."""
    monkeypatch.setattr(joined_exchanges, "GROUP_BYTES", 1)
    with gpus(2):
        _, model, workspace = trained("normalized", 2, steps=4, use_nccl=True)
        assert len([step for step in plan_steps(workspace, model) if step.what == "nccl"]) > 5
        assert nccl.nccl().created == [(0, 1)]


@pytest.mark.emulated
def test_running_statistics_and_gradients_are_one_call_each_for_a_gpu():
    """Whatever their number: 6 running statistics and 14 gradients; ResNet-50 has 106 and 161."""
    with gpus(2):
        _, model, workspace = trained("many normalizations", 2, use_nccl=True)
        assert sum(op.type == "NCCLBroadcast" for op in model.net.Proto().op) == 6
        nccl.nccl().groups.clear()
        parallel.RunNet(model, 1, workspace=workspace)
        calls = [sorted(call.what for call in group) for group in nccl.nccl().groups]
    assert sorted(calls) == [["allReduce"] * 2, ["broadcast"] * 2]


def exchanged(workspace, model):
    """Return the gradients of the groups of one step, in the order in which they begin."""
    return [
        [name for part in step.node.parts for name in part.outputs[:1]]
        for step in plan_steps(workspace, model)
        if step.node.first.op_def.type == "NCCLAllreduce" and step.what == "nccl"
    ]


@pytest.mark.emulated
def test_gradients_are_grouped_in_the_order_in_which_they_are_ready(monkeypatch):
    with gpus(2):
        _, model, workspace = trained("mlp", 2, use_nccl=True)
        assert exchanged(workspace, model) == [["gpu_0/fc2_b_grad", "gpu_0/fc2_w_grad", "gpu_0/fc1_b_grad",
                                                "gpu_0/fc1_w_grad"]]  # fmt: skip
    monkeypatch.setattr(joined_exchanges, "GROUP_BYTES", 1)
    with gpus(2):
        _, model, workspace = trained("mlp", 2, use_nccl=True)
        groups = exchanged(workspace, model)
        assert [name for (name,) in groups] == ["gpu_0/fc2_b_grad", "gpu_0/fc2_w_grad", "gpu_0/fc1_b_grad",
                                                "gpu_0/fc1_w_grad"]  # fmt: skip


@pytest.mark.emulated
@pytest.mark.parametrize("net_type", ["simple", "dag"])
def test_the_backward_pass_goes_on_during_the_exchange(net_type, monkeypatch):
    monkeypatch.setattr(joined_exchanges, "GROUP_BYTES", 1)
    with gpus(2):
        _, model, workspace = trained("convnet", 2, use_nccl=True, net_type=net_type)
        steps = plan_steps(workspace, model)
        ours = [(i, step) for i, step in enumerate(steps) if step.node.first.op_def.type == "NCCLAllreduce"]
        begins = [i for i, step in ours if step.what == "nccl"]
        waits = [i for i, step in ours if step.what == "wait"]
        gradients = [i for i, step in enumerate(steps) if "Gradient" in step.node.first.op_def.type]
        assert min(begins) < max(gradients) < min(waits), "the first begins early, and nothing waits before the updates"
        assert len(begins) == len(waits) > 2


@pytest.mark.emulated
def test_the_operators_have_the_order_of_readiness():
    """The parameter that is made first is used last, so that its gradient is the first to be ready."""

    def forward(model, loss_scale):
        late = [model.create_param(f"late_{each}", shape, Initializer("XavierFill")) for each, shape in
                (("w", [4, 8]), ("b", [4]))]  # fmt: skip
        hidden = brew.fc(model, "data", "fc", 6, 8)
        return scaled_loss(model, model.net.FC([hidden, *late], "late"), loss_scale)

    model = ModelHelper("net")
    with gpus(2):
        parallel.Parallelize_GPU(
            model, no_input, forward, optimizer_builder_fun=OPTIMIZERS["sgd"], devices=[0, 1], use_nccl=True
        )
    made = [op.input[0] for op in model.net.Proto().op if op.type == "NCCLAllreduce"]
    assert {*made[:2]} == {"gpu_0/late_w_grad", "gpu_0/late_b_grad"}


@pytest.mark.emulated
@pytest.mark.parametrize("net_type", ["simple", "dag"])
def test_an_exchange_is_in_no_graph(net_type):
    """What a GPU computes before it is in one."""
    with gpus(2) as machine:
        _, model, workspace = trained("mlp", 2, use_nccl=True, net_type=net_type)
        (plan,) = workspace.net(model.net.Name()).plan_ahead()
        assert machine.counts["replays"] >= 2
    found = [
        (step.node.first.op_def.type, step.location, each.graph)
        for step, each in zip(plan.steps, plan.captured(), strict=True)
    ]
    assert {graph for op_type, _, graph in found if op_type == "NCCLAllreduce"} == {-1}
    graphs = {(location, graph) for op_type, location, graph in found if op_type in ("FC", "FCGradient")}
    assert -1 not in graphs and len(graphs) == 2


@pytest.mark.emulated
def test_exchanges_have_their_role():
    with gpus(2):
        _, model, workspace = trained("mlp", 2, use_nccl=True)
        assert {step.node.role for step in plan_steps(workspace, model) if step.what == "nccl"} == {Role.EXCHANGE}


@pytest.mark.emulated
def test_missing_nccl_is_an_error_when_the_net_is_built(monkeypatch):
    with gpus(2):
        nccl.nccl().available = False
        with pytest.raises(
            DeviceError, match=re.escape("NCCL is not installed") + ".*nvidia-nccl-cu12.*use_nccl=False"
        ):
            trained("mlp", 2, use_nccl=True)
        trained("mlp", 1, use_nccl=True)  # exchanges nothing
        trained("mlp", 2)


@pytest.mark.emulated
def test_missing_nccl_is_an_error_of_the_operator_that_needs_it():
    with gpus(2):
        nccl.nccl().available = False
        workspace, names = Workspace(), ["gpu_0/x", "gpu_1/x"]
        for number, name in enumerate(names):
            workspace.feed(name, np.ones(2, np.float32), make_device_option(PROTO_CUDA, number))
        place = make_device_option(PROTO_CUDA, 0)
        with pytest.raises(DeviceError, match="gpu_0/x.*NCCL is not installed"):
            workspace.run_operator_once(make_op("NCCLAllreduce", names, names, device_option=place))


@pytest.mark.emulated
@pytest.mark.parametrize("places", [(0, 0), (0, None), (1, 1)])
@pytest.mark.filterwarnings("ignore:.*GPU . computes it, not NCCL")
def test_replicas_that_are_not_on_gpus_of_their_own_exchange_by_copies(places):
    with gpus(2):
        workspace, names = Workspace(), ["a", "b"]
        for number, (name, place) in enumerate(zip(names, places)):
            option = None if place is None else make_device_option(PROTO_CUDA, place)
            workspace.feed(name, np.float32([number, 5]), option)
        here = make_device_option(PROTO_CUDA, 0)
        workspace.run_operator_once(make_op("NCCLAllreduce", names, names, device_option=here))
        workspace.run_operator_once(make_op("NCCLAllGather", names, ["c", "d"], device_option=here))
        assert all(workspace.fetch(name).tolist() == [1, 10] for name in names)
        assert workspace.fetch("d").tolist() == [[1, 10], [1, 10]]
        assert nccl.nccl().groups == []


@pytest.mark.emulated
@pytest.mark.parametrize("dtype", ["int16", "bool", "float16", "int64"])
@pytest.mark.filterwarnings("ignore:.*GPU . computes it, not NCCL")
def test_types_that_nccl_adds_and_others(dtype):
    with gpus(2):
        workspace, names = Workspace(), ["gpu_0/x", "gpu_1/x"]
        for number, name in enumerate(names):
            value = (np.arange(3) + number).astype(dtype)
            workspace.feed(name, value, make_device_option(PROTO_CUDA, number))
        place = make_device_option(PROTO_CUDA, 0)
        workspace.run_operator_once(make_op("NCCLAllreduce", names, names, device_option=place))
        want = (np.arange(3).astype(dtype) + (np.arange(3) + 1).astype(dtype)).tolist()
        assert all(workspace.fetch(name).tolist() == want for name in names)
        assert bool(nccl.nccl().groups) == (dtype in ("float16", "int64"))


def chain(*ops, control=()):
    """Run operators over two GPUs; return the calls of each group."""
    net = NetDef(name="net", op=ops)
    for index, blob in control:
        net.op[index].control_input.append(blob)
    with gpus(2):
        workspace = Workspace()
        for number in range(2):
            for name in "ab":
                value = np.float32([number + 1, -5 if name == "a" else 7])
                workspace.feed(f"gpu_{number}/{name}", value, make_device_option(PROTO_CUDA, number))
        net.external_input.extend(f"gpu_{number}/{name}" for number in range(2) for name in "ab")
        workspace.run_net_once(net)
        return [len(group) for group in nccl.nccl().groups]


def on(number, op_type, inputs, outputs):
    return make_op(op_type, inputs, outputs, device_option=make_device_option(PROTO_CUDA, number))


def reduced(name):
    blobs = [f"gpu_{number}/{name}" for number in range(2)]
    return on(0, "NCCLAllreduce", blobs, blobs)


@pytest.mark.emulated
def test_a_group_ends_before_what_reads_or_overwrites_its_blobs():
    relu = [on(number, "Relu", [f"gpu_{number}/a"], [f"gpu_{number}/b"]) for number in range(2)]
    assert chain(reduced("a"), reduced("b")) == [4]
    assert chain(reduced("a"), *relu, reduced("b")) == [2, 2]
    copies = [on(number, "Copy", [f"gpu_{number}/b"], [f"gpu_{number}/a"]) for number in range(2)]
    assert chain(reduced("a"), *copies, reduced("b"), reduced("a")) == [2, 4]


@pytest.mark.emulated
def test_a_group_ends_before_what_waits_for_it_by_a_control_input():
    relu = [on(number, "Relu", [f"gpu_{number}/b"], [f"gpu_{number}/b"]) for number in range(2)]
    assert chain(reduced("a"), *relu, reduced("b"), control=[(1, "gpu_0/a")]) == [2, 2]
    assert chain(reduced("a"), *relu, reduced("b"), control=[(3, "gpu_0/a")]) == [4]
