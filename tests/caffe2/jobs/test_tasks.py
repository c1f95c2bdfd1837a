"""Tasks without a group, operators that hold nets in any builder, what runs at the same time, and records read."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from netbuilder import Net, Workspace
from netbuilder.caffe2.jobs.dataset import Dataset
from netbuilder.caffe2.jobs.limited_readers import CompositeReaderBuilder
from netbuilder.caffe2.jobs.net_builder import NetBuilder
from netbuilder.caffe2.jobs.operations import ops
from netbuilder.caffe2.jobs.pipeline import pipe
from netbuilder.caffe2.jobs.readers import ReaderBuilder
from netbuilder.caffe2.jobs.session import LocalSession
from netbuilder.caffe2.jobs.task import Task, TaskGroup, final_output
from netbuilder.caffe2.record_values import FeedRecord
from netbuilder.caffe2.records import List, ListWithEvicted, NewRecord, Scalar, Struct
from netbuilder.graph import NameScope, Plan, to_execution_step
from netbuilder.proto import NetError


def test_a_task_without_a_group():
    with Task() as task:
        total = ops.Const(0)
        with ops.loop(4) as loop:
            ops.Add([total, loop.iter()], [total])
        result = final_output(total)
    assert (task.group, task.name, repr(Task())) == (
        None,
        "local/task",
        "Task(name=local/task, node=local, outputs=[])",
    )
    with LocalSession(Workspace()) as session:
        for _ in range(2):
            session.run(task)
            assert result.fetch() == 6


def test_a_task_is_named_after_its_step():
    with TaskGroup():
        names = [Task(step=to_execution_step(Net("work"), "work")).name for _ in range(2)]
    assert names == ["local/work", "local/work:1"]


def test_an_output_outside_of_tasks_has_a_task_of_its_own():
    workspace = Workspace()
    workspace.feed("x", np.float32(3))
    with TaskGroup() as group:
        result = final_output("x")
    LocalSession(workspace).run(group)
    assert result.fetch() == 3


def test_control_blocks_in_a_builder_of_steps():
    """IfNet, Else and WhileNet among steps: each becomes a net with one operator, wherever the builder is."""
    with NetBuilder("mixed") as builder:
        x, y = ops.Const(0), ops.Const(0)
        with ops.WhileNet():
            with ops.Condition():
                ops.Add([x, ops.Const(1)], [x])
                ops.LT([x, ops.Const(7)])
            ops.Add([x, y], [y])
        chosen = ops.Const(0)
        with ops.IfNet(ops.GT([y, ops.Const(100)])):
            ops.Const(1, blob_out=chosen)
        with ops.Else():
            ops.Const(2, blob_out=chosen)
        with ops.loop(3):
            own = ops.Const(5)
            with ops.IfNet(ops.EQ([own, ops.Const(5)])):
                ops.Add([chosen, own], [chosen])
    workspace = Workspace()
    plan = Plan("mixed")
    plan.AddStep(to_execution_step(builder))
    workspace.run_plan(plan)
    assert [int(workspace.fetch(str(blob))) for blob in (x, y, chosen)] == [7, 21, 17]


@pytest.mark.parametrize("holds", [True, False])
def test_a_branch_reads_and_writes_its_condition(holds):
    with NetBuilder("own condition") as builder:
        condition, seen = ops.Const(holds), ops.Const(False)
        with ops.IfNet(condition):
            ops.Copy(condition, seen)
            ops.Const(False, blob_out=condition)
    workspace = Workspace()
    plan = Plan("own condition")
    plan.AddStep(to_execution_step(builder))
    workspace.run_plan(plan)
    assert workspace.fetch(str(seen)) == holds
    assert not workspace.fetch(str(condition))


def test_each_instance_has_a_python_function_of_its_own():
    made, seen, lock = [], [], threading.Lock()

    def make(step):
        state = {"calls": 0}
        with lock:
            made.append(state)

        def count(inputs, outputs):
            state["calls"] += step
            with lock:
                seen.append(state["calls"])

        return count

    with Task(num_instances=3) as task:
        with ops.loop(4):
            ops.Python((make, [10], {}))([], [])
    assert made == []
    LocalSession(Workspace()).run(task)
    assert len(made) == 3 and sorted(seen) == sorted([10, 20, 30, 40] * 3)
    net = Net("no_function")
    net.Python((lambda: 5, [], {}))([], [])
    with pytest.raises(RuntimeError, match="has to return a function, got 5"):
        Workspace().run_net_once(net)


def _source(workspace, name, first):
    init = Net(f"{name}_init")
    values = Struct(("label", np.arange(first, first + 6)))
    with NameScope(name):
        record = NewRecord(init, values)
    FeedRecord(record, values, workspace)
    return Dataset(record, name=name)


def test_fields_of_unknown_type_and_readers_from_data_sets():
    """A builder may return a data set, whose reader is used; fields without a type are empty at first."""

    class Builder(ReaderBuilder):
        def __init__(self, name, first):
            self.name, self.first = name, first

        def schema(self):
            return Struct(("label", Scalar()))

        def setup(self, ws):
            self.made = _source(ws, self.name, self.first)
            return {}

        def new_reader(self, **kwargs):
            return self.made

    workspace = Workspace()
    builder = CompositeReaderBuilder(["a", "b"], [Builder("left", 0), Builder("right", 6)])
    builder.setup(ws=workspace)
    target, init = Dataset(builder.schema(), name="target"), Net("target_init")
    target.init_empty(init)
    workspace.run_net_once(init)
    with TaskGroup() as group:
        pipe(builder.new_reader(), target.writer())
    LocalSession(workspace).run(group)
    labels = [workspace.fetch(str(target.content()[name].label())).tolist() for name in "ab"]
    assert labels == [list(range(6)), list(range(6, 12))]


def test_records():
    class Own(ListWithEvicted):
        pass

    assert type(Own(Scalar()).clone()) is Own
    assert List(Scalar(np.int32)).value.dtype == np.int32
    assert Scalar((np.float32, (3,)), []).get().shape == (0, 3)
    with pytest.raises(TypeError, match="cannot have an inner shape, got"):
        Scalar((np.void, (2,)))
    record = Struct(("a", Scalar()))
    with pytest.raises(TypeError, match="both have a field 'a'"):
        record + record
    with pytest.raises(NetError, match="field names must be unique, got 'a' twice"):
        Struct(("a", Scalar()), ("a", Scalar()))
