"""The lane of collectives: order, errors, interrupts, forks."""

import os
import signal
import threading
import time

import pytest

from netbuilder.data.waiting import Cancellation, CancelledError
from netbuilder.distributed.transport.lane import Lane
from netbuilder.proto import DistributedError


def poll(lane, end):
    """Wait as a communicator does."""
    while not end.is_set():
        lane.check()
        time.sleep(0.001)


def test_work_is_done_in_one_other_thread_in_the_order_of_submission():
    lane, done = Lane("a name"), []
    submitted = [lane.submit(lambda n=n: (done.append(n), threading.current_thread().name)) for n in range(20)]
    assert {item.result()[1] for item in submitted} == {"a name"}
    assert done == list(range(20))
    assert not lane.on_this_thread() and lane.submit(lane.on_this_thread).result()


def test_an_error_is_that_of_one_function():
    lane = Lane()
    item = lane.submit(lambda: 1 / 0)
    assert lane.submit(lambda: 3).result() == 3
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            item.result()


def test_ctrl_c_ends_the_wait_and_the_lane():
    lane, never = Lane(), threading.Event()
    items = [lane.submit(lambda: poll(lane, never)), lane.submit(lambda: None)]
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        items[0].result()
    for item in items:
        with pytest.raises(DistributedError, match="interrupted by KeyboardInterrupt.*start the program again"):
            item.result()
    with pytest.raises(DistributedError, match="interrupted"):
        lane.submit(lambda: None).result()


def test_the_time_limit_of_a_run_ends_the_wait():
    lane, never = Lane(), threading.Event()
    item = lane.submit(lambda: poll(lane, never))
    with Cancellation("a net", 0.2).current(), pytest.raises(CancelledError, match="time limit of 0.2 seconds"):
        item.result()
    with pytest.raises(DistributedError, match="CancelledError"):
        item.result()


def test_a_forked_process_has_a_lane_without_work():
    lane, go = Lane(), threading.Event()
    running = lane.submit(go.wait)
    waiting = lane.submit(lambda: 5)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            waiting.result()
        except DistributedError:
            code = 0 if lane.submit(lambda: 7).result() == 7 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    go.set()
    assert running.result() and waiting.result() == 5
