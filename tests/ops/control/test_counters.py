"""Counters, shared truth values, AtomicFetchAdd."""

import threading

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.data.counter import Counter
from netbuilder.ops.control.counters import (
    AtomicBool,
    AtomicFetchAdd,
    AtomicFetchAdd64,
    CheckAtomicBool,
    CheckCounterDone,
    ConditionalSetAtomicBool,
    CountDown,
    CountUp,
    CreateAtomicBool,
    CreateCounter,
    ResetCounter,
    RetrieveCount,
)
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.proto import NetDef, NetError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, i32, i64, refusal

OBJECT = TensorSpec((), STRING)


class _Object(OperatorSuite):
    no_gradient = "works on a shared object"


class _OnCounter(_Object):
    def draw(self, data):
        return self.operator(), [Counter(data.draw(st.integers(-2, 3)))]

    def reference(self, op, counter):
        return [self.before(counter.count)]


class _Changes(_OnCounter):
    """Operators that change the counter, so that each run gives another result."""

    @pytest.mark.parametrize("count", [-1, 0, 1, 2**40])
    def test_forward(self, count):
        for run in self.plain, self.planned:
            counter = Counter(count)
            y = run(self.operator(), counter)
            assert (y.item(), y.shape) == (self.result(count), ())
            assert counter.count == self.after(count)

    def plain(self, op, counter):
        return run_plain(op.with_arity(1, 1), [counter])[0]

    def planned(self, op, counter):
        workspace = Workspace()
        workspace.feed("counter", counter)
        workspace.run_operator_once(make_op(op.type, ["counter"], ["y"]))
        return workspace.fetch("y")


class _Makes(_Object):
    refuses_nothing = "it takes no input"

    def draw(self, data):
        return self.operator(), []

    def test_forward(self):
        workspace = Workspace()
        workspace.run_operator_once(make_op(self.operator.__name__, [], ["made"]))
        assert isinstance(workspace.fetch("made"), self.kind)


class TestCreateCounter(_Makes):
    operator, kind = CreateCounter, Counter


class TestCountUp(_Changes):
    operator = CountUp
    refusals = (refusal(CountUp(), [i64()], "input 0 must be a counter, got a tensor of type int64"),)

    def result(self, count):
        return count

    def after(self, count):
        return count + 1


class TestCountDown(_Changes):
    operator = CountDown
    refusals = (refusal(CountDown(), [f32(1)], "must be a counter"),)

    def result(self, count):
        return count - 1 < 0

    def after(self, count):
        return count - 1


class TestResetCounter(_Changes):
    operator = ResetCounter
    refusals = (refusal(ResetCounter(), [f32(1)], "must be a counter"),)

    def result(self, count):
        return count

    def after(self, count):
        return 0


class TestCheckCounterDone(_OnCounter):
    operator = CheckCounterDone
    refusals = (refusal(CheckCounterDone(), [f32(1)], "must be a counter"),)

    def before(self, count):
        return np.array(count <= 0)


class TestRetrieveCount(_OnCounter):
    operator = RetrieveCount
    refusals = (refusal(RetrieveCount(), [f32(1)], "must be a counter"),)

    def before(self, count):
        return np.array(count)


def test_a_net_counts_down_and_starts_again():
    workspace = Workspace()
    workspace.run_operator_once(make_op("CreateCounter", [], ["left"], init_count=2))
    workspace.create_net(NetDef(name="step", op=[make_op("CountDown", ["left"], ["done"])]))
    seen = []
    for _ in range(4):
        workspace.run_net("step")
        seen.append(bool(workspace.fetch("done")))
    assert seen == [False, False, True, True]
    workspace.run_operator_once(make_op("ResetCounter", ["left"], ["before"], init_count=5))
    workspace.run_operator_once(make_op("RetrieveCount", ["left"], ["count"]))
    assert (workspace.fetch("before"), workspace.fetch("count")) == (-2, 5)
    workspace.run_operator_once(make_op("ResetCounter", ["left"], []))
    workspace.run_operator_once(make_op("CheckCounterDone", ["left"], ["done"]))
    assert workspace.fetch("done")


def test_threads_that_count_do_not_lose_any():
    counter = Counter(0)
    threads = [threading.Thread(target=lambda: [counter.add(1) for _ in range(2000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.count == 8000


def test_another_object_is_no_counter():
    with pytest.raises(NetError, match="CountUp: input 0 must be what CreateCounter makes, got AtomicBool"):
        run_plain(CountUp(), [AtomicBool()])


class TestCreateAtomicBool(_Makes):
    operator, kind = CreateAtomicBool, AtomicBool


class TestConditionalSetAtomicBool(_Object):
    operator = ConditionalSetAtomicBool
    refusals = (
        refusal(ConditionalSetAtomicBool(), [OBJECT, i32(1)], "condition must have elements of type bool, got int32"),
        refusal(
            ConditionalSetAtomicBool(),
            [i32(1), TensorSpec((), np.dtype(bool))],
            "input 0 must be an atomic_bool, got a tensor of type int32",
        ),
    )

    def draw(self, data):
        return ConditionalSetAtomicBool(), [AtomicBool(), np.array([data.draw(st.booleans())])]

    def reference(self, op, flag, condition):
        return []


class TestCheckAtomicBool(_Object):
    operator = CheckAtomicBool
    refusals = (refusal(CheckAtomicBool(), [i32(1)], "input 0 must be an atomic_bool, got a tensor of type int32"),)

    def draw(self, data):
        return CheckAtomicBool(), [AtomicBool()]

    def reference(self, op, flag):
        return [np.array([flag.value])]


def test_once_true_a_shared_truth_value_stays_so():
    workspace, seen = Workspace(), []
    workspace.run_operator_once(make_op("CreateAtomicBool", [], ["stop"]))
    for condition in (False, True, False):
        workspace.feed("condition", np.array([condition]))
        workspace.run_operator_once(make_op("ConditionalSetAtomicBool", ["stop", "condition"], []))
        workspace.run_operator_once(make_op("CheckAtomicBool", ["stop"], ["value"]))
        seen.append(workspace.fetch("value").tolist())
    assert seen == [[False], [True], [True]]


class _FetchAdd(_Object):
    def draw(self, data):
        op = self.operator().with_arity(3, 2)
        numbers = [data.draw(st.integers(-(2**30), 2**30)) for _ in range(2)]
        shape = data.draw(st.sampled_from([(), (1,)]))
        return op, [threading.Lock(), *(np.full(shape, n, self.dtype) for n in numbers)]

    def reference(self, op, mutex, value, increment):
        return [value + increment, value]


class TestAtomicFetchAdd(_FetchAdd):
    operator, dtype = AtomicFetchAdd, np.int32
    refusals = (
        refusal(
            AtomicFetchAdd(), [OBJECT, i32(2), i32(1)], r"mut_value must have one element, got shape \(2,\)", n_out=2
        ),
    )


class TestAtomicFetchAdd64(_FetchAdd):
    operator, dtype = AtomicFetchAdd64, np.int64
    refusals = (
        refusal(
            AtomicFetchAdd64(),
            [OBJECT, i64(1), i32(1)],
            "increment must have elements of type int64, got int32",
            n_out=2,
        ),
    )
