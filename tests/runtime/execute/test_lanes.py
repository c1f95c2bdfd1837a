"""Lanes: devices side by side, with the same result as one after the other; errors reach the caller."""

import threading

import numpy as np
import pytest

from netbuilder.proto import NetDef, OperatorError, ShapeError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute.lanes import LaneProgram
from netbuilder.runtime.values.workers import Team, thread_count


def on(device, *args, **kwargs):
    return make_op(*args, device_option=make_device_option(0, device), **kwargs)


def exchange(devices, net_type, steps=3):
    """Each device doubles its blob; device 0 sums them; each takes the sum back."""
    net = NetDef(name="net", type=net_type, num_workers=4 * devices)
    names = [f"d{k}" for k in range(devices)]
    net.external_input.extend(names)
    for k, name in enumerate(names):
        net.op.append(on(k, "Scale", [name], [name], scale=0.5))
    net.op.append(on(0, "Sum", names, [names[0]]))
    for k, name in enumerate(names[1:], start=1):
        net.op.append(on(k, "Copy", [names[0]], [name]))
    for k, name in enumerate(names):
        net.op.append(on(k, "Scale", [name], [f"{name}_out"], scale=float(k)))
    ws = Workspace(threads=devices)
    for k, name in enumerate(names):
        ws.feed(name, np.full((50,), k + 1, np.float32))
    ws.create_net(net)
    ws.run_net("net", steps)
    return [ws.fetch(f"{name}_out") for name in names]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("devices", [2, 3, 8])
def test_lanes_give_what_one_thread_gives(devices):
    one = exchange(devices, "simple")
    for _ in range(20):
        for a, b in zip(one, exchange(devices, "dag")):
            np.testing.assert_array_equal(a, b)


def test_threads_are_made_once():
    exchange(3, "dag")
    made = thread_count()
    alive = threading.active_count()
    exchange(3, "async_scheduling", steps=100)
    assert thread_count() == made
    assert threading.active_count() == alive


@pytest.mark.parametrize("lane, thread", [(1, r", in thread 'netbuilder-lane-\d+'"), (0, "")])  # 0: the caller's
def test_an_error_in_a_lane_reaches_the_caller_and_the_net_runs_again(lane, thread):
    net = NetDef(name="net", type="dag", num_workers=8)
    net.external_input.extend(["x", "label"])
    net.op.append(on(0, "Relu", ["x"], ["a"]))
    net.op.append(on(lane, "Softmax", ["x"], ["p"]))
    loss = on(lane, "LabelCrossEntropy", ["p", "label"], ["l"])
    loss.debug_info = "train.py:3 in build"
    net.op.append(loss)
    net.op.append(on(1 - lane, "Sum", ["a", "p"], ["s"]))
    ws = Workspace(threads=2)
    ws.feed("x", np.ones((2, 3), np.float32))
    ws.feed("label", np.int32([0, 2]))
    ws.create_net(net)
    ws.run_net("net")  # the first run has one thread
    ws.feed("label", np.int32([0, 7]))
    failed = rf"LabelCrossEntropy.*on CPU {lane}, made at train.py:3 in build{thread}: "
    for _ in range(3):
        with pytest.raises((OperatorError, ShapeError, ValueError), match=failed):
            ws.run_net("net")
    ws.feed("label", np.int32([0, 2]))
    ws.run_net("net")
    np.testing.assert_allclose(ws.fetch("l"), np.log([3, 3]), rtol=1e-6)


def test_waits_follow_the_order_of_dependent_calls():
    """Many calls over three lanes, each waiting for some before it, in any interleaving."""
    rng = np.random.default_rng(0)
    count = 200
    lanes = rng.integers(0, 3, count).tolist()
    after = [sorted({int(j) for j in rng.integers(0, max(i, 1), 3)}) if i else [] for i in range(count)]
    seen = []
    violations = []

    def call(index):
        def run():
            done = set(seen)
            violations.extend((index, j) for j in after[index] if j not in done)
            seen.append(index)

        return run

    program = LaneProgram([call(i) for i in range(count)], lanes, after, [None] * 3)
    for _ in range(20):
        seen.clear()
        assert program.run() is None
        assert sorted(seen) == list(range(count))
    assert violations == []


def test_a_failing_call_stops_the_other_lanes():
    ran = []

    def fail():
        raise RuntimeError("broken")

    calls = [lambda: ran.append(0), fail, lambda: ran.append(2), lambda: ran.append(3)]
    program = LaneProgram(calls, [0, 1, 0, 1], [[], [0], [1], [2]], [None] * 2)
    for _ in range(10):
        ran.clear()
        index, error, thread = program.run()
        assert index == 1
        assert str(error) == "broken"
        assert thread.startswith("netbuilder-lane-")
        assert ran == [0]


@pytest.mark.parametrize("lane", [0, 1])
def test_a_lane_that_cannot_begin_is_a_failure(lane):
    """The other one waits for it."""
    done = []

    def fails():
        raise MemoryError("no room")

    before = [None, None]
    before[lane] = fails
    program = LaneProgram([lambda: done.append(0), lambda: done.append(1)], [lane, 1 - lane], [(), (0,)], before)
    position, error, _ = program.run()
    assert (position, str(error), done) == (0, "no room", [])


def test_a_job_that_fails_ends_the_wait_for_it():
    def fails():
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        Team([lambda: None, fails]).run()
    done = []
    Team([lambda: done.append(0), lambda: done.append(1)]).run()
    assert sorted(done) == [0, 1]
