"""Short kernels keep the interpreter's lock: threads that run small nets do not switch at each of them."""

import sys
import threading
import time

import numpy as np
import pytest

from netbuilder import Workspace
from netbuilder.engines import blas, onednn
from netbuilder.engines.brief_calls import brief_call
from netbuilder.graph import Net
from waiting import join_all

needs_onednn = pytest.mark.skipif(not onednn.available(), reason="needs oneDNN")


def turns_of_another_thread(work):
    """Return how often another thread gets the lock during work, which it is not forced to give away."""
    interval, turns, end = sys.getswitchinterval(), 0, False

    def other():
        nonlocal turns
        while not end:
            turns += 1
            time.sleep(0)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        sys.setswitchinterval(100)
        time.sleep(0.01)  # from its next turn on, the other thread waits that long before it asks for the lock
        before = turns
        work()
        return turns - before
    finally:
        sys.setswitchinterval(interval)
        end = True
        join_all(thread)


def runs_of_a_net(width):
    rng = np.random.default_rng(0)
    workspace = Workspace(threads=1)
    for name, shape in {"x": (4, width), "w": (width, width), "b": (width,)}.items():
        workspace.feed(name, rng.normal(size=shape).astype(np.float32))
    net = Net("net")
    net.FC(["x", "w", "b"], "h")
    net.Softmax("h", "y")
    name = workspace.create_net(net)
    for _ in range(3):
        workspace.run_net(name)
    return lambda: [workspace.run_net(name) for _ in range(500)]


@needs_onednn
def test_runs_of_a_small_net_keep_the_lock():
    assert turns_of_another_thread(runs_of_a_net(128)) == 0


@needs_onednn
def test_runs_of_a_large_net_give_it_away():
    assert turns_of_another_thread(runs_of_a_net(512)) > 0


def test_the_limit_of_numpys_threads_keeps_the_lock():
    def work():
        for _ in range(20_000):
            blas.limit_threads(1)
            blas.release_threads()

    work()
    assert turns_of_another_thread(work) == 0


def test_a_function_that_a_library_lacks_is_an_error():
    with pytest.raises(AttributeError):
        brief_call("libc.so.6", "no_such_function")
