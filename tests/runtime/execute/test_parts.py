"""Nets of several workers whose operators wait: others continue meanwhile, and an error ends those that wait."""

import random
import threading
import time

import numpy as np
import pytest

from netbuilder.data import BlobsQueue, RebatchingQueue
from netbuilder.data.waiting import CancelledError, FairLock, lock_of_this_thread
from netbuilder.ops.control.python_op import python_arguments
from netbuilder.ops.core.registry import find, operator_types
from netbuilder.proto import ExecutionStep, NetDef, NetError, OperatorError, PlanDef, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute.parts import parts_of
from netbuilder.runtime.plan.program import read_program
from waiting import HANG, interrupted, wait_until

KINDS = ["dag", "async_scheduling", "async_dag"]

FAILS = make_op("Reshape", ["x"], ["r", "old"], shape=[3, 5])
READS = make_op("DequeueBlobs", ["queue"], ["y"])
WRITES = make_op("EnqueueBlobs", ["queue", "x"], ["x"])


def net_of(*ops, name="net", kind="dag", inputs=("queue", "x"), **more):
    net = NetDef(name=name, type=kind, external_input=inputs, **more)
    net.op.extend(ops)
    return net


def python(function, inputs=(), outputs=(), **more):
    return make_op("Python", inputs, outputs, **python_arguments(function), **more)


@pytest.fixture
def queue():
    return BlobsQueue(1, 2, "queue")


@pytest.fixture
def workspace(queue):
    made = Workspace(threads=2)
    made.feed("queue", queue)
    made.feed("x", np.arange(4, dtype=np.float32).reshape(2, 2))
    return made


def starts(*ops):
    net = net_of(*ops)
    return [part.start for part in parts_of(net, read_program(net))]


def run_into_a_time_limit(workspace, where):
    """Run the net until the limit ends it at an operator; on a slow machine a short limit may come before that."""
    for limit in (0.1, 2.0, 20.0, HANG):
        with pytest.raises(CancelledError, match=f"time limit of {limit:g} seconds") as caught:
            workspace.run_net("net", time_limit=limit)
        if where in str(caught.value):
            return
    pytest.fail(str(caught.value))


class TestParts:
    def test_a_net_in_which_nothing_waits_has_none(self):
        assert starts(make_op("Relu", ["x"], ["y"]), make_op("Unique", ["y"], ["z"])) == []

    def test_an_operator_that_waits_alone_has_none(self):
        assert starts(READS) == []

    def test_what_does_not_depend_on_the_wait_is_apart(self):
        relu, fails = make_op("Relu", ["y"], ["z"]), FAILS
        assert starts(READS, relu, fails) == [0, 1, 2]
        assert starts(READS, fails, relu) == [0, 1, 2]

    def test_what_shares_a_value_with_an_operator_that_depends_on_it_stays_in_one_plan(self):
        fill = make_op("ConstantFill", [], ["one"], shape=[1])
        add = make_op("Add", ["y", "one"], ["z"], broadcast=1)
        assert starts(READS, fill, add) == [0, 1]

    def test_replicas_that_each_wait_stay_in_one_plan(self):
        reads = [make_op("DequeueBlobs", ["queue"], [f"y{k}"]) for k in range(2)]
        relus = [make_op("Relu", [f"y{k}"], [f"z{k}"]) for k in range(2)]
        assert starts(*reads, *relus) == [0, 1, 2]

    def test_what_an_operator_of_the_net_waits_for_is_apart(self):
        """The second reader waits for what the first product is written for."""
        ops = [
            READS,
            make_op("DequeueBlobs", ["back"], ["z"]),
            make_op("Sqr", ["y"], ["y2"]),
            make_op("Sqr", ["z"], ["z2"]),
            make_op("Sum", ["y2", "z2"], ["sum"]),
        ]
        assert starts(*ops) == [0, 1, 2]
        assert starts(*ops, make_op("EnqueueBlobs", ["back", "y2"], ["y2"])) == [0, 1, 2, 3, 5]

    def test_parts_follow_those_that_they_depend_on(self):
        net = net_of(READS, make_op("Relu", ["y"], ["z"]), WRITES, make_op("Copy", ["x"], ["c"], control_input=["z"]))
        assert [sorted(part.after) for part in parts_of(net, read_program(net))] == [[], [0], [], [1, 2]]

    def test_a_net_that_an_operator_holds_may_wait(self):
        inner = net_of(READS, name="inner")
        assert starts(make_op("If", ["yes"], ["y"], then_net=inner), FAILS) == [0, 1]

    def test_operators_that_wait_are_not_run_without_trust(self):
        waiting = {op for op in operator_types() if find(op).waits}
        assert waiting and all(find(op).outside_effects() for op in waiting)


WAITING = {
    "DequeueBlobs": READS,
    "SafeDequeueBlobs": make_op("SafeDequeueBlobs", ["queue"], ["y", "status"]),
    "EnqueueBlobs": make_op("EnqueueBlobs", ["queue", "w"], ["w"]),
    "SafeEnqueueBlobs": make_op("SafeEnqueueBlobs", ["queue", "w"], ["w", "status"]),
    "WeightedSampleDequeueBlobs": make_op("WeightedSampleDequeueBlobs", ["queue"], ["y", "status"]),
    "EnqueueRebatchingQueue": make_op("EnqueueRebatchingQueue", ["samples", "w"], []),
    "DequeueRebatchingQueue": make_op("DequeueRebatchingQueue", ["samples"], ["y"]),
    "Python": None,  # reads the queue of the test
    "If": make_op("If", ["yes"], ["y"], then_net=net_of(READS, name="inner", kind="simple")),
}


def waiting_in(workspace, queue, case):
    """Return an operator that waits, made ready in the workspace."""
    samples = RebatchingQueue(1, 2, "samples")
    workspace.feed("samples", samples)
    workspace.feed("w", np.zeros(2, np.float32))
    workspace.feed("yes", np.array(True))
    if "Enqueue" in case:
        for _ in range(2):
            queue.write([np.zeros(2, np.float32)])
            samples.write([np.zeros(2, np.float32)])
    return WAITING[case] or python(lambda inputs, outputs: outputs[0].feed(queue.read()[0]), [], ["y"])


class TestErrors:
    @pytest.mark.parametrize("case", WAITING)
    def test_an_error_of_a_later_operator_ends_one_that_waits(self, workspace, queue, case):
        waits = waiting_in(workspace, queue, case)
        inputs = ["queue", "x", "samples", "w", "yes"]
        workspace.create_net(net_of(waits, make_op("Relu", ["x"], ["u"]), FAILS, inputs=inputs))
        began = time.monotonic()
        with pytest.raises(ShapeError, match=r"net 'net', operator 2: Reshape \['x'\]"):
            workspace.run_net("net", time_limit=HANG)
        assert time.monotonic() - began < HANG
        assert not queue.closed and threading.active_count() < 50

    @pytest.mark.parametrize("kind", KINDS)
    def test_so_does_what_python_raises(self, workspace, kind):
        def fails(inputs, outputs):
            raise KeyError("no such thing")

        workspace.create_net(net_of(READS, make_op("Relu", ["y"], ["z"]), python(fails), kind=kind))
        for _ in range(2):
            with pytest.raises(OperatorError, match="net 'net', operator 2: Python.*no such thing") as caught:
                workspace.run_net("net", time_limit=HANG)
            assert isinstance(caught.value, KeyError)

    def test_an_error_of_the_operator_that_waits_is_raised_while_others_have_work(self, workspace, queue):
        """It requests the lock, and gets it before the next operator."""
        seen = []

        def works(inputs, outputs):
            wait_until(lambda: lock_of_this_thread().waiters)
            seen.append(1)

        read = make_op("DequeueBlobs", ["queue"], ["y"], timeout_secs=0.02)
        workspace.create_net(net_of(read, *[python(works) for _ in range(20)]))
        with pytest.raises(NetError, match="operator 0: DequeueBlobs.*stayed empty for 0.02 seconds"):
            workspace.run_net("net")
        assert len(seen) == 1

    def test_a_net_with_one_worker_or_of_type_simple_runs_in_order(self, workspace):
        for more in ({"kind": "simple"}, {"num_workers": 1}):
            workspace.create_net(net_of(READS, WRITES, **more), overwrite=True)
            run_into_a_time_limit(workspace, "operator 0: DequeueBlobs")

    def test_what_an_earlier_operator_overwrites_is_read_first(self, workspace, queue):
        """The consumer waits for what depends on it alone: nobody writes, so the time limit ends the run."""
        late = make_op("Copy", ["y"], ["x"])
        write = make_op("EnqueueBlobs", ["queue", "x"], ["x"])
        workspace.create_net(net_of(READS, late, write))
        run_into_a_time_limit(workspace, "operator 0: ")
        assert len(queue) == 0


class TestRuns:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_producer_after_its_consumer(self, workspace, kind):
        workspace.create_net(net_of(READS, make_op("Relu", ["y"], ["z"]), WRITES, kind=kind))
        for k in range(50):
            workspace.feed("x", np.full((2, 2), k, np.float32))
            workspace.run_net("net", time_limit=HANG)
            np.testing.assert_array_equal(workspace.fetch("z"), np.full((2, 2), k, np.float32))
        assert workspace.net("net").clock.iteration == 50

    def test_two_chains_that_feed_each_other(self, workspace):
        workspace.feed("back", BlobsQueue(1, 1, "back"))
        ops = [
            make_op("DequeueBlobs", ["back"], ["answer"]),
            make_op("Scale", ["answer"], ["result"], scale=10.0),
            READS,
            make_op("Scale", ["y"], ["twice"], scale=2.0),
            make_op("EnqueueBlobs", ["back", "twice"], ["twice"]),
            WRITES,
        ]
        workspace.create_net(net_of(*ops, inputs=["queue", "back", "x"]))
        workspace.run_net("net", 50, time_limit=HANG)
        np.testing.assert_array_equal(workspace.fetch("result"), 20 * workspace.fetch("x"))

    def test_a_net_that_is_run_once_and_one_that_an_operator_holds(self, workspace):
        both = [READS, WRITES]
        workspace.run_net_once(net_of(*both))
        workspace.remove("y")
        workspace.feed("yes", np.array(True))
        outer = make_op("If", ["yes", "queue", "x"], ["y", "x"], then_net=net_of(*both, name="inner"))
        workspace.create_net(net_of(outer, kind="simple", name="outer", inputs=["yes", "queue", "x"]))
        workspace.run_net("outer", 20, time_limit=HANG)
        np.testing.assert_array_equal(workspace.fetch("y"), workspace.fetch("x"))

    def test_operators_of_the_outer_net_go_on_while_one_of_an_inner_net_waits(self, workspace):
        workspace.feed("yes", np.array(True))
        inner = net_of(READS, make_op("Relu", ["y"], ["z"]), name="inner", inputs=["queue"])
        outer = make_op("If", ["yes", "queue"], ["z"], then_net=inner)
        workspace.create_net(net_of(outer, WRITES, inputs=["yes", "queue", "x"]))
        workspace.run_net("net", 20, time_limit=HANG)
        np.testing.assert_array_equal(workspace.fetch("z"), workspace.fetch("x"))

    def test_one_operator_computes_at_a_time(self, workspace, queue):
        inside = []
        most = []

        def computes(inputs, outputs):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.002)
            inside.pop()

        def reads(inputs, outputs):
            queue.read()
            computes(inputs, outputs)

        def writes(inputs, outputs):
            computes(inputs, outputs)
            queue.write([1])

        ops = (
            [python(reads) for _ in range(5)]
            + [python(computes) for _ in range(5)]
            + [python(writes) for _ in range(5)]
        )
        workspace.create_net(net_of(*ops))
        workspace.run_net("net", 3, time_limit=HANG)
        assert max(most) == 1 and len(most) == 45

    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("seed", range(12))
    def test_chains_over_queues_in_any_order(self, workspace, seed):
        """Each chain reads a queue, adds one and writes the next queue; the first one writes what was fed."""
        draw = random.Random(seed)
        links = draw.randint(2, 6)
        inputs = ["x", "one", *(f"q{k}" for k in range(links + 1))]
        workspace.feed("one", np.ones((2, 2), np.float32))
        for k in range(links + 1):
            workspace.feed(f"q{k}", BlobsQueue(1, 1, f"q{k}"))
        chains = [
            [
                make_op("DequeueBlobs", [f"q{k}"], [f"in{k}"]),
                make_op("Add", [f"in{k}", "one"], [f"out{k}"]),
                make_op("EnqueueBlobs", [f"q{k + 1}", f"out{k}"], [f"out{k}"]),
            ]
            for k in range(links)
        ]
        chains.append([make_op("EnqueueBlobs", ["q0", "x"], ["x"])])
        chains.append([make_op("DequeueBlobs", [f"q{links}"], ["end"]), make_op("Copy", ["end"], ["last"])])
        ops = []
        while any(chains):
            ops.append(draw.choice([chain for chain in chains if chain]).pop(0))
        workspace.create_net(net_of(*ops, inputs=inputs))
        workspace.run_net("net", 5, time_limit=HANG)
        np.testing.assert_array_equal(workspace.fetch("last"), workspace.fetch("x") + links)

    def test_observers_are_called_once_a_run(self, workspace):
        class Observer:
            told = []

            def run_starts(self, net):
                self.told.append("starts")

            def run_ends(self, net):
                self.told.append("ends")

        workspace.create_net(net_of(READS, WRITES))
        workspace.net("net").observers.append(Observer())
        workspace.run_net("net", 2)
        assert Observer.told == ["starts", "ends"] * 2
        workspace.create_net(net_of(READS, FAILS), overwrite=True)
        workspace.net("net").observers.append(Observer())
        with pytest.raises(ShapeError):
            workspace.run_net("net")
        assert Observer.told == ["starts", "ends"] * 2 + ["starts"]

    def test_a_run_takes_turns_with_no_thread_that_an_operator_starts(self, workspace):
        """The operator waits for its own threads, whose nets wait for each other."""
        reads = net_of(READS, make_op("Relu", ["y"], ["z"]), name="reads")
        writes = net_of(WRITES, make_op("Relu", ["x"], ["w"]), name="writes", inputs=["queue", "x"])
        step = ExecutionStep(name="both", concurrent_substeps=True)
        step.substep.extend(ExecutionStep(name=name, network=[name]) for name in ("reads", "writes"))
        plan = PlanDef(name="plan", network=[reads, writes], execution_step=[step])
        workspace.create_net(net_of(python(lambda inputs, outputs: workspace.run_plan(plan)), WRITES))
        workspace.run_net("net", time_limit=HANG)
        assert len(workspace.fetch("queue")) == 1

    def test_no_threads_are_left(self, workspace):
        workspace.create_net(net_of(READS, WRITES))
        workspace.run_net("net", 20)
        assert not [thread for thread in threading.enumerate() if thread.name == "netbuilder-net"]


class TestEnds:
    def test_cancel_ends_all_that_wait(self, workspace):
        workspace.feed("other", BlobsQueue(1, 1, "other"))
        ops = [READS, make_op("DequeueBlobs", ["other"], ["z"])]
        workspace.create_net(net_of(*ops, inputs=["queue", "other"]))
        over = threading.Event()

        def cancel():
            for name in ("other", "queue"):
                wait_until(lambda name=name: workspace.fetch(name).not_empty._waiters)
            workspace.net("net").cancel(OSError("the disk is gone"))
            over.set()

        thread = threading.Thread(target=cancel)
        thread.start()
        with pytest.raises(CancelledError, match="DequeueBlobs.*run of net 'net' was cancelled: OSError: the disk"):
            workspace.run_net("net", time_limit=HANG)
        thread.join()
        assert over.is_set()

    def test_a_time_limit_names_the_operator_that_waits_in_another_thread(self, workspace, queue):
        """The caller's thread has finished its operator when the time limit is reached."""
        workspace.feed("other", BlobsQueue(1, 1, "other"))
        ops = [READS, WRITES, make_op("DequeueBlobs", ["other"], ["z"])]
        workspace.create_net(net_of(*ops, inputs=["queue", "other", "x"]))
        workspace.fetch("other").write([np.zeros(2, np.float32)])
        workspace.run_net("net")
        run_into_a_time_limit(workspace, "operator 2: DequeueBlobs")

    def test_a_net_can_be_run_again_after_an_error(self, workspace, queue):
        workspace.create_net(net_of(READS, make_op("Gather", ["x", "row"], ["g"]), inputs=["queue", "x", "row"]))
        for _ in range(5):
            workspace.feed("row", np.int32([7]))
            with pytest.raises(OperatorError, match="operator 1: Gather"):
                workspace.run_net("net", time_limit=HANG)
            workspace.feed("row", np.int32([1]))
            queue.write([np.float32([5])])
            workspace.run_net("net", time_limit=HANG)
            assert workspace.fetch("g").tolist() == [[2, 3]]


INTERRUPTED = """
import threading, time
import numpy as np
from netbuilder.data import BlobsQueue
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace

workspace = Workspace(threads=2)
net = NetDef(name="net", type="dag", external_input=["a", "b"])
for name in "ab":
    workspace.feed(name, BlobsQueue(1, 1, name))
    net.op.append(make_op("DequeueBlobs", [name], [name + "_out"]))
workspace.create_net(net)

def look():
    while not all(workspace.fetch(name).not_empty._waiters for name in "ab"):
        time.sleep(0.01)
    print("ready", flush=True)

threading.Thread(target=look, daemon=True).start()
try:
    workspace.run_net("net")
except KeyboardInterrupt:
    print("interrupted", threading.active_count(), flush=True)
for name in "ab":
    workspace.fetch(name).write([np.float32([1])])
workspace.run_net("net")
print(workspace.fetch("a_out")[0], workspace.fetch("b_out")[0])
"""


def test_sigint_ends_all_that_wait():
    assert interrupted(INTERRUPTED) == ("interrupted 1\n1.0 1.0\n", 0)


class TestFairLock:
    def test_threads_get_it_in_the_order_of_their_requests(self):
        lock = FairLock()
        lock.acquire()
        got = []

        def request(number):
            lock.acquire()
            got.append(number)
            lock.release()

        threads = [threading.Thread(target=request, args=(number,)) for number in range(4)]
        for number, thread in enumerate(threads):
            thread.start()
            wait_until(lambda number=number: len(lock.waiters) > number)
        assert lock.held_here()
        lock.yield_to_waiters()
        assert got[0] == 0
        lock.release()
        for thread in threads:
            thread.join()
        assert got == [0, 1, 2, 3] and not lock.held_here()

    def test_a_thread_interrupted_while_it_waits_does_not_get_it(self, monkeypatch):
        lock = FairLock()
        lock.acquire()

        class Interrupted:
            def __init__(self):
                self.calls = 0

            def acquire(self):
                self.calls += 1
                if self.calls == 2:
                    raise KeyboardInterrupt

        monkeypatch.setattr("netbuilder.data.waiting.threading.Lock", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire()
        monkeypatch.undo()
        lock.release()
        lock.acquire()
        assert lock.held_here()
