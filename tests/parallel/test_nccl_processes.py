"""Processes with a GPU each that exchange values by NCCL; here they are threads, on doubles of GPUs and NCCL."""

import threading

import numpy as np
import pytest

import thread_ranks
from cupy_double import HOST, gpus
from netbuilder import parallel
from netbuilder.graph.net_names import reset_names
from netbuilder.model import ModelHelper
from netbuilder.ops.engines import nccl
from netbuilder.ops.engines.collectives.communicator import OneRank
from netbuilder.ops.engines.collectives.lane import Lane
from netbuilder.ops.engines.collectives.nccl import connect_by_nccl
from netbuilder.ops.engines.collectives.session import Session
from netbuilder.ops.engines.collectives.world import CommonWorld
from netbuilder.ops.engines.stores import MemoryStore
from netbuilder.optimizers import reset_optimizer_instance_count
from netbuilder.parallel.distributed import Rendezvous
from netbuilder.proto import PROTO_CUDA, DeviceError, NetError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from parallel_models import OPTIMIZERS, Task, distance, mlp, no_input
from thread_ranks import on_ranks


@pytest.fixture
def two_ranks(monkeypatch):
    """Let CreateCommonWorld connect two ranks that are threads, with a lane each, by the double of NCCL."""
    store, lock = MemoryStore(), threading.Lock()
    sessions, worlds = {}, {}

    def create_world(name, size, rank, timeout=None, nccl=None):
        if rank not in sessions:
            control = connect_by_nccl(store, size, rank, nccl.device, "run")
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
    with gpus(2) as machine:
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
    workspace = Workspace(threads=2)
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


@pytest.mark.parametrize("bucket_bytes", [0, 4 << 20])
def test_two_processes_train_as_one_with_two_gpus(two_ranks, bucket_bytes):
    # Each process calls its GPU 0; here both have the same one.
    models = [built([0], rank_of(rank), bucket_bytes=bucket_bytes) for rank in range(2)]
    two_ranks.transfers.clear()
    found = on_ranks(2, lambda rank: trained(*models[rank], part=rank)[0], timeout=60)
    assert not any(isinstance(each, Exception) for each in found), found
    back = [each for each in two_ranks.transfers if each.target == HOST and each.nbytes > 40]
    assert max((each.nbytes for each in back), default=0) <= 8 * 6 * 4, "no gradient is read, but parameters at the end"
    groups = [{call.what for call in group} for group in nccl.nccl().groups]
    assert {"broadcast"} in groups and {"allReduce"} in groups
    assert nccl.nccl().created == [(0, 0)], "all common worlds have one communicator"
    want, _ = trained(*built([0, 1]))
    for got in found:
        assert distance(got, want) < 1e-6
        assert all(np.array_equal(a, b) for a, b in zip(got, found[0]))


def test_gradients_stay_on_the_gpu():
    with gpus(1):
        model, _ = built([0], rank_of(0))
    types = [op.type for op in model.net.Proto().op]
    assert "AllreduceBucket" in types and "CopyGPUToCPU" not in types
    bucket = next(op for op in model.net.Proto().op if op.type == "AllreduceBucket")
    assert bucket.device_option.device_type == PROTO_CUDA and len(bucket.input) == 5
    makers = [op for op in model.param_init_net.Proto().op if op.type == "CreateCommonWorld"]
    assert {op.engine for op in makers} == {"NCCL"}


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


@pytest.mark.parametrize("on_gpu", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int16", "float64"])
def test_sums_of_every_type(two_ranks, dtype, on_gpu):
    def rank(number):
        op = make_op("AllreduceBucket", ["cw", "x"], ["x"])
        return run_op(op, number, {"x": np.array([number + 1, 5], dtype)}, on_gpu)

    assert on_ranks(2, rank) == [[[3, 10]]] * 2


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_rounded_sums_go_through_the_host(two_ranks, precision):
    def rank(number):
        op = make_op("AllreduceBucket", ["cw", "x"], ["x"], precision=precision)
        return run_op(op, number, {"x": np.float32([number + 1, 5])})

    assert on_ranks(2, rank) == [[[3, 10]]] * 2


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


def test_ranks_that_disagree_raise_the_same_error(two_ranks):
    def rank(number):
        op = make_op("AllreduceBucket", ["cw", "x"], ["x"])
        return run_op(op, number, {"x": np.zeros(2 + number, np.float32)})

    first, second = map(str, on_ranks(2, rank))
    assert "the ranks do not exchange the same: rank 0: AllreduceBucket of 'x' ((2,) float32" in first
    assert first.partition("the ranks")[2] == second.partition("the ranks")[2]


def test_without_a_store_or_nccl_it_says_so(monkeypatch):
    with gpus(1):
        op = make_op("CreateCommonWorld", [], ["cw"], size=2, rank=0)
        op.engine = "NCCL"
        with pytest.raises(NetError, match="engine 'NCCL' needs a store, in which rank 0 puts NCCL's unique id"):
            Workspace().run_operator_once(op)
        nccl.nccl().available = False
        with pytest.raises(DeviceError, match="rank 0 has no NCCL.*nvidia-nccl-cu12"):
            connect_by_nccl(MemoryStore(), 2, 0, 0, "run")


def test_messages_through_the_store(two_ranks):
    store = MemoryStore()

    def rank(number):
        made = connect_by_nccl(store, 2, number, number, "run")
        made.post(f"from {number}".encode(), 1 - number)
        made.barrier()
        with pytest.raises(NetError, match="sends nothing from one process to another"):
            made.send(np.zeros(1), 0)
        return made.poll(), made.poll()

    assert on_ranks(2, rank) == [((1, b"from 1"), None), ((0, b"from 0"), None)]


def test_the_store_of_a_handler_in_a_blob(two_ranks, tmp_path, monkeypatch):
    places = []

    def create_world(name, size, rank, timeout=None, nccl=None):
        places.append(nccl)
        return CommonWorld(name, OneRank(), None, timeout)

    monkeypatch.setattr("netbuilder.ops.collectives.worlds.create_world", create_world)
    workspace = Workspace()
    workspace.run_operator_once(make_op("FileStoreHandlerCreate", [], ["handler"], path=str(tmp_path)))
    create = make_op("CreateCommonWorld", ["handler"], ["cw"], size=2, rank=0, device_id=1, name="run/cw")
    create.engine = "NCCL"
    workspace.run_operator_once(create)
    (place,) = places
    assert place.device == 1 and place.store is not None
    workspace.feed("number", np.zeros(1))
    create.input[0] = "number"
    with pytest.raises(NetError, match="CreateCommonWorld"):
        workspace.run_operator_once(create)
