"""Captures: who waits for a whole GPU waits for them."""

import threading

import numpy as np
import pytest

from netbuilder.ops.engines.adopted import adopt
from netbuilder.ops.engines.cuda.capture import _streams_of, between_captures, capture
from netbuilder.ops.engines.gpu import gpu, to_host
from on_gpu import gpus
from waiting import join_all

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
    assert found == [False] and not _streams_of(gpu(0)).lock.locked()
