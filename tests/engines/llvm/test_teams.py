"""Rows of machine code in a team of OpenMP's threads: each is done once, by a thread of its own where there are any."""

import ctypes
import os
import threading

import numpy as np
import pytest

from machine_code import alone
from netbuilder.engines.llvm import argument_rows, machine
from netbuilder.engines.llvm.argument_rows import call_of_threads
from netbuilder.engines.llvm.copies import copying
from netbuilder.engines.openmp import openmp

pytestmark = pytest.mark.skipif(not machine.available(), reason="needs llvmlite")
needs_openmp = pytest.mark.skipif(isinstance(openmp(), OSError), reason="needs libgomp")


class Rows:
    """Rows whose function notes which of them a thread has done."""

    def __init__(self, count, also=None):
        self.done, self._also, self._met = [], also, threading.Barrier(count)
        self._function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._run)
        address = ctypes.cast(self._function, ctypes.c_void_p).value
        self.rows = [np.array([address, number], np.int64) for number in range(count)]

    def _run(self, row):
        number = ctypes.cast(row, ctypes.POINTER(ctypes.c_int64))[1]
        if self._also is None:
            self._met.wait(30)  # so that no thread does the work of another
        else:
            self._also()
        self.done.append((number, threading.get_native_id()))

    def call(self, threads):
        call_of_threads(alone(threads), self.rows, self, brief=False)()
        return self.done


@needs_openmp
def test_each_thread_has_a_row():
    first = Rows(3).call(3)
    assert sorted(number for number, _ in first) == [0, 1, 2]
    assert len({thread for _, thread in first}) == 3
    assert dict(first)[0] == threading.get_native_id()
    assert {thread for _, thread in Rows(2).call(3)} < {thread for _, thread in first}  # the team stays


@needs_openmp
def test_a_team_that_is_smaller_does_all_rows():
    """Inside a parallel region OpenMP gives a thread no team."""
    inner = []
    Rows(2, also=lambda: inner.append(Rows(3, also=lambda: None).call(3))).call(2)
    assert [sorted(number for number, _ in each) for each in inner] == [[0, 1, 2]] * 2


def test_rows_without_libgomp(monkeypatch):
    monkeypatch.setattr(argument_rows, "openmp", lambda: OSError("it is missing"))
    assert [number for number, _ in Rows(3, also=lambda: None).call(3)] == [0, 1, 2]


@needs_openmp
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_a_team_of_its_own():
    source, target = np.arange(1 << 18).reshape(512, 512).T, np.zeros((512, 512), np.int64)
    call = copying(alone(2), [(source, target)])
    call()
    target[:] = 0
    child = os.fork()
    if child == 0:
        call()
        os._exit(0 if np.array_equal(source, target) else 1)
    assert os.waitpid(child, 0)[1] == 0
    call()
    np.testing.assert_array_equal(source, target)
