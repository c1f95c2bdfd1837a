"""Runs that wait are ended: by cancel(), a time limit, an interrupt, or an error of what runs at the same time."""

import contextlib
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from netbuilder.data import BlobsQueue, QueueReader, RebatchingQueue
from netbuilder.data.waiting import CancelledError
from netbuilder.proto import ExecutionStep, NetDef, NetError, PlanDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute.lanes import LaneProgram
from netbuilder.runtime.values.workers import Team
from waiting import HANG, interrupted, join_all, wait_until


def net_of(*ops, name="net", kind="simple", **more):
    net = NetDef(name=name, type=kind, **more)
    net.op.extend(ops)
    return net


@contextlib.contextmanager
def cancelled_while_it_runs(workspace, error=None):
    """In the block, another thread cancels the net until it has run into it."""
    over = threading.Event()

    def cancel():
        while not over.wait(0.02):
            workspace.net("net").cancel(error)

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def with_queue(kind, capacity=2):
    """A workspace with a queue, full for those that write, empty for those that read, and two blobs to write."""
    workspace = Workspace()
    queue = {"blobs": BlobsQueue(1, capacity, "queue"), "samples": RebatchingQueue(1, capacity, "queue")}[kind]
    workspace.feed("queue", queue)
    workspace.feed("x", np.zeros((4, 2), np.float32))
    return workspace, queue


def fill(queue):
    for _ in range(queue.capacity):
        queue.write([np.zeros((2,), np.float32)])


WAITING = {
    "DequeueBlobs": ("blobs", make_op("DequeueBlobs", ["queue"], ["y"])),
    "DequeueBlobs with a limit": ("blobs", make_op("DequeueBlobs", ["queue"], ["y"], timeout_secs=100.0)),
    "SafeDequeueBlobs": ("blobs", make_op("SafeDequeueBlobs", ["queue"], ["y", "status"])),
    "EnqueueBlobs": ("blobs", make_op("EnqueueBlobs", ["queue", "x"], ["x"])),
    "SafeEnqueueBlobs": ("blobs", make_op("SafeEnqueueBlobs", ["queue", "x"], ["x", "status"])),
    "EnqueueRebatchingQueue": ("samples", make_op("EnqueueRebatchingQueue", ["queue", "x"], [], enqueue_batch=True)),
    "DequeueRebatchingQueue": ("samples", make_op("DequeueRebatchingQueue", ["queue"], ["y"], num_elements=3)),
}


def waiting_net(case, **more):
    kind, op = WAITING[case]
    workspace, queue = with_queue(kind)
    if "Enqueue" in case:
        fill(queue)
    workspace.create_net(net_of(op, external_input=["queue", "x"], **more))
    return workspace, queue


@pytest.mark.parametrize("kind", ["simple", "dag"])
@pytest.mark.parametrize("case", WAITING)
def test_cancel_ends_an_operator_that_waits(case, kind):
    workspace, queue = waiting_net(case, kind=kind)
    began = time.monotonic()
    with (
        cancelled_while_it_runs(workspace),
        pytest.raises(CancelledError, match=f"operator 0: {case.split()[0]} .*run of net 'net' was cancelled"),
    ):
        workspace.run_net("net")
    assert time.monotonic() - began < HANG
    assert not queue.closed


@pytest.mark.parametrize("case", WAITING)
def test_a_time_limit_ends_an_operator_that_waits(case):
    workspace, _ = waiting_net(case)
    with pytest.raises(CancelledError, match="time limit of 0.05 seconds"):
        workspace.run_net("net", time_limit=0.05)


def test_the_cause_of_a_cancelled_run_is_what_it_was_cancelled_with():
    workspace, _ = waiting_net("DequeueBlobs")
    reason = OSError("the disk is gone")
    with (
        cancelled_while_it_runs(workspace, reason),
        pytest.raises(CancelledError, match="OSError: the disk is gone") as caught,
    ):
        workspace.run_net("net")
    assert caught.value.__cause__ is reason


def test_a_cancelled_net_can_be_run_again_and_draws_what_it_would_have_drawn():
    workspace, queue = waiting_net("DequeueBlobs")
    with cancelled_while_it_runs(workspace), pytest.raises(CancelledError):
        workspace.run_net("net")
    assert workspace.net("net").clock.iteration == 0
    queue.write([np.float32([1, 2])])
    workspace.run_net("net")
    assert workspace.fetch("y").tolist() == [1, 2]


def test_cancelling_a_net_that_does_not_run_has_no_effect():
    workspace, queue = waiting_net("DequeueBlobs")
    workspace.net("net").cancel()
    queue.write([np.float32([1])])
    workspace.run_net("net")


def test_a_limit_of_the_operator_itself_stays_its_own_error():
    workspace, _ = with_queue("blobs")
    workspace.create_net(net_of(make_op("DequeueBlobs", ["queue"], ["y"], timeout_secs=0.05), external_input=["queue"]))
    with pytest.raises(NetError, match="stayed empty for 0.05 seconds") as caught:
        workspace.run_net("net", time_limit=HANG)
    assert not isinstance(caught.value, CancelledError)


def test_the_samples_that_a_cancelled_read_had_taken_are_put_back():
    workspace, queue = waiting_net("DequeueRebatchingQueue")
    fill(queue)
    with cancelled_while_it_runs(workspace), pytest.raises(CancelledError):
        workspace.run_net("net")
    assert len(queue) == 2
    queue.close()
    workspace.run_net("net")
    assert workspace.fetch("y").shape == (2, 2)


def test_many_runs_are_cancelled_between_two():
    workspace = Workspace()
    workspace.feed("x", np.zeros(3, np.float32))
    workspace.create_net(net_of(make_op("Relu", ["x"], ["y"]), external_input=["x"]))
    with cancelled_while_it_runs(workspace), pytest.raises(CancelledError):
        workspace.run_net("net", 10**9)
    with pytest.raises(CancelledError):
        workspace.run_net("net", 10**9, time_limit=0.05)


def test_a_loop_without_end_is_cancelled():
    workspace = Workspace()
    workspace.feed("go", np.array(True))
    body = net_of(make_op("Copy", ["go"], ["still"]), name="body", external_input=["go"])
    workspace.create_net(net_of(make_op("While", ["go"], [], loop_net=body), external_input=["go"]))
    with pytest.raises(CancelledError, match="time limit"):
        workspace.run_net("net", time_limit=0.05)


def test_cancelling_a_net_ends_the_nets_that_its_operators_hold():
    workspace, _ = with_queue("blobs")
    workspace.feed("yes", np.array(True))
    inner = net_of(make_op("DequeueBlobs", ["queue"], ["y"]), name="inner", external_input=["queue"])
    workspace.create_net(net_of(make_op("If", ["yes"], [], then_net=inner), external_input=["yes", "queue"]))
    with cancelled_while_it_runs(workspace), pytest.raises(CancelledError, match="'inner'"):
        workspace.run_net("net")


def test_a_python_operator_that_waits_for_a_queue_ends_too():
    from netbuilder.ops.control.python_op import python_arguments

    workspace, queue = with_queue("blobs")
    arguments = python_arguments(lambda inputs, outputs: outputs[0].feed(queue.read()[0]))
    workspace.create_net(net_of(make_op("Python", [], ["y"], **arguments)))
    with cancelled_while_it_runs(workspace), pytest.raises(CancelledError):
        workspace.run_net("net")


def test_a_reader_of_a_queue_ends_too():
    workspace, queue = with_queue("blobs")
    workspace.feed("reader", QueueReader(queue))
    workspace.create_net(
        net_of(make_op("TensorProtosDBInput", ["reader"], ["y"], batch_size=1), external_input=["reader"])
    )
    with pytest.raises(CancelledError):
        workspace.run_net("net", time_limit=0.05)


@pytest.mark.parametrize("limit", [0, -1.0, float("nan")])
def test_a_time_limit_is_above_zero(limit):
    workspace, _ = waiting_net("DequeueBlobs")
    with pytest.raises(NetError, match="time_limit must be a positive number of seconds"):
        workspace.run_net("net", time_limit=limit)


def test_who_is_woken_in_vain_passes_it_on():
    """If a reader is cancelled just when a record arrives, the next reader gets the record."""
    workspace, queue = waiting_net("DequeueBlobs")
    found = []

    def cancelled():
        with pytest.raises(CancelledError):
            workspace.run_net("net")

    threads = []
    for waiting, run in enumerate([cancelled, lambda: found.append(queue.read(HANG))]):
        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()
        wait_until(lambda waiting=waiting: len(queue.not_empty._waiters) > waiting)
    with queue._lock:  # both happen before a reader can check
        workspace.net("net")._runs[0]._cancelled = True
        queue._records.append(["record"])
        queue.not_empty.notify()
    join_all(*threads)
    assert found == [["record"]]


def step(name, **fields):
    return ExecutionStep(name=name, **fields)


def test_a_step_that_fails_ends_a_step_that_waits_in_a_net_within():
    """The queue is read by a net that an operator holds, where nothing but cancelling the net gets at it."""
    workspace, queue = with_queue("blobs")
    workspace.feed("yes", np.array(True))
    inner = net_of(make_op("DequeueBlobs", ["queue"], ["y"]), name="inner", external_input=["queue"])
    waits = net_of(make_op("If", ["yes"], [], then_net=inner), name="waits", external_input=["yes", "queue"])
    workspace.feed("short", np.zeros(2, np.float32))
    fails = net_of(make_op("Reshape", ["short"], ["r", "old"], shape=[3]), name="fails", external_input=["short"])
    both = step("both", concurrent_substeps=True)
    both.substep.extend([step("a", network=["waits"]), step("b", network=["fails"])])
    plan = PlanDef(name="plan", network=[waits, fails], execution_step=[both])
    with pytest.raises(NetError, match="'fails'"):
        workspace.run_plan(plan)


def test_an_interrupt_between_the_calls_of_a_lane_leaves_the_lanes_usable():
    seen = []
    stop = [True]

    def interrupt():
        if stop[0]:
            raise KeyboardInterrupt

    calls = [lambda: seen.append(0), lambda: time.sleep(0.05), interrupt, lambda: seen.append(3)]
    program = LaneProgram(calls, [0, 1, 0, 1], [[], [], [], [2]], [None] * 2)
    failure = program.run()
    assert isinstance(failure[1], KeyboardInterrupt) and 3 not in seen
    stop[0] = False
    assert program.run() is None and 3 in seen


def test_a_team_whose_caller_is_interrupted_waits_for_the_others():
    done = []

    def interrupted():
        raise KeyboardInterrupt

    def other():
        time.sleep(0.05)
        done.append(True)

    with pytest.raises(KeyboardInterrupt):
        Team([interrupted, other]).run()
    assert done == [True]


INTERRUPTED = """
import threading, time, warnings
import numpy as np
from netbuilder.data import BlobsQueue
from netbuilder.proto import ExecutionStep, NetDef, PlanDef
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Prefetch, Workspace

def device(k):
    return make_device_option(0, k)

def waits(name, queue):
    net = NetDef(name=name, external_input=[queue])
    net.op.append(make_op("DequeueBlobs", [queue], [queue + " y"]))
    return net

workspace = Workspace(threads=2)
for queue in ("q1", "q2"):
    workspace.feed(queue, BlobsQueue(1, 1, queue))
case = {case!r}

def tell(waits):
    def look():
        while not waits():
            time.sleep(0.01)
        print("ready", flush=True)
    threading.Thread(target=look, daemon=True).start()

try:
    if case == "net":
        workspace.create_net(waits("net", "q1"))
        tell(lambda: workspace.fetch("q1").not_empty._waiters)
        workspace.run_net("net")
    elif case == "plan":
        tell(lambda: workspace.fetch("q1").not_empty._waiters and workspace.fetch("q2").not_empty._waiters)
        both = ExecutionStep(name="both", concurrent_substeps=True)
        both.substep.extend(ExecutionStep(name=n, network=[n]) for n in ("a", "b"))
        workspace.run_plan(PlanDef(network=[waits("a", "q1"), waits("b", "q2")], execution_step=[both]))
    elif case == "lanes":
        net = NetDef(name="net", type="dag", num_workers=2)
        for k in range(2):
            workspace.feed("x%d" % k, np.zeros((500, 500), np.float32))
            net.external_input.append("x%d" % k)
            net.op.append(make_op("FC", ["x%d" % k, "x%d" % k, "b"], ["y%d" % k], device_option=device(k)))
        workspace.feed("b", np.zeros(500, np.float32))
        net.external_input.append("b")
        workspace.create_net(net)
        tell(lambda: workspace.net("net").clock.iteration > 10)
        workspace.run_net("net", 10**9)
    elif case == "source":
        opened = Prefetch(workspace, iter(threading.Event().wait, 1), blobs=["x"])
        tell(lambda: opened.changed._waiters)
        try:
            next(opened)
        finally:
            warnings.simplefilter("ignore")
            opened.close(0.1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    if case == "lanes":
        workspace.run_net("net", 3)
"""


@pytest.mark.one_in(4)
@pytest.mark.parametrize("case", ["net", "plan", "lanes", "source"])
def test_sigint_ends_a_run_and_the_process(case):
    assert interrupted(INTERRUPTED.format(case=case)) == ("interrupted\n", 0)


AT_EXIT = """
import threading, time
import numpy as np
from netbuilder.data import BlobsQueue
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Prefetch, Workspace

workspace = Workspace(threads=2)
net = NetDef(name="net", type="dag", num_workers=2, external_input=["b"])
for k in range(2):
    workspace.feed("x%d" % k, np.zeros((300, 300), np.float32))
    net.external_input.append("x%d" % k)
    net.op.append(make_op("FC", ["x%d" % k, "x%d" % k, "b"], ["y%d" % k], device_option=make_device_option(0, k)))
workspace.feed("b", np.zeros(300, np.float32))
workspace.create_net(net)
queue = BlobsQueue(1, 1, "q")
threading.Thread(target=workspace.run_net, args=("net", 10**9), daemon=True).start()
threading.Thread(target=queue.read, daemon=True).start()
opened = Prefetch(Workspace(), iter(lambda: {"x": np.zeros(3, np.float32)}, None), blobs=["x"])
next(opened)
time.sleep(0.2)
print("end")
"""


def test_a_process_ends_while_its_threads_are_at_work():
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=HANG)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
