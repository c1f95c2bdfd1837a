"""A forked process with objects that its parent created: test_fork.py runs each case in a process of its own.

``python fork_cases.py CASE FOLDER`` ends with status 0 if the case holds; a child that takes minutes hangs.
"""

import contextlib
import multiprocessing
import os
import sys
import threading
import time
import traceback
from pathlib import Path

import numpy as np

from netbuilder.caffe2.python import core, data_workers, workspace
from netbuilder.data import BlobsQueue, DBReader, ImageArrays, ImageLoader, ImageTransform, write_minidb
from netbuilder.data.rebatching_queue import RebatchingQueue
from netbuilder.engines import blas
from netbuilder.proto import NetDef, NetError, OperatorError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Prefetch, Workspace

SECONDS = 300  # for a child; more is a hang
FORKS = 8  # while other threads are at work

fork = multiprocessing.get_context("fork")


def in_child(work):
    """Fork, and let the child do ``work``; fail if it raises or is not through in time."""

    def report():
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    child = fork.Process(target=report)
    child.start()
    child.join(SECONDS)
    if child.exitcode is None:
        child.kill()
        raise AssertionError(f"the child of {work.__name__} hangs")
    assert child.exitcode == 0, f"the child of {work.__name__} failed"


def layer(workspace, name, rows):
    """Feed and return a net with a layer that is large enough for several threads."""
    rng = np.random.default_rng(rows)
    workspace.feed(f"{name}_x", rng.standard_normal((rows, 512), dtype=np.float32))
    workspace.feed("w", np.random.default_rng(0).standard_normal((512, 512), dtype=np.float32))
    workspace.feed("b", np.zeros(512, np.float32))
    net = NetDef(name=name, external_input=[f"{name}_x", "w", "b"])
    net.op.extend(
        [make_op("FC", [f"{name}_x", "w", "b"], [f"{name}_h"]), make_op("Relu", [f"{name}_h"], [f"{name}_y"])]
    )
    return net


def expected(workspace, name):
    x, w = workspace.fetch(f"{name}_x").astype(np.float64), workspace.fetch("w").astype(np.float64)
    return np.maximum(x @ w.T, 0)


def run_and_compare(workspace, name):
    workspace.run_net(name, 3)
    np.testing.assert_allclose(workspace.fetch(f"{name}_y"), expected(workspace, name), rtol=1e-3, atol=1e-3)


def nets(folder):
    """Old nets and new ones, in a child, in the child of a child, and in the parent afterwards."""
    workspace = Workspace(threads=2)
    workspace.create_net(layer(workspace, "old", 512))
    run_and_compare(workspace, "old")

    def child():
        run_and_compare(workspace, "old")
        workspace.create_net(layer(workspace, "new", 300))
        run_and_compare(workspace, "new")
        in_child(lambda: (run_and_compare(workspace, "old"), run_and_compare(workspace, "new")))

    in_child(child)
    run_and_compare(workspace, "old")
    with fork.Pool(2) as pool:
        waiting = pool.map_async(abs, range(8))
        assert waiting.get(SECONDS) == list(range(8))


def lanes_net(devices):
    net = NetDef(name="lanes", type="dag", num_workers=devices, external_input=[f"d{k}" for k in range(devices)])
    for k in range(devices):
        option = make_device_option(0, k)
        net.op.append(make_op("Scale", [f"d{k}"], [f"s{k}"], scale=2.0, device_option=option))
    net.op.append(make_op("Sum", [f"s{k}" for k in range(devices)], ["total"], device_option=make_device_option(0, 0)))
    return net


@contextlib.contextmanager
def at_work(work):
    """In the block, another thread repeats ``work``."""
    over, failures = threading.Event(), []

    def repeat():
        try:
            while not over.is_set():
                work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=repeat)
    thread.start()
    time.sleep(0.05)
    try:
        yield
    finally:
        over.set()
        thread.join(SECONDS)
    assert not thread.is_alive() and not failures, failures


def lanes(folder):
    """A net with lanes that another thread is in the midst of when the process is forked."""
    workspace = Workspace(threads=2)
    for k in range(2):
        workspace.feed(f"d{k}", np.full(1000, k + 1, np.float32))
    workspace.create_net(lanes_net(2))

    def child():
        workspace.run_net("lanes", 5)
        np.testing.assert_array_equal(workspace.fetch("total"), np.full(1000, 6, np.float32))

    with at_work(lambda: workspace.run_net("lanes", 5)):
        for _ in range(FORKS):
            in_child(child)


def compiling(folder):
    """Another thread makes primitives and holds BLAS when the process is forked."""
    other = Workspace(threads=2)
    rows = iter(range(1, 1_000_000))

    def new_shape():
        net = layer(other, "other", next(rows) % 700 + 1)
        other.create_net(net, overwrite=True)
        other.run_net("other")

    workspace = Workspace(threads=2)
    workspace.create_net(layer(workspace, "old", 512))
    run_and_compare(workspace, "old")

    def child():
        run_and_compare(workspace, "old")
        workspace.create_net(layer(workspace, "new", 301))
        run_and_compare(workspace, "new")
        assert blas.limit.users == 0 and not blas.limit.before

    with at_work(new_shape):
        for _ in range(FORKS):
            in_child(child)


def queues(folder):
    """Threads wait for queues, and hold their locks, when the process is forked."""
    full, empty, samples = BlobsQueue(1, 1, "full"), BlobsQueue(1, 4, "empty"), RebatchingQueue(1, 4, "samples")
    full.write([0])
    ends = [
        threading.Thread(target=full.write, args=([1],), daemon=True),
        threading.Thread(target=empty.read, daemon=True),
        threading.Thread(target=samples.read, args=(2,), daemon=True),
    ]
    for thread in ends:
        thread.start()
    time.sleep(0.1)

    def child():
        with_a_thread = []
        reader = threading.Thread(target=lambda: with_a_thread.append(empty.read(SECONDS)))
        reader.start()
        time.sleep(0.05)
        empty.write([5])  # wakes the reader of this process, not one of the parent's
        reader.join(SECONDS)
        assert with_a_thread == [[5]]
        assert full.read() == [0]
        full.write([2], SECONDS)
        samples.write([np.zeros((3, 2))], batch=True)
        assert samples.read(3)[0].shape == (3, 2)

    with empty._lock, full._lock, samples._lock:  # as a thread in the midst of a call has them
        holding = threading.Thread(target=in_child, args=(child,))
        holding.start()
        holding.join()
    assert len(empty) == 0 and len(full) == 1
    empty.write([6])
    samples.write([np.zeros((2, 2))], batch=True)
    full.read()
    for thread in ends:
        thread.join(SECONDS)
        assert not thread.is_alive()


def waiting_parts(folder):
    """A net whose operators wait for each other runs in a child, even if the parent is in the middle of such a run."""
    workspace = Workspace()
    workspace.feed("x", np.ones(3, np.float32))
    for name in ("queue", "never"):
        workspace.feed(name, BlobsQueue(1, 1, name))
    for name, source in (("net", "queue"), ("waits", "never")):
        net = NetDef(name=name, type="dag", external_input=[source, "x"])
        net.op.extend([make_op("DequeueBlobs", [source], ["y"]), make_op("EnqueueBlobs", ["queue", "x"], ["x"])])
        workspace.create_net(net)

    def child():
        workspace.feed("queue", BlobsQueue(1, 1, "queue"))
        workspace.run_net("net", 5, time_limit=SECONDS)
        assert workspace.fetch("y").tolist() == [1, 1, 1]

    workspace.run_net("net", 5)
    in_child(child)

    def wait():
        with contextlib.suppress(NetError):
            workspace.run_net("waits")

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    while not workspace.fetch("never").not_empty._waiters:
        time.sleep(0.01)
    in_child(child)
    workspace.net("waits").cancel()
    thread.join(SECONDS)
    assert not thread.is_alive()


def prefetch(folder):
    """A Prefetch gives its child what was ready, then an error; one made in the child works."""

    def batches():
        for k in range(100):
            yield {"x": np.full(3, k, np.float32)}

    def child():
        seen = []
        try:
            for batch in opened:
                seen.append(batch)
        except NetError as error:
            assert "fork" in str(error), error
        else:
            raise AssertionError("the parent's thread cannot have given 100 batches here")
        assert len(seen) <= 3
        other = Workspace()
        with Prefetch(other, batches(), blobs=["x"]) as own:
            assert len(list(own)) == 100

    workspace = Workspace()
    with Prefetch(workspace, batches(), blobs=["x"]) as opened:
        next(opened)
        in_child(child)
        assert len(list(opened)) == 99


def loaders(folder):
    """Loader threads of data_workers do not exist in the child: an error says so, and it can start its own."""
    net = core.Net("reads")
    coordinator = data_workers.init_data_input_workers(
        net, ["x"], lambda worker, size: [np.ones((size, 2), np.float32)], 4, input_source_name="train"
    )
    workspace.CreateNet(net)
    coordinator.start()
    workspace.RunNet("reads")

    def child():
        try:
            for _ in range(20):  # some batches were in the queue
                workspace.RunNet("reads")
        except OperatorError as error:
            raise AssertionError("an error of another kind") from error
        except NetError as error:
            assert "fork" in str(error), error
        else:
            raise AssertionError("nothing can have filled the queue")
        own = core.Net("own")
        data_workers.init_data_input_workers(
            own, ["y"], lambda worker, size: [np.ones((size, 2), np.float32)], 4, input_source_name="of the child"
        ).start()
        workspace.CreateNet(own)
        workspace.RunNet("own", 10)
        assert data_workers.global_coordinator.stop()

    in_child(child)
    workspace.RunNet("reads", 10)
    assert coordinator.stop()


def readers(folder):
    """A database is read on in both processes, each by its own place in the file."""
    path = Path(folder) / "records.minidb"
    write_minidb(path, [(f"{k:03}", b"v" * 1000) for k in range(100)])
    reader = DBReader(path)
    assert [reader.read()[0] for _ in range(5)] == [b"%03d" % k for k in range(5)]

    def child():
        assert [reader.read()[0] for _ in range(20)] == [b"%03d" % k for k in range(5, 25)]

    in_child(child)
    assert [reader.read()[0] for _ in range(20)] == [b"%03d" % k for k in range(5, 25)]


def images(folder):
    """The decoding threads do not exist in the child, which gets an error and requests new batches."""
    pixels = np.arange(12 * 8 * 8 * 3, dtype=np.uint8).reshape(12, 8, 8, 3)
    loader = ImageLoader(ImageArrays(pixels, np.arange(12)), ImageTransform(crop=8, is_test=True), threads=2)
    batches = loader.batches(range(12), 2)
    next(batches)

    def child():
        try:
            list(batches)
        except NetError as error:
            assert "fork" in str(error), error
        else:
            raise AssertionError("the parent's threads cannot have decoded here")
        assert len(list(loader.batches(range(12), 2))) == 6

    in_child(child)
    assert len(list(batches)) == 5


CASES = {
    case.__name__: case for case in (nets, lanes, compiling, queues, prefetch, loaders, readers, images, waiting_parts)
}

if __name__ == "__main__":
    CASES[sys.argv[1]](sys.argv[2])
