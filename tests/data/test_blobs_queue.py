"""Queues of records between threads: order, bounds, closing while others wait, what they count."""

import threading
import time

import pytest

from netbuilder.data import BlobsQueue, QueueClosedError
from netbuilder.proto import NetError
from waiting import join_all, wait_until


def together(*jobs):
    """Run jobs in threads of their own; return what each raised, or None."""
    found = [None] * len(jobs)

    def call(index, job):
        try:
            job()
        except Exception as error:
            found[index] = error

    threads = [threading.Thread(target=call, args=each, daemon=True) for each in enumerate(jobs)]
    for thread in threads:
        thread.start()
    join_all(*threads)
    return found


def test_many_threads_lose_and_repeat_nothing():
    queue, taken = BlobsQueue(1, 3, "q"), []
    most = []

    def write(start):
        for k in range(200):
            queue.write([1000 * start + k])
            most.append(len(queue))

    def read():
        while True:
            try:
                taken.append(queue.read()[0])
            except QueueClosedError:
                return

    writers = [threading.Thread(target=write, args=[p], daemon=True) for p in range(8)]
    readers = [threading.Thread(target=read, daemon=True) for _ in range(8)]
    for thread in (*writers, *readers):
        thread.start()
    join_all(*writers)
    queue.close()
    join_all(*readers)
    assert sorted(taken) == [1000 * p + k for p in range(8) for k in range(200)]
    assert max(most) <= 3
    state = queue.state()
    assert (state.length, state.written, state.read) == (0, 1600, 1600)


def test_closing_wakes_all_who_wait_with_the_error():
    full, empty = BlobsQueue(1, 1, "full"), BlobsQueue(1, 1, "empty")
    full.write([0])
    why = OSError("the disk is gone")

    def close():
        wait_until(lambda: len(full.not_full._waiters) == len(empty.not_empty._waiters) == 5)
        time.sleep(0.05)
        full.close(why)
        empty.close(why)

    found = together(*[lambda: full.write([1])] * 5, *[empty.read] * 5, close)
    assert found[-1] is None
    for error in found[:-1]:
        assert isinstance(error, QueueClosedError)
        assert error.__cause__ is why
    assert str(found[0]) == "queue 'full' is closed, and full: OSError: the disk is gone"
    assert full.read() == [0]
    full.write([2])  # the queue is no longer full
    assert full.state().write_wait > 0.04 * 5
    assert empty.state().read_wait > 0.04 * 5


def test_the_first_error_counts():
    queue = BlobsQueue(1, 1, "q")
    queue.close()
    queue.close(OSError("first"))
    queue.close(OSError("second"))
    with pytest.raises(QueueClosedError, match="first"):
        queue.read()


def test_time_limits():
    queue = BlobsQueue(1, 1, "q")
    with pytest.raises(NetError, match="stayed empty for 0.02 seconds"):
        queue.read(0.02)
    queue.write([1])
    with pytest.raises(NetError, match="stayed full for 0.02 seconds"):
        queue.write([1], timeout=0.02)


def test_wrong_numbers():
    with pytest.raises(NetError, match="at least 1, got 0 and 1"):
        BlobsQueue(0, 1, "q")
    with pytest.raises(NetError, match="1 field_names for 2 blobs"):
        BlobsQueue(2, 1, "q", ["a"])
    with pytest.raises(NetError, match="its records have 2 blobs, got 1"):
        BlobsQueue(2, 1, "q").write([1])
