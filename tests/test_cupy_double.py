"""The double of CuPy itself: what it refuses, counts and finds."""

import re
import threading

import numpy as np
import pytest

from cupy_double import CUDARuntimeError, CupyDouble, PerformanceWarning, Race, Transfer


@pytest.fixture
def cupy():
    return CupyDouble(2)


@pytest.fixture
def apart():
    """Two GPUs that cannot read each other's memory."""
    return CupyDouble(2, peers=False)


def stream(cupy, device):
    with cupy.cuda.Device(device):
        return cupy.cuda.Stream()


# The host.


def test_arrays_of_the_host_do_not_mix(cupy):
    x, host = cupy.zeros(3, np.float32), np.zeros(3, np.float32)
    for mixed in (
        lambda: x + host,
        lambda: host + x,
        lambda: cupy.maximum(x, host),
        lambda: np.maximum(host, x),
        lambda: cupy.concatenate([x, host]),
        lambda: cupy.where(x > 0, x, host),
        lambda: x + np.float32([1.0]),
        lambda: x[np.array([0])],
        lambda: x[[0]],
    ):
        with pytest.raises(TypeError):
            mixed()
    with pytest.raises(ValueError, match="non-scalar"):
        x[...] = host
    for fine in (x + 1, x + 1.0, x + np.float32(1), np.float32(2) * x, 1 - x, x > np.float32(0)):
        assert isinstance(fine, cupy.ndarray)


def test_nothing_turns_into_an_array_of_the_host_by_itself(cupy):
    x = cupy.zeros(3)
    for implicit in (
        lambda: np.asarray(x),
        lambda: np.array([x, x]),
        lambda: memoryview(x),
        lambda: np.float32([1, 2, 3]).dot(x),
    ):
        with pytest.raises(TypeError):
            implicit()
    with pytest.raises(TypeError):
        list(range(4))[cupy.asarray(np.int64(2))]  # no __index__
    assert isinstance(np.sum(x), cupy.ndarray)  # NumPy's functions hand over to CuPy's


def test_reductions_give_arrays_not_numbers(cupy):
    total = cupy.ones(3).sum()
    assert isinstance(total, cupy.ndarray) and total.shape == ()
    assert float(total) == 3.0 and int(total) == 3 and bool(total)
    assert cupy.machine.transfers[-1] == Transfer(0, -1, 8)


def test_empty_holds_no_zeroes(cupy):
    assert np.isnan(cupy.empty(4).get()).all()


def test_views_share_memory(cupy):
    x = cupy.zeros((2, 3), np.float32)
    x.reshape(-1)[1:4:2] = 1
    x.T[2, 1] += 5
    assert x.get().tolist() == [[0, 1, 0], [1, 0, 5]]
    assert len(cupy.machine.allocated) == 1


# Devices.


def test_arrays_of_another_device(cupy, apart):
    for module, refusal in (
        (cupy, pytest.warns(PerformanceWarning, match="Peer access has been activated")),
        (apart, pytest.raises(ValueError, match="Peer access is unavailable")),
    ):
        x = module.zeros(3)
        x.device.synchronize()
        with module.cuda.Device(1), refusal:
            module.sqrt(x)


def test_copies_between_devices(apart):
    x = apart.asarray(np.float32([1, 2, 3]))
    x.device.synchronize()
    with apart.cuda.Device(1):
        for copy in (apart.asarray(x), x.copy()):
            assert copy.device.id == 1 and copy.get().tolist() == [1, 2, 3]
        with pytest.raises(NotImplementedError, match="non-contiguous"):
            apart.asarray(x[::2])
    assert apart.machine.transfers.count(Transfer(0, 1, 12)) == 2


def test_devices_nest_and_are_a_threads_own(cupy):
    device = cupy.cuda.Device
    with device(1), device(0), device(1):
        assert cupy.zeros(1).device == device(1)
        found = []
        thread = threading.Thread(target=lambda: found.append(cupy.zeros(1).device.id))
        thread.start()
        thread.join()
        assert found == [0]
    assert cupy.cuda.get_device_id() == 0
    with pytest.raises(CUDARuntimeError, match="invalid device ordinal"), device(2):
        pass


def test_streams_and_events_belong_to_devices(cupy):
    other = stream(cupy, 1)
    with pytest.raises(RuntimeError, match=re.escape("created on (1) does not match with the current device (0)")):
        with other:
            pass
    with pytest.raises(CUDARuntimeError, match="invalid resource handle"):
        other.record(cupy.cuda.Event())


# Waiting.


def test_a_stream_that_does_not_wait_is_a_race(cupy):
    first, second = stream(cupy, 0), stream(cupy, 0)
    with first:
        x = cupy.zeros(3)
    for use in (lambda: x + 1, lambda: x.get(), lambda: x.fill(2), lambda: x.set(np.ones(3))):
        with second, pytest.raises(Race, match="does not wait for stream"):
            use()
    second.wait_event(first.record())
    with second:
        x.fill(2)
    with first, pytest.raises(Race, match="has written the same memory"):
        x + 1
    assert len(cupy.machine.faults) == 5


def test_overwriting_what_another_stream_still_reads_is_a_race(cupy):
    first, second = stream(cupy, 0), stream(cupy, 0)
    with first:
        x = cupy.zeros(3)
    second.wait_event(first.record())
    with second:
        y = x + 1
    with first, pytest.raises(Race, match="has read the same memory"):
        x.fill(1)
    first.wait_event(second.record())
    with first:
        x.fill(1)
    assert y.get is not None


def test_parts_of_an_allocation_are_used_apart(cupy):
    first, second = stream(cupy, 0), stream(cupy, 0)
    with first:
        x = cupy.zeros(12)
    second.wait_event(first.record())
    with second:
        x[4:8].fill(1)
    with first:
        x[:4].fill(2)
        cupy.add(x[:4], 1, out=x[8:])
        for part in (x, x[3:5], x[7:9], x[5:6]):
            with pytest.raises(Race, match="does not wait for stream"):
                part + 1
    with second:
        for part in (x[:1], x[3:9], x[11:]):
            with pytest.raises(Race, match="does not wait for stream"):
                part.fill(0)
        cupy.add(x[4:8], 1, out=x[4:8])


def test_an_event_counts_what_came_before_it_only(cupy):
    first, second = stream(cupy, 0), stream(cupy, 0)
    with first:
        x = cupy.zeros(3)
        event = first.record()
        x.fill(1)
    second.wait_event(event)
    with second, pytest.raises(Race):
        x + 1


def test_what_the_host_waited_for_is_done_for_all(cupy):
    first, second = stream(cupy, 0), stream(cupy, 1)
    with first:
        x = cupy.zeros(3)
    first.synchronize()
    with cupy.cuda.Device(1), second:
        y = x.copy()
    cupy.cuda.Device(1).synchronize()
    with first:
        x.fill(1)
    with cupy.cuda.Device(1), second:
        assert y.get().tolist() == [0, 0, 0]
    assert cupy.machine.faults == []


def test_memory_freed_while_another_stream_uses_it_is_noted(cupy):
    first, second = stream(cupy, 0), stream(cupy, 0)
    for waits in (True, False):
        with first:
            x = cupy.zeros(3)
        second.wait_event(first.record())
        with second:
            y = x + 1
        if waits:
            first.wait_event(second.record())
        del x
        assert len(cupy.machine.faults) == (0 if waits else 1)
    assert "24 bytes of GPU 0 were freed" in cupy.machine.faults[0] and y.size == 3


# Pinned memory.


def pinned(cupy, nbytes):
    memory = cupy.cuda.alloc_pinned_memory(nbytes)
    return memory.ptr, np.frombuffer(memory, np.float32, nbytes // 4)


def test_pinned_memory_goes_to_a_gpu_and_back(cupy):
    queue, x = stream(cupy, 0), cupy.zeros(3, np.float32)
    queue.synchronize()
    cupy.cuda.Device(0).synchronize()
    (up, source), (down, target) = pinned(cupy, 12), pinned(cupy, 12)
    source[...] = [1, 2, 3]
    x.data.copy_from_host_async(up, 12, queue)
    x.data.copy_to_host_async(down, 12, queue)
    done = queue.record()
    assert np.isnan(target).all(), "the host has not waited"
    assert not done.done
    done.synchronize()
    assert done.done and target.tolist() == [1, 2, 3]
    assert [transfer.pinned for transfer in cupy.machine.transfers] == [True, True]
    x.set(np.zeros(3, np.float32))
    assert not cupy.machine.transfers[-1].pinned


def test_pinned_memory_that_is_overwritten_too_early_is_a_race(cupy):
    x = cupy.zeros(3, np.float32)
    address, source = pinned(cupy, 12)
    source[...] = 1
    x.data.copy_from_host_async(address, 12)
    cupy.cuda.Device(0).synchronize()
    source[...] = 2
    x.data.copy_from_host_async(address, 12)
    source[...] = 3
    with pytest.raises(Race, match="pinned memory was overwritten"):
        cupy.cuda.Device(0).synchronize()


# Captures.

THREAD_LOCAL = 1  # the mode of a capture


def capture(queue, work):
    with queue:
        queue.begin_capture(THREAD_LOCAL)
        try:
            assert queue.is_capturing()
            work()
        except BaseException:
            with pytest.raises(CUDARuntimeError):
                queue.end_capture()
            raise
        return queue.end_capture()


def test_a_graph_repeats_what_was_captured_on_the_same_memory(cupy):
    queue, other = stream(cupy, 0), stream(cupy, 0)
    with other:
        x, y, table = cupy.ones(3), cupy.zeros(3), cupy.zeros(3)
        where = cupy.asarray([2, 0])
    other.synchronize()

    def work():
        cupy.add(x, 1.0, out=x)
        cupy.sum(x, axis=0, out=y[0])
        y[1:] = x[1:]
        cupy.add.at(table, where, 1.0)
        x.data.copy_from_device_async(y.data, 8)

    made = len(cupy.machine.launches)
    graph = capture(queue, work)
    assert len(cupy.machine.launches) == made and x.get(other).tolist() == [1, 1, 1], "nothing is done yet"
    for total, first in ((6.0, 6.0), (13.0, 13.0)):  # 2 + 2 + 2, then 7 + 3 + 3
        graph.launch(other)
        assert y.get(other)[0] == total and x.get(other)[0] == first
    assert table.get(other).tolist() == [2, 0, 2]
    replayed = [launch.name for launch in cupy.machine.launches if launch.replayed]
    assert replayed == 2 * ["add", "sum", "setitem", "add.at", "copy"]
    assert cupy.machine.counts["replays"] == 2


@pytest.mark.parametrize(
    "what",
    [
        "an allocation",
        "a read",
        "a copy from the host",
        "a wait of the host for the stream",
        "a wait of the host for the device",
        "a wait of the host for an event",
        "an event recorded before",
        "a second capture",
        "cuBLAS",
    ],
)
def test_what_a_capture_refuses(cupy, what):
    queue = stream(cupy, 0)
    with queue:
        x, product = cupy.ones(3), cupy.empty(())
        before = queue.record()
    refused = {
        "an allocation": lambda: x + 1,
        "a read": lambda: x.get(),
        "a copy from the host": lambda: x.set(np.zeros(3)),
        "a wait of the host for the stream": queue.synchronize,
        "a wait of the host for the device": cupy.cuda.Device(0).synchronize,
        "a wait of the host for an event": before.synchronize,
        "an event recorded before": lambda: queue.wait_event(before),
        "a second capture": lambda: queue.begin_capture(THREAD_LOCAL),
        "cuBLAS": lambda: cupy.dot(x, x, out=product),
    }[what]
    with queue:
        queue.begin_capture(THREAD_LOCAL)
        with pytest.raises((CUDARuntimeError, RuntimeError), match="captur|IllegalState"):
            refused()
        if what in ("a read", "a copy from the host", "a second capture", "cuBLAS"):  # refused before CUDA was asked
            queue.end_capture()
        else:
            with pytest.raises(CUDARuntimeError, match="StreamCaptureInvalidated"):
                queue.end_capture()
        assert (x + 1).get().tolist() == [2, 2, 2], "the stream works as before"


def test_other_threads_allocate_and_wait_during_a_capture(cupy):
    queue, found = stream(cupy, 0), []
    with queue:
        x = cupy.ones(3)

    def other():
        found.append(cupy.ones(3).get().sum())
        try:
            queue.end_capture()
        except CUDARuntimeError as error:
            found.append(str(error))

    def work():
        x.fill(5)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    graph = capture(queue, work)
    assert found[0] == 3 and "WrongThread" in found[1]
    graph.launch(queue)
    assert x.get(queue).tolist() == [5, 5, 5]


def test_captures_span_streams(cupy):
    first, second = stream(cupy, 0), stream(cupy, 0)
    with first:
        x, y = cupy.ones(3), cupy.ones(3)
    first.synchronize()
    forked, joined = cupy.cuda.Event(), cupy.cuda.Event()

    def work(wait=True, join=True):
        first.record(forked)
        second.wait_event(forked)
        with second:
            cupy.add(y, 1, out=y)
        cupy.multiply(x, 2, out=x)
        if join:
            first.wait_event(second.record(joined))
        cupy.add(x, y, out=x)
        if not wait:
            with second:
                y.fill(0)
            first.wait_event(second.record(joined))

    graph = capture(first, work)
    graph.launch(first)
    assert x.get(first).tolist() == [4, 4, 4]
    assert not second.is_capturing()
    with first:
        first.begin_capture(THREAD_LOCAL)
        work(join=False)
        with pytest.raises(CUDARuntimeError, match="StreamCaptureUnjoined"):
            first.end_capture()
    with pytest.raises(CUDARuntimeError, match="cudaErrorCapturedEvent"):
        second.wait_event(forked)
    racing = capture(first, lambda: work(wait=False))
    with pytest.raises(Race, match="fill|setitem"):
        racing.launch(first)


def test_an_allocator_can_refuse(cupy):
    def refuse(nbytes):
        raise MemoryError(nbytes)

    with cupy.cuda.using_allocator(refuse), pytest.raises(MemoryError, match="24"):
        cupy.zeros(3)
    assert cupy.zeros(3).size == 3


def test_the_current_stream(cupy):
    queue = stream(cupy, 0)
    with queue:
        assert cupy.cuda.get_current_stream().ptr == queue.ptr
    assert cupy.cuda.get_current_stream().ptr == 0
    with pytest.raises(RuntimeError, match="default"):
        cupy.cuda.get_current_stream().begin_capture(THREAD_LOCAL)


def test_calls_of_the_host_are_counted(cupy):
    first, second = stream(cupy, 0), stream(cupy, 0)
    with first:
        x = cupy.zeros(3)
    before = cupy.machine.counts.copy()
    second.wait_event(first.record())
    with second:
        x.fill(1)
        x.get()
    found = cupy.machine.counts - before
    assert found == {"events": 1, "records": 1, "waits": 1, "launches": 2, "copies": 1, "reads": 1}
