"""CUDA graphs of plans: what they compute, when they are captured, what they refuse."""

import gc
import os
import threading
import traceback
import warnings
from dataclasses import replace

import numpy as np
import pytest

from cudnn_double import cudnn_double
from emulated_gpu.machine import HOST
from netbuilder import parallel
from netbuilder.engines.cuda.capture import streams_of
from netbuilder.engines.cuda.kernel import Kernel
from netbuilder.engines.engine import find_engine
from netbuilder.engines.gpu import StreamRole, gpu
from netbuilder.graph.net_names import reset_names
from netbuilder.model import ModelHelper
from netbuilder.ops.core import registry
from netbuilder.ops.core.extensions import SplitKernel
from netbuilder.optimizers import reset_optimizer_instance_count
from netbuilder.proto import PROTO_CUDA, DeviceError, NetDef, OperatorError, ShapeError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.input.prefetch import Prefetch
from on_gpu import gpus
from parallel_models import OPTIMIZERS, Task, no_input
from switches import single
from toy_models import chain, convnet, mlp

IMAGES = (8, 3, 8, 8)
TASKS = {"mlp": Task(mlp, steps=6), "convnet": Task(convnet, IMAGES, steps=6)}
COMBINED = Task(chain(3, 4), IMAGES, steps=6, options={"combine_spatial_bn": True})
X = np.float32([[1, -2, 3], [-4, 5, -6]])


def on(number, *args, **kwargs):
    return make_op(*args, device_option=make_device_option(PROTO_CUDA, number), **kwargs)


def net(*ops, type="simple"):
    return NetDef(name="net", type=type, num_workers=8, op=ops)


def trained(task, count, *, without=(), net_type="dag", use_nccl=False, threads=4):
    """Train on GPUs; return the values of all blobs, and what became of the steps of the plan."""
    reset_names()
    reset_optimizer_instance_count()
    model = ModelHelper("net")
    record = parallel.Parallelize_GPU(
        model,
        no_input,
        task.forward,
        optimizer_builder_fun=OPTIMIZERS["momentum"],
        devices=list(range(count)),
        net_type=net_type,
        use_nccl=use_nccl,
        **task.options,
    )
    workspace = Workspace(threads=threads, without=without)
    first = True
    for batch in task.batches():
        for blobs, whole in batch.items():
            parts = np.split(whole, count)
            for blob, part, option in zip(record.devices.copies(blobs), parts, record.devices.options):
                workspace.feed(blob, part, option)
        if first:
            parallel.RunInitNet(model, workspace=workspace)
        first = False
        parallel.RunNet(model, workspace=workspace)
    tensors = [name for name in workspace.blobs() if workspace.get(name).spec is not None]
    values = {name: workspace.fetch(name) for name in tensors}
    (plan,) = workspace.net(model.net.Name()).plan_ahead()
    return values, plan.captured()


@pytest.mark.one_in(3)
@pytest.mark.emulated
@pytest.mark.parametrize("net_type", ["simple", "dag"])
@pytest.mark.parametrize("name, count", [("mlp", 1), ("mlp", 4), ("convnet", 2)])
def test_replayed_steps_equal_eager_ones(name, count, net_type):
    """To the bit, for all blobs that can be fetched: graphs wait for what they need, over one GPU and several."""
    with gpus(count) as machine, cudnn_double():
        eager, _ = trained(TASKS[name], count, without=single("cuda_graphs"), net_type=net_type)
        assert not machine.counts["replays"]
    with gpus(count) as machine, cudnn_double():
        replayed, captured = trained(TASKS[name], count, net_type=net_type)
        assert machine.counts["replays"] >= 4 * count
        assert {each.graph for each in captured} >= set(range(count))
    assert eager.keys() == replayed.keys()
    for blob in eager:
        np.testing.assert_array_equal(eager[blob], replayed[blob], err_msg=blob)


@pytest.mark.emulated
@pytest.mark.parametrize("net_type", ["simple", "dag"])
def test_collectives_of_nccl_are_in_no_graph(net_type):
    """What is computed before them and between them is."""
    with gpus(2) as machine, cudnn_double():
        _, captured = trained(TASKS["convnet"], 2, net_type=net_type, use_nccl=True)
        assert machine.counts["replays"] >= 8
    assert len({each.graph for each in captured}) > 2
    assert any("nccl" in each.why.lower() for each in captured), {each.why for each in captured}


@pytest.mark.slow
@pytest.mark.emulated
def test_one_thread_for_several_gpus_has_the_graphs_of_a_thread_each():
    """Combined normalization lets the operators of the GPUs take turns, and sums are exchanged between them."""
    found = {}
    for threads in (1, 4):
        with gpus(2) as machine, cudnn_double():
            _, captured = trained(COMBINED, 2, use_nccl=True, threads=threads)
            graphs = [each.graph for each in captured]
            found[threads] = [sum(graph >= 0 for graph in graphs), len(set(graphs)), machine.counts["replays"]]
    assert found[1] == found[4] and found[1][0] > 30 and found[1][1] > 12


@pytest.mark.gpu
def test_replayed_steps_equal_eager_ones_with_our_kernels():
    """On a GPU, which may be emulated: a state that each step reads and writes."""
    ops = [
        on(0, "Sub", ["w", "x"], ["d"]),
        on(0, "Tanh", ["d"], ["g"]),
        on(0, "MomentumSGDUpdate", ["g", "m", "rate", "w"], ["g", "m", "w"], momentum=0.9),
    ]
    found = []
    for without in ([], single("cuda_graphs")):
        workspace = Workspace(threads=1)
        for name, value in {"x": X, "w": np.zeros_like(X), "m": np.zeros_like(X), "rate": np.float32([0.1])}.items():
            workspace.feed(name, value, make_device_option(PROTO_CUDA, 0))
        workspace.create_net(net(*ops), without=[*without, "fusion"])
        workspace.run_net("net", 8)
        found.append([workspace.fetch(name) for name in "wmg"])
        assert [graph for _, graph in captured(workspace)] == [-1 if without else 0] * 3
    np.testing.assert_array_equal(*found)


@pytest.mark.gpu
def test_batches_in_turns_with_our_kernels():
    workspace = Workspace(threads=1)
    device = [make_device_option(PROTO_CUDA, 0)]
    ops = [on(0, "Scale", ["x"], ["a"], scale=2.0), on(0, "Relu", ["a"], ["b"]), on(0, "Sum", ["b", "x"], ["y"])]
    batches = ({"x": X + k} for k in range(12))
    with Prefetch(workspace, batches, blobs={"x": ["x"]}, devices=device, dtypes={"x": X.dtype}) as input:
        for k, _ in enumerate(input):
            if k == 0:
                workspace.create_net(net(*ops), without="fusion")
            workspace.run_net("net")
            np.testing.assert_array_equal(workspace.fetch("y"), np.maximum(2 * (X + k), 0) + X + k)
    assert [graph for _, graph in captured(workspace)] == [0, 0, 0]


# Numbers that the host computes for each run.

DROPOUT_AND_ADAM = [
    make_op("Iter", ["count"], ["count"]),
    on(0, "LearningRate", ["count"], ["rate"], base_lr=-0.1, policy="inv", gamma=0.5, power=1.0),
    on(0, "Dropout", ["x"], ["a", "mask_a"], ratio=0.4),
    on(0, "Sub", ["w", "a"], ["d"]),
    on(0, "Dropout", ["d"], ["g", "mask"], ratio=0.3),
    on(0, "Adam", ["w", "m1", "m2", "g", "rate", "count"], ["w", "m1", "m2"], beta1=0.8, beta2=0.9),
]


def with_adam(**options):
    """Return a workspace with that net, on our kernels."""
    workspace = Workspace(threads=1, engines=("CUDA",))
    workspace.feed("count", np.int64([0]))
    for name in ("x", "w", "m1", "m2"):
        value = X if name == "x" else np.zeros_like(X)
        workspace.feed(name, value, make_device_option(PROTO_CUDA, 0))
    workspace.create_net(net(*DROPOUT_AND_ADAM, type=options.pop("type", "simple")), **options)
    return workspace


def steps_with_adam(count, **options):
    """Return the masks of each step, the other values after the last, and the graphs."""
    workspace, masks = with_adam(**options), []
    for _ in range(count):
        workspace.run_net("net")
        masks.append([workspace.fetch(name).copy() for name in ("mask_a", "mask")])
    values = {name: workspace.fetch(name) for name in ("w", "m1", "m2", "d", "g", "rate")}
    return np.array(masks), values, [graph for _, graph in captured(workspace)]


def equal_with_and_without_graphs(type="simple", without=()):
    off = [*without, *single("cuda_graphs")]
    eager_masks, eager, none = steps_with_adam(9, type=type, without=off)
    masks, values, graphs = steps_with_adam(9, type=type, without=without)
    assert set(none) == {-1} and graphs == [-1] + [0] * (len(graphs) - 1), "the counter is the host's"
    np.testing.assert_array_equal(masks, eager_masks)
    assert len({mask.tobytes() for mask in masks}) == 9, "each run draws other numbers"
    for name, value in eager.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


@pytest.mark.gpu
@pytest.mark.parametrize("type", ["simple", "dag"])
@pytest.mark.parametrize("apart", [[], ["fusion"]], ids=["fused", "apart"])
def test_replayed_dropout_and_adam_equal_eager_ones(type, apart):
    equal_with_and_without_graphs(type=type, without=apart)


@pytest.mark.emulated
def test_a_step_with_dropout_and_adam_is_one_graph_and_one_copy():
    with gpus(1) as machine:
        workspace = with_adam()
        run(machine, workspace, 3)
        for _ in range(4):
            found = run(machine, workspace)
            del found["synchronizations"]  # at the end of the run
            assert found == {"copies": 1, "records": 1, "replays": 1}
        last = machine.transfers[-1]
        assert (last.source, last.nbytes, last.pinned) == (HOST, 4 * 8, True), "two keys, the rate, the correction"


@pytest.mark.gpu
def test_a_number_that_cannot_be_computed_is_the_error_of_its_operator():
    workspace = with_adam()
    workspace.run_net("net", 5)
    before = workspace.fetch("w")
    workspace.feed("count", np.int64([-7]))
    with pytest.raises(ShapeError, match="operator 5: Adam .*iter must be at least 0, got -6"):
        workspace.run_net("net")
    np.testing.assert_array_equal(workspace.fetch("w"), before)
    workspace.feed("count", np.int64([5]))
    workspace.run_net("net")
    assert {graph for _, graph in captured(workspace)[1:]} == {0}
    assert (workspace.fetch("w") != before).any()


@pytest.mark.gpu
def test_each_turn_of_a_ring_draws_other_numbers():
    workspace, found = Workspace(threads=1, engines=("CUDA",)), []
    ops = [on(0, "Dropout", ["x"], ["a", "m"], ratio=0.5), on(0, "Scale", ["a"], ["y"], scale=0.5)]
    batches = ({"x": np.full((4, 8), k + 1, np.float32)} for k in range(14))
    device = [make_device_option(PROTO_CUDA, 0)]
    with Prefetch(workspace, batches, blobs={"x": ["x"]}, devices=device, dtypes={"x": X.dtype}) as input:
        for k, _ in enumerate(input):
            if k == 0:
                workspace.create_net(net(*ops), without="fusion")
            workspace.run_net("net")
            found.append(workspace.fetch("m"))
            np.testing.assert_array_equal(workspace.fetch("y"), found[-1] * np.float32(k + 1))
    assert {graph for _, graph in captured(workspace)} == {0} and len({mask.tobytes() for mask in found}) == 14


@pytest.mark.gpu
def test_a_reshape_and_its_gradient_are_captured():
    """The gradient needs the old shape, which the plan knows: the host reads nothing."""
    ops = [
        on(0, "Relu", ["x"], ["a"]),
        on(0, "Reshape", ["a"], ["b", "old"], shape=[3, 2]),
        on(0, "Negative", ["b"], ["c"]),
        on(0, "Reshape", ["c", "old"], ["y", "dims"]),
    ]
    workspace = Workspace(threads=1, engines=("CUDA",))
    workspace.feed("x", X, make_device_option(PROTO_CUDA, 0))
    workspace.create_net(net(*ops))
    workspace.run_net("net", 4)
    workspace.feed("x", 2 * X)
    workspace.run_net("net")
    np.testing.assert_array_equal(workspace.fetch("y"), -np.maximum(2 * X, 0))
    np.testing.assert_array_equal(workspace.fetch("old"), [2, 3])
    np.testing.assert_array_equal(workspace.fetch("dims"), [3, 2])
    assert {graph for _, graph in captured(workspace)} == {0}


# What is captured, and when.


def captured(workspace, name="net"):
    """Return each step of a net's present plan, an operator's kernel by its type, and its graph (-1: none)."""
    (plan,) = workspace.net(name).plan_ahead()
    what = [step.node.first.op_def.type if step.what.startswith("cuda ") else step.what for step in plan.steps]
    return [(each, found.graph) for each, found in zip(what, plan.captured())]


def why(workspace, name="net"):
    """Return why steps are in no graph."""
    (plan,) = workspace.net(name).plan_ahead()
    return [each.why for each in plan.captured() if each.graph < 0]


CHAIN = [
    on(0, "Scale", ["x"], ["a"], scale=2.0),
    on(0, "Relu", ["a"], ["b"]),
    on(0, "Negative", ["b"], ["c"]),
    on(0, "Sum", ["c", "x"], ["y"]),
]


def expected(x):
    return x - np.maximum(2 * x, 0)


@pytest.fixture
def machine():
    with gpus(2) as found:
        yield found


def new_workspace(threads=None):
    """Return one whose operators on GPUs are a launch each."""
    return Workspace(threads=threads, engines=("CUDA",), without=single("elementwise_chains"))


def fed(*ops, type="simple", **options):
    """Return a workspace with a net of these operators, and X on GPU 0."""
    workspace = new_workspace(threads=2)
    workspace.feed("x", X, make_device_option(PROTO_CUDA, 0))
    workspace.create_net(net(*ops, type=type), **options)
    return workspace


def changed(monkeypatch, op_type, change):
    """Let ``change(prepared)`` change the kernels of an operator that nets get from now on."""
    find_engine("CUDA").register_kernels()
    (row,) = (row for row in registry.prepared_kernels(op_type, registry.GPU) if row.engine == "CUDA")

    def make(op, ctx, *specs):
        prepared = row.make(op, ctx, *specs)
        change(prepared)
        return prepared

    monkeypatch.setitem(registry._prepared, (op_type, registry.GPU), [replace(row, make=make)])


def calling_first(do):
    """Return a change of kernels: they call ``do(input)`` before they begin."""

    def change(prepared):
        bind = prepared.bind

        def bound(inputs, outputs, scratch):
            call = bind(inputs, outputs, scratch)
            return lambda: (do(inputs[0]), call())

        prepared.bind = bound

    return change


def run(machine, workspace, times=1):
    """Run the net; return what the host has called for."""
    before = machine.counts.copy()
    workspace.run_net("net", times)
    return machine.counts - before


@pytest.mark.emulated
def test_a_range_is_captured_after_two_runs_and_then_launched(machine):
    workspace = fed(*CHAIN)
    assert run(machine, workspace)["launches"] >= 4
    found = run(machine, workspace)
    assert (found["launches"], found["replays"], found["allocations"]) == (4, 0, 0)
    assert why(workspace) == ["it is captured when its step has run twice"] * 4
    run(machine, workspace)
    for step in range(3):
        x = X + step
        workspace.feed("x", x)
        found = run(machine, workspace)
        del found["synchronizations"]  # at the end of the run
        assert found == {"replays": 1}
        np.testing.assert_array_equal(workspace.fetch("y"), expected(x))
    assert captured(workspace) == [("Scale", 0), ("Relu", 0), ("Negative", 0), ("Sum", 0)]


@pytest.mark.emulated
def test_it_can_be_switched_off(machine):
    workspace = fed(*CHAIN, without=single("cuda_graphs"))
    assert run(machine, workspace, 5)["replays"] == 0
    assert set(why(workspace)) == {"the optimization 'cuda_graphs' is off"}


@pytest.mark.emulated
def test_what_cannot_be_captured_divides_a_graph(machine):
    ops = [on(0, "Tile", ["b"], ["c"], tiles=1), on(0, "Sub", ["x", "c"], ["d"])]
    ops += [make_op("Relu", ["d"], ["e"]), on(0, "Relu", ["d"], ["y"])]
    workspace = fed(*CHAIN[:2], *ops)
    run(machine, workspace, 3)
    assert captured(workspace) == [
        ("Scale", 0),
        ("Relu", 0),
        ("plain", -1),
        ("Sub", -1),
        ("transfer", -1),
        ("plain", -1),
        ("Relu", -1),
    ]
    assert why(workspace) == [
        "its plain kernel allocates memory, and may read values on the host",
        "a graph of one call would gain nothing",
        "it copies a value to the host, which waits for it",
        "it runs on the host",
        "a graph of one call would gain nothing",
    ]
    found = run(machine, workspace)
    assert (found["replays"], found["reads"]) == (1, 1)
    np.testing.assert_array_equal(workspace.fetch("y"), np.maximum(expected(X), 0))


@pytest.mark.emulated
def test_work_of_the_host_does_not_divide_a_graph(machine):
    """The counter depends on no GPU, so it comes first."""
    ops = [
        *CHAIN[:2],
        make_op("Iter", ["count"], ["count"]),
        on(0, "LearningRate", ["count"], ["rate"], base_lr=1.0, policy="inv", gamma=1.0, power=1.0),
        on(0, "Mul", ["b", "rate"], ["y"], broadcast=1),
    ]
    workspace = new_workspace(threads=1)
    workspace.feed("count", np.int64([0]))
    workspace.feed("x", X, make_device_option(PROTO_CUDA, 0))
    workspace.create_net(net(*ops))
    run(machine, workspace, 4)
    assert [graph for _, graph in captured(workspace)] == [-1, 0, 0, 0, 0]
    assert run(machine, workspace)["replays"] == 1
    np.testing.assert_allclose(workspace.fetch("y"), np.maximum(2 * X, 0) / (1 + 5), rtol=1e-6)


@pytest.mark.emulated
def test_a_blob_that_moves_is_captured_again(machine):
    workspace = fed(*CHAIN)
    run(machine, workspace, 3)
    workspace.remove("x")
    workspace.feed("x", 3 * X, make_device_option(PROTO_CUDA, 0))
    replays = [run(machine, workspace)["replays"] for _ in range(4)]
    assert replays == [0, 0, 1, 1]
    np.testing.assert_array_equal(workspace.fetch("y"), expected(3 * X))


@pytest.mark.emulated
def test_shapes_that_alternate_have_graphs_of_their_own(machine):
    workspace = fed(*CHAIN)
    replays = []
    for k in range(8):
        x = (X, X[:1])[k % 2] * (k + 1)
        workspace.feed("x", x, make_device_option(PROTO_CUDA, 0))
        replays.append(run(machine, workspace)["replays"])
        np.testing.assert_array_equal(workspace.fetch("y"), expected(x))
    assert replays == [0, 0, 0, 0, 1, 1, 1, 1]


def taking_turns(machine, middle=(), control=(), threads=1):
    """Run chains of two GPUs, whose operators take turns, in one thread; return the graphs, and the results."""
    ops = [on(0, "Scale", ["x"], ["a"], scale=2.0), on(1, "Scale", ["z"], ["p"], scale=3.0)]
    ops += [on(0, "Relu", ["a"], ["a"]), on(1, "Relu", ["p"], ["p"]), *middle]
    ops += [on(0, "Negative", ["a"], ["b"]), on(1, "Negative", ["p"], ["q"])]
    ops += [on(0, "Sum", ["b", "x"], ["y"]), on(1, "Sum", ["q", "z"], ["w"])]
    for op, blob in control:
        ops[op].control_input.append(blob)
    workspace = new_workspace(threads=threads)
    for number, name in enumerate("xz"):
        workspace.feed(name, X, make_device_option(PROTO_CUDA, number))
    workspace.create_net(net(*ops))
    run(machine, workspace, 4)
    graphs = {}
    for what, graph in captured(workspace):
        graphs.setdefault(graph, []).append(what)
    return graphs, [workspace.fetch(name) for name in "yw"]


@pytest.mark.emulated
def test_gpus_that_take_turns_have_a_graph_each(machine):
    graphs, results = taking_turns(machine)
    assert graphs == {0: ["Scale", "Relu", "Negative", "Sum"], 1: ["Scale", "Relu", "Negative", "Sum"]}
    for result, factor in zip(results, (2, 3)):
        np.testing.assert_array_equal(result, X - np.maximum(factor * X, 0))


@pytest.mark.emulated
def test_what_both_gpus_wait_for_divides_the_graphs_of_both(machine):
    graphs, results = taking_turns(machine, [on(0, "NCCLAllreduce", ["a", "p"], ["a", "p"])])
    assert graphs[0] == graphs[1] == ["Scale", "Relu"] and graphs[2] == graphs[3] == ["Negative", "Sum"]
    for result in results:
        np.testing.assert_array_equal(result, X - np.maximum(2 * X, 0) - np.maximum(3 * X, 0))


@pytest.mark.emulated
@pytest.mark.parametrize("kind", ["copy", "host", "plain"])
def test_what_may_matter_to_the_other_gpu_divides_its_graph(machine, kind):
    """A copy from one to the other; an operator on the host; a plain kernel, which may do anything."""
    middle = {"copy": on(1, "Copy", ["a"], ["t"]), "host": make_op("Tanh", ["a"], ["t"]),
              "plain": on(1, "Tile", ["p"], ["t"], tiles=2)}[kind]  # fmt: skip
    graphs, _ = taking_turns(machine, [middle])
    assert sum(ops == ["Negative", "Sum"] for ops in graphs.values()) == 2, graphs


@pytest.mark.emulated
def test_a_kernel_of_one_gpu_that_is_in_no_graph_leaves_the_other_ones_whole(machine, monkeypatch):
    changed(monkeypatch, "Tanh", lambda prepared: setattr(prepared, "extensions", ()))
    graphs, _ = taking_turns(machine, [on(1, "Tanh", ["p"], ["p"])])
    assert graphs == {
        0: ["Scale", "Relu", "Negative", "Sum"], 1: ["Scale", "Relu"], -1: ["Tanh"], 2: ["Negative", "Sum"],
    }  # fmt: skip


@pytest.mark.emulated
def test_a_control_input_from_the_other_gpu_is_obeyed(machine):
    """The Negative of GPU 0 follows the Relu of GPU 1, whose graph begins after the first one of GPU 0."""
    graphs, _ = taking_turns(machine, control=[(4, "p")])
    assert graphs == {0: ["Scale", "Relu"], 1: ["Scale", "Relu", "Negative", "Sum"], 2: ["Negative", "Sum"]}


@pytest.mark.emulated
def test_values_on_the_host_are_not_captured(machine):
    workspace = new_workspace()
    workspace.feed("x", X)  # goes to the GPU in each run
    workspace.create_net(net(*CHAIN))
    run(machine, workspace, 3)
    for k in range(3):
        workspace.feed("x", k * X)
        found = run(machine, workspace)
        assert (found["replays"], found["copies"]) == (1, 1)
        np.testing.assert_array_equal(workspace.fetch("y"), expected(k * X))
    assert captured(workspace)[0] == ("transfer", -1)
    assert why(workspace)[0] == "it copies a value from the host"
    assert machine.transfers[-2].pinned


@pytest.mark.emulated
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_batches_in_turns_have_a_graph_each_at_most_four(machine, depth):
    """Which buffer is free next depends on how fast batches are read, so the test notes the buffer of each run."""
    workspace, turns, replayed = new_workspace(threads=1), [], []
    batches = ({"x": X + k} for k in range(24))
    device = [make_device_option(PROTO_CUDA, 0)]
    with Prefetch(workspace, batches, blobs={"x": ["x"]}, depth=depth, devices=device, dtypes={"x": X.dtype}) as input:
        for k, _ in enumerate(input):
            if k == 0:
                workspace.create_net(net(*CHAIN))
            turns.append(workspace.get("x").ring.index)
            if run(machine, workspace)["replays"]:
                replayed.append(k)
            np.testing.assert_array_equal(workspace.fetch("y"), expected(X + k))
    assert 1 < len(workspace.get("x").ring.buffers) <= depth + 2
    captured = []  # turns, in the order of their second runs; the run that made the plan does not count
    for k, turn in enumerate(turns):
        if turn in turns[1:k] and turn not in captured and len(captured) < 4:
            captured.append(turn)
    (plan,) = workspace.net("net").plans
    (graph,) = [unit.graph for unit in plan._units if unit.graph is not None]
    assert sorted(graph._graphs) == sorted((turn,) for turn in captured)
    assert replayed == [k for k, turn in enumerate(turns) if turn in captured and turn in turns[1:k]]
    assert all(transfer.pinned for transfer in machine.transfers if transfer.source == HOST)


@pytest.mark.emulated
def test_operators_with_control_inputs_are_captured_in_order(machine):
    ops = [on(0, "Relu", ["x"], ["a"]), on(0, "Negative", ["x"], ["b"]), on(0, "Scale", ["x"], ["x"], scale=2.0)]
    ops[2].control_input.extend(["a", "b"])
    workspace = fed(*ops, type="dag")
    run(machine, workspace, 4)
    assert [graph for _, graph in captured(workspace)] == [0, 0, 0]
    np.testing.assert_array_equal(workspace.fetch("b"), -8 * X)
    np.testing.assert_array_equal(workspace.fetch("x"), 16 * X)


@pytest.mark.emulated
def test_the_first_run_uses_one_thread(machine, monkeypatch):
    """Memory is allocated and kernels are compiled then."""
    used = []
    changed(monkeypatch, "Relu", calling_first(lambda x: used.append(threading.get_ident())))
    made = net(on(0, "Relu", ["x"], ["a"]), on(1, "Relu", ["z"], ["b"]), type="dag")
    workspace = new_workspace(threads=2)
    for k, name in enumerate("xz"):
        workspace.feed(name, X, make_device_option(PROTO_CUDA, k))
    workspace.create_net(made)
    threads = []
    for _ in range(2):
        used.clear()
        workspace.run_net("net")
        threads.append(len(set(used)))
    assert threads == [1, 2]


# Errors.


LIES = {  # what a kernel does that is marked as capturable
    "allocates": lambda x: x + 1,
    "reads": lambda x: x.get(),
    "waits": lambda x: x.device.synchronize(),
    "waits elsewhere": lambda x: gpu(0).wait_for(gpu(1)),
}


@pytest.mark.emulated
@pytest.mark.parametrize("lie", LIES)
def test_a_kernel_that_cannot_be_captured_is_named_and_its_step_runs(machine, monkeypatch, lie):
    changed(monkeypatch, "Negative", calling_first(LIES[lie]))
    workspace = fed(*CHAIN, on(0, "Relu", ["y"], ["y"]))
    run(machine, workspace, 2)
    text = "operator 2: Negative .*'b'.* cannot be captured into a CUDA graph, although its kernel 'cuda "
    with pytest.warns(RuntimeWarning, match=text):
        run(machine, workspace)
    np.testing.assert_array_equal(workspace.fetch("y"), np.maximum(expected(X), 0))
    run(machine, workspace)
    workspace.feed("x", 2 * X)
    assert run(machine, workspace)["replays"] == 2, "those before and after it"
    np.testing.assert_array_equal(workspace.fetch("y"), np.maximum(expected(2 * X), 0))
    assert [graph for _, graph in captured(workspace)] == [0, 0, -1, 1, 1]
    assert "it cannot be captured" in why(workspace)[0]


@pytest.mark.emulated
@pytest.mark.parametrize("op_type, times", [("Negative", 1), ("Negative", 2), ("Sum", 1)])
def test_a_capture_that_another_thread_has_ended_is_made_once_more(machine, monkeypatch, op_type, times):
    """A thread that waits for the whole GPU is refused, and ends the capture."""
    refused = []

    def wait(x):
        try:
            x.device.synchronize()
        except gpu(0).xp.cuda.runtime.CUDARuntimeError as error:
            refused.append(error)

    def wait_in_a_thread(x):
        if len(refused) < times:
            thread = threading.Thread(target=wait, args=[x])
            thread.start()
            thread.join()

    changed(monkeypatch, op_type, calling_first(wait_in_a_thread))
    workspace = fed(*CHAIN)
    assert run(machine, workspace, 3)["replays"] == 0 and len(refused) == 1
    if times == 1:
        run(machine, workspace)
    else:
        with pytest.warns(RuntimeWarning, match="operator 2: Negative .*cannot be captured"):
            run(machine, workspace)
    assert run(machine, workspace)["replays"] == 1 and len(refused) == times
    np.testing.assert_array_equal(workspace.fetch("y"), expected(X))
    assert [graph for _, graph in captured(workspace)] == ([0, 0, 0, 0] if times == 1 else [0, 0, -1, -1])


@pytest.mark.emulated
def test_hundreds_of_kernels_that_cannot_be_captured_run(machine, monkeypatch):
    """Each divides the range after the last one; that is no deeper recursion."""
    changed(monkeypatch, "Negative", calling_first(LIES["waits"]))
    ops = [on(0, "Negative", [f"x{k}" if k else "x"], [f"x{k + 1}"]) for k in range(400)]
    workspace = fed(*ops)
    run(machine, workspace, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        run(machine, workspace)
    assert run(machine, workspace)["replays"] == 0
    np.testing.assert_array_equal(workspace.fetch("x400"), X)
    assert len(why(workspace)) == 400


@pytest.mark.emulated
def test_garbage_is_not_collected_during_a_capture(machine, monkeypatch):
    found = []
    changed(monkeypatch, "Negative", calling_first(lambda x: found.append(gc.isenabled())))
    workspace = fed(*CHAIN[:3])
    assert gc.isenabled()
    run(machine, workspace, 4)
    assert found == [True, True, False] and gc.isenabled()


@pytest.mark.emulated
def test_gpus_that_cannot_capture_run_without(machine, monkeypatch):
    def fails(self, mode=None):
        raise gpu(0).xp.cuda.runtime.CUDARuntimeError(801)

    workspace = fed(*CHAIN)
    monkeypatch.setattr(type(gpu(0).stream().raw), "begin_capture", fails)
    run(machine, workspace, 2)
    with pytest.warns(RuntimeWarning, match="GPU 0: no CUDA graph is used: .*cudaErrorNotSupported"):
        run(machine, workspace)
    run(machine, workspace, 2)
    np.testing.assert_array_equal(workspace.fetch("y"), expected(X))
    assert all("cudaErrorNotSupported" in text for text in why(workspace))


@pytest.mark.emulated
def test_an_error_of_an_operator_names_it_whenever_it_comes(machine, monkeypatch):
    failing = []

    def fail(x):
        if failing:
            raise ValueError("it does not work")

    changed(monkeypatch, "Negative", calling_first(fail))
    for run_number in range(3):  # alone, in a range, in a capture
        workspace = fed(*CHAIN)
        for _ in range(run_number):
            workspace.run_net("net")
        failing.append(True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # it cannot be captured, either
            with pytest.raises(OperatorError, match="operator 2: Negative .*: ValueError: it does not work"):
                workspace.run_net("net")
        failing.clear()
        for k in range(3):
            workspace.feed("x", k * X)
            workspace.run_net("net")
            np.testing.assert_array_equal(workspace.fetch("y"), expected(k * X))


@pytest.mark.emulated
def test_an_interrupt_ends_a_capture(machine, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    workspace = fed(*CHAIN)
    run(machine, workspace, 2)
    with monkeypatch.context() as patch:
        patch.setattr(Kernel, "__call__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            workspace.run_net("net")
    with gpu(0) as here:
        here.xp.zeros(1)  # is refused while a capture goes on
    run(machine, workspace)
    np.testing.assert_array_equal(workspace.fetch("y"), expected(X))
    assert run(machine, workspace)["replays"] == 1


@pytest.mark.emulated
def test_two_threads_do_not_capture_for_a_gpu_at_the_same_time(machine):
    """One of them goes on without a graph, and captures in a later run."""
    workspace = fed(*CHAIN)
    run(machine, workspace, 2)
    with streams_of(gpu(0)).lock:
        assert run(machine, workspace)["replays"] == 0
    assert run(machine, workspace)["replays"] == 1


@pytest.mark.emulated
def test_only_a_thread_that_has_run_the_calls_captures_them(machine):
    """Libraries make a handle for a thread when it first calls them, which is refused during a capture."""
    workspace = fed(*CHAIN)
    run(machine, workspace, 2)

    def in_a_thread(times):
        counts = []

        def runs():
            counts.extend(run(machine, workspace)["replays"] for _ in range(times))

        thread = threading.Thread(target=runs)
        thread.start()
        thread.join()
        return counts

    assert in_a_thread(1) == [0]
    assert in_a_thread(3) == [0, 1, 1]
    assert in_a_thread(1) == [1], "any thread launches the graph"


@pytest.mark.emulated
def test_a_forked_process_refuses_the_graphs_of_its_parent(machine):
    workspace = fed(*CHAIN)
    run(machine, workspace, 4)

    child = os.fork()
    if not child:
        try:
            with pytest.raises((DeviceError, OperatorError), match="forked"):
                workspace.run_net("net")
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run(machine, workspace)["replays"] == 1


# Split kernels.


def exchanged(prepared):
    """Change a kernel: it becomes a split one, on the stream for exchange."""
    bind = prepared.bind

    def bound(inputs, outputs, scratch):
        call, here = bind(inputs, outputs, scratch), gpu(outputs[0].device.id)
        ready, done = here.new_event(), here.new_event()

        def begin():
            here.begin_exchange(here.record_event(ready))
            with here.on(StreamRole.EXCHANGE):
                call()
            here.end_exchange(done)
            return lambda: here.wait_until(done)

        return begin

    prepared.extend(SplitKernel()).bind, prepared.inplace = bound, ()


@pytest.mark.emulated
def test_a_split_kernel_is_captured_with_its_wait(machine, monkeypatch):
    changed(monkeypatch, "Negative", exchanged)
    ops = [on(0, "Negative", ["x"], ["n"]), *CHAIN[:2], on(0, "Sum", ["b", "n"], ["y"])]
    workspace = fed(*ops)
    run(machine, workspace, 3)
    for k in range(3):
        workspace.feed("x", k * X)
        assert run(machine, workspace)["replays"] == 1
        np.testing.assert_array_equal(workspace.fetch("y"), np.maximum(2 * k * X, 0) - k * X)
    assert captured(workspace) == [
        ("Negative", 0), ("Scale", 0), ("Relu", 0), ("wait", 0), ("Sum", 0)
    ]  # fmt: skip


@pytest.mark.emulated
def test_a_split_kernel_that_is_waited_for_elsewhere_is_not(machine, monkeypatch):
    """The graph after it begins and ends while its work goes on."""
    changed(monkeypatch, "Negative", exchanged)
    ops = [on(0, "Relu", ["x"], ["r"]), on(0, "Negative", ["r"], ["n"]), on(0, "Relu", ["x"], ["s"])]
    ops += [on(0, "Relu", ["s"], ["t"]), on(0, "Tile", ["x"], ["u"], tiles=2), on(0, "Sum", ["n", "t"], ["y"])]
    workspace = fed(*ops)
    run(machine, workspace, 4)
    found = captured(workspace)
    assert [graph for what, graph in found if what in ("Negative", "wait", "plain")] == [-1, -1, -1]
    assert sum(graph == 0 for _, graph in found) == 2
    np.testing.assert_array_equal(workspace.fetch("y"), np.zeros_like(X))
