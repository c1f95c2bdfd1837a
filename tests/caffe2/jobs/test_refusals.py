"""What builders, tasks, sessions and readers refuse; what they do is shown by the scripts in tests/caffe2/scripts."""

import pytest

from netbuilder import Net, Workspace
from netbuilder.caffe2.jobs.control import CombineConditions, GetConditionBlobFromNet
from netbuilder.caffe2.jobs.dataset import Dataset
from netbuilder.caffe2.jobs.job import Job
from netbuilder.caffe2.jobs.net_builder import NetBuilder
from netbuilder.caffe2.jobs.operations import ops
from netbuilder.caffe2.jobs.pipeline import pipe
from netbuilder.caffe2.jobs.queues import Queue
from netbuilder.caffe2.jobs.readers import Reader
from netbuilder.caffe2.jobs.session import LocalSession
from netbuilder.caffe2.jobs.task import Task, TaskGroup
from netbuilder.proto import NetError


def test_builders():
    with pytest.raises(NetError, match="no NetBuilder is current"):
        ops.Const(1)
    with pytest.raises(NetError, match="needs a stop condition"), NetBuilder("endless"), ops.loop():
        ops.Const(1)
    assert NetBuilder.current(required=False) is None
    with NetBuilder("done") as builder:
        ops.Const(1)
    with pytest.raises(NetError, match="its block has ended"):
        builder.current_net()
    with pytest.raises(NetError, match="must follow an IfNet"), NetBuilder("else", _use_control_ops=True):
        ops.Else()


def test_conditions():
    with pytest.raises(NetError, match="last external output"):
        GetConditionBlobFromNet(Net("empty"))
    with pytest.raises(NetError, match="'And' or 'Or', got 'Xor'"):
        CombineConditions("both", [Net("a"), Net("b")], "Xor")


def test_tasks_and_sessions():
    with pytest.raises(NetError, match="no Job is current"):
        Job.current()
    task = Task(step=Net("nothing"), name="t", group=TaskGroup())
    with pytest.raises(NetError, match="run the task in a session"):
        task.add_output("x").get()
    session = LocalSession(Workspace())
    with pytest.raises(NetError, match="can run a task, a group of tasks, a step or a net, got 5"):
        session.run(5)
    session.close()
    with pytest.raises(NetError, match="is closed"):
        session.run(Net("nothing"))


def test_readers():
    with pytest.raises(NetError, match="has no schema; give it one"):
        Reader().schema()
    with pytest.raises(NetError, match="its schema is not known"):
        Queue(3).reader()
    with pytest.raises(NetError, match="has no blobs yet; call init_empty"):
        Dataset(["x"]).reader()
    with pytest.raises(TypeError, match="or an object with reader"):
        pipe(3)
