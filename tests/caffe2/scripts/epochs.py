"""A job over epochs with checkpoints, resumed by a process that begins with nothing; written for Caffe2.

It reads a data set in epochs of three rows, adds the rows up, and prints the sum behind each training. With a folder
as argument, its checkpoints stay there, and it begins with those of epoch 1 that it finds.
"""

import logging
import os
import shutil
import sys
import tempfile

import numpy as np

from caffe2.python import checkpoint, core, schema, workspace
from caffe2.python.dataio import ReaderWithLimit
from caffe2.python.dataset import Dataset
from caffe2.python.net_builder import ops
from caffe2.python.pipeline import pipe
from caffe2.python.session import LocalSession
from caffe2.python.task import Node, Task, TaskGroup, WorkspaceType

logging.disable(logging.CRITICAL)


def sum_of_rows(node, rows):
    """Add to the job around: a data set, its sum, and the epochs that add three rows each."""
    with Node(node):
        with checkpoint.Job.current().init_group, Task():
            net = ops.net()
            record = schema.NewRecord(net, schema.Struct(("value", np.int64)))
            net.GivenTensorInt64Fill([], record.value(), shape=[rows], values=range(rows))
            reader = Dataset(record, name=node + "_rows").reader(net)
            total = net.ConstantFill([], node + "_total", shape=[1], value=100, dtype=core.DataType.INT64)

        def add(fields):
            summing = core.Net(node + "_add")
            summing.Add([total, fields.value()], [total])
            return [summing]

        epoch = ReaderWithLimit(reader, num_iter=3)
        pipe(epoch, processor=add)
        checkpoint.Job.current().add_stop_condition(epoch.data_finished())
    return str(total)


class Upload(checkpoint.UploadTaskGroupBuilder):
    def build(self, epoch, checkpoint_manager):
        name = checkpoint_manager.get_ckpt_db_name("second", epoch)
        print("  upload of epoch", epoch, os.path.basename(name))
        with TaskGroup(WorkspaceType.GLOBAL) as group:
            with Node("second"):
                Task(step=core.Net("upload"))
        return group


def train(job, manager, blobs, **options):
    """Run the job in a workspace of its own; return the last epoch, and the blobs."""
    ws = workspace.C.Workspace()
    epochs = checkpoint.JobRunner(job, manager, **options).train(LocalSession(ws))
    return epochs, [ws.blobs[name].fetch().tolist() for name in blobs]


def one_node(folder):
    with checkpoint.Job() as job:
        blobs = [sum_of_rows("first", 8)]
    print("nodes", job.nodes_to_checkpoint())
    manager = checkpoint.CheckpointManager(folder, "first", "minidb")
    if os.path.exists(os.path.join(folder, "first.1")):
        print("found epoch 1:", train(job, manager, blobs, resume_from_epoch=1))
        return
    print("anew:", train(job, manager, blobs))
    print("files", sorted(os.listdir(folder)))
    for epoch in (0, 1, 2):
        print("from epoch", epoch, train(job, manager, blobs, resume_from_epoch=epoch))
    print("without files:", train(job, None, blobs))


def two_nodes(folder):
    with checkpoint.Job() as job:
        blobs = [sum_of_rows("first", 8), sum_of_rows("second", 5)]
    manager = checkpoint.MultiNodeCheckpointManager(folder, "minidb")
    job.compile(LocalSession)
    print("two nodes:", train(job, manager, blobs, upload_task_group_builder=Upload()))
    print("files", sorted(os.listdir(folder)))
    print("from epoch 1", train(job, manager, blobs, resume_from_epoch=1))
    ws = workspace.C.Workspace()
    runner = checkpoint.JobRunner(job, manager)
    print("partly:", runner.load_blobs_from_checkpoints(blobs, 1, LocalSession(ws)))
    print([ws.blobs[name].fetch().tolist() for name in blobs])
    print("too far:", runner.load_blobs_from_checkpoints(blobs, 9, LocalSession(ws)))


def limited(folder):
    with checkpoint.Job() as job:
        with Node("counting"):
            with job.init_group, Task():
                count = ops.net().ConstantFill([], "count", shape=[1], value=5.0)
            with Task():
                ops.Add([count, ops.Const(1.0)], [count], broadcast=1)
            checkpoint.epoch_limiter(job, 4)
    manager = checkpoint.CheckpointManager(folder, "counting", "minidb")
    print("four epochs:", train(job, manager, ["count"]))
    print("from epoch 2:", train(job, manager, ["count"], resume_from_epoch=2))


def main():
    if len(sys.argv) > 1:
        one_node(sys.argv[1])
        return
    for part in (one_node, two_nodes, limited):
        folder = tempfile.mkdtemp()
        part(folder)
        shutil.rmtree(folder)
    print(
        checkpoint.get_ckpt_filename("n", 3), checkpoint.db_name(3, "n", "/a"), checkpoint.db_name(3, "n", "/a", "/b/")
    )


if __name__ == "__main__":
    main()
