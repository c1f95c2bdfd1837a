"""The pool of threads: order, modes, errors that neither vanish nor hang, closing."""

import os
import threading
import time
import warnings

import pytest

from netbuilder import NameScope, NetError
from netbuilder.graph import CurrentNameScope
from netbuilder.parallel import Parallel, Parallelizable
from netbuilder.proto import UsageError


class Work(Parallelizable):
    """Calls a function, and notes the threads."""

    def __init__(self, function=lambda x: x):
        self.function, self.threads = function, []

    def forward_backward(self, x):
        self.threads.append(threading.current_thread().name)
        return self.function(x)


def later_first(x):
    """The first inputs take the longest."""
    time.sleep(0.02 * (4 - x % 5))
    return x * 10


@pytest.mark.one_in(3)
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_results_come_in_the_order_of_the_inputs(workers):
    with Parallel(workers, Work(later_first)) as pool:
        for x in range(5):
            pool.put(x)
        assert len(pool) == 5
        assert [pool.get() for _ in range(5)] == [0, 10, 20, 30, 40]
        assert pool.map(range(3)) == [0, 10, 20]


def test_zero_workers_work_in_the_callers_thread():
    work = Work()
    with Parallel(0, work) as pool:
        pool.map(range(3))
    assert set(work.threads) == {threading.current_thread().name}


@pytest.mark.parametrize("serial, first", [(True, 2), (False, 0)])
def test_the_first_inputs_are_done_in_the_callers_thread(serial, first):
    work = Work()
    own = threading.current_thread().name
    with Parallel(2, work, serial_init=serial) as pool:
        for x in range(6):
            pool.put(x)
            pool.get()
    assert [name == own for name in work.threads] == [k < first for k in range(6)]


def test_threads_work_at_the_same_time_and_are_made_once():
    together = threading.Barrier(3, timeout=30)
    with Parallel(3, Work(lambda x: together.wait() >= 0), serial_init=False) as pool:
        before = threading.active_count()
        for _ in range(34):
            assert pool.map(range(3)) == [True] * 3
        assert threading.active_count() == before


def test_threads_have_the_scopes_of_the_caller():
    with Parallel(2, Work(lambda x: CurrentNameScope()), serial_init=False) as pool:
        with NameScope("outer"):
            pool.put(0)
        pool.put(1)
        assert (pool.get(), pool.get()) == ("outer/", "")


def fail_at_two(x):
    if x == 2:
        raise KeyError("two")
    return x


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("serial", [True, False])
def test_an_error_is_raised_at_its_turn_and_the_pool_can_be_used_again(workers, serial, capfd):
    with Parallel(workers, Work(fail_at_two), serial_init=serial) as pool:
        for x in range(6):
            pool.put(x)
        assert [pool.get(), pool.get()] == [0, 1]
        with pytest.raises(KeyError, match="two") as caught:
            pool.get()
        if hasattr(caught.value, "__notes__"):
            assert any("of a Parallel" in note for note in caught.value.__notes__)
        assert len(pool) == 0
        assert pool.map([5, 6]) == [5, 6]
    assert capfd.readouterr() == ("", "")  # no thread prints what it raises


def test_after_an_error_inputs_that_wait_are_not_begun():
    begun, go = [], threading.Event()

    def work(x):
        begun.append(x)
        if x == 0:
            go.wait(30)
            raise ValueError("first")
        return x

    with Parallel(1, Work(work), serial_init=False) as pool:
        for x in range(4):
            pool.put(x)
        threading.Timer(0.05, go.set).start()
        with pytest.raises(ValueError, match="first"):
            pool.get()
        assert pool.map([9]) == [9]
    assert begun == [0, 9]


def test_get_without_put_does_not_wait():
    with Parallel(1, Work()) as pool:
        with pytest.raises(UsageError, match=r"get\(\) without a put\(\)"):
            pool.get()
        pool.put(1)
        with pytest.raises(UsageError, match="1 results of earlier inputs are due"):
            pool.map([2])


def test_closing_twice_and_using_it_afterwards():
    pool = Parallel(2, Work())
    pool.put(1)
    before = threading.active_count()
    pool.close()
    pool.close()
    assert threading.active_count() == before - 2
    for act in (lambda: pool.put(1), pool.get, lambda: pool.map([1])):
        with pytest.raises(UsageError, match="is closed; make another one"):
            act()


def test_closing_has_a_time_limit():
    begun, go = threading.Event(), threading.Event()
    pool = Parallel(1, Work(lambda x: (begun.set(), go.wait(30))), serial_init=False)
    pool.put(0)
    begun.wait(30)
    with pytest.warns(RuntimeWarning, match=r"netbuilder-parallel-0 still running after 0.05 seconds"):
        pool.close(0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool.close()
    go.set()


def test_threads_of_a_forgotten_pool_end():
    before = set(threading.enumerate())
    pool = Parallel(2, Work())
    threads = set(threading.enumerate()) - before
    assert len(threads) == 2
    del pool
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_refuses_instead_of_waiting():
    pool = Parallel(1, Work(), serial_init=False)
    child = os.fork()
    if not child:
        try:
            pool.put(1)
        except UsageError as error:
            os._exit(0 if "in the parent process" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    pool.close()


@pytest.mark.parametrize("workers", [-1, True, 1.5, None])
def test_numbers_of_workers(workers):
    with pytest.raises(NetError, match="num_workers must be a whole number, 0 or more, got"):
        Parallel(workers, Work())


def test_units_of_work():
    class Empty(Parallelizable):
        pass

    with pytest.raises(NotImplementedError, match="Empty must define forward_backward"), Parallel(1, Empty()) as pool:
        pool.put(1)
        pool.get()
    for wrong in (lambda x: x, Work):
        with pytest.raises(TypeError, match="an object with a method forward_backward"):
            Parallel(1, wrong)
    assert repr(Parallel(0, Work())) == "Parallel(0 workers, Work, 0 results due)"
