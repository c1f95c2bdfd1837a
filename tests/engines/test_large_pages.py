"""Memory in large pages for buffers that last."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from netbuilder.engines import large_pages
from netbuilder.engines.large_pages import lasting_zeros

MIB = 1 << 20


@pytest.mark.parametrize("nbytes", [0, 1, 1000, 40_000, 3 * MIB, 5 * MIB, 20 * MIB + 1])
def test_memory_is_zero_and_aligned(nbytes):
    for _ in range(3):
        found = lasting_zeros(nbytes)
        assert found.dtype == np.uint8 and found.shape == (nbytes,) and found.flags.writeable
        assert not found.any()
        assert not nbytes or found.ctypes.data % 64 == 0
        found[:] = 255


def test_buffers_do_not_overlap_and_share_slabs():
    rng = np.random.default_rng(0)
    found = [lasting_zeros(int(n)) for n in rng.integers(32 << 10, 6 * MIB, 60)]
    for i, each in enumerate(found):
        each[:] = i
    assert all((each == i).all() for i, each in enumerate(found))
    begins = sorted((each.ctypes.data, each.nbytes) for each in found)
    assert all(a + n <= b for (a, n), (b, _) in zip(begins, begins[1:]))
    small = [lasting_zeros(100_000) for _ in range(30)]
    assert len({id(_root(each)) for each in small}) <= 3


def test_threads_get_memory_of_their_own():
    found: list[np.ndarray] = []

    def take(value: int) -> None:
        for _ in range(20):
            each = lasting_zeros(200_000)
            each[:] = value
            found.append(each)

    threads = [threading.Thread(target=take, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((each == each[0]).all() for each in found)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's account of memory")
def test_freed_slabs_return_to_the_system():
    kept = [lasting_zeros(MIB) for _ in range(64)]
    for each in kept:
        each[:] = 1
    del each
    before = _resident()
    kept.clear()
    lasting_zeros(MIB)
    gc.collect()
    assert before - _resident() > 40 * MIB


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's account of memory")
def test_hardly_more_memory_is_taken_than_buffers_have():
    """Also if their sizes are no multiples of a large page, and do not fill slabs in the order in which they come."""
    sizes = [9 * MIB, 4 * MIB, MIB // 4, 9 * MIB // 4, 5 * MIB, MIB] * 6
    before = _resident()
    kept = [lasting_zeros(size) for size in sizes]
    for each in kept:
        each[:] = 1
    assert _resident() - before < sum(sizes) + 6 * MIB


def test_without_large_pages_memory_is_plain(monkeypatch):
    monkeypatch.setattr(large_pages, "slabs", large_pages.Slabs())
    monkeypatch.setattr(large_pages, "map", lambda nbytes: None)
    for nbytes in (100_000, 9 * MIB):
        found = lasting_zeros(nbytes)
        assert found.shape == (nbytes,) and not found.any() and found.ctypes.data % 64 == 0


def _root(array):
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
