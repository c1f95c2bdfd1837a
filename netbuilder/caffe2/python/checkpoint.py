"""Jobs that go through epochs, save a checkpoint behind each, and resume one."""

from __future__ import annotations

from netbuilder.caffe2.absent import names_of
from netbuilder.jobs.checkpoint_managers import (
    CheckpointManager,
    MultiNodeCheckpointManager,
    db_name,
    get_ckpt_filename,
)
from netbuilder.jobs.job import Job, JobRunner, UploadTaskGroupBuilder, epoch_limiter

__all__ = [
    "CheckpointManager",
    "Job",
    "JobRunner",
    "MultiNodeCheckpointManager",
    "UploadTaskGroupBuilder",
    "db_name",
    "epoch_limiter",
    "get_ckpt_filename",
]

__getattr__ = names_of(__name__)
