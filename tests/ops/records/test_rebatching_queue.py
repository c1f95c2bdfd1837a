"""Queues that rebatch, with one thread and with concurrent steps."""

import threading
import time

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import CPU, DEVICES, GPU
from netbuilder.data import QueueClosedError, RebatchingQueue
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.ops.records.rebatching_queue import (
    CloseRebatchingQueue,
    CreateRebatchingQueue,
    DequeueRebatchingQueue,
    EnqueueRebatchingQueue,
)
from netbuilder.proto import PROTO_CUDA, ArgumentError, ExecutionStep, NetDef, NetError, PlanDef, ShapeError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, refusal
from waiting import join_all

QUEUE = TensorSpec((), STRING)


def made(num_blobs=2, capacity=20):
    workspace = Workspace()
    run(workspace, "CreateRebatchingQueue", [], ["q"], num_blobs=num_blobs, capacity=capacity)
    return workspace


def run(workspace, op_type, inputs, outputs, device=CPU, **arguments):
    op = make_op(op_type, inputs, outputs, **arguments)
    if device == GPU:
        op.device_option.CopyFrom(make_device_option(PROTO_CUDA, 0))
    workspace.run_operator_once(op)


def put(workspace, *values, device=CPU, batch=True):
    names = [f"in{i}" for i in range(len(values))]
    for name, value in zip(names, values):
        workspace.feed(name, value)
    run(workspace, "EnqueueRebatchingQueue", ["q", *names], [], device, enqueue_batch=batch)


def take(workspace, count, outputs=("x", "y"), device=CPU):
    run(workspace, "DequeueRebatchingQueue", ["q"], outputs, device, num_elements=count)
    return [workspace.fetch(name) for name in outputs]


class QueueSuite(OperatorSuite):
    no_gradient = "moves samples from net to net"

    def test_inplace(self):
        assert not self.operator.inplace

    def test_flops(self):
        assert self.operator().flops() == 0


class TestCreateRebatchingQueue(QueueSuite):
    operator = CreateRebatchingQueue
    refusals = (
        refusal(CreateRebatchingQueue(capacity=0), [], "must be at least 1, got 1, 0", ArgumentError),
        refusal(CreateRebatchingQueue(num_blobs=0), [], "must be at least 1, got 0, 1", ArgumentError),
    )

    def draw(self, data):
        return CreateRebatchingQueue(capacity=data.draw(st.integers(1, 9))), []

    def test_forward(self):
        queue = made(3, 7).fetch("q")
        assert (queue.num_blobs, queue.capacity, len(queue), queue.closed) == (3, 7, 0, False)
        assert repr(queue) == "RebatchingQueue('q', 0 of 7 samples of 3 blobs)"


class TestEnqueueRebatchingQueue(QueueSuite):
    operator = EnqueueRebatchingQueue
    refuses_nothing = "what the tensors are is seen when it runs"

    @pytest.mark.parametrize("device", DEVICES)
    def test_forward(self, device):
        """As in Caffe2: batches of two are written, one of three is read, and samples get a first axis."""
        workspace = made()
        names = np.array([b"a", b"b"], STRING)
        put(workspace, np.float32([1, 2]), names, device=device)
        put(workspace, np.float32([3, 4]), names, device=device)
        x, y = take(workspace, 3, device=device)
        assert (x.tolist(), x.dtype, y.tolist()) == ([1, 2, 3], np.float32, [b"a", b"b", b"a"])
        workspace = made()
        put(workspace, np.float32([1, 2]), np.int64(7), batch=False)
        x, y = take(workspace, 1, device=device)
        assert (x.tolist(), y.tolist(), y.dtype) == ([[1, 2]], [7], np.int64)

    def test_the_queue_holds_copies(self):
        workspace = made(1)
        put(workspace, np.float32([1, 2]))
        put(workspace, np.float32([5, 6]))
        assert take(workspace, 4, ["x"])[0].tolist() == [1, 2, 5, 6]

    def test_what_does_not_fit(self):
        workspace = made()
        with pytest.raises(NetError, match="queue 'q' has 2 blobs per sample, got 1"):
            put(workspace, np.float32([1]))
        with pytest.raises(ShapeError, match=r"must have the same number of rows, got shapes \[\(2,\), \(1,\)\]"):
            put(workspace, np.float32([1, 2]), np.float32([1]))
        with pytest.raises(ShapeError, match="the same number of rows"):
            put(workspace, np.float32(1), np.float32(1))
        workspace.feed("q", np.float32([1]))
        with pytest.raises(NetError, match="input 0 must be what CreateRebatchingQueue makes"):
            put(workspace, np.float32([1]), np.float32([1]))


class TestDequeueRebatchingQueue(QueueSuite):
    operator = DequeueRebatchingQueue
    refusals = (refusal(DequeueRebatchingQueue(num_elements=0), [QUEUE], "at least 1, got 0", ArgumentError),)

    def test_forward(self):
        """The remaining elements of a closed queue can be read; then there is an error."""
        workspace = made(1)
        put(workspace, np.arange(5))
        run(workspace, "CloseRebatchingQueue", ["q"], [])
        assert take(workspace, 3, ["x"])[0].tolist() == [0, 1, 2]
        assert take(workspace, 3, ["x"])[0].tolist() == [3, 4]
        with pytest.raises(NetError, match="queue 'q' is closed, and nothing is left"):
            take(workspace, 3, ["x"])
        with pytest.raises(NetError, match="queue 'q' is closed; nothing can be written to it"):
            put(workspace, np.arange(5))

    def test_samples_that_make_no_batch(self):
        workspace = made(1)
        put(workspace, np.ones((1, 2)))
        put(workspace, np.ones((1, 3)))
        with pytest.raises(ShapeError, match=r"2 samples of a batch must have the same shape and type"):
            take(workspace, 2, ["x"])
        with pytest.raises(NetError, match="has 1 blobs per sample, got 2"):
            take(workspace, 2)


class TestCloseRebatchingQueue(QueueSuite):
    operator = CloseRebatchingQueue
    refuses_nothing = "whether its input is a queue is seen when it runs"

    def test_forward(self):
        workspace = made()
        for _ in range(2):
            run(workspace, "CloseRebatchingQueue", ["q"], [])
        assert workspace.fetch("q").closed and repr(workspace.fetch("q")).endswith(", closed)")


def test_a_writer_waits_for_room_and_a_reader_for_samples():
    queue = RebatchingQueue(1, 3, "q")
    with pytest.raises(NetError, match="count must be at least 1, got 0"):
        queue.read(0)
    writer = threading.Thread(target=queue.write, args=([np.arange(10)],), kwargs={"batch": True})
    writer.start()
    assert [queue.read(4)[0].tolist(), queue.read(6)[0].tolist()] == [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9]]
    join_all(writer)
    found = []
    reader = threading.Thread(target=lambda: found.extend(queue.read(5)))
    reader.start()
    queue.write([np.int64(1)])
    time.sleep(0.05)
    assert not found
    queue.close()
    join_all(reader)
    assert found[0].tolist() == [1]
    with pytest.raises(QueueClosedError):
        queue.write([np.int64(2)])


def test_a_plan_rebatches_and_ends_when_a_step_fails():
    workspace = made(1, 4)
    workspace.feed("x", np.arange(3))
    workspace.feed("n", np.int64([0]))
    put_net = NetDef(name="put", external_input=["q", "x"])
    put_net.op.append(make_op("EnqueueRebatchingQueue", ["q", "x"], [], enqueue_batch=1))
    close_net = NetDef(name="close", external_input=["q"], op=[make_op("CloseRebatchingQueue", ["q"], [])])
    take_net = NetDef(name="take", external_input=["q", "n"])
    take_net.op.append(make_op("DequeueRebatchingQueue", ["q"], ["y"], num_elements=5))
    take_net.op.append(make_op("Iter", ["n"], ["n"]))
    first = [ExecutionStep(name="p", network=["put"], num_iter=5), ExecutionStep(name="c", network=["close"])]
    steps = [ExecutionStep(name="first", substep=first), ExecutionStep(name="t", network=["take"], num_iter=3)]
    both = ExecutionStep(name="all", substep=steps, concurrent_substeps=True)
    workspace.run_plan(PlanDef(name="plan", network=[put_net, close_net, take_net], execution_step=[both]))
    assert (int(workspace.fetch("n")[0]), workspace.fetch("y").tolist()) == (3, [1, 2, 0, 1, 2])

    workspace = made(1, 4)
    workspace.feed("x", np.arange(3))
    workspace.feed("n", np.int64([0]))
    bad = NetDef(name="bad", external_input=["x"], op=[make_op("MatMul", ["x", "x"], ["z"])])
    steps = [ExecutionStep(name="bad", network=["bad"]), ExecutionStep(name="t", network=["take"], num_iter=3)]
    both = ExecutionStep(name="all", substep=steps, concurrent_substeps=True)
    with pytest.raises(ShapeError, match="MatMul"):
        workspace.run_plan(PlanDef(name="plan", network=[bad, take_net], execution_step=[both]))
    assert workspace.fetch("q").closed
