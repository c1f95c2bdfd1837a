"""Queues of blobs: one thread by itself, and nets that run side by side."""

import threading
import time

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import CPU, DEVICES, GPU
from netbuilder.data import BlobsQueue
from netbuilder.ops.control.python_op import python_arguments
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.ops.records.blobs_queue import (
    CloseBlobsQueue,
    CreateBlobsQueue,
    DequeueBlobs,
    EnqueueBlobs,
    SafeDequeueBlobs,
    SafeEnqueueBlobs,
)
from netbuilder.proto import PROTO_CUDA, ArgumentError, ExecutionStep, NetDef, NetError, PlanDef, ShapeError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, refusal
from waiting import HANG, wait_until

QUEUE = TensorSpec((), STRING)
X, Y = np.float32([1, 2]), np.int32([3])


def workspace_with_queue(capacity=3, num_blobs=2, **arguments):
    workspace = Workspace()
    make = make_op("CreateBlobsQueue", [], ["q"], capacity=capacity, num_blobs=num_blobs, **arguments)
    workspace.run_operator_once(make)
    return workspace


def run(workspace, type, inputs, outputs, device=CPU, **arguments):
    op = make_op(type, inputs, outputs, **arguments)
    if device == GPU:
        op.device_option.CopyFrom(make_device_option(PROTO_CUDA, 0))
    workspace.run_operator_once(op)


def put(workspace, values, safe=False, device=CPU):
    names = [f"in{i}" for i in range(len(values))]
    for name, value in zip(names, values):
        workspace.feed(name, value)
    outputs = [*names, "status"] if safe else names
    run(workspace, "SafeEnqueueBlobs" if safe else "EnqueueBlobs", ["q", *names], outputs, device)
    return bool(workspace.fetch("status")) if safe else None


class QueueSuite(OperatorSuite):
    no_gradient = "moves blobs from net to net"

    def test_inplace(self):
        assert not self.operator.inplace

    def test_flops(self):
        assert self.operator().flops() == 0


class TestCreateBlobsQueue(QueueSuite):
    operator = CreateBlobsQueue
    refusals = (
        refusal(CreateBlobsQueue(capacity=0), [], "must be at least 1, got 0, 1", ArgumentError),
        refusal(CreateBlobsQueue(num_blobs=0), [], "must be at least 1, got 1, 0", ArgumentError),
        refusal(CreateBlobsQueue(num_blobs=2, field_names=("a",)), [], "1 field_names for 2 blobs", ArgumentError),
    )

    def draw(self, data):
        return CreateBlobsQueue(capacity=data.draw(st.integers(1, 9))), []

    def test_forward(self):
        queue = workspace_with_queue(capacity=4, field_names=["a", "b"]).fetch("q")
        assert isinstance(queue, BlobsQueue)
        assert (queue.capacity, queue.num_blobs, queue.field_names, len(queue)) == (4, 2, ("a", "b"), 0)
        assert repr(queue) == "BlobsQueue('q', 0 of 4 records of 2 blobs)"

    def test_a_unique_name(self):
        workspace = workspace_with_queue()
        first = workspace.fetch("q")
        with pytest.raises(NetError, match="blob 'q' is already a queue, and enforce_unique_name"):
            run(workspace, "CreateBlobsQueue", [], ["q"], enforce_unique_name=1)
        run(workspace, "CreateBlobsQueue", [], ["q"])
        assert workspace.fetch("q") is not first


class TestEnqueueBlobs(QueueSuite):
    operator = EnqueueBlobs
    refusals = (refusal(EnqueueBlobs(), [QUEUE, f32(2), f32(2)], "which are its outputs too", ArgumentError, n_out=1),)

    @pytest.mark.parametrize("device", DEVICES)
    def test_forward(self, device):
        workspace = workspace_with_queue()
        put(workspace, [X, Y], device=device)
        assert len(workspace.fetch("q")) == 1
        workspace.feed("in0", -X)  # the queue holds a copy
        run(workspace, "DequeueBlobs", ["q"], ["x", "y"], device)
        for name, value in {"x": X, "y": Y}.items():
            got = workspace.fetch(name)
            assert got.dtype == value.dtype
            np.testing.assert_array_equal(got, value)

    def test_strings_and_objects(self):
        workspace = workspace_with_queue()
        thing = BlobsQueue(1, 1, "thing")
        put(workspace, ["text", thing])
        run(workspace, "DequeueBlobs", ["q"], ["s", "o"])
        assert workspace.fetch("s") == b"text"
        assert workspace.fetch("o") is thing

    def test_another_number_of_blobs_and_no_queue(self):
        workspace = workspace_with_queue()
        with pytest.raises(NetError, match="queue 'q' has 2 blobs per record, got 1"):
            put(workspace, [X])
        workspace.feed("x", X)
        workspace.feed("no", X)
        for type, outputs in {"EnqueueBlobs": ["x"], "DequeueBlobs": ["y"], "CloseBlobsQueue": []}.items():
            inputs = ["no", "x"] if type == "EnqueueBlobs" else ["no"]
            with pytest.raises(NetError, match=f"{type}: its (first )?input must be the queue that CreateBlobsQueue"):
                run(workspace, type, inputs, outputs)


class TestSafeEnqueueBlobs(QueueSuite):
    operator = SafeEnqueueBlobs
    refusals = (refusal(SafeEnqueueBlobs(), [QUEUE, f32(2), f32(2)], "are these and a status", ArgumentError, n_out=2),)

    @pytest.mark.parametrize("device", DEVICES)
    def test_forward(self, device):
        """As in Caffe2, a closed queue accepts records up to its capacity and then fails."""
        workspace = workspace_with_queue(capacity=2)
        assert put(workspace, [X, Y], safe=True, device=device) is False
        workspace.fetch("q").close()
        assert put(workspace, [X, Y], safe=True, device=device) is False
        assert put(workspace, [X, Y], safe=True, device=device) is True
        np.testing.assert_array_equal(workspace.fetch("in0"), X)
        with pytest.raises(NetError, match="queue 'q' is closed, and full"):
            put(workspace, [X, Y])
        assert workspace.fetch("status").shape == ()


class TestDequeueBlobs(QueueSuite):
    operator = DequeueBlobs
    refusals = (refusal(DequeueBlobs(timeout_secs=-1.0), [QUEUE], "must not be negative, got -1", ArgumentError),)

    @pytest.mark.parametrize("device", DEVICES)
    def test_forward(self, device):
        """In the order in which they were put in; a closed queue is emptied first."""
        workspace = workspace_with_queue()
        for k in range(3):
            put(workspace, [X + k, Y])
        workspace.fetch("q").close()
        for k in range(3):
            run(workspace, "DequeueBlobs", ["q"], ["x", "y"], device)
            np.testing.assert_array_equal(workspace.fetch("x"), X + k)
        with pytest.raises(NetError, match=r"DequeueBlobs.*queue 'q' is closed, and nothing is left"):
            run(workspace, "DequeueBlobs", ["q"], ["x", "y"], device)

    def test_a_time_limit(self):
        began = time.perf_counter()
        with pytest.raises(NetError, match="queue 'q' stayed empty for 0.05 seconds"):
            run(workspace_with_queue(), "DequeueBlobs", ["q"], ["x", "y"], timeout_secs=0.05)
        assert 0.04 < time.perf_counter() - began < HANG


class TestSafeDequeueBlobs(QueueSuite):
    operator = SafeDequeueBlobs
    refusals = (refusal(SafeDequeueBlobs(num_records=0), [QUEUE], "must be at least 1, got 0", ArgumentError, n_out=2),)

    @pytest.mark.parametrize("device", DEVICES)
    def test_forward(self, device):
        workspace = workspace_with_queue()
        put(workspace, [X, Y])
        workspace.fetch("q").close()
        statuses = []
        for _ in range(2):
            run(workspace, "SafeDequeueBlobs", ["q"], ["x", "y", "status"], device)
            statuses.append(workspace.fetch("status").tolist())
            np.testing.assert_array_equal(workspace.fetch("x"), X)
        assert statuses == [False, True]
        run(workspace, "SafeDequeueBlobs", ["q"], ["new", "y", "status"], device)
        assert workspace.get("new").is_empty

    @pytest.mark.parametrize("device", DEVICES)
    def test_several_records_are_joined(self, device):
        """As in Caffe2: along the first axis, and the last batch may be smaller."""
        workspace = workspace_with_queue(capacity=9, num_blobs=1)
        for k in range(5):
            put(workspace, [np.float32([k, k])])
        workspace.fetch("q").close()
        found = []
        for _ in range(3):
            run(workspace, "SafeDequeueBlobs", ["q"], ["x", "status"], device, num_records=3)
            found.append((workspace.fetch("x").tolist(), workspace.fetch("status").tolist()))
        assert found == [([0, 0, 1, 1, 2, 2], False), ([3, 3, 4, 4], False), ([3, 3, 4, 4], True)]

    def test_records_that_cannot_be_joined(self):
        workspace = workspace_with_queue(num_blobs=1)
        put(workspace, [np.zeros((2, 3))])
        put(workspace, [np.zeros((2, 4))])
        with pytest.raises(
            ShapeError, match=r"2 records can be concatenated only .* got shapes \[\(2, 3\), \(2, 4\)\]"
        ):
            run(workspace, "SafeDequeueBlobs", ["q"], ["x", "status"], num_records=2)


class TestCloseBlobsQueue(QueueSuite):
    operator = CloseBlobsQueue
    refuses_nothing = "whether its input is a queue is seen when it runs"

    def test_forward(self):
        workspace = workspace_with_queue()
        for _ in range(2):
            run(workspace, "CloseBlobsQueue", ["q"], [])
            assert workspace.fetch("q").closed


# Nets side by side.


def net(name, *ops):
    made = NetDef(name=name, external_input=["q", "go"])
    made.op.extend(ops)
    return made


def test_a_plan_with_producers_and_consumers_hands_over_every_record():
    """Three nets count and put in, two take out until the queue is closed and empty."""
    workspace = workspace_with_queue(capacity=2, num_blobs=1)
    nets, producers, consumers = [], [], []
    for p in range(3):
        workspace.feed(f"n{p}", np.int64([100 * p]))
        count = [make_op("Iter", [f"n{p}"], [f"n{p}"]), make_op("EnqueueBlobs", ["q", f"n{p}"], [f"n{p}"])]
        nets.append(net(f"put{p}", *count))
        nets[-1].external_input.append(f"n{p}")
        producers.append(ExecutionStep(name=f"p{p}", network=[f"put{p}"], num_iter=20))
    for c in range(2):
        workspace.feed(f"sum{c}", np.int64([0]))
        take = make_op("SafeDequeueBlobs", ["q"], [f"x{c}", f"end{c}"])
        add = NetDef(name=f"then{c}")
        keep = NetDef(op=[make_op("Add", [f"sum{c}", f"x{c}"], [f"sum{c}"])])
        add = make_op("If", [f"more{c}"], [], then_net=keep)
        nets.append(net(f"take{c}", take, make_op("Not", [f"end{c}"], [f"more{c}"]), add))
        nets[-1].external_input.append(f"sum{c}")
        consumers.append(ExecutionStep(name=f"c{c}", network=[f"take{c}"], should_stop_blob=f"end{c}"))
    nets.append(net("close", make_op("CloseBlobsQueue", ["q"], [])))
    produce = ExecutionStep(name="produce", substep=producers, concurrent_substeps=True)
    first = ExecutionStep(name="first", substep=[produce, ExecutionStep(name="close", network=["close"])])
    all_steps = ExecutionStep(name="all", substep=[first, *consumers], concurrent_substeps=True)
    workspace.run_plan(PlanDef(name="plan", network=nets, execution_step=[all_steps]))
    total = int(workspace.fetch("sum0")[0] + workspace.fetch("sum1")[0])
    assert total == sum(100 * p + k for p in range(3) for k in range(1, 21))


def test_a_step_that_fails_ends_those_that_wait_for_it():
    """A producer that dies after some records: its error reaches the caller, and nothing waits for more."""
    workspace = workspace_with_queue(capacity=2, num_blobs=1)
    workspace.feed("x", X)
    workspace.feed("w", np.zeros((3, 3), np.float32))
    put_net = net("put", make_op("EnqueueBlobs", ["q", "x"], ["x"]))
    bad_net = net("bad", make_op("MatMul", ["x", "w"], ["z"]))
    take_net = net("take", make_op("DequeueBlobs", ["q"], ["y"]))
    for made in (put_net, bad_net):
        made.external_input.extend(["x", "w"])
    first = [ExecutionStep(name="put", network=["put"], num_iter=3), ExecutionStep(name="bad", network=["bad"])]
    steps = [ExecutionStep(name="first", substep=first), ExecutionStep(name="t", network=["take"], num_iter=9)]
    step = ExecutionStep(name="all", substep=steps, concurrent_substeps=True)
    before = threading.active_count()
    with pytest.raises(ShapeError, match="MatMul"):
        workspace.run_plan(PlanDef(name="plan", network=[put_net, bad_net, take_net], execution_step=[step]))
    assert threading.active_count() == before
    assert workspace.fetch("q").closed


def test_a_long_step_concurrent_with_one_that_fails_stops_early():
    workspace = workspace_with_queue()
    workspace.feed("n", np.int64([0]))
    count = net("count", make_op("Iter", ["n"], ["n"]))
    count.external_input.append("n")
    counted = python_arguments(lambda inputs, outputs: wait_until(lambda: workspace.fetch("n")[0] > 0))
    bad = net(
        "bad", make_op("Python", [], [], **counted), make_op("DequeueBlobs", ["q"], ["x", "y"], timeout_secs=0.05)
    )
    steps = [
        ExecutionStep(name="count", network=["count"], num_iter=10**9),
        ExecutionStep(name="bad", network=["bad"]),
    ]
    step = ExecutionStep(name="all", substep=steps, concurrent_substeps=True)
    with pytest.raises(NetError, match=r"stayed empty for 0.05 seconds"):
        workspace.run_plan(PlanDef(name="plan", network=[count, bad], execution_step=[step]))
    assert workspace.fetch("n")[0] < 10**9
