"""Arenas: one run at a time, memory that is freed, concurrent nets."""

import platform
import subprocess
import sys
import threading

import numpy as np
import pytest

from netbuilder.engines.layouts import HOST
from netbuilder.graph import Net
from netbuilder.ops.core import given_numbers
from netbuilder.proto import ShapeError
from netbuilder.runtime import Workspace
from netbuilder.runtime.values.arena import Arena
from switches import single
from waiting import HANG


class User:
    pass


def test_memory_of_one_address():
    arena = Arena()
    small = arena.memory(100)
    small[:] = 7
    large = arena.memory(1 << 20)
    assert small.ctypes.data == large.ctypes.data and large.ctypes.data % 64 == 0
    assert small.size == 100 and (large[:100] == 7).all()


def test_memory_that_no_plan_uses_goes_back():
    arena, one, two = Arena(), User(), User()
    memory = arena.memory(1 << 22)
    memory[:] = 7
    arena.use(one, {HOST: 1 << 12})
    arena.use(two, {HOST: 1 << 22})
    assert arena.nbytes == 1 << 22
    arena.leave(two)
    assert arena.nbytes == 1 << 12
    assert (memory[: 1 << 12] == 7).all() and not memory[1 << 12 :].any()
    del one
    assert arena.nbytes == 0


def test_memory_for_work_between_runs():
    arena, user = Arena(), User()
    arena.use(user, {HOST: 1 << 12})
    with arena.lend(1 << 22) as lent:
        assert lent.ctypes.data == arena.memory(1).ctypes.data and not arena.acquire()
        lent[:] = 7
    assert (arena.memory(1 << 12) == 7).all() and not arena.memory(1 << 22)[1 << 12 :].any()
    assert arena.acquire()  # a run has it
    with arena.lend(100) as lent:
        assert lent.nbytes == 100 and lent.ctypes.data != arena.memory(1).ctypes.data
    assert not arena.acquire()


def test_one_run_at_a_time():
    arena = Arena()
    assert arena.acquire() and not arena.acquire()
    arena.release()
    assert arena.acquire()


def test_more_than_the_machine_has():
    with pytest.raises(MemoryError, match="bytes are needed at the same time, the machine has"):
        Arena().memory(given_numbers.machine_memory() + 1)


def chain(name, length=6):
    net = Net(name)
    blob = "x"
    for number in range(length):
        blob = net.Sigmoid(blob, f"{name}_{number}")
    net.AddExternalOutput(f"{name}_{length - 1}")
    return net, f"{name}_{length - 1}"


def workspace_with(rows=64):
    workspace = Workspace(threads=1)
    workspace.feed("x", np.linspace(-1, 1, rows * 8, dtype=np.float32).reshape(rows, 8))
    return workspace


def test_nets_and_shapes_share_an_arena():
    workspace = workspace_with()
    for name in "ab":
        net, _ = chain(name)
        workspace.create_net(net, observable="outputs", without=single("elementwise_chains"))
        workspace.run_net(net)
    assert workspace.arena.nbytes == 64 * 8 * 4
    workspace.feed("x", np.zeros((640, 8), np.float32))
    workspace.run_net("a")
    assert workspace.arena.nbytes == 640 * 8 * 4
    workspace.delete_net("a")
    assert workspace.arena.nbytes == 64 * 8 * 4
    workspace.delete_net("b")
    assert workspace.arena.nbytes == 0


def test_a_net_that_an_operator_of_another_one_runs():
    workspace = workspace_with()
    inner, _ = chain("inner")
    workspace.create_net(inner, observable="outputs")

    def run_inner(inputs, outputs):
        workspace.run_net(inner)
        outputs[0].feed(inputs[0].data)

    outer = Net("outer")
    a = outer.Sigmoid("x", "a")
    b = outer.Sigmoid(a, "b")
    c = outer.Python(run_inner)([b], ["c"])
    outer.Add([outer.Sigmoid(c, "d"), a], "y")
    outer.AddExternalOutput("y")
    workspace.create_net(outer, observable="outputs")
    workspace.run_net(outer, 3)

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    x = workspace.fetch("x").astype(np.float64)
    np.testing.assert_allclose(workspace.fetch("y"), sigmoid(sigmoid(sigmoid(x))) + sigmoid(x), rtol=1e-6)


def test_threads_of_one_workspace():
    workspace = workspace_with(512)
    nets = [chain(name, 12) for name in "abcd"]
    expected = {}
    for net, out in nets:
        workspace.create_net(net, observable="outputs")
        workspace.run_net(net)
        expected[out] = workspace.fetch(out)
    wrong = []

    def work(net, out):
        for _ in range(50):
            workspace.run_net(net)
            if not np.array_equal(workspace.fetch(out), expected[out]):
                wrong.append(out)

    threads = [threading.Thread(target=work, args=pair, daemon=True) for pair in nets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_values_beyond_the_memory_of_the_machine(monkeypatch):
    workspace = workspace_with()
    monkeypatch.setattr("netbuilder.runtime.values.arena.machine_memory", lambda: 1024)
    net, _ = chain("large")
    workspace.create_net(net, observable="outputs", without=single("elementwise_chains"))
    with pytest.raises(
        ShapeError, match=r"net 'large(_\d+)?', operator 0: .*do not fit into memory .*1,024.*takes 2,048 bytes"
    ):
        workspace.run_net(net)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_given_back():
    code = """
import numpy as np
from netbuilder.runtime.profile.process_memory import resident
from netbuilder.engines.arrays import trim_heap
blocks = [np.ones(64 << 10, np.uint8) for _ in range(1000)]
del blocks[:-1]  # the last one keeps the C library from giving back the rest
before = resident()
trim_heap()
print(before - resident())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 30 << 20
