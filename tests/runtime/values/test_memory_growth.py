"""Memory: bounded over new shapes and new nets, freed when nets are deleted and workspaces are reset or freed."""

import gc
import os
import re
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

from netbuilder.engines import onednn
from netbuilder.proto import NetDef, NetError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute.executable import Plan

SOAK = Path(__file__).with_name("soak.py")
needs_library = pytest.mark.skipif(not onednn.available(), reason="needs oneDNN")


@pytest.fixture
def uncollected():
    """In the test, only objects without references are freed, not reference cycles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def layers(name="net", kind="simple"):
    net = NetDef(name=name, type=kind, num_workers=2, external_input=["x", "w", "b"])
    for k in range(2):
        option = make_device_option(0, k)
        net.op.append(make_op("FC", ["x", "w", "b"], [f"h{k}"], device_option=option))
        net.op.append(make_op("Relu", [f"h{k}"], [f"y{k}"], device_option=option))
        net.op.append(make_op("Softmax", [f"y{k}"], [f"p{k}"], device_option=option))
    net.op.append(make_op("Sum", ["p0", "p1"], ["total"]))
    return net


def workspace_with(rows=8):
    workspace = Workspace(threads=2)
    workspace.feed("x", np.ones((rows, 16), np.float32))
    workspace.feed("w", np.ones((16, 16), np.float32))
    workspace.feed("b", np.ones(16, np.float32))
    return workspace


def memory_of(buffer):
    """Return the array whose memory a buffer is."""
    return memory_of(buffer.base) if isinstance(buffer.base, np.ndarray) else buffer


def plans():
    return sum(isinstance(found, Plan) for found in gc.get_objects())


@pytest.mark.parametrize("kind", ["simple", "dag"])
def test_a_deleted_net_gives_its_memory_back_at_once(uncollected, kind):
    workspace, before = workspace_with(), plans()
    for name in "abc":
        workspace.create_net(layers(name, kind), observable=["total"])
        workspace.run_net(name, 2)
        kept, shared = memory_of(workspace.get("total").buffer), memory_of(workspace.arena.memory(64))
        assert workspace.arena.nbytes
        buffers = [
            weakref.ref(memory_of(value.buffer))
            for plan in workspace.net(name).plans
            for step in plan.steps
            for value in step.outputs
            if value is not None and memory_of(value.buffer) is not kept and memory_of(value.buffer) is not shared
        ]
        workspace.delete_net(name)
        assert plans() == before
        assert not workspace.arena.nbytes
        assert not any(buffer() is not None for buffer in buffers)


def test_a_net_that_runs_once_gives_its_memory_back_at_once(uncollected):
    """An init net would keep the plain buffers of parameters whose layout changes later."""
    workspace, before = workspace_with(), plans()
    workspace.run_net_once(layers())
    assert plans() == before
    expected = np.array(workspace.fetch("total"))
    workspace.create_net(layers(), overwrite=True)
    workspace.run_net("net")
    np.testing.assert_array_equal(workspace.fetch("total"), expected)


def test_replacing_a_net_gives_the_memory_of_the_old_one_back(uncollected):
    workspace, before = workspace_with(), plans()
    for _ in range(3):
        workspace.create_net(layers(), overwrite=True)
        workspace.run_net("net")
        assert plans() == before + 1


def test_plans_of_shapes_that_are_not_seen_any_more_are_freed(uncollected):
    workspace, before = workspace_with(), plans()
    workspace.create_net(layers())
    for rows in range(1, 40):
        workspace.feed("x", np.ones((rows, 16), np.float32))
        workspace.run_net("net")
    assert plans() <= before + 8


def test_what_a_deleted_net_left_to_be_computed_can_be_fetched():
    workspace = workspace_with()
    workspace.create_net(layers())
    workspace.run_net("net")
    expected = {name: workspace.fetch(name) for name in ("h0", "y0", "p1", "total")}
    workspace.run_net("net")
    workspace.delete_net("net")
    for name, value in expected.items():
        np.testing.assert_array_equal(workspace.fetch(name), value)


def test_a_workspace_that_nobody_refers_to_is_freed_at_once(uncollected):
    workspace = workspace_with()
    workspace.create_net(layers())
    workspace.run_net("net")
    net, gone = workspace.net("net"), weakref.ref(workspace)
    del workspace
    assert gone() is None
    with pytest.raises(NetError, match="net 'net': its workspace does not exist any more; keep a reference"):
        net.workspace  # noqa: B018


@needs_library
def test_primitives_are_bounded_and_those_that_no_plan_uses_go_at_a_reset(monkeypatch):
    from netbuilder.engines.llvm import small_products
    from netbuilder.engines.onednn import primitive

    monkeypatch.setattr(small_products, "_MOST_FORWARD", 0)  # the layers are small
    monkeypatch.setattr(primitive, "CACHE_BYTES", 20 * primitive.PRIMITIVE_BYTES)
    kept = primitive.primitives
    primitive.release_primitives()
    gc.collect()
    before = set(kept.used)  # of what other tests keep
    workspace, other = workspace_with(), workspace_with(9)
    workspace.create_net(layers())
    other.create_net(layers())
    other.run_net("net")
    primitive.release_primitives()  # those that were compared with the ones in use
    gc.collect()
    used = set(kept.used) - before
    assert used
    for rows in range(1, 40):
        workspace.feed("x", np.ones((rows, 16), np.float32))
        workspace.run_net("net")
        assert len(kept.recent) <= 20
    workspace.reset()
    gc.collect()
    assert not kept.recent and used <= set(kept.used)
    other.run_net("net")
    other.reset()
    gc.collect()
    assert set(kept.used) <= before


def soak(*arguments):
    """Return the memory after each tenth of a soak, in MiB, and after the reset."""
    environment = {**os.environ, "PYTHONPATH": str(SOAK.parents[3])}
    done = subprocess.run(
        [sys.executable, str(SOAK), *arguments], env=environment, capture_output=True, text=True, timeout=3600
    )
    assert done.returncode == 0, done.stderr
    levels = [float(level) for level in re.findall(r"([\d.]+) MiB", done.stdout)]
    return levels[:-1], levels[-1]


in_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


@pytest.mark.slow
@in_proc
@pytest.mark.parametrize("kind, count", [("shapes", 150), ("nets", 60)])
def test_short_soak(kind, count):
    levels, _ = soak(kind, str(count), str(4 << 20))
    assert max(levels[4:]) <= 1.1 * levels[4], levels


@in_proc
@pytest.mark.slow
@pytest.mark.parametrize("kind, count", [("shapes", 1000), ("nets", 1000)])
def test_soak(kind, count):
    levels, after = soak(kind, str(count))
    assert max(levels) <= 1.1 * levels[1], levels  # in the first tenth caches are still being filled
    assert after <= levels[1], levels
