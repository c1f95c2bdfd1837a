"""Captures: who waits for a whole GPU waits for them, graphs keep what they use, and run on their own GPU."""

import gc
import threading

import numpy as np
import pytest

from netbuilder.engines.adopted import adopt
from netbuilder.engines.cuda import cublas
from netbuilder.engines.cuda.capture import between_captures, capture, streams_of
from netbuilder.engines.gpu import gpu, to_host
from on_gpu import gpus
from waiting import join_all, wait_until

pytestmark = pytest.mark.emulated


@pytest.fixture(autouse=True)
def machine():
    with gpus(2) as found:
        yield found


def ones(number, *shape):
    with gpu(number) as here:
        return here.xp.ones(shape, np.float32)


def test_an_array_of_another_library_is_adopted_after_a_capture():
    """CUDA refuses to wait for a whole GPU meanwhile, and ends the capture."""
    given, result = ones(0, 3), ones(0, 3)
    found = []
    thread = threading.Thread(target=lambda: found.append(adopt(given)))

    def call():
        thread.start()
        thread.join(0.1)
        assert thread.is_alive() and not found
        gpu(0).xp.add(given, given, out=result)

    graph = capture(0, [call])
    join_all(thread)
    graph.launch()
    np.testing.assert_array_equal(to_host(result), 2)
    np.testing.assert_array_equal(to_host(found[0]), 1)


def test_nothing_is_captured_while_an_array_is_adopted():
    with between_captures(gpu(0), wait=True) as free:
        assert free and capture(0, []) is None
    assert capture(0, []) is not None


def test_a_thread_that_captures_does_not_wait_for_itself():
    found = []

    def call():
        with between_captures(gpu(0), wait=True) as free:
            found.append(free)

    capture(0, [call])
    assert found == [False] and not streams_of(gpu(0)).lock.locked()


def test_a_graph_keeps_the_handles_that_it_was_captured_with():
    """Of a thread that has ended, too: the kernels of the graph may use memory of the handle."""
    x, y = ones(0, 1, 4, 4), ones(0, 1, 4, 4)
    product = cublas.Product(1, 4, 4, 4).bind(x, x, y)
    graphs = []

    def work():
        with gpu(0):
            product()
        graphs.append(capture(0, [product]))

    thread = threading.Thread(target=work)
    thread.start()
    join_all(thread)
    cublas.free_handles()
    assert not cublas.thread_handles.ended_handles
    with gpu(0):
        y.fill(0)
    graphs[0].launch()
    np.testing.assert_array_equal(to_host(y), 4)
    graphs.clear()
    gc.collect()
    wait_until(lambda: len(cublas.thread_handles.ended_handles) == 1)
    cublas.free_handles()
    assert not cublas.thread_handles.ended_handles


def test_a_graph_is_launched_on_its_gpu_whatever_the_thread_used_last():
    x = ones(1, 3)
    graph = capture(1, [lambda: x.fill(2)])
    current = []

    class Launched:
        def __init__(self, raw):
            self.raw = raw

        def launch(self, stream):
            current.append(gpu(0).xp.cuda.runtime.getDevice())
            self.raw.launch(stream)

    graph.raw_graph = Launched(graph.raw_graph)
    with gpu(0):
        graph.launch()
    assert current == [1]
    np.testing.assert_array_equal(to_host(x), 2)
