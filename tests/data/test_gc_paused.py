"""Pausing garbage collection: in several threads, in forked processes, and where it was disabled before."""

import gc
import os
import threading
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from netbuilder.data import gc_paused
from netbuilder.data.gc_paused import collection_paused


@pytest.fixture(autouse=True)
def _enabled_before_and_after():
    assert gc.isenabled()
    yield
    enabled = gc.isenabled()
    gc.enable()
    assert enabled


class Pausing(threading.Thread):
    """A thread that pauses garbage collection until it is told to leave."""

    def __init__(self):
        super().__init__()
        self.inside, self.leave = threading.Event(), threading.Event()
        self.start()
        self.inside.wait()

    def run(self):
        with collection_paused():
            self.inside.set()
            self.leave.wait()

    def end(self):
        self.leave.set()
        self.join()


def test_nested_blocks():
    with collection_paused():
        with collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_ends_it():
    with pytest.raises(ZeroDivisionError), collection_paused():
        raise ZeroDivisionError
    assert gc.isenabled()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_last_thread_enables_it(order):
    threads = [Pausing(), Pausing()]
    threads[order[0]].end()
    assert not gc.isenabled()
    threads[order[1]].end()
    assert gc.isenabled()


def test_a_thread_that_is_interrupted_while_it_enters(monkeypatch):
    """One thread looks whether collection is enabled while another pauses it, and disables it when that has ended."""
    other = Pausing()

    def isenabled():
        found = gc.isenabled()
        other.leave.set()
        other.join(0.2)
        return found

    def disable():
        other.leave.set()
        other.join(0.2)
        gc.disable()

    slow = SimpleNamespace(**{**vars(gc), "isenabled": isenabled, "disable": disable})
    monkeypatch.setattr(gc_paused, "gc", slow)
    with collection_paused():
        assert not gc.isenabled()
    other.end()
    assert gc.isenabled()


def _made_in_a_block():
    """Return whether an object that a block makes is among the oldest ones after it."""
    with collection_paused():
        made = [[]]
    return any(each is made for each in gc.get_objects(generation=2))


@pytest.fixture
def _nothing_frozen(monkeypatch):  # as in a program; the tests freeze what they have imported
    gc.unfreeze()
    monkeypatch.setattr(gc_paused, "_frozen", False)
    yield
    gc.freeze()


@pytest.mark.usefixtures("_nothing_frozen")
def test_what_a_block_makes_is_old_until_blocks_alone_would_keep_garbage():
    for _ in range(2):
        gc.collect()
        assert [_made_in_a_block() for _ in range(10)] == [True] * 8 + [False] * 2


@pytest.mark.usefixtures("_nothing_frozen")
def test_what_is_frozen_stays_frozen(monkeypatch):
    gc.collect()
    gc.freeze()
    before = gc.get_freeze_count()
    counted = []
    slow = SimpleNamespace(**{**vars(gc), "get_freeze_count": lambda: counted.append(1) or before})
    monkeypatch.setattr(gc_paused, "gc", slow)
    assert not _made_in_a_block() and not _made_in_a_block()
    assert counted == [1], "they are a million, and counted one by one"
    assert gc.get_freeze_count() == before


def test_disabled_before_it_stays_disabled():
    gc.disable()
    with collection_paused():
        pass
    assert not gc.isenabled()
    gc.enable()


@pytest.mark.parametrize("own", [False, True])
def test_threads_that_a_forked_process_has_not(own):
    other = Pausing()
    with ExitStack() as stack:
        if own:
            stack.enter_context(collection_paused())
        child = os.fork()
        if not child:
            paused = not gc.isenabled()
            stack.close()
            os._exit(0 if paused == own and gc.isenabled() else 1)
        assert os.waitpid(child, 0)[1] == 0
    other.end()
