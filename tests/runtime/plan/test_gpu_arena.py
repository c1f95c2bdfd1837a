"""Memory of plans on GPUs: one arena per GPU, values in layouts that stay there, steps that allocate nothing."""

import collections
import contextlib

import numpy as np
import pytest

from checks import interpret
from cudnn_double import cudnn_double
from emulated_gpu.machine import HOST
from gpu_engine import Padded, PaddedEngine, installed
from netbuilder.engines import layouts
from netbuilder.engines.cuda.gpu_layout import image_spec
from netbuilder.engines.cudnn import library
from netbuilder.engines.gpu import gpu, to_host
from netbuilder.engines.layouts import convert
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import PROTO_CUDA, NetDef, NetError, OperatorError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.profile.arena_map import arena_maps
from netbuilder.runtime.profile.memory import planned_memory
from netbuilder.runtime.profile.text_table import report_text
from netbuilder.runtime.values.arena import Arena
from netbuilder.runtime.values.blob import EdgeContext
from netbuilder.tools.profiling.memory_page import memory_page
from netbuilder.tools.profiling.memory_table import memory_report
from netbuilder.tools.profiling.net_memory import net_memory
from netbuilder.tools.profiling.ready import Ready
from on_gpu import gpus, noted
from switches import single

pytestmark = pytest.mark.emulated

RNG = np.random.default_rng(0)
CHANNELS = (3, 5, 4, 2)
X = RNG.standard_normal((2, CHANNELS[0], 6, 5)).astype(np.float32)
WEIGHTS = {
    f"w{i}": RNG.standard_normal((n, m, 3, 3)).astype(np.float32) / 4
    for i, (m, n) in enumerate(zip(CHANNELS, CHANNELS[1:]))
}
BIASES = {f"b{i}": RNG.standard_normal(n).astype(np.float32) for i, n in enumerate(CHANNELS[1:])}
SPEC = TensorSpec(X.shape, X.dtype)


def on(number, op_type, *args, **kwargs):
    return make_op(op_type, *args, device_option=make_device_option(PROTO_CUDA, number), **kwargs)


def layers(number, prefix=""):
    """Conv, Relu, Scale, Conv ... and a sum, on one GPU; images and filters have their channels last."""
    ops, before = [], f"{prefix}x"
    for i in range(len(CHANNELS) - 1):
        inputs = [before, f"{prefix}w{i}", f"{prefix}b{i}"]
        ops.append(on(number, "Conv", inputs, [f"{prefix}y{i}"], kernel=3, pad=1))
        ops.append(on(number, "Relu", [f"{prefix}y{i}"], [f"{prefix}r{i}"]))
        ops.append(on(number, "Scale", [f"{prefix}r{i}"], [f"{prefix}s{i}"], scale=0.5))
        before = f"{prefix}s{i}"
    return [*ops, on(number, "SumElements", [before], [f"{prefix}total"])]


def net(*ops, name="net", **options):
    return NetDef(name=name, op=ops, **options)


def expected(x=X):
    """The sum, in float64."""
    return interpret(layers(0), {n: a.astype(np.float64) for n, a in {"x": x, **WEIGHTS, **BIASES}.items()})["total"]


@contextlib.contextmanager
def gpus_with_cudnn(count):
    with gpus(count) as machine, cudnn_double():
        yield machine


def fed(number=0, prefix="", x=X, workspace=None, engines=("CUDNN", "CUDA")):
    workspace = workspace or Workspace(threads=2, engines=engines)
    for name, value in {"x": x, **WEIGHTS, **BIASES}.items():
        workspace.feed(prefix + name, value, make_device_option(PROTO_CUDA, number))
    return workspace


def from_to(machine):
    """The transfers between devices, and within one: how many from where to where."""
    return collections.Counter((t.source, t.target) for t in machine.transfers)


def counted(machine, run):
    """Return how many allocations there are in a run, and the transfers."""
    machine.allocated.clear(), machine.transfers.clear()
    run()
    return len(machine.allocated), from_to(machine)


def plan_of(workspace, name="net"):
    (plan,) = workspace.net(name).plans
    return plan


@pytest.mark.parametrize("constants", [(), tuple(WEIGHTS)])
def test_a_step_of_prepared_kernels_stays_on_its_gpu_and_allocates_nothing(constants):
    with gpus_with_cudnn(1) as machine:
        workspace = fed()
        workspace.create_net(net(*layers(0)), observable=["total"], constants=constants)
        workspace.run_net("net", 2)
        assert counted(machine, lambda: workspace.run_net("net", 3)) == (0, {})
        assert {launch.device for launch in machine.launches} == {0}
        np.testing.assert_allclose(workspace.fetch("total"), expected(), rtol=1e-5)
        plan = plan_of(workspace)
        (reorder,) = (step for step in plan.steps if step.what == "reorder")  # all of them at once
        assert [value.name for value in reorder.inputs] == ["x", "w0", "w1", "w2"][: 1 if constants else None]
        assert plan.memory.arenas.keys() == {(PROTO_CUDA, 0)}, "nothing is on the host"


def test_there_is_one_arena_on_each_gpu():
    with gpus_with_cudnn(2) as machine:
        workspace = fed(0, "a/")
        fed(1, "b/", workspace=workspace)
        for kind in ("simple", "dag"):
            made = net(*layers(0, "a/"), *layers(1, "b/"), name=kind, type=kind)
            workspace.create_net(made, observable=["a/total", "b/total"])
            workspace.run_net(kind, 2)
            assert counted(machine, lambda: workspace.run_net(kind)) == (0, {})  # noqa: B023
            memory = plan_of(workspace, kind).memory
            assert sorted(memory.arenas) == [(PROTO_CUDA, 0), (PROTO_CUDA, 1)]
            for location, nbytes in memory.arenas.items():
                assert memory.live_at(location) <= nbytes <= 1.01 * memory.live_at(location)
                block = workspace.arena.memory(nbytes, location)
                assert block.device.id == location[1] and block.data.ptr % 256 == 0
            assert {placed.offset % 256 for placed in memory.placed} == {0}
            for blob in ("a/total", "b/total"):
                np.testing.assert_allclose(workspace.fetch(blob), expected(), rtol=1e-5)


@pytest.mark.parametrize("kind", ["simple", "dag"])
def test_values_that_go_from_gpu_to_gpu_are_in_the_arena_of_each(kind):
    """The second GPU goes on with what the first one has made; copies and kernels wait for each other."""
    first, second = layers(0)[:3], layers(1)[3:]
    with gpus_with_cudnn(2) as machine:
        workspace = fed()
        for name in ("w1", "b1", "w2", "b2"):
            workspace.feed(name, workspace.fetch(name), make_device_option(PROTO_CUDA, 1))
        workspace.create_net(net(*first, *second, type=kind), observable=["total"])
        workspace.run_net("net", 3)
        allocated, transfers = counted(machine, lambda: workspace.run_net("net"))
        assert (allocated, transfers) == (0, {(0, 1): 1})
        np.testing.assert_allclose(workspace.fetch("total"), expected(), rtol=1e-5)
        (copied,) = {
            value.location for step in plan_of(workspace).steps if step.what == "transfer" for value in step.outputs
        }
        assert copied == (PROTO_CUDA, 1)


MATRIX = np.linspace(-1, 2, 12 * 19, dtype=np.float32).reshape(12, 19)


def test_no_step_reads_dead_memory(monkeypatch):
    """The padding too: as kernels do not write it, it is zeroed before."""
    ops = [on(0, "Scale", [f"x{i}"], [f"x{i + 1}"], scale=0.5) for i in range(3)] + [
        on(0, "SumElements", ["x3"], ["y"])
    ]
    with gpus(1), installed(monkeypatch, PaddedEngine):
        workspace = Workspace(engines=("PADDED",))
        workspace.feed("x0", MATRIX, make_device_option(PROTO_CUDA, 0))
        workspace.create_net(net(*ops), observable=["y"], without=single("inplace", "cuda_graphs"))
        workspace.run_net("net")
        plan = plan_of(workspace)
        memory = plan.arena.memory(plan.memory.nbytes, (PROTO_CUDA, 0))
        assert plan.memory.cleared
        dead = collections.defaultdict(list)
        for placed in plan.memory.placed:
            dead[placed.end].append(memory[placed.offset : placed.offset + placed.nbytes])

        def fill(buffers):
            with gpu(0):
                for buffer in buffers:
                    buffer.fill(255)

        def then_fill(index, call):
            return lambda: (call(), fill(dead[index]))

        fill([memory])
        plan.with_calls(then_fill).run()
        np.testing.assert_allclose(workspace.fetch("y"), MATRIX.sum() / 8, rtol=1e-5)


def test_plans_share_the_arena_and_a_larger_one_replaces_it():
    location = (PROTO_CUDA, 0)
    with gpus_with_cudnn(1) as machine:
        workspace = fed()
        for name in ("one", "two"):
            workspace.create_net(net(*layers(0), name=name), observable=["total"])
            workspace.run_net(name)
        small = workspace.arena.nbytes_at(location)
        one, two = plan_of(workspace, "one"), plan_of(workspace, "two")
        assert one.arena is two.arena and one.memory.arenas == two.memory.arenas == {location: small}
        for images in (5, 2, 5, 2):
            x = RNG.standard_normal((images, *X.shape[1:])).astype(np.float32)
            for name in ("one", "two"):
                workspace.feed("x", x, make_device_option(PROTO_CUDA, 0))
                workspace.run_net(name)
                np.testing.assert_allclose(workspace.fetch("total"), expected(x), rtol=1e-5)
        assert images_of_plans(workspace, "one") == [5, 2], "the first plan was forgotten when the arena grew"
        large = workspace.arena.nbytes_at(location)
        assert small < large
        for images in (5, 2):
            fed(x=X[:1].repeat(images, 0), workspace=workspace)
            workspace.run_net("two")
            assert counted(machine, lambda: workspace.run_net("two"))[0] == 0
        workspace.delete_net("one")
        assert workspace.arena.nbytes_at(location) == large
        workspace.delete_net("two")
        assert workspace.arena.nbytes == 0 and workspace.arena.nbytes_at(location) == 0


def images_of_plans(workspace, name):
    return [plan._inputs[0][1].shape[0] for plan in workspace.net(name).plans]


class User:
    moved = 0

    def arena_moved(self):
        self.moved += 1


def test_an_arena_moves_on_a_gpu_and_not_on_the_host():
    with gpus(2):
        arena, host, zero, one = Arena(), User(), User(), User()
        block = arena.memory(1000, (PROTO_CUDA, 0))
        arena.use(host, {layouts.HOST: 100})
        arena.use(zero, {(PROTO_CUDA, 0): 1000})
        arena.use(one, {(PROTO_CUDA, 1): 1000})
        assert arena.memory(500, (PROTO_CUDA, 0)).data.ptr == block.data.ptr
        arena.memory(2000, (PROTO_CUDA, 0))
        arena.memory(1 << 22)
        assert (host.moved, zero.moved, one.moved) == (0, 1, 0)
        with arena.lend(1500, (PROTO_CUDA, 0)) as lent:
            assert lent.data.ptr == arena.memory(1, (PROTO_CUDA, 0)).data.ptr
        with arena.lend(5000, (PROTO_CUDA, 1)) as lent:
            assert lent.nbytes == 5000 and lent.device.id == 1
        assert one.moved == 0


def test_memory_is_reported_for_each_gpu():
    with gpus_with_cudnn(2):
        workspace = fed(0, "a/")
        fed(1, "b/", workspace=workspace)
        workspace.create_net(net(*layers(0, "a/"), *layers(1, "b/")), observable=["a/total", "b/total"])
        memory = planned_memory(workspace, "net", [f"{p}/{w}" for p in "ab" for w in (*WEIGHTS, *BIASES)])
        (plan,) = workspace.net("net").plan_ahead()
        nbytes = sum(value.nbytes for value in (*WEIGHTS.values(), *BIASES.values()))
        assert (memory.parameters, memory.inputs, memory.alone) == (2 * nbytes, 2 * X.nbytes, 0)
        assert (
            memory.gpus == {n: plan.memory.arenas[PROTO_CUDA, n] + nbytes + X.nbytes + 4 for n in (0, 1)}
            and sum(memory.gpus.values()) == memory.total
        )
        assert f"; GPU 1: {memory.gpus[1] / 1024:.1f} KiB" in str(memory)
        maps = arena_maps([plan])
        assert [each.gpu for each in maps] == [0, 1]
        assert [each.nbytes for each in maps] == [plan.memory.arenas[PROTO_CUDA, n] for n in (0, 1)]
        assert {value.device for value in maps[1].values} == {"GPU 1"}
        found = net_memory(Ready(workspace, "net", frozenset()))
        table, page = report_text(memory_report(found)), memory_page(found)
        assert f"GPU 0: {memory.gpus[0] / 1024:.1f} KiB, GPU 1: " in table
        assert f"arena on GPU 1 {maps[1].nbytes / 1024:.1f} KiB for" in table
        assert "The arena on GPU 0</h2>" in page and "The arena on GPU 1</h2>" in page
        assert {plan["gpu"] for plan in found.to_dict()["plans"]} == {each["gpu"] for each in found.to_dict()["held"]}


def test_a_budget_holds_on_a_gpu():
    """Values are computed again there, and results are equal to the bit."""
    ops = [on(0, "Scale", ["x"], ["x0"], scale=1.5)]
    ops += [on(0, "Scale", [f"x{i}"], [f"x{i + 1}"], scale=1.5) for i in range(6)]
    ops += [on(0, "Sum", [f"x{6 - i}" if i == 0 else f"z{i - 1}", f"x{5 - i}"], [f"z{i}"]) for i in range(6)]
    x, found, without = RNG.standard_normal((64, 64)).astype(np.float32), {}, single("elementwise_chains")
    with gpus(1):
        for budget in (None, 0.8):
            workspace = fed(x=x, engines=("CUDA",))
            workspace.create_net(net(*ops), observable=["z5"], memory_budget=budget, without=without)
            workspace.run_net("net", 2)
            found[budget] = workspace.fetch("z5"), plan_of(workspace).memory.nbytes
            assert budget is None or any(step.what == "recompute" for step in plan_of(workspace).steps)
    np.testing.assert_array_equal(found[None][0], found[0.8][0])
    assert found[0.8][1] < 0.85 * found[None][1]


# Blobs in layouts.


def in_layout(spec, before=lambda: None):
    workspace = Workspace(engines=("CUDNN",))
    workspace.feed("p", X, make_device_option(PROTO_CUDA, 0))
    before()
    workspace.find("p").relayout(spec.layout)
    return workspace, workspace.find("p")


def test_a_blob_takes_a_layout_where_it_is():
    def stored(values):
        return np.moveaxis(values, 1, 3).reshape(-1)

    with gpus(1) as machine:
        workspace, blob = in_layout(image_spec(SPEC, "NCHW", "float32"), machine.transfers.clear)
        assert (0, HOST) not in from_to(machine)
        assert blob.location == (PROTO_CUDA, 0) and blob.buffer.dtype == np.uint8
        whole = blob.buffer.view(np.float32)
        np.testing.assert_array_equal(to_host(whole), stored(X))
        machine.transfers.clear()
        np.testing.assert_array_equal(workspace.fetch("p"), X)
        assert from_to(machine)[0, HOST] == 1
        workspace.feed("p", 2 * X)  # from the host
        np.testing.assert_array_equal(to_host(whole), stored(2 * X))
        with gpu(0) as here:
            given = here.xp.asarray(3 * X)
        machine.transfers.clear()
        workspace.feed("p", given)
        assert (0, HOST) not in from_to(machine)
        np.testing.assert_array_equal(workspace.fetch("p"), 3 * X)
        blob.relayout(None)
        np.testing.assert_array_equal(to_host(blob.buffer), 3 * X)


def test_a_layout_that_rounds_is_replaced_by_a_feed():
    with gpus(1):
        workspace, blob = in_layout(image_spec(SPEC, "NCHW", "float16"))
        np.testing.assert_array_equal(workspace.fetch("p"), X.astype(np.float16).astype(np.float32))
        workspace.feed("p", X)
        np.testing.assert_array_equal(workspace.fetch("p"), X)
        assert not blob.spec.rounds


def test_a_conversion_with_scratch_memory_has_it_on_the_gpu(monkeypatch):
    plain = TensorSpec(MATRIX.shape, MATRIX.dtype)
    with gpus(2) as machine, installed(monkeypatch, PaddedEngine):
        with gpu(1) as there:
            value = there.xp.asarray(MATRIX)
        machine.allocated.clear()
        spec = plain.with_layout(Padded(MATRIX.shape))
        out = convert(value, plain, spec, EdgeContext(), location=(PROTO_CUDA, 1))
        assert machine.allocated == [1, 1] and out.device.id == 1
        back = convert(out, spec, plain, EdgeContext(), location=(PROTO_CUDA, 1))
        np.testing.assert_array_equal(to_host(back), MATRIX)


def test_a_parameter_takes_the_layout_in_which_it_is_updated(monkeypatch):
    """It is read in that layout, so the update writes it there, without a copy."""
    ops = [on(0, "SumElements", ["p"], ["total"]), on(0, "Scale", ["p"], ["p"], scale=0.5)]
    with gpus(1) as machine, installed(monkeypatch, PaddedEngine):
        workspace = Workspace(engines=("PADDED",))
        workspace.feed("p", MATRIX, make_device_option(PROTO_CUDA, 0))
        machine.transfers.clear()
        workspace.create_net(net(*ops), observable=["total", "p"])
        workspace.run_net("net", 2)
        assert from_to(machine).keys() <= {(0, 0)}
        assert workspace.find("p").spec.layout == Padded(MATRIX.shape)
        assert [step.what for step in plan_of(workspace).steps] == ["padded sum", "padded scale"]
        assert counted(machine, lambda: workspace.run_net("net"))[1] == {}
        np.testing.assert_array_equal(workspace.fetch("p"), MATRIX / 8)
        np.testing.assert_allclose(workspace.fetch("total"), MATRIX.sum() / 4, rtol=1e-5)


def test_a_value_that_nobody_reads_is_computed_on_the_gpu_when_it_is_fetched(monkeypatch):
    ops = [on(0, "Relu", ["x"], ["r"]), on(0, "Scale", ["r"], ["s"], scale=3.0)]
    with gpus(1) as machine, installed(monkeypatch, PaddedEngine):
        workspace = fed(x=MATRIX, engines=("PADDED",))
        workspace.create_net(net(*ops))
        workspace.run_net("net", 2)
        blob = workspace.find("s")
        assert blob.lazy is not None and blob.location == (PROTO_CUDA, 0)
        machine.transfers.clear()
        np.testing.assert_array_equal(workspace.fetch("s"), 3 * np.maximum(MATRIX, 0))
        assert from_to(machine) == {(0, HOST): 1}, "only the result goes to the host"
        workspace.feed("r", np.zeros_like(MATRIX))  # what it is computed from changes: it is computed before
        np.testing.assert_array_equal(workspace.fetch("s"), 3 * np.maximum(MATRIX, 0))


# Errors.


def test_after_an_error_the_arena_is_free_again():
    def fails(name):
        if "sum_elements" in name:
            raise ValueError("it broke")

    with gpus_with_cudnn(1):
        workspace = fed()
        workspace.create_net(net(*layers(0)), observable=["total"])
        workspace.run_net("net")
        with noted(fails), pytest.raises(OperatorError, match="net 'net', operator 9: SumElements .*: it broke"):
            workspace.run_net("net")
        assert workspace.arena.acquire()
        workspace.arena.release()
        workspace.run_net("net")
        np.testing.assert_allclose(workspace.fetch("total"), expected(), rtol=1e-5)


def test_values_beyond_the_memory_of_a_gpu():
    tiles = [on(0, "Tile", ["x"], ["y"], tiles=100_000_000), on(0, "SumElements", ["y"], ["total"])]
    with gpus(1):
        workspace = fed(engines=())
        workspace.create_net(net(*tiles), observable=["total"])
        with pytest.raises(NetError, match=r"values of the net do not fit into memory \(Out of memory allocating"):
            workspace.run_net("net")


@pytest.mark.parametrize(("engines", "reason"), [
    ((), ""),
    (("CUDA",), ""),
    (("CUDNN",), r" \(engine CUDNN could, but pip install cudnn\)"),
])  # fmt: skip
def test_a_precision_that_gpus_cannot_have_is_a_warning(monkeypatch, engines, reason):
    monkeypatch.setattr(library, "found_library", lambda: (None, "pip install cudnn"))
    with gpus(1):
        workspace = fed(engines=engines)
        said = "net 'net': activations on GPUs are stored as float32, not bfloat16.*"
        with pytest.warns(UserWarning, match=said + reason):
            workspace.create_net(net(*layers(0)), dtype="bfloat16")


def test_a_precision_that_an_engine_has_is_used_on_a_gpu():
    with gpus_with_cudnn(1):
        workspace = fed()
        workspace.create_net(net(*layers(0)), dtype="bfloat16", observable=["total"])
        workspace.run_net("net")
        assert any(step.reads_rounded for step in plan_of(workspace).steps)
        np.testing.assert_allclose(workspace.fetch("total"), expected(), rtol=1e-2)
