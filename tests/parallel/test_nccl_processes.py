"""Processes with a GPU each that exchange values by NCCL, of which there is a double; here they are threads."""

import threading
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest

import thread_ranks
from emulated_gpu.machine import HOST
from netbuilder import parallel
from netbuilder.distributed import Rendezvous
from netbuilder.distributed.stores import MemoryStore
from netbuilder.distributed.transport.communicator import OneRank
from netbuilder.distributed.transport.lane import Lane
from netbuilder.distributed.transport.nccl_communicator import connect_by_nccl
from netbuilder.distributed.worlds.session import HEADER_BYTES, Session
from netbuilder.distributed.worlds.world import CommonWorld
from netbuilder.engines import nccl
from netbuilder.engines.cuda.gpu_layout import image_spec
from netbuilder.engines.gpu import StreamRole, gpu
from netbuilder.graph.net_names import reset_names
from netbuilder.model import ModelHelper
from netbuilder.ops.collectives import in_place, over_processes, worlds
from netbuilder.ops.collectives.in_place import prepare_on_gpu as prepare_on_gpu
from netbuilder.ops.core.operator import STRING, TensorSpec, decode
from netbuilder.ops.core.registry import find
from netbuilder.optimizers import reset_optimizer_instance_count
from netbuilder.proto import PROTO_CUDA, DeviceError, NetError
from netbuilder.proto.arguments import arguments, make_device_option, make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan.run_context import KernelContext
from on_gpu import gpus
from parallel_models import OPTIMIZERS, Task, distance, no_input
from prepared import FakePlan
from thread_ranks import on_ranks
from toy_models import mlp


@contextmanager
def connected(monkeypatch, count):
    """Let CreateCommonWorld connect two ranks that are threads, with a lane each, by the double of NCCL."""
    store, lock = MemoryStore(), threading.Lock()
    sessions, worlds = {}, {}

    def create_world(name, size, rank, timeout=None, given=None, gpus=()):
        if rank not in sessions:
            control = connect_by_nccl(store, size, rank, gpus, "run")
            lane = Lane(f"lane of rank {rank}")
            thread_ranks._lanes.append(lane)
            with lock:
                sessions[rank] = Session(control, lane)
        if (name, rank) not in worlds:
            communicator = sessions[rank].control.clone()
            communicator.check = sessions[rank].check
            worlds[name, rank] = CommonWorld(name, communicator, sessions[rank], timeout)
        return worlds[name, rank]

    monkeypatch.setattr("netbuilder.ops.collectives.worlds.create_world", create_world)
    monkeypatch.setattr(nccl, "ISSUING", nullcontext())  # the ranks, being threads, wait for one another in a group
    with gpus(count) as machine:
        yield machine


@pytest.fixture
def two_ranks(monkeypatch):
    with connected(monkeypatch, 2) as machine:
        yield machine


def built(devices, rendezvous=None, **options):
    reset_names()  # as in another process
    reset_optimizer_instance_count()
    model = ModelHelper("net")
    record = parallel.Parallelize_GPU(
        model, no_input, mlp, optimizer_builder_fun=OPTIMIZERS["momentum"], devices=devices, rendezvous=rendezvous,
        **options,
    )  # fmt: skip
    return model, record


def trained(model, record, part=slice(None), task=None):
    """Train; return the parameters of the first replica."""
    workspace = Workspace(threads=2, engines=())
    for number, batch in enumerate((task or Task()).batches()):
        for name, whole in batch.items():
            mine = np.split(whole, 2)[part] if isinstance(part, int) else whole
            for blob, share, place in zip(
                record.devices.copies(name), np.split(mine, len(record)), record.devices.options
            ):
                workspace.feed(blob, share, place)
        if number == 0:
            workspace.run_net_once(model.param_init_net)
            workspace.create_net(model.net)
        workspace.run_net(model.net)
    return [workspace.fetch(record.blobs(name)[0]) for name in record.parameters], workspace


def rank_of(rank, **options):
    return Rendezvous(2, rank, "NCCL", store="memory:", **options)


BUCKETS = pytest.mark.parametrize("bucket_bytes", [0, 4 << 20])


@pytest.mark.emulated
@BUCKETS
def test_two_processes_train_as_one_with_two_gpus(two_ranks, bucket_bytes):
    # Each process calls its GPU 0; here both have the same one.
    models = [built([0], rank_of(rank), bucket_bytes=bucket_bytes) for rank in range(2)]
    found = on_ranks(2, lambda rank: trained(*models[rank], part=rank)[0], timeout=60)
    assert not any(isinstance(each, Exception) for each in found), found
    read = [each.nbytes for each in two_ranks.transfers if each.target == HOST and each.nbytes > HEADER_BYTES]
    assert sorted(read) == sorted(2 * [each.nbytes for each in found[0] if each.nbytes > HEADER_BYTES]), "at the end"
    groups = [{call.what for call in group} for group in nccl.nccl().groups]
    assert {"broadcast"} in groups and {"allReduce"} in groups
    assert nccl.nccl().created == [(0, 0)], "all common worlds have one communicator"
    want, _ = trained(*built([0, 1]))
    for got in found:
        assert distance(got, want) < 1e-6
        assert all(np.array_equal(a, b) for a, b in zip(got, found[0]))


@pytest.mark.emulated
def test_gradients_stay_on_the_gpu():
    with gpus(1):
        model, _ = built([0], rank_of(0))
    types = [op.type for op in model.net.Proto().op]
    assert "AllreduceBucket" in types and "CopyGPUToCPU" not in types
    bucket = next(op for op in model.net.Proto().op if op.type == "AllreduceBucket")
    assert bucket.device_option.device_type == PROTO_CUDA and len(bucket.input) == 5
    makers = [op for op in model.param_init_net.Proto().op if op.type == "CreateCommonWorld"]
    assert {op.engine for op in makers} == {"NCCL"}


@pytest.mark.emulated
def test_gradients_of_several_gpus_have_one_call():
    with gpus(2):
        model, _ = built([0, 1], rank_of(0))
    ops = list(model.net.Proto().op)
    (bucket,) = [op for op in ops if op.type == "AllreduceBucket"]
    assert arguments(bucket)["devices"] == 2 and len(bucket.input) == 1 + 2 * 4
    assert "Sum" not in {op.type for op in ops} and not any("_grad" in op.input[0] for op in ops if op.type == "Copy")
    (maker,) = {tuple(arguments(op)["device_ids"]) for op in model.param_init_net.Proto().op if op.engine == "NCCL"}
    assert maker == (0, 1)


@pytest.mark.emulated
def test_other_strategies_add_the_gradients_of_a_process_first():
    with gpus(2):
        model, _ = built([0, 1], rank_of(0), strategy="half:bfloat16")
    ops = list(model.net.Proto().op)
    buckets = [op for op in ops if op.type == "AllreduceBucket"]
    assert buckets and all(arguments(op)["precision"] == b"bfloat16" for op in buckets)
    assert not any("devices" in arguments(op) for op in buckets)
    assert sum(op.type == "Sum" for op in ops) == 4


def test_replicas_on_the_cpu_are_refused():
    with pytest.raises(NetError, match="engine 'NCCL' exchanges values of GPUs, but the replicas are on the CPU"):
        parallel.Parallelize_CPU(
            ModelHelper("net"), no_input, mlp, optimizer_builder_fun=OPTIMIZERS["sgd"], devices=[0],
            rendezvous=rank_of(0),
        )  # fmt: skip


def run_op(op, rank, feeds, on_gpu=True):
    workspace = Workspace()
    place = make_device_option(PROTO_CUDA, rank)
    create = make_op("CreateCommonWorld", [], ["cw"], size=2, rank=rank, device_id=rank)
    create.engine = "NCCL"
    workspace.run_operator_once(create)
    for name, value in feeds.items():
        workspace.feed(name, value, place if on_gpu else None)
    if on_gpu:
        op.device_option.CopyFrom(place)
    workspace.run_operator_once(op)
    return [workspace.fetch(name).tolist() for name in op.output]


@pytest.mark.emulated
@pytest.mark.parametrize("on_gpu", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int16", "float64"])
def test_sums_of_every_type(two_ranks, dtype, on_gpu):
    def rank(number):
        op = make_op("AllreduceBucket", ["cw", "x"], ["x"])
        return run_op(op, number, {"x": np.array([number + 1, 5], dtype)}, on_gpu)

    assert on_ranks(2, rank) == [[[3, 10]]] * 2


@pytest.mark.emulated
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_rounded_sums_go_through_the_host(two_ranks, precision):
    def rank(number):
        op = make_op("AllreduceBucket", ["cw", "x"], ["x"], precision=precision)
        return run_op(op, number, {"x": np.float32([number + 1, 5])})

    assert on_ranks(2, rank) == [[[3, 10]]] * 2


@pytest.mark.emulated
@pytest.mark.parametrize("on_gpu", [True, False])
def test_other_collectives(two_ranks, on_gpu):
    def broadcast(number):
        op = make_op("Broadcast", ["cw", "x"], ["x"], root=1)
        return run_op(op, number, {"x": np.float32([number, 7])}, on_gpu)

    assert on_ranks(2, broadcast) == [[[1, 7]]] * 2

    def gathered(number):
        return run_op(
            make_op("Allgather", ["cw", "x"], ["y"]), number, {"x": np.int64([number] * (number + 1))}, on_gpu
        )

    assert on_ranks(2, gathered) == [[[0, 1, 1]]] * 2

    def both(number):
        op = make_op("Allreduce", ["cw", "x", "y"], ["x", "y"])
        return run_op(op, number, {"x": np.float32([number]), "y": np.float32([10])}, on_gpu)

    assert on_ranks(2, both) == [[[21], [21]]] * 2

    def deterministic(number):
        op = make_op("AllreduceBucket", ["cw", "x"], ["x"], deterministic=1)
        return run_op(op, number, {"x": np.float32([number, 3, 4])}, on_gpu)

    assert on_ranks(2, deterministic) == [[[1, 6, 8]]] * 2


@pytest.mark.emulated
@pytest.mark.parametrize("op_type", ["AllreduceBucket", "Allreduce", "Reduce", "ReduceScatter"])
def test_sums_in_the_order_of_the_ranks_are_not_nccls(two_ranks, monkeypatch, op_type):
    """NCCL chooses the order in which it adds."""
    added = []
    for module in (in_place, over_processes):  # both imported before: one has the other's
        monkeypatch.setattr(module, "GpuExchange", lambda *args: added.append(args))
    blobs = ["x", "counts"] if op_type == "ReduceScatter" else ["x"]

    def rank(number):
        op = make_op(op_type, ["cw", *blobs], blobs, deterministic=1)
        return run_op(op, number, {"x": np.float32([number, 3]), "counts": np.int32([1, 1])})

    found = on_ranks(2, rank)
    assert found[0][0][0] == 1 and found[1][0][0] in (1, 6) and not added


@pytest.mark.emulated
def test_ranks_that_disagree_raise_the_same_error(two_ranks):
    def rank(number):
        op = make_op("AllreduceBucket", ["cw", "x"], ["x"])
        return run_op(op, number, {"x": np.zeros(2 + number, np.float32)})

    first, second = map(str, on_ranks(2, rank))
    assert "the ranks do not exchange the same: rank 0: AllreduceBucket of 'x' ((2,) float32" in first
    assert first.partition("the ranks")[2] == second.partition("the ranks")[2]


@pytest.mark.emulated
def test_without_a_store_or_nccl_it_says_so(monkeypatch):
    with gpus(1):
        op = make_op("CreateCommonWorld", [], ["cw"], size=2, rank=0)
        op.engine = "NCCL"
        with pytest.raises(NetError, match="engine 'NCCL' needs a store, in which rank 0 puts NCCL's unique id"):
            Workspace().run_operator_once(op)
        nccl.nccl().available = False
        with pytest.raises(DeviceError, match="rank 0 has no NCCL.*nvidia-nccl-cu12"):
            connect_by_nccl(MemoryStore(), 2, 0, [0], "run")


@pytest.mark.emulated
def test_messages_through_the_store(two_ranks):
    store = MemoryStore()

    def rank(number):
        made = connect_by_nccl(store, 2, number, [number], "run")
        made.post(f"from {number}".encode(), 1 - number)
        made.barrier()
        with pytest.raises(NetError, match="sends nothing from one process to another"):
            made.send(np.zeros(1), 0)
        return made.poll(), made.poll()

    assert on_ranks(2, rank) == [((1, b"from 1"), None), ((0, b"from 0"), None)]


@pytest.mark.emulated
def test_the_store_of_a_handler_in_a_blob(two_ranks, tmp_path, monkeypatch):
    places = []

    def create_world(name, size, rank, timeout=None, store=None, gpus=()):
        places.append((store, gpus))
        return CommonWorld(name, OneRank(), None, timeout)

    monkeypatch.setattr("netbuilder.ops.collectives.worlds.create_world", create_world)
    workspace = Workspace()
    workspace.run_operator_once(make_op("FileStoreHandlerCreate", [], ["handler"], path=str(tmp_path)))
    create = make_op("CreateCommonWorld", ["handler"], ["cw"], size=2, rank=0, device_id=1, name="run/cw")
    create.engine = "NCCL"
    workspace.run_operator_once(create)
    ((store, gpus),) = places
    assert gpus == (1,) and store is not None
    workspace.feed("number", np.zeros(1))
    create.input[0] = "number"
    with pytest.raises(NetError, match="CreateCommonWorld"):
        workspace.run_operator_once(create)


# Values of GPUs, which stay there.

SIZE = 1000
READING = threading.Lock()


def on_gpus(machine, rank, devices, feeds, ops):
    """Run operators over a common world of two ranks; return what the blobs fed are then, and the new ones.

    Args:
        feeds: name -> the array and the GPU.
    """
    workspace, place = Workspace(), make_device_option(PROTO_CUDA, devices[0])
    several = {"device_ids": devices} if len(devices) > 1 else {"device_id": devices[0]}
    create = make_op("CreateCommonWorld", [], ["cw"], size=2, rank=rank, **several)
    create.engine = "NCCL"
    workspace.run_operator_once(create)
    for name, (value, number) in feeds.items():
        workspace.feed(name, value, make_device_option(PROTO_CUDA, number))
    with READING:
        begin = len(machine.transfers)
    for op in ops:
        op.device_option.CopyFrom(place)
        workspace.run_operator_once(op)
    with READING:
        found = machine.transfers[begin:]
    moved = [each.nbytes for each in found if HOST in each[:2] and {HOST, *each[:2]} <= {HOST, *devices}]
    assert 0 < max(moved) <= HEADER_BYTES, "a value went by the host"
    names = dict.fromkeys([*feeds, *(name for op in ops for name in op.output)])
    return {name: workspace.fetch(name) for name in names}


def values(rank, number=0, dtype=np.float32):
    return (np.arange(SIZE) % 50 + 100 * rank + 10 * number).astype(dtype)


TOTAL = values(0) + values(1)


@pytest.mark.emulated
@pytest.mark.parametrize("count", [1, 2])
def test_sums_stay_on_the_gpu(two_ranks, count):
    def rank(number):
        names = ["x", "y"][:count]
        feeds = {name: (values(number, i), number) for i, name in enumerate(names)}
        return on_gpus(two_ranks, number, [number], feeds, [make_op("Allreduce", ["cw", *names], names)])

    want = TOTAL if count == 1 else sum(values(rank, i) for rank in range(2) for i in range(2))
    for found in on_ranks(2, rank):
        assert all((value == want).all() for value in found.values())


@pytest.mark.emulated
def test_a_sum_for_one_rank_and_a_copy_for_all(two_ranks):
    def rank(number):
        feeds = {name: (values(number, i), number) for i, name in enumerate("rab")}
        ops = [
            make_op("Reduce", ["cw", "r"], ["r"], root=1),
            make_op("Broadcast", ["cw", "a", "b"], ["a", "b"], root=1),
        ]
        return on_gpus(two_ranks, number, [number], feeds, ops)

    first, second = on_ranks(2, rank)
    assert (first["r"] == values(0)).all() and (second["r"] == TOTAL).all()
    for found in (first, second):
        assert all((found[name] == values(1, 1)).all() for name in "ab")


@pytest.mark.emulated
@pytest.mark.parametrize("counts", [[SIZE // 2] * 2, [300, 700], [SIZE, 0]], ids=str)
def test_parts_of_a_sum(two_ranks, counts):
    def rank(number):
        feeds = {"x": (values(number), number), "n": (np.int32(counts), number)}
        return on_gpus(two_ranks, number, [number], feeds, [make_op("ReduceScatter", ["cw", "x", "n"], ["x", "n"])])

    parts = np.split(TOTAL, [counts[0]])
    for number, found in enumerate(on_ranks(2, rank)):
        own = counts[number]
        assert (found["x"][:own] == parts[number]).all() and (found["x"][own:] == values(number)[own:]).all()


@pytest.mark.emulated
def test_wrong_counts_of_parts_are_an_error_on_all_ranks(two_ranks):
    def rank(number):
        feeds = {"x": (values(number), number), "n": (np.int32([300, 600]), number)}
        return on_gpus(two_ranks, number, [number], feeds, [make_op("ReduceScatter", ["cw", "x", "n"], ["x", "n"])])

    for error in on_ranks(2, rank):
        assert f"counts must be 2 numbers of elements, {SIZE} together, got [300, 600]" in str(error)


@pytest.mark.emulated
def test_rows_of_all_ranks(two_ranks):
    """Of different numbers, one of them none."""
    for rows in ((3, 5), (0, 4)):

        def rank(number, rows=rows):
            own = values(number).reshape(-1, 20)[: rows[number]]
            found = on_gpus(
                two_ranks, number, [number], {"x": (own, number)}, [make_op("Allgather", ["cw", "x"], ["y"])]
            )
            return found["y"]

        want = np.concatenate([values(r).reshape(-1, 20)[: rows[r]] for r in range(2)])
        for found in on_ranks(2, rank):
            assert np.array_equal(found, want)


@pytest.mark.emulated
@pytest.mark.parametrize("devices", [[[0, 1], [2, 3]], [[2, 0], [3, 1]]], ids=str)
def test_processes_with_several_gpus(monkeypatch, devices):
    """All GPUs sum and copy by one call for each process."""
    with connected(monkeypatch, 4) as machine:

        def rank(number):
            mine = devices[number]
            feeds = {f"{name}{i}": (values(number, i), gpu) for name in "xyz" for i, gpu in enumerate(mine)}
            sums = [f"{name}{i}" for name in "xy" for i in range(len(mine))]
            copied = [f"z{i}" for i in range(len(mine))]
            ops = [
                make_op("AllreduceBucket", ["cw", *sums], sums, devices=len(mine)),
                make_op("BroadcastBucket", ["cw", *copied], copied, devices=len(mine), root=1),
            ]
            return on_gpus(machine, number, mine, feeds, ops)

        whole = sum(values(rank, i) for rank in range(2) for i in range(len(devices[rank])))
        for found in on_ranks(2, rank):
            assert not isinstance(found, Exception), found
            for name, value in found.items():
                assert (value == (values(1) if name.startswith("z") else whole)).all(), name
        ids = list(nccl.nccl().created)
        assert ids == [tuple(each[0] for each in devices), tuple(gpu for each in devices for gpu in each)]


@pytest.mark.emulated
def test_a_bucket_of_several_gpus_with_a_type_that_nccl_does_not_add(monkeypatch):
    with connected(monkeypatch, 4):

        def rank(number):
            workspace, mine = Workspace(), [2 * number, 2 * number + 1]
            create = make_op("CreateCommonWorld", [], ["cw"], size=2, rank=number, device_ids=mine)
            create.engine = "NCCL"
            workspace.run_operator_once(create)
            for i, device in enumerate(mine):
                workspace.feed(f"x{i}", np.int16([number, i]), make_device_option(PROTO_CUDA, device))
            op = make_op("AllreduceBucket", ["cw", "x0", "x1"], ["x0", "x1"], devices=2)
            op.device_option.CopyFrom(make_device_option(PROTO_CUDA, mine[0]))
            workspace.run_operator_once(op)
            return [workspace.fetch(f"x{i}").tolist() for i in range(2)]

        assert on_ranks(2, rank) == [[[2, 2], [2, 2]]] * 2


@pytest.mark.emulated
def test_processes_with_different_numbers_of_gpus_are_refused():
    store = MemoryStore()
    with gpus(3):
        for error in on_ranks(2, lambda rank: connect_by_nccl(store, 2, rank, [[0], [1, 2]][rank], "run")):
            assert "all processes must give as many GPUs (device_ids), got [1, 2] of ranks 0 to 1" in str(error)


def test_arguments_about_several_gpus_are_checked():
    def refused(op, match):
        with pytest.raises(NetError, match=match):
            Workspace().run_operator_once(op)

    names = ["x", "y", "z"]
    for op_type in ("AllreduceBucket", "BroadcastBucket"):
        bucket = make_op(op_type, ["cw", *names], names, devices=2)
        refused(bucket, "the number of blobs must be a multiple of devices=2, got 3")
    create = make_op("CreateCommonWorld", [], ["cw"], size=2, rank=0, device_ids=[1, 1])
    refused(create, r"device_ids must name each GPU once, got \[1, 1\]")


@pytest.mark.emulated
def test_a_bucket_waits_for_what_was_computed_when_it_began(two_ranks):
    """Not for what was issued while the ranks agreed: the rest of the backward pass."""
    store = MemoryStore()

    def rank(number):
        made = connect_by_nccl(store, 2, number, [number], "late")
        here = gpu(number)
        with here:
            gradient, other = (here.xp.ones(SIZE, np.float32) for _ in range(2))
        exchange = make_op("AllreduceBucket", ["cw", "g"], ["g"])
        op = decode(find("AllreduceBucket"), exchange)
        group = op.gpu_exchange(CommonWorld("cw", made, None), None, [gradient])
        group.mark()
        with here:
            other += 1
        group.start()
        here.stream(StreamRole.EXCHANGE).raw.synchronize()  # which has what it waits for done, and nothing else
        computed = here.stream().raw.done
        group.wait()
        with here:
            return computed, float(gradient.get()[0])

    assert on_ranks(2, rank) == [(False, 2.0)] * 2


WHOLE = np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2)


def exchanged_in_layouts(stored):
    """Sum a value over two ranks, each of which stores it with channels last, as cuDNN does, or in plain order."""

    def rank(number):
        plain = TensorSpec(WHOLE.shape, WHOLE.dtype)
        spec = image_spec(plain, "NCHW", "float32") if stored[number] else plain
        world = worlds.create_world("cw", 2, number, gpus=(number,))
        op_def = make_op("AllreduceBucket", ["cw", "x"], ["x"])
        op = decode(find("AllreduceBucket"), op_def)
        made = prepare_on_gpu(op, FakePlan(op_def=op_def, run=KernelContext(op_def)), TensorSpec((), STRING), spec)
        given = np.moveaxis(WHOLE, 1, -1) if stored[number] else WHOLE
        with gpu(number) as here:
            buffer = here.xp.asarray(np.ascontiguousarray(given))
            buffer = buffer.reshape(-1).view(np.uint8) if stored[number] else buffer
            made.bind([world, buffer], [buffer], None)()()
            found = buffer.get().view(np.float32)
        return np.moveaxis(found.reshape(2, 2, 2, 3), -1, 1) if stored[number] else found

    return on_ranks(2, rank)


LAYOUTS = pytest.mark.parametrize("stored", [[True, False], [True, True]], ids=["different", "the same"])


@pytest.mark.emulated
@LAYOUTS
def test_ranks_exchange_a_value_of_any_layout(two_ranks, stored):
    """Where the layouts differ, in plain order, through the host."""
    for found in exchanged_in_layouts(stored):
        np.testing.assert_array_equal(found, 2 * WHOLE)
    read = [each for each in two_ranks.transfers if each.target == HOST and each.nbytes == WHOLE.nbytes]
    assert len(read) == (2 if all(stored) else 6)
