"""A workspace that two threads use at the same time: an error that names both, unless they touch different blobs."""

import contextlib
import threading

import numpy as np
import pytest

from netbuilder.data import BlobsQueue
from netbuilder.graph import Net
from netbuilder.proto import ExecutionStep, NetDef, NetError, PlanDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Prefetch, Workspace
from waiting import HANG, join_all


def relu(name, x, y):
    return NetDef(name=name, op=[make_op("Relu", [x], [y])])


@pytest.fixture
def workspace():
    workspace = Workspace(threads=1)
    for name in ("x", "other"):
        workspace.feed(name, np.ones(3, np.float32))
    return workspace


@contextlib.contextmanager
def busy(workspace, inside=lambda inputs, outputs: None):
    """In the block, the thread "holder" runs net "held", which reads x and p and writes y."""
    begun, end = threading.Event(), threading.Event()

    def held(inputs, outputs):
        begun.set()
        assert end.wait(HANG)
        outputs[0].feed(2 * inputs[0].data)

    net = Net("held")
    net.Relu("p", "hidden")
    net.Python(held)("x", "y")
    net.Proto().name = "held"  # not "held_1" in a later test
    workspace.feed("p", np.ones(2, np.float32))
    workspace.create_net(net)
    holder = threading.Thread(target=workspace.run_net, args=("held",), name="holder")
    holder.start()
    try:
        assert begun.wait(HANG)
        yield
    finally:
        end.set()
        join_all(holder)


def child_of(workspace):
    child = Workspace(parent=workspace)
    child.feed("own", np.ones(1, np.float32))
    return child


MIXING = {
    "feeds blob 'x'": lambda ws: ws.feed("x", np.zeros(3, np.float32)),
    "feeds blob 'p'": lambda ws: ws.feed("p", np.zeros(2, np.float32)),
    "feeds blob 'y'": lambda ws: ws.feed("y", np.zeros(3, np.float32)),
    "fetches blob 'y'": lambda ws: ws.fetch("y"),
    "runs net 'held'": lambda ws: ws.run_net("held"),
    "runs net 'reads'": lambda ws: ws.run_net_once(relu("reads", "y", "z")),
    "runs net 'writes'": lambda ws: ws.run_net_once(relu("writes", "other", "x")),
    "runs net 'Relu'": lambda ws: ws.run_operator_once(make_op("Relu", ["x"], ["x"])),
    "runs net 'held' ": lambda ws: ws.net("held").run(),
    "runs net 'branch'": lambda ws: (
        ws.feed("condition", np.bool_(True)),
        ws.run_net_once(NetDef(name="branch", op=[make_op("If", ["condition"], [], then_net=relu("t", "other", "x"))])),
    ),
    "feeds blob 'x' ": lambda ws: child_of(ws).feed("x", np.zeros(3, np.float32)),
}


@pytest.mark.parametrize("what", MIXING)
def test_threads_that_would_mix_values_get_an_error(workspace, what):
    workspace.feed("y", np.full(3, 7, np.float32))
    with busy(workspace):
        message = (
            rf"^thread 'MainThread' {what.strip()} while thread 'holder' runs net 'held'; both touch blob '[a-z]+'.*"
        )
        with pytest.raises(NetError, match=message + "workspace of its own, or call a Predictor.* or hold a lock"):
            MIXING[what](workspace)
        assert workspace.fetch("x").tolist() == [1, 1, 1]  # nothing has changed
    assert workspace.fetch("y").tolist() == [2, 2, 2]
    MIXING[what](workspace)  # afterwards it may


def test_threads_that_touch_different_blobs_run_at_the_same_time(workspace):
    workspace.feed("queue", BlobsQueue(1, 2, "queue"))
    with busy(workspace):
        workspace.run_net_once(relu("apart", "other", "z"))
        workspace.run_operator_once(make_op("EnqueueBlobs", ["queue", "z"], ["z"]))
        assert workspace.fetch("z").tolist() == [1, 1, 1]
        assert workspace.fetch("p").tolist() == [1, 1]  # what both only read is whole
        assert child_of(workspace).fetch("own").tolist() == [1]


def test_what_an_operator_does_within_a_run_is_part_of_it(workspace):
    def inner(inputs, outputs):
        workspace.feed("x", np.full(3, 5, np.float32))
        workspace.run_net_once(relu("inner", "x", "y"))
        outputs[0].feed(workspace.fetch("y"))

    net = Net("net")
    net.Python(inner)("x", "out")
    workspace.create_net(net)
    workspace.run_net(net)
    assert workspace.fetch("out").tolist() == [5, 5, 5]


def test_concurrent_steps_of_a_plan_share_what_they_like(workspace):
    meeting = threading.Barrier(2, timeout=HANG)

    def meet(inputs, outputs):
        meeting.wait()
        outputs[0].feed(inputs[0].data)

    nets = []
    for name in ("a", "b"):
        net = Net(name)
        net.Python(meet)("x", "y")
        nets.append(net.Proto())
    step = ExecutionStep(substep=[ExecutionStep(network=[net.name]) for net in nets], concurrent_substeps=True)
    workspace.run_plan(PlanDef(network=nets, execution_step=[step]))
    assert workspace.fetch("y").tolist() == [1, 1, 1]


def test_a_lock_keeps_the_values_of_threads_apart(workspace):
    workspace.create_net(relu("net", "x", "y"))
    lock, wrong = threading.Lock(), []

    def work(number):
        x = np.full(3, number, np.float32)
        for _ in range(1000):
            with lock:
                workspace.feed("x", x)
                workspace.run_net("net")
                answer = workspace.fetch("y")
            if not np.array_equal(answer, x):
                wrong.append((number, answer))

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    join_all(*threads)
    assert not wrong and not workspace.uses.now


def test_a_batch_of_a_prefetch_does_not_replace_what_a_net_reads(workspace):
    with Prefetch(workspace, [{"x": np.zeros(3, np.float32)}] * 2, blobs=["x"]) as batches:
        next(batches)
        with busy(workspace), pytest.raises(NetError, match="'MainThread' feeds blob 'x' while thread 'holder' runs"):
            next(batches)
