"""What jobs and checkpoint managers refuse, log and tell; what they do is shown by tests/caffe2/scripts/epochs.py."""

import logging
import re

import numpy as np
import pytest

from netbuilder import Net, Workspace
from netbuilder.caffe2.jobs.checkpoint_managers import CheckpointManager, MultiNodeCheckpointManager
from netbuilder.caffe2.jobs.cluster import Node
from netbuilder.caffe2.jobs.job import Job, JobRunner, UploadTaskGroupBuilder, epoch_limiter
from netbuilder.caffe2.jobs.operations import ops
from netbuilder.caffe2.jobs.session import LocalSession
from netbuilder.caffe2.jobs.task import Task, TaskGroup
from netbuilder.proto import NetError, OperatorError


def counting(epochs=2, extra=None):
    """A job whose epochs add one to a blob "count"."""
    with Job() as job:
        with Node("n"):
            with job.init_group, Task():
                ops.net().ConstantFill([], "count", shape=[1], value=0.0)
                if extra is not None:
                    extra()
            with Task():
                ops.net().Add(["count", ops.Const(np.float32([1.0]))], ["count"])
            epoch_limiter(job, epochs)
    return job


def test_refusals(tmp_path):
    with pytest.raises(NetError, match="num_epochs must be at least 1, got 0"):
        epoch_limiter(Job(), 0)
    with pytest.raises(TypeError, match="needs a TaskOutput or a blob reference, got 'x'"):
        Job().add_stop_condition("x")
    with Job() as endless:
        Task(step=Net("nothing"))
    with pytest.raises(NetError, match="has no stop condition, so it would run for ever"):
        JobRunner(endless).train(LocalSession(Workspace()))
    with pytest.raises(NetError, match="resuming epoch 3 needs a checkpoint_manager"):
        JobRunner(counting(), resume_from_epoch=3).train(LocalSession(Workspace()))
    with pytest.raises(NetError, match="needs a checkpoint_manager"):
        JobRunner(counting()).save_checkpoints(1, LocalSession(Workspace()))
    with pytest.raises(NotImplementedError, match="returns a group of tasks"):
        UploadTaskGroupBuilder().build(1, None)
    one = CheckpointManager(tmp_path, "n", "minidb")
    with pytest.raises(NetError, match="saves one node, got .*MultiNodeCheckpointManager saves several"):
        one.init(["a", "b"])
    with pytest.raises(NetError, match=r"run the task that init\(\) returns first"):
        one.save(1)
    several = MultiNodeCheckpointManager(tmp_path, "minidb")
    with pytest.raises(NetError, match=r"the nodes are not known yet; call init\(\) first"):
        several.save(1)
    several.init(["a"])
    with pytest.raises(NetError, match=r"was made for the nodes \['a'\], got \['b'\]"):
        several.set_params(["b"])
    assert several.get_ckpt_db_name("b", 1) is None


def test_a_file_that_is_not_there(tmp_path):
    workspace = Workspace()
    runner = JobRunner(counting(), CheckpointManager(tmp_path, "n", "minidb"), resume_from_epoch=4)
    with pytest.raises(OperatorError, match="n.4"):
        runner.train(LocalSession(workspace))
    assert not workspace.has("count")
    assert not runner.load_blobs_from_checkpoints(["count"], 4, LocalSession(workspace))


def test_what_cannot_be_saved_is_logged(tmp_path, caplog):
    def queue():
        ops.net().CreateBlobsQueue([], "queue", capacity=1, num_blobs=1)

    job = counting(extra=queue)
    assert JobRunner(job, CheckpointManager(tmp_path, "n", "minidb")).train(LocalSession(Workspace())) == 2
    assert "no checkpoint of epoch 1" in caplog.text and "blob 'queue'" in caplog.text
    assert not list(tmp_path.iterdir())


class Handler:
    """Records its arguments."""

    def __init__(self):
        self.told = []
        self.accessible = True

    def set_params(self, **params):
        self.told.append(params["node_names"])

    def last_epoch(self, user_epoch=None):
        return max((epoch for epoch in self.told if isinstance(epoch, int)), default=user_epoch)

    def cp_accessible(self, epoch=None):
        return self.accessible

    def write(self, epoch):
        self.told.append(epoch)

    def report(self, action, stats):
        self.told.append((action, len(stats)))


def test_metadata_handlers(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    handler = Handler()
    job = counting(epochs=1)
    assert JobRunner(job, CheckpointManager(tmp_path, "n", "minidb", handler)).train(LocalSession(Workspace())) == 1
    saved = ("checkpoint_save", 1)
    assert handler.told == [["n"], 0, saved, 1, saved]
    assert re.search(r"n\.1 in \d+\.\d+ s", caplog.text)
    handler.accessible = False
    workspace = Workspace()
    again = JobRunner(job, MultiNodeCheckpointManager(tmp_path, "minidb", handler))
    assert again.train(LocalSession(workspace)) == 2  # begins after epoch 1, which it was given
    assert workspace.fetch("count").tolist() == [2.0] and handler.told[-1] == ("checkpoint_load", 1)
    assert "no checkpoint of epoch 2" in caplog.text


def test_names_of_files_elsewhere(tmp_path):
    manager = CheckpointManager(tmp_path, "n", "minidb")
    workspace = Workspace()
    workspace.feed("x", np.float32([1, 2]))
    session = LocalSession(workspace)
    session.run(manager.init(["n"], path_prefix=str(tmp_path) + "/other-"))
    session.run(manager.save(3))
    assert [path.name for path in tmp_path.iterdir()] == ["other-n.3"]
    loaded = Workspace()
    assert manager.load_blobs_locally(["n"], ["x", "y"], 3, LocalSession(loaded))
    assert loaded.fetch("x").tolist() == [1, 2]


def test_private_and_shared_workspaces():
    """The blobs of a group are its own, unless it says otherwise; those of a single task are the session's."""
    workspace = Workspace()
    session = LocalSession(workspace)
    with TaskGroup() as group, Task():
        ops.net().ConstantFill([], "hidden", shape=[1])
    session.run(group)
    assert not workspace.has("hidden")
    single = Net("single")
    single.ConstantFill([], "seen", shape=[1])
    session.run(Task(step=single, group=TaskGroup()))
    assert workspace.has("seen")
