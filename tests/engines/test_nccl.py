"""NCCL: communicators, groups, what they compute; and what its double finds, which emulated GPUs have."""

import inspect
import re
import sys
import threading

import numpy as np
import pytest

from emulated_gpu import machine
from nccl_double import Hang, Mismatch, NcclDouble, NcclError
from nccl_double.processes import NcclOfProcesses
from netbuilder.engines import nccl
from netbuilder.engines.gpu import StreamRole, gpu
from netbuilder.engines.nccl import GpuGroup, NcclCall, bind_collectives, gpu_group, nccl_available, type_of
from netbuilder.proto import DeviceError
from on_gpu import gpus
from thread_ranks import on_ranks

_MODULE = (
    nccl.nccl_module if nccl.nccl_module.__name__ == "nccl_module" else lambda: None
)  # emulated GPUs have a double
SUMS = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]


def on_gpus(*values):
    """Return arrays, one on each GPU."""
    made = []
    for number, value in enumerate(values):
        with gpu(number) as here:
            made.append(here.xp.asarray(np.asarray(value)))
    return made


def fetched(arrays):
    result = []
    for number, array in enumerate(arrays):
        with gpu(number):
            result.append(array.get())
    return result


def run(group, *calls):
    group.bind(calls).begin()()


@pytest.fixture
def real():
    """The library, which needs no GPU for what follows."""
    found = pytest.importorskip("cupy.cuda.nccl", reason="needs CuPy and the wheel nvidia-nccl-cu12")
    if not found.available:
        pytest.skip("needs the wheel nvidia-nccl-cu12")
    return found


def test_the_library_makes_ids_without_a_gpu(real):
    assert len(real.get_unique_id()) == 128 and real.get_version() >= 21800
    assert {f"NCCL_{type_of(dtype)}" for dtype in nccl.TYPES} <= set(dir(real))


def test_the_double_is_like_the_library(real):
    """Its exceptions, numbers and functions, with the arguments in their order."""
    double = NcclDouble()
    assert double.NcclError.__bases__ == real.NcclError.__bases__ and issubclass(real.NcclError, RuntimeError)
    numbers = [name for name in dir(double) if name.startswith("NCCL_")]
    assert [getattr(double, name) for name in numbers] == [getattr(real, name) for name in numbers]
    for name in ("get_version", "get_unique_id", "groupStart", "groupEnd"):
        assert callable(getattr(real, name)) and callable(getattr(double, name))
    for name, method in inspect.getmembers(double.NcclCommunicator, inspect.isroutine):
        if not name.startswith("_"):
            theirs = re.search(r"\((.*)\)", getattr(real.NcclCommunicator, name).__doc__ or "()").group(1)
            names = [each.split("=")[0].split()[-1] for each in theirs.split(",") if each and "self" not in each]
            assert names == [*inspect.signature(method).parameters][name != "initAll" :], name


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", None)
    monkeypatch.setattr(nccl, "nccl_module", _MODULE)
    assert not nccl_available()
    with pytest.raises(DeviceError, match=r"NCCL is not installed.*pip install 'nvidia-nccl-cu12'; or use_nccl=False"):
        nccl.nccl()


@pytest.mark.parametrize("dtype", SUMS)
def test_nccl_adds_every_type(four_gpus, dtype):
    arrays = on_gpus(*(np.arange(5).astype(dtype) + np.dtype(dtype).type(k) for k in range(3)))
    run(gpu_group([0, 1, 2]), NcclCall("allReduce", arrays, arrays, type_of(dtype, sums=True), 5))
    for got in fetched(arrays):
        np.testing.assert_array_equal(got, (3 * np.arange(5) + 3).astype(dtype))


def test_nccl_adds_bfloat16(two_gpus):
    bits = (np.float32([1.5, -2, 3e38]).view(np.uint32) >> 16).astype(np.uint16)
    arrays = on_gpus(bits, bits)
    run(gpu_group([0, 1]), NcclCall("allReduce", arrays, arrays, type_of("bfloat16"), 3))
    got = (fetched(arrays)[1].astype(np.uint32) << 16).view(np.float32)
    assert got.tolist() == [3, -4, np.inf]


def test_types_without_sums():
    assert type_of("bool") == "UINT8" and type_of("bool", sums=True) is None
    assert type_of(np.int16) is None and type_of("float32") == "FLOAT32"


def test_nccl_reduces_copies_and_gathers(two_gpus):
    group = gpu_group([0, 1])
    a, b = on_gpus([1.0, 2.0], [10.0, 20.0])
    run(group, NcclCall("reduce", [a, b], [None, b], "FLOAT64", 2, root=1))
    assert [x.tolist() for x in fetched([a, b])] == [[1, 2], [11, 22]]
    run(group, NcclCall("broadcast", [a, b], [a, b], "UINT8", 16, root=1))
    assert fetched([a, b])[0].tolist() == [11, 22]
    both = on_gpus(np.zeros(4), np.zeros(4))
    run(group, NcclCall("allGather", [a, b], both, "FLOAT64", 2))
    assert fetched(both)[1].tolist() == [11, 22, 11, 22]


@pytest.mark.parametrize("dtype", SUMS)
def test_nccl_of_one_gpu(one_gpu, dtype):
    """Every kind of call, alone and packed with others: what a machine with one GPU can show."""
    values = [(np.arange(n) + n).astype(dtype) for n in (5, 3, 4, 6)]
    (given, got), kind = ([on_gpus(x) for x in some] for some in (values, [0 * x for x in values])), type_of(dtype)
    group = gpu_group([0])
    run(group, *(NcclCall("allReduce", x, y, kind, len(x[0])) for x, y in zip(given, got)))
    run(group, NcclCall("broadcast", given[0], given[0], "UINT8", values[0].nbytes, 0))
    run(group, NcclCall("reduce", given[1], got[1], kind, 3, root=0), NcclCall("allGather", given[2], got[2], kind, 4))
    for x, a, b in zip(values, given, got):
        np.testing.assert_array_equal(fetched(a)[0], x)
        np.testing.assert_array_equal(fetched(b)[0], x)


@pytest.mark.emulated
def test_communicators_are_made_once_for_each_set():
    with gpus(3):
        assert gpu_group([0, 1]) is gpu_group((0, 1)) is not gpu_group([1, 2])
        assert nccl.nccl().created == [(0, 1), (1, 2)]


@pytest.mark.emulated
def test_communicators_have_a_bound(monkeypatch):
    """Beyond it those go that nothing uses, the longest unused first; a set that is used again is connected again."""
    monkeypatch.setattr(nccl, "KEPT", 2)
    with gpus(4):
        arrays = on_gpus([1.0], [2.0])
        bound = gpu_group([0, 1]).bind([NcclCall("allReduce", arrays, arrays, "FLOAT64", 1)])
        for pair in ([1, 2], [2, 3], [0, 3], [2, 3]):
            gpu_group(pair)
            assert len(nccl.groups) <= 2 and (0, 1) in nccl.groups
        module = nccl.nccl()
        assert module.destroyed == [1, 2, 2, 3, 0, 3] and module.created.count((2, 3)) == 2
        bound.begin()()
        assert [each.tolist() for each in fetched(arrays)] == [[3.0], [3.0]]
        del bound
        gpu_group([1, 3])
        assert module.destroyed[-2:] == [0, 1]


@pytest.mark.emulated
def test_no_thread_frees_communicators_that_another_one_is_binding(monkeypatch):
    monkeypatch.setattr(nccl, "KEPT", 1)
    others = []

    class Slow(nccl.BoundGroup):
        def __init__(self, *arguments):
            others.append(threading.Thread(target=gpu_group, args=([1, 2],)))
            others[0].start()
            others[0].join(0.2)
            super().__init__(*arguments)

    monkeypatch.setattr(nccl, "BoundGroup", Slow)
    with gpus(3):
        arrays = on_gpus([1.0], [2.0])
        bound = bind_collectives([0, 1], [NcclCall("allReduce", arrays, arrays, "FLOAT64", 1)])
        others[0].join()
        bound.begin()()
        assert nccl.nccl().destroyed == [] and [each.tolist() for each in fetched(arrays)] == [[3.0], [3.0]]


@pytest.mark.emulated
def test_communicators_that_plans_use_are_kept(monkeypatch):
    monkeypatch.setattr(nccl, "KEPT", 1)
    with gpus(3):
        arrays = on_gpus([1.0], [2.0], [3.0])
        sets = [[0, 1], [0, 1, 2]]
        bound = [
            gpu_group(each).bind([NcclCall("allReduce", arrays[: len(each)], arrays[: len(each)], "FLOAT64", 1)])
            for each in sets
        ]
        for each in bound:
            each.begin()()
        assert nccl.nccl().destroyed == [] and [each.tolist() for each in fetched(arrays)] == [[9.0], [9.0], [9.0]]


@pytest.mark.emulated
def test_gpus_that_cannot_be_connected():
    with gpus(2), pytest.raises(DeviceError, match=r"NCCL cannot connect the GPUs \[0, 0\].*duplicate.*use_nccl=False"):
        gpu_group([0, 0])


@pytest.mark.emulated
def test_several_calls_are_one_group_and_empty_ones_none():
    with gpus(2):
        arrays, others = on_gpus([1.0], [2.0]), on_gpus([3.0], [4.0])
        calls = [NcclCall("allReduce", each, each, "FLOAT64", 1) for each in (arrays, others)]
        run(gpu_group([0, 1]), calls[0], NcclCall("allReduce", arrays, arrays, "FLOAT64", 0), calls[1])
        assert [len(group) for group in nccl.nccl().groups] == [4]


SMALL = pytest.mark.parametrize(
    "dtype, sizes", [("float32", (1, 3, 70_000, 5)), ("float16", (7, 2, 1, 4)), ("int64", (2,) * 5)]
)


def summed(dtype, sizes):
    """Sum arrays over three GPUs by one group; return their values, and arrays of what was given and of the sums."""
    rng, kind = np.random.default_rng(0), type_of(dtype, sums=True)
    values = [[rng.integers(-9, 9, size).astype(dtype) for _ in range(3)] for size in sizes]
    given, got = ([on_gpus(*each) for each in source] for source in (values, [[0 * x for x in v] for v in values]))
    group = gpu_group([0, 1, 2])
    run(group, *(NcclCall("allReduce", x, y, kind, len(x[0])) for x, y in zip(given, got)))
    return values, given, got


@pytest.mark.emulated
@SMALL
def test_small_arrays_are_one_call(dtype, sizes):
    """The large one is alone."""
    with gpus(3):
        summed(dtype, sizes)
        assert [len(group) for group in nccl.nccl().groups] == [3 * (1 if max(sizes) < 70_000 else 4)]


@SMALL
def test_what_is_packed_for_nccl_is_as_without(four_gpus, dtype, sizes):
    """To the bit, and where it is to be."""
    for each, x, y in zip(*summed(dtype, sizes)):
        assert all(np.array_equal(a, b) for a, b in zip(fetched(x), each))
        assert all(np.array_equal(a, sum(each)) for a in fetched(y))


COUNTS = range(1, 40)


def many_small_arrays():
    """Copies of two roots and sums, in one group, twice; return the arrays of each."""
    root, moved = 2, 1
    arrays = [on_gpus(*(np.full(n, 10 * rank + n, np.int8) for rank in range(3))) for n in COUNTS]
    calls = [NcclCall("broadcast", each, each, "UINT8", n, root) for each, n in zip(arrays, COUNTS)]
    more = [on_gpus(*(np.full(n, rank, np.float32) for rank in range(3))) for n in COUNTS]
    calls += [NcclCall("broadcast", each, each, "UINT8", 4 * n, moved) for each, n in zip(more, COUNTS)]
    wide = [on_gpus(*[np.ones(n)] * 3) for n in COUNTS]
    calls += [NcclCall("allReduce", each, each, "FLOAT64", n) for each, n in zip(wide, COUNTS)]
    bound = gpu_group([0, 1, 2]).bind(calls)
    for _ in range(2):
        bound.begin()()
    return arrays, more, wide


@pytest.mark.emulated
def test_many_small_arrays_are_one_call():
    """Of copies, too; each root has one, and each type of sums."""
    with gpus(3):
        many_small_arrays()
        groups = nccl.nccl().groups
    assert [sorted({call.what for call in group}) for group in groups] == [["allReduce", "broadcast"]] * 2
    assert [len(group) for group in groups] == [9, 9]


def test_many_small_arrays_by_nccl(four_gpus):
    for n, each, other, sums in zip(COUNTS, *many_small_arrays()):
        assert all(x.tolist() == [20 + n] * n for x in fetched(each))
        assert all(x.tolist() == [1] * n for x in fetched(other))
        assert all(x.tolist() == [9] * n for x in fetched(sums))


@pytest.mark.emulated
def test_later_work_that_does_not_wait_is_found():
    with gpus(2):
        arrays = on_gpus([1.0], [2.0])
        bound = gpu_group([0, 1]).bind([NcclCall("allReduce", arrays, arrays, "FLOAT64", 1)])
        wait = bound.begin()
        wait()
        with gpu(1):
            arrays[1] += 1
        assert fetched(arrays)[1].tolist() == [4] and machine.faults() == []
        wait = bound.begin()
        with gpu(1):
            arrays[1] += 1
        wait()
        machine.finish_all()
        found = machine.faults()
        assert found and all("without waiting" in each and "nccl.allReduce" in each for each in found), found


# What the double finds.


@pytest.mark.emulated
def test_a_call_outside_of_a_group_would_hang():
    with gpus(2):
        a, _ = on_gpus([1.0], [2.0])
        first, _ = gpu_group([0, 1]).communicators
        with pytest.raises(Hang, match="outside of a group"):
            first.allReduce(a.data.ptr, a.data.ptr, 1, 8, 0, gpu(0).stream(StreamRole.EXCHANGE).raw.ptr)


@pytest.mark.emulated
def test_a_rank_that_is_missing_would_hang():
    with gpus(2):
        arrays = on_gpus([1.0], [2.0])
        group = gpu_group([0, 1])
        half = GpuGroup([0], group.communicators[:1])
        with pytest.raises(Hang, match=r"rank 0 waits in allReduce for ranks \[1\], which do not come"):
            half.bind([NcclCall("allReduce", arrays[:1], arrays[:1], "FLOAT64", 1)]).begin()


@pytest.mark.emulated
@pytest.mark.parametrize("changed", [{"count": 2}, {"datatype": 7}, {"op": 2}])
def test_ranks_that_differ_are_found(changed):
    with gpus(2):
        module, arrays = nccl.nccl(), on_gpus([1.0, 2.0], [2.0, 3.0])
        communicators = gpu_group([0, 1]).communicators
        module.groupStart()
        for k, (array, communicator) in enumerate(zip(arrays, communicators)):
            given = {"count": 1, "datatype": 8, "op": 0, **(changed if k else {})}
            stream = gpu(k).stream(StreamRole.EXCHANGE).raw
            communicator.allReduce(array.data.ptr, array.data.ptr, *given.values(), stream.ptr)
        with pytest.raises(Mismatch, match="ranks differ"):
            module.groupEnd()


@pytest.mark.emulated
def test_streams_and_memory_of_another_gpu_are_found():
    with gpus(2):
        arrays, group = on_gpus([1.0], [2.0]), gpu_group([0, 1])
        with pytest.raises(NcclError, match="no memory of GPU 0"):
            group.bind([NcclCall("allReduce", arrays[::-1], arrays[::-1], "FLOAT64", 1)]).begin()
        stream = gpu(0).stream(StreamRole.EXCHANGE).raw.ptr
        with pytest.raises(NcclError, match="a stream of another GPU for rank 1 on GPU 1"):
            group.communicators[1].allReduce(arrays[1].data.ptr, arrays[1].data.ptr, 1, 8, 0, stream)


@pytest.mark.emulated
@pytest.mark.parametrize(
    "sent, received, other", [(0, 4, 1), (0, 4, 5), (0, 1, 6)], ids=["is read", "is written", "by the same call"]
)
def test_memory_that_a_call_of_a_group_writes_is_of_no_other_use(sent, received, other):
    """Calls of a group run at the same time."""
    with gpus(2):
        memory = on_gpus(np.zeros(8), np.zeros(8))
        sends, receives, others = ([array[at : at + 2] for array in memory] for at in (sent, received, other))
        calls = [NcclCall("allReduce", sends, receives, "FLOAT64", 2), NcclCall("reduce", others, others, "FLOAT64", 1)]
        with pytest.raises(Mismatch, match="writes memory that another one uses, or other memory than it reads"):
            run(gpu_group([0, 1]), *calls)


@pytest.mark.emulated
def test_a_group_ends_after_an_error_in_it():
    """Else the calls that follow would wait for its end."""
    with gpus(2):
        module, arrays = nccl.nccl(), on_gpus([1.0], [2.0])
        with pytest.raises(ZeroDivisionError), nccl.one_group(module):
            raise ZeroDivisionError
        run(gpu_group([0, 1]), NcclCall("allReduce", arrays, arrays, "FLOAT64", 1))
        assert len(nccl.nccl().groups) == 1


@pytest.mark.emulated
def test_ranks_in_threads_and_one_that_does_not_come():
    with gpus(2):
        module, arrays = nccl.nccl(), on_gpus([1.0], [2.0])
        uid, module.patience = module.get_unique_id(), 0.5

        def rank(number):
            with gpu(number):
                group = GpuGroup([number], [module.NcclCommunicator(2, uid, number)])
            mine = arrays[number : number + 1]
            for _ in range(1 + number):
                run(group, NcclCall("allReduce", mine, mine, "FLOAT64", 1))

        _, error = on_ranks(2, rank)
        assert isinstance(error, Hang) and str(error) == "rank 1 waits in allReduce for ranks [0], which do not come"
        assert fetched(arrays)[0].tolist() == [3]


@pytest.mark.emulated
def test_ranks_of_processes():
    """Here threads, each with a double of its own; one disagrees in the end, and one does not come."""
    uid, float64 = NcclOfProcesses().get_unique_id(), 8

    def rank(number):
        module = NcclOfProcesses()
        with gpu(number).on(StreamRole.EXCHANGE) as here:
            raw, stream = module.NcclCommunicator(2, uid, number), here.stream(StreamRole.EXCHANGE).raw.ptr
            x, y = (here.xp.arange(4.0) + 10 * number + k for k in range(2))
            raw.allReduce(x.data.ptr, x.data.ptr, 4, float64, module.NCCL_SUM, stream)
            with nccl.one_group(module):
                raw.broadcast(x.data.ptr, x.data.ptr, 1, float64, 1, stream)
                raw.reduceScatter(x[2:].data.ptr, x[1:].data.ptr, 1, float64, module.NCCL_MAX, stream)
                raw.send(y.data.ptr, 2, float64, 1 - number, stream)
                raw.recv(y[2:].data.ptr, 2, float64, 1 - number, stream)
            found = x.tolist(), y.tolist()
            with pytest.raises(Mismatch, match=r"ranks differ: \[\('reduce', 1, .*\), \('reduce', 2"):
                raw.reduce(y.data.ptr, y.data.ptr, 1 + number, float64, module.NCCL_SUM, 0, stream)
            if number:
                module.patience = 0.2
                with pytest.raises(NcclError, match="other processes do not come"):
                    raw.reduce(y.data.ptr, y.data.ptr, 1, float64, module.NCCL_SUM, 0, stream)
            return found

    assert on_ranks(2, rank) == [([10, 14, 14, 16], [1, 2, 11, 12]), ([10, 16, 14, 16], [11, 12, 1, 2])]


@pytest.mark.emulated
def test_collectives_in_graphs_of_cuda():
    """A graph holds one if the streams of all GPUs take part in its capture; netbuilder has none in its graphs."""
    with gpus(2):
        arrays, group = on_gpus([1.0], [2.0]), gpu_group([0, 1])
        first, second = streams = [
            gpu(number).new_streams(StreamRole.EXCHANGE)[StreamRole.EXCHANGE].raw for number in range(2)
        ]
        begin, end = (gpu(number).new_event() for number in range(2))

        def add():
            with nccl.one_group(nccl.nccl()):
                for raw, array, stream in zip(group.communicators, arrays, streams):
                    raw.allReduce(array.data.ptr, array.data.ptr, 1, 8, 0, stream.ptr)

        gpu(0).synchronize()
        gpu(1).synchronize()
        with gpu(0):
            first.begin_capture()
            with pytest.raises(Exception, match="cudaErrorStreamCaptureIsolation"):
                add()
            second.wait_event(first.record(begin))
            add()
            with gpu(1):
                second.record(end)
            first.wait_event(end)
            graph = first.end_capture()
            for _ in range(2):
                graph.launch(first)
            first.synchronize()
        assert [each.tolist() for each in fetched(arrays)] == [[6], [6]]
