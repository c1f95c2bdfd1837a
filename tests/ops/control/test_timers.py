"""Timers, WallClockTime, statistics."""

import time

import numpy as np
import pytest
from hypothesis import strategies as st

from netbuilder.ops.control.timers import (
    Statistics,
    StatRegistryCreate,
    StatRegistryExport,
    StatRegistryUpdate,
    TimerBegin,
    TimerEnd,
    TimerGet,
    TimerGetAndEnd,
    WallClockTime,
)
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.proto import NetError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, i64, refusal

STRINGS = TensorSpec((2,), STRING)


class _Clock(OperatorSuite):
    """Operators whose results are times; what they give is checked in a run of several, below."""

    no_gradient = "measures time"
    before: tuple = ()
    outputs = ("y",)

    def draw(self, data):
        workspace = Workspace()
        workspace.run_operator_once(make_op("TimerBegin", [], ["timer"]))
        return self.operator(), [workspace.fetch("timer")] if self.operator.inputs else []

    def test_forward(self):
        workspace = Workspace()
        workspace.run_operator_once(make_op("TimerBegin", [], ["timer"]))
        inputs = ["timer"] if self.operator.inputs else []
        workspace.run_operator_once(make_op(self.operator.__name__, inputs, self.outputs))
        for name in self.outputs:
            y = workspace.fetch(name)
            assert (y.dtype, y.shape) == (np.int64, self.shape)
            assert y.item() > 0


class TestTimerBegin(_Clock):
    operator = TimerBegin
    refuses_nothing = "it takes no input"

    def test_forward(self):
        workspace = Workspace()
        workspace.run_operator_once(make_op("TimerBegin", [], ["timer"], counter_name="load"))
        assert workspace.fetch("timer").name == "load"


class TestTimerEnd(_Clock):
    operator, outputs = TimerEnd, ()
    refusals = (refusal(TimerEnd(), [f32(1)], "input 0 must be a timer"),)


class TestTimerGet(_Clock):
    operator, shape = TimerGet, ()
    refusals = (refusal(TimerGet(), [f32(1)], "input 0 must be a timer"),)


class TestTimerGetAndEnd(_Clock):
    operator, shape = TimerGetAndEnd, (1,)
    refusals = (refusal(TimerGetAndEnd(), [f32(1)], "input 0 must be a timer"),)


class TestWallClockTime(_Clock):
    operator, shape = WallClockTime, ()
    refuses_nothing = "it takes no input"


def run(workspace, *args, **kwargs):
    workspace.run_operator_once(make_op(*args, **kwargs))


def test_the_time_of_day():
    workspace = Workspace()
    run(workspace, "WallClockTime", [], ["now"])
    assert abs(int(workspace.fetch("now")) - time.time_ns()) < 3600e9


def test_what_a_timer_measures_goes_to_the_registry_of_the_process():
    workspace = Workspace()
    run(workspace, "TimerBegin", [], ["t"], counter_name="of_a_test")
    time.sleep(0.01)
    run(workspace, "TimerGet", ["t"], ["passed"])
    run(workspace, "TimerGetAndEnd", ["t"], ["whole"])
    assert 1e7 <= workspace.fetch("passed") <= workspace.fetch("whole").item()
    run(workspace, "StatRegistryExport", [], ["keys", "values", "times"])
    found = dict(zip(workspace.fetch("keys").tolist(), workspace.fetch("values").tolist()))
    assert found[b"of_a_test/time_ns/count"] == 1
    assert found[b"of_a_test/time_ns/sum"] == workspace.fetch("whole").item()
    with pytest.raises(NetError, match="'of_a_test' has already been stopped; start one with TimerBegin"):
        run(workspace, "TimerEnd", ["t"], [])
    run(workspace, "StatRegistryExport", [], ["keys", "values", "times"])
    found = dict(zip(workspace.fetch("keys").tolist(), workspace.fetch("values").tolist()))
    assert found[b"of_a_test/time_ns/count"] == 0


class TestStatRegistryCreate(OperatorSuite):
    operator = StatRegistryCreate
    no_gradient = "makes an object"
    refuses_nothing = "it takes no input"

    def draw(self, data):
        return StatRegistryCreate(), []

    def test_forward(self):
        workspace = Workspace()
        run(workspace, "StatRegistryCreate", [], ["handle"])
        assert isinstance(workspace.fetch("handle"), Statistics)


class TestStatRegistryExport(OperatorSuite):
    operator = StatRegistryExport
    no_gradient = "reads statistics"
    refuses_nothing = "what is no registry is refused when it runs; see test_another_object_is_no_registry"

    def draw(self, data):
        registry = Statistics()
        registry.add((b"s%d" % i, data.draw(st.integers(-9, 9))) for i in range(data.draw(st.integers(0, 3))))
        return StatRegistryExport(reset=False), [registry]

    def reference(self, op, registry):
        items = registry.read(reset=False)
        return [np.array([name for name, _ in items], object), np.array([value for _, value in items], int), None]


class TestStatRegistryUpdate(OperatorSuite):
    operator = StatRegistryUpdate
    no_gradient = "adds to statistics"
    refusals = (
        refusal(StatRegistryUpdate(), [STRINGS, i64(3)], r"values must have the shape of keys, \(2,\)"),
        refusal(StatRegistryUpdate(), [i64(2), i64(2)], "keys must have elements of type string, got int64"),
    )

    def draw(self, data):
        return StatRegistryUpdate(), [np.array([b"of_a_test"], object), np.int64([1]), Statistics()]

    def reference(self, op, keys, values, registry):
        return []


def test_a_registry_of_its_own_adds_and_falls_back_to_zero():
    workspace = Workspace()
    run(workspace, "StatRegistryCreate", [], ["mine"])
    workspace.feed("names", np.array([b"a", b"b"], object))
    for values in ([1, 2], [10, 20]):
        workspace.feed("numbers", np.int64(values))
        run(workspace, "StatRegistryUpdate", ["names", "numbers", "mine"], [])
    for want in ([11, 22], [0, 0]):
        run(workspace, "StatRegistryExport", ["mine"], ["keys", "values", "times"])
        assert workspace.fetch("keys").tolist() == [b"a", b"b"]
        assert workspace.fetch("values").tolist() == want


def test_another_object_is_no_registry():
    workspace = Workspace()
    run(workspace, "CreateCounter", [], ["counter"])
    with pytest.raises(NetError, match="must be what StatRegistryCreate makes, got Counter"):
        run(workspace, "StatRegistryExport", ["counter"], ["keys", "values", "times"])
