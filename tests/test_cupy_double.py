"""The double of CuPy itself: it has what CuPy has, and refuses what CuPy and GPUs do not do."""

import inspect
import re
import threading

import numpy as np
import pytest

from cupy_double import API, CUDARuntimeError, CupyDouble, PerformanceWarning, Race, Transfer, Undefined
from cupy_double.record import recorded


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


# What there is.


def test_names_are_those_of_cupy(cupy):
    parts = {
        "ndarray": cupy.ndarray,
        "cuda": cupy.cuda,
        "runtime": cupy.cuda.runtime,
        "Device": cupy.cuda.Device(0),
        "Event": cupy.cuda.Event(),
        "Stream": cupy.cuda.Stream(),
        "MemoryPointer": cupy.zeros(1).data,
    }
    helpers = {"order", "clock", "device"}  # what the double keeps in a stream and an event
    for recorded_as, part in parts.items():
        names = {name for name in dir(part) if not name.startswith("_")} - helpers
        assert names - {"CUDARuntimeError"} <= set(API[recorded_as]), recorded_as
    assert {"device", "data", "get", "set"} <= {name for name in dir(cupy.ndarray) if not name.startswith("_")}
    for name in vars(cupy):
        assert name in ("machine", "_made") or name in [*API["functions"], *API["others"]], name


def test_a_name_that_cupy_lacks(cupy):
    for name in ("float128", "longdouble", "object_", "einsum_call", "string_"):
        assert name not in API["functions"] and name not in API["others"]
        with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
            getattr(cupy, name)
    with pytest.raises(AttributeError):
        cupy.zeros(2).resize((1,))
    with pytest.raises(NotImplementedError, match="the double has no cupy.RawModule"):
        cupy.RawModule("")


def test_arguments_that_cupy_lacks(cupy):
    x = cupy.asarray(np.float32([3, 1, 2]))
    assert cupy.argsort(x).get().tolist() == [1, 2, 0]
    with pytest.raises(TypeError):
        cupy.sum(x, where=x > 1)
    with pytest.raises(TypeError):
        cupy.add(x, x, where=x > 1)
    with pytest.raises(TypeError):
        x.astype(np.int32, casting="safe")
    with pytest.raises(TypeError):
        x.item(0)
    with pytest.raises(ValueError, match="kind can only be"):
        cupy.argsort(x, kind="quicksort")
    with pytest.raises(NotImplementedError):
        cupy.maximum.reduce(x)


def test_the_recording_reads_an_installed_module():
    """What record.py writes has the form of api.json; where the same CuPy is installed, its content too."""
    cupy = pytest.importorskip("cupy")
    found = recorded(cupy)
    assert found.keys() == API.keys()
    if found["version"] == API["version"]:
        assert found == API


# Element types.


def test_element_types_are_those_of_cupy(cupy):
    for dtype in (object, "U3", "S3", "M8[s]"):
        with pytest.raises(ValueError, match="Unsupported dtype"):
            cupy.asarray(np.zeros(2, dtype))
    with pytest.raises(ValueError, match="Unsupported dtype"):
        cupy.zeros(2, object)


def test_loops_are_those_of_cupy(cupy):
    x, small = cupy.arange(3), cupy.arange(3, dtype=np.int8)
    assert (x > 1).dtype == np.bool_
    assert cupy.sqrt(small).dtype == np.float16  # as NumPy has it
    for wrong in (lambda: x * np.longdouble(2), lambda: cupy.add(x, x, dtype=np.longdouble)):
        with pytest.raises((TypeError, ValueError), match="no loop|Unsupported"):
            wrong()
    with pytest.raises(TypeError):
        cupy.bitwise_and(x.astype(np.float32), x.astype(np.float32))


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.uint8, np.uint16, np.bool_])
def test_add_at_has_no_small_integers(cupy, dtype):
    with pytest.raises(TypeError, match="add.at only supports int32"):
        cupy.add.at(cupy.zeros(3, dtype), cupy.asarray([0, 0]), cupy.ones(2, dtype))


def test_add_at_adds_all(cupy):
    table = cupy.zeros((3, 2), np.float32)
    cupy.add.at(table, cupy.asarray([2, 2]), cupy.ones((2, 2), np.float32))
    assert table.get().tolist() == [[0, 0], [0, 0], [2, 2]]


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


def test_numbers_do_not_widen_as_in_numpy_2(cupy):
    x = cupy.zeros(3, np.float32)
    assert (x * 2.0).dtype == (2.0 * x).dtype == (x * np.float32(2)).dtype == np.float32
    assert (x * np.float64(2)).dtype == np.float64


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


def test_repeated_indices_in_an_assignment_are_undefined(cupy):
    x = cupy.zeros(3)
    with pytest.raises(Undefined):
        x[cupy.asarray([1, 1])] = 2.0
    x[cupy.asarray([1, 2])] = 2.0
    assert x.get().tolist() == [0, 2, 2]


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


def test_signatures_are_those_of_cupy_where_the_double_has_its_own(cupy):
    for name in ("zeros", "ones", "full", "empty", "arange", "asarray"):
        theirs = re.findall(r"(\w+)(?:=|,|\))", API["functions"][name])
        ours = [p for p in inspect.signature(getattr(cupy, name)).parameters if p != "cupy"]
        assert ours == [p for p in theirs if p in ours], name
