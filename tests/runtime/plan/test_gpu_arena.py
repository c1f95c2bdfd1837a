"""Memory of plans on GPUs: one arena per GPU, values in layouts that stay there, steps that allocate nothing."""

import collections

import numpy as np
import pytest

from cupy_double import gpus
from gpu_engine import FakeGpuEngine, Padded, installed
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.gpu import gpu, to_host
from netbuilder.ops.engines.layouts import HOST, convert
from netbuilder.proto import PROTO_CUDA, NetDef, NetError, OperatorError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.profile.arena_map import arena_maps
from netbuilder.runtime.profile.memory import planned_memory
from netbuilder.runtime.values.arena import Arena
from netbuilder.runtime.values.blob import EdgeContext
from netbuilder.tools.profiling.memory_page import memory_page
from netbuilder.tools.profiling.memory_table import memory_table
from netbuilder.tools.profiling.net_memory import net_memory
from netbuilder.tools.profiling.ready import Ready

RNG = np.random.default_rng(0)
SIZES = (19, 33, 21, 5)
X = RNG.standard_normal((12, SIZES[0])).astype(np.float32)
WEIGHTS = {
    f"w{i}": RNG.standard_normal((n, m)).astype(np.float32) / 4 for i, (m, n) in enumerate(zip(SIZES, SIZES[1:]))
}
BIASES = {f"b{i}": RNG.standard_normal(n).astype(np.float32) for i, n in enumerate(SIZES[1:])}


def on(number, op_type, *args, **kwargs):
    op = make_op(op_type, *args, **kwargs)
    op.device_option.CopyFrom(make_device_option(PROTO_CUDA, number))
    return op


def layers(number, prefix=""):
    """FC, Relu, Scale and FC ... and a sum, on one GPU."""
    ops, before = [], f"{prefix}x"
    for i in range(len(SIZES) - 1):
        ops.append(on(number, "FC", [before, f"{prefix}w{i}", f"{prefix}b{i}"], [f"{prefix}y{i}"]))
        ops.append(on(number, "Relu", [f"{prefix}y{i}"], [f"{prefix}r{i}"]))
        ops.append(on(number, "Scale", [f"{prefix}r{i}"], [f"{prefix}s{i}"], scale=0.5))
        before = f"{prefix}s{i}"
    return [*ops, on(number, "SumElements", [before], [f"{prefix}total"])]


def net(*ops, name="net", **options):
    return NetDef(name=name, op=ops, **options)


def expected(x=X):
    for weight, bias in zip(WEIGHTS.values(), BIASES.values()):
        x = 0.5 * np.maximum(x.astype(np.float64) @ weight.T + bias, 0)
    return x.sum()


def fed(number=0, prefix="", x=X, workspace=None, **options):
    workspace = workspace or Workspace(threads=2, **{"engines": ("FAKE",), **options})
    for name, value in {"x": x, **WEIGHTS, **BIASES}.items():
        workspace.feed(prefix + name, value, make_device_option(PROTO_CUDA, number))
    return workspace


def counted(machine, run):
    """Return how many allocations there are in a run, and the transfers between devices."""
    machine.allocated.clear(), machine.transfers.clear()
    run()
    return len(machine.allocated), collections.Counter((t.source, t.target) for t in machine.transfers)


def plan_of(workspace, name="net"):
    (plan,) = workspace.net(name)._plans[0]
    return plan


@pytest.mark.parametrize("constants", [(), tuple(WEIGHTS)])
def test_a_step_of_prepared_kernels_stays_on_its_gpu_and_allocates_nothing(monkeypatch, constants):
    with gpus(1) as machine, installed(monkeypatch):
        workspace = fed()
        workspace.create_net(net(*layers(0)), observable=["total"], constants=constants)
        workspace.run_net("net", 2)
        assert counted(machine, lambda: workspace.run_net("net", 3)) == (0, {})
        assert {launch.device for launch in machine.launches} == {0}
        np.testing.assert_allclose(workspace.fetch("total"), expected(), rtol=1e-5)
        plan = plan_of(workspace)
        reorders = [step.inputs[0].name for step in plan.steps if step.what == "reorder"]
        assert reorders == ["x", "w0", "w1", "w2"][: 1 if constants else None]
        assert plan.memory.arenas.keys() == {(PROTO_CUDA, 0)}, "nothing is on the host"


def test_there_is_one_arena_on_each_gpu(monkeypatch):
    with gpus(2) as machine, installed(monkeypatch):
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
def test_values_that_go_from_gpu_to_gpu_are_in_the_arena_of_each(monkeypatch, kind):
    """The second GPU goes on with what the first one has made; copies and kernels wait for each other."""
    first, second = layers(0)[:3], layers(1)[3:]
    with gpus(2) as machine, installed(monkeypatch):
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


@pytest.mark.gpu
def test_no_step_reads_dead_memory(monkeypatch):
    """The padding too: where a kernel does not write it, it is zeroed before."""
    with installed(monkeypatch):
        workspace = fed()
        workspace.create_net(net(*layers(0)), observable=["total"], without=["inplace"])
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
        np.testing.assert_allclose(workspace.fetch("total"), expected(), rtol=1e-5)


def test_plans_share_the_arena_and_a_larger_one_replaces_it(monkeypatch):
    location = (PROTO_CUDA, 0)
    with gpus(1) as machine, installed(monkeypatch):
        workspace = fed()
        for name in ("one", "two"):
            workspace.create_net(net(*layers(0), name=name), observable=["total"])
            workspace.run_net(name)
        small = workspace.arena.nbytes_at(location)
        one, two = plan_of(workspace, "one"), plan_of(workspace, "two")
        assert one.arena is two.arena and one.memory.arenas == two.memory.arenas == {location: small}
        for rows in (40, 12, 40, 12):
            x = RNG.standard_normal((rows, SIZES[0])).astype(np.float32)
            for name in ("one", "two"):
                workspace.feed("x", x, make_device_option(PROTO_CUDA, 0))
                workspace.run_net(name)
                np.testing.assert_allclose(workspace.fetch("total"), expected(x), rtol=1e-5)
        assert plan_of_rows(workspace, "one") == [40, 12], "the first plan was forgotten when the arena grew"
        large = workspace.arena.nbytes_at(location)
        assert small < large
        for rows in (40, 12):
            fed(x=X[:1].repeat(rows, 0), workspace=workspace)
            workspace.run_net("two")
            assert counted(machine, lambda: workspace.run_net("two"))[0] == 0
        workspace.delete_net("one")
        assert workspace.arena.nbytes_at(location) == large
        workspace.delete_net("two")
        assert workspace.arena.nbytes == 0 and workspace.arena._blocks[location].nbytes == 0


def plan_of_rows(workspace, name):
    return [plan._inputs[0][1].shape[0] for plan in workspace.net(name)._plans[0]]


class User:
    moved = 0

    def arena_moved(self):
        self.moved += 1


def test_an_arena_moves_on_a_gpu_and_not_on_the_host():
    with gpus(2):
        arena, host, zero, one = Arena(), User(), User(), User()
        block = arena.memory(1000, (PROTO_CUDA, 0))
        arena.use(host, {HOST: 100})
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


def test_memory_is_reported_for_each_gpu(monkeypatch):
    with gpus(2), installed(monkeypatch):
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
        table, page = memory_table(found), memory_page(found)
        assert f"GPU 0: {memory.gpus[0] / 1024:.1f} KiB, GPU 1: " in table
        assert f"arena on GPU 1 {maps[1].nbytes / 1024:.1f} KiB for" in table
        assert "The arena on GPU 0</h2>" in page and "The arena on GPU 1</h2>" in page
        assert {plan["gpu"] for plan in found.to_dict()["plans"]} == {each["gpu"] for each in found.to_dict()["held"]}


@pytest.mark.gpu
def test_a_budget_holds_on_a_gpu(monkeypatch):
    """Values are computed again there, and results are equal to the bit."""
    ops = [on(0, "Scale", ["x"], ["x0"], scale=1.5)]
    ops += [on(0, "Scale", [f"x{i}"], [f"x{i + 1}"], scale=1.5) for i in range(6)]
    ops += [on(0, "Sum", [f"x{6 - i}" if i == 0 else f"z{i - 1}", f"x{5 - i}"], [f"z{i}"]) for i in range(6)]
    found = {}
    with installed(monkeypatch):
        for budget in (None, 0.8):
            workspace = fed(x=RNG.standard_normal((64, 64)).astype(np.float32) if not found else found["x"])
            found["x"] = workspace.fetch("x")
            workspace.create_net(net(*ops), observable=["z5"], memory_budget=budget)
            workspace.run_net("net", 2)
            found[budget] = workspace.fetch("z5"), plan_of(workspace).memory.nbytes
            assert budget is None or any(step.what == "recompute" for step in plan_of(workspace).steps)
    np.testing.assert_array_equal(found[None][0], found[0.8][0])
    assert found[0.8][1] < 0.85 * found[None][1]


# Blobs in layouts.


def in_layout(layout, before=lambda: None):
    workspace = Workspace(engines=("FAKE",))
    workspace.feed("p", X, make_device_option(PROTO_CUDA, 0))
    before()
    workspace.find("p").relayout(layout)
    return workspace, workspace.find("p")


def test_a_blob_takes_a_layout_where_it_is(monkeypatch):
    with gpus(1) as machine, installed(monkeypatch):
        workspace, blob = in_layout(Padded(X.shape), machine.transfers.clear)
        assert machine.transfers == [] and blob.location == (PROTO_CUDA, 0) and blob.buffer.dtype == np.uint8
        whole = blob.spec.layout.whole(blob.buffer)
        np.testing.assert_array_equal(to_host(whole), np.pad(X, ((0, 0), (0, 5))))
        machine.transfers.clear()
        np.testing.assert_array_equal(workspace.fetch("p"), X)
        assert len(machine.transfers) == 1
        workspace.feed("p", 2 * X)  # from the host
        np.testing.assert_array_equal(to_host(whole), np.pad(2 * X, ((0, 0), (0, 5))))
        with gpu(0) as here:
            given = here.xp.asarray(3 * X)
        machine.transfers.clear()
        workspace.feed("p", given)
        assert machine.transfers == []
        np.testing.assert_array_equal(workspace.fetch("p"), 3 * X)
        blob.relayout(None)
        np.testing.assert_array_equal(to_host(blob.buffer), 3 * X)


@pytest.mark.gpu
def test_a_layout_that_rounds_is_replaced_by_a_feed(monkeypatch):
    with installed(monkeypatch):
        workspace, blob = in_layout(Padded(X.shape, 2))
        np.testing.assert_array_equal(workspace.fetch("p"), X.astype(np.float16).astype(np.float32))
        workspace.feed("p", X)
        np.testing.assert_array_equal(workspace.fetch("p"), X)
        assert not blob.spec.rounds


def test_a_conversion_with_scratch_memory_has_it_on_the_gpu(monkeypatch):
    spec = TensorSpec(X.shape, X.dtype)
    with gpus(2) as machine, installed(monkeypatch) as fake:
        reorder = fake.prepare_reorder

        def with_scratch(*args):
            made = reorder(*args)
            made.scratch = 100
            return made

        monkeypatch.setattr(fake, "prepare_reorder", with_scratch)
        with gpu(1) as there:
            value = there.xp.asarray(X)
        machine.allocated.clear()
        out = convert(value, spec, spec.with_layout(Padded(X.shape)), EdgeContext(), location=(PROTO_CUDA, 1))
        assert set(machine.allocated) == {1} and out.device.id == 1
        back = convert(out, spec.with_layout(Padded(X.shape)), spec, EdgeContext(), location=(PROTO_CUDA, 1))
        np.testing.assert_array_equal(to_host(back), X)


def test_a_parameter_takes_the_layout_in_which_it_is_updated(monkeypatch):
    """It is read in that layout, so the update writes it there, without a copy."""
    ops = [
        on(0, "FC", ["x", "w0", "b0"], ["y"]),
        on(0, "SumElements", ["y"], ["total"]),
        on(0, "Scale", ["w0"], ["w0"], scale=0.5),
    ]
    with gpus(1) as machine, installed(monkeypatch):
        workspace = fed()
        machine.transfers.clear()
        workspace.create_net(net(*ops), observable=["total", "w0"])
        workspace.run_net("net", 2)
        assert machine.transfers == []
        assert workspace.find("w0").spec.layout == Padded(WEIGHTS["w0"].shape)
        assert not any(
            step.what in ("reorder", "restore") and step.inputs[0].name == "w0" for step in plan_of(workspace).steps
        )
        assert counted(machine, lambda: workspace.run_net("net")) == (0, {})
        np.testing.assert_array_equal(workspace.fetch("w0"), WEIGHTS["w0"] / 8)
        np.testing.assert_allclose(workspace.fetch("total"), (X @ WEIGHTS["w0"].T / 4 + BIASES["b0"]).sum(), rtol=1e-4)


def test_a_value_that_nobody_reads_is_computed_on_the_gpu_when_it_is_fetched(monkeypatch):
    ops = [on(0, "Relu", ["x"], ["r"]), on(0, "Scale", ["r"], ["s"], scale=3.0)]
    with gpus(1) as machine, installed(monkeypatch):
        workspace = fed()
        workspace.create_net(net(*ops))
        workspace.run_net("net", 2)
        blob = workspace.find("s")
        assert blob.lazy is not None and blob.location == (PROTO_CUDA, 0)
        machine.transfers.clear()
        np.testing.assert_array_equal(workspace.fetch("s"), 3 * np.maximum(X, 0))
        assert len(machine.transfers) == 1, "only the result goes to the host"
        workspace.feed("r", np.zeros_like(X))  # what it is computed from changes: it is computed before
        np.testing.assert_array_equal(workspace.fetch("s"), 3 * np.maximum(X, 0))


# Errors.


def test_after_an_error_the_arena_is_free_again(monkeypatch):
    with gpus(1) as machine, installed(monkeypatch):
        workspace = fed()
        workspace.create_net(net(*layers(0)), observable=["total"])
        workspace.run_net("net")
        launch = machine.launch

        def fails(name, *args, **kwargs):
            if name == "sum":
                raise ValueError("it broke")
            return launch(name, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(machine, "launch", fails)
            with pytest.raises(OperatorError, match="net 'net', operator 9: SumElements .*: ValueError: it broke"):
                workspace.run_net("net")
        assert workspace.arena.acquire()
        workspace.arena.release()
        workspace.run_net("net")
        np.testing.assert_allclose(workspace.fetch("total"), expected(), rtol=1e-5)


def test_values_beyond_the_memory_of_a_gpu(monkeypatch):
    with gpus(1), installed(monkeypatch):
        workspace = fed()
        workspace.create_net(net(*layers(0)), observable=["total"])

        def full(*args):
            raise MemoryError("out of memory allocating 1,024 bytes")

        monkeypatch.setattr("netbuilder.runtime.values.arena.new_bytes", full)
        with pytest.raises(NetError, match="values of the net do not fit into memory .out of memory allocating"):
            workspace.run_net("net")


@pytest.mark.parametrize(("engines", "precisions", "reason"), [
    (("FAKE",), ("float32",), ""),
    ((), ("float32", "bfloat16"), ""),
    (("FAKE",), ("float32", "bfloat16"), r" \(engine FAKE could, but pip install fake\)"),
])  # fmt: skip
def test_a_precision_that_gpus_cannot_have_is_a_warning(monkeypatch, engines, precisions, reason):
    monkeypatch.setattr(FakeGpuEngine, "precisions", precisions)
    with gpus(1), installed(monkeypatch) as fake:
        workspace = fed(engines=engines)
        if reason:
            monkeypatch.setattr(fake, "available", lambda: False)
            monkeypatch.setattr(fake, "why_unavailable", lambda: "pip install fake")
        said = "net 'net': activations on GPUs are stored as float32, not bfloat16.*"
        with pytest.warns(UserWarning, match=said + reason):
            workspace.create_net(net(*layers(0)), dtype="bfloat16")


@pytest.mark.gpu
def test_a_precision_that_an_engine_has_is_used_on_a_gpu(monkeypatch):
    monkeypatch.setattr(FakeGpuEngine, "precisions", ("float32", "bfloat16"))
    with installed(monkeypatch):
        workspace = fed()
        workspace.create_net(net(*layers(0)), dtype="bfloat16", observable=["total"])
        workspace.run_net("net")
        assert any(step.reads_rounded for step in plan_of(workspace).steps)
        np.testing.assert_allclose(workspace.fetch("total"), expected(), rtol=1e-2)
