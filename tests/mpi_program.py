"""What the tests over MPI run in each process: ``mpiexec -n 2 python mpi_program.py FUNCTION``."""

from __future__ import annotations

import os
import platform
import signal
import sys
import threading
import time

import numpy as np

from netbuilder.distributed.transport.host_sums import LEAST_BYTES, PROCESSOR
from netbuilder.distributed.transport.mpi import mpi
from netbuilder.engines.buffer_rows import order_in_row
from netbuilder.proto import DistributedError, NetDef, NetError, OperatorError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan.optimizations import OPTIMIZATIONS

TYPES = [np.float32, np.float64, np.float16, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16]

comm = mpi().COMM_WORLD
size = comm.Get_size()
rank = size - 1 - comm.Get_rank()  # netbuilder's numbers of the ranks need not be those of MPI
workspace = Workspace(threads=1)


def run(op_type, inputs, outputs, **arguments):
    workspace.run_operator_once(make_op(op_type, inputs, outputs, **arguments))


def create(name="cw", **arguments):
    run("CreateCommonWorld", [], [name], **{"size": size, "rank": rank, **arguments})
    return workspace.fetch(name)


def numbers(of, dtype, count=1000):
    return (np.arange(count) % 7 + of).astype(dtype)


def raises(kind, text, function, *args, **options):
    begin = time.monotonic()
    try:
        function(*args, **options)
    except kind as error:
        assert text in str(error), f"{text!r} is not in {error}"
        assert time.monotonic() - begin < 10
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def same_on_all(text):
    """The part of a message after the operator's position is the same on all ranks."""
    texts = comm.allgather(text.partition("Error: ")[2])
    assert len(set(texts)) == 1 and texts[0], texts


def identities():
    raises(DistributedError, f"size is {size + 1}, but MPI has started {size} processes", create, size=size + 1)
    raises(DistributedError, "each once, got [0", create, rank=0)
    world = create()
    assert (world.rank, world.size) == (rank, size) and create() is world
    raises(NetError, f"rank {rank} of {size} in its other common worlds", create, "cw2", rank=(rank + 1) % size)
    session = world.session
    assert session.over is not None  # the error was reported to the other ranks, as an operator of theirs may wait
    comm.Barrier()


def exchanges():
    for dtype in TYPES:
        everywhere = [numbers(of, dtype) for of in range(size)]
        total = sum(x.astype(np.float64) for x in everywhere)
        for deterministic in (False, True):
            workspace.feed("x", everywhere[rank])
            workspace.feed("y", everywhere[rank])
            run("Allreduce", ["cw", "x", "y"], ["x", "y"], deterministic=deterministic)
            np.testing.assert_array_equal(workspace.fetch("x"), (2 * total).astype(dtype))
            np.testing.assert_array_equal(workspace.fetch("y"), (2 * total).astype(dtype))
        workspace.feed("x", everywhere[rank])
        run("Reduce", ["cw", "x"], ["z"], root=1)
        np.testing.assert_array_equal(workspace.fetch("z"), total if rank == 1 else everywhere[rank])
        counts = np.int32([500] + [0] * (size - 2) + [500])
        workspace.feed("counts", counts)
        run("ReduceScatter", ["cw", "x", "counts"], ["x", "counts"])
        start = counts[:rank].sum()
        np.testing.assert_array_equal(workspace.fetch("x")[: counts[rank]], total[start : start + counts[rank]])
    for dtype in (*TYPES, np.bool_):
        everywhere = [numbers(of, dtype, 12 * (of + 1)).reshape(-1, 3, 2) for of in range(size)]
        workspace.feed("x", everywhere[rank])
        run("Allgather", ["cw", "x"], ["z"])
        np.testing.assert_array_equal(workspace.fetch("z"), np.concatenate(everywhere))
        workspace.feed("x", numbers(rank, dtype))
        run("Broadcast", ["cw", "x"], ["x"], root=size - 1)
        np.testing.assert_array_equal(workspace.fetch("x"), numbers(size - 1, dtype))
    everywhere = [numbers(of, np.float32, 3_333_333) for of in range(size)]  # of more than one piece
    workspace.feed("x", everywhere[rank])
    run("Allreduce", ["cw", "x"], ["x"])
    np.testing.assert_array_equal(workspace.fetch("x"), sum(everywhere))
    workspace.feed("x", np.array([b"rank", str(rank).encode() * (rank + 1)], object))
    run("Broadcast", ["cw", "x"], ["x"], root=1)
    assert workspace.fetch("x").tolist() == [b"rank", b"11"]
    run("Barrier", ["cw"], [])


def messages():
    workspace.feed("x", numbers(rank, np.float32).reshape(10, 100))
    workspace.feed("y", np.zeros(1, np.int8))
    to, source = (rank + 1) % size, (rank - 1) % size
    if rank % 2 == 0:
        run("SendTensor", ["cw", "x"], [], dst=to, tag=5)
    run("ReceiveTensor", ["cw", "y"], ["y", "src", "tag"], src=source)
    if rank % 2:
        run("SendTensor", ["cw", "x"], [], dst=to, tag=5)
    np.testing.assert_array_equal(workspace.fetch("y"), numbers(source, np.float32).reshape(10, 100))
    assert (workspace.fetch("src").item(), workspace.fetch("tag").item()) == (source, 5)


def buckets():
    shapes = [(3,), (600, 700), (), (40, 50)]
    names = [f"g{n}" for n in range(len(shapes))]
    rng = [np.random.default_rng(of) for of in range(size)]
    everywhere = [[each.normal(size=shape).astype(np.float32) for shape in shapes] for each in rng]
    create()
    run("CloneCommonWorld", ["cw"], ["cw2"])
    found = {}
    for precision, tolerance in (("float32", 1e-6), ("float16", 2e-3), ("bfloat16", 2e-2)):
        for deterministic in (False, True):
            for turn in range(2):
                for name, x in zip(names, everywhere[rank]):
                    workspace.feed(name, x)
                options = {"precision": precision, "deterministic": deterministic}
                run("AllreduceBucket", ["cw2" if turn else "cw", *names], names, **options)
                got = [workspace.fetch(name) for name in names]
                for y, *xs in zip(got, *everywhere):
                    exact = np.sum(xs, axis=0, dtype=np.float64)
                    assert np.abs(y - exact).max() <= tolerance * np.abs(xs).sum(axis=0).max()
                bits = b"".join(y.tobytes() for y in got)
                assert len(set(comm.allgather(bits))) == 1, "other sums on other ranks"
                if deterministic:
                    assert found.setdefault(precision, bits) == bits


def on_one_host():
    """The ranks of a host add large arrays in their order, without MPI; where they cannot, MPI adds them."""
    communicator = create().communicator
    of_host = communicator._of_host
    assert (of_host is not None) == (sys.platform == "linux" and platform.machine() == PROCESSOR)
    for count in (LEAST_BYTES // 4, LEAST_BYTES // 4 + 1, 3_333_333):
        everywhere = [np.random.default_rng([of, count]).normal(size=count).astype(np.float32) for of in range(size)]
        for communicator._of_host in (of_host, None):
            for deterministic in (False, True):
                x = everywhere[rank].copy()
                communicator.allreduce(x, deterministic=deterministic)
                if deterministic or communicator._of_host is not None or size == 2:
                    np.testing.assert_array_equal(x, sum(everywhere))
    communicator._of_host = of_host


def buckets_in_place():
    """Values that a net makes are next to each other: the same bits as with copies, also if only one rank has these."""
    shapes, name = [(3,), (600, 700), (), (40, 50)], OPTIMIZATIONS["buckets_in_place"]
    names = [f"g{n}" for n in range(len(shapes))]
    sums = make_op("AllreduceBucket", ["cw", *names], names, deterministic=size > 2)
    world, found = create(), set()
    for without in ([], [name], [name] if rank == 1 else []):
        fresh, net = Workspace(threads=1), NetDef(name="made")
        fresh.feed("cw", world)
        for each, shape in zip(names, shapes):
            fresh.feed(f"{each}_x", np.random.default_rng(rank).normal(size=shape).astype(np.float32))
            net.op.append(make_op("Scale", [f"{each}_x"], [each], scale=0.3))
        net.op.append(sums)
        fresh.create_net(net, without=without)
        for _ in range(2):
            fresh.run_net("made")
        assert (order_in_row([fresh.find(each).buffer for each in names]) is None) == (name in without)
        found.add(b"".join(fresh.fetch(each).tobytes() for each in names))
    assert len(found) == 1


def steps():
    """A net with collectives in the middle and a step that reads their results, many times."""
    net = NetDef(name="step")
    net.op.append(make_op("Scale", ["w"], ["g"], scale=0.5))
    net.op.append(make_op("MatMul", ["w", "w"], ["h"]))
    net.op.append(make_op("AllreduceBucket", ["cw", "g"], ["g"]))
    net.op.append(make_op("AllreduceBucket", ["cw2", "h"], ["h"]))
    net.op.append(make_op("Sum", ["g", "h"], ["s"]))
    net.op.append(make_op("Scale", ["s"], ["w"], scale=1 / (8 * size)))
    w = np.float64(np.eye(4) * (rank + 1))
    whole = [np.eye(4) * (of + 1) for of in range(size)]
    workspace.feed("w", w.astype(np.float32))
    workspace.create_net(net)
    for _ in range(30):
        workspace.run_net("step")
        total = sum(0.5 * each + each @ each for each in whole) / (8 * size)
        whole = [total] * size
    np.testing.assert_allclose(workspace.fetch("w"), total, rtol=1e-4)


def in_flight():
    """The error of one of several collectives in flight has that operator's position, whichever is waited for first."""
    create()
    net = NetDef(name="flight")
    for name in "abc":
        workspace.feed(name, np.full(50_000, 1e5 if name == "b" else 1, np.float32))
        net.op.append(make_op("AllreduceBucket", ["cw", name], [name], precision="float16"))
    net.op.append(make_op("Sum", ["a", "b", "c"], ["s"]))
    raises(NetError, "operator 1: AllreduceBucket ['cw', 'b'] -> ['b']: AllreduceBucket: 'b' overflows float16",
           workspace.run_net_once, net)  # fmt: skip
    create()
    net.op.remove(net.op[-1])
    if rank == 1:
        workspace.feed("b", np.ones(3, np.float32))
    text = raises(DistributedError, "operator 1: AllreduceBucket", workspace.run_net_once, net)
    same_on_all(text)
    create()


def disagreements():
    workspace.feed("x", np.ones(6, np.float32))

    def shapes():
        workspace.feed("x", np.ones(5 + (rank == 1), np.float32))
        run("Allreduce", ["cw", "x"], ["x"])

    def types():
        workspace.feed("x", np.ones(5, np.float64 if rank == 1 else np.float32))
        run("Allreduce", ["cw", "x"], ["x"])

    def order():
        first, second = ("a", "b") if rank == 1 else ("b", "a")
        for name in (first, second):
            workspace.feed(name, np.ones(3, np.float32))
            run("Allreduce", ["cw", name], [name])

    def operators():
        run(*(("Barrier", ["cw"], []) if rank == 1 else ("Broadcast", ["cw", "x"], ["x"])))

    def worlds():
        run("Allreduce", ["cw2" if rank == 1 else "cw", "x"], ["x"])

    for case in (shapes, types, order, operators, worlds):
        create()
        run("CloneCommonWorld", ["cw"], ["cw2"])
        same_on_all(raises(DistributedError, "the ranks do not exchange the same: rank", case))
        raises(DistributedError, "nothing more after an earlier error", run, "Barrier", ["cw"], [])
    create()
    if rank == 1:
        raises(OperatorError, "operator 0: Fail", failing_net)
    else:
        raises(DistributedError, f"rank 1 of {size} has failed", failing_net)
    create()
    run("Barrier", ["cw"], [])


def failing_net():
    net = NetDef(name="fails")
    if rank == 1:
        net.op.append(make_op("Fail", [], []))
    net.op.append(make_op("Allreduce", ["cw", "x"], ["x"]))
    workspace.run_net_once(net)


def forks():
    child = os.fork()
    if child == 0:
        code = 1
        try:
            raises(DistributedError, "a forked process cannot exchange values", create)
            raises(DistributedError, "a forked process", run, "Barrier", ["cw"], [])
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    run("Barrier", ["cw"], [])


def late():
    """While it waits for another rank, the lane leaves its core to others."""
    before = time.process_time()
    begin = time.perf_counter()
    if rank == 0:
        time.sleep(0.5)
    run("Barrier", ["cw"], [])
    if rank:
        used, waited = time.process_time() - before, time.perf_counter() - begin
        assert waited > 0.3 and used < 0.4 * waited, (used, waited)


def everything():
    identities()
    create()
    exchanges()
    messages()
    buckets()
    on_one_host()
    buckets_in_place()
    steps()
    in_flight()
    late()
    forks()
    disagreements()
    run("DestroyCommonWorld", ["cw"], ["cw"])
    print(f"rank {rank} is done", flush=True)
    one_ends()


def three():
    """What depends on the number of ranks."""
    identities()
    create()
    exchanges()
    messages()
    on_one_host()
    buckets_in_place()
    in_flight()
    disagreements()
    print(f"rank {rank} is done", flush=True)


def one_ends():
    """Rank 1 ends its program while the others still exchange."""
    create()
    workspace.feed("x", np.ones(3, np.float32))
    if rank != 1:
        print(raises(DistributedError, "rank 1: the end of the program", run, "Allreduce", ["cw", "x"], ["x"]))


def interrupted():
    """Rank 0 waits for rank 1, which sends it Ctrl-C."""
    create()
    pids = comm.allgather(os.getpid())
    if rank:
        threading.Timer(0.3, os.kill, (pids[size - 1], signal.SIGINT)).start()
        time.sleep(60)
    begin = time.monotonic()
    try:
        run("Barrier", ["cw"], [])
    except KeyboardInterrupt:
        print(f"interrupted after {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
