"""Job: tasks that run once, in each epoch, and at the end; and JobRunner, which runs the epochs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from netbuilder.caffe2.jobs.outputs import TaskOutput
from netbuilder.caffe2.jobs.session import Session
from netbuilder.caffe2.jobs.task import Task, TaskGroup, WorkspaceType
from netbuilder.graph import BlobReference, Net
from netbuilder.graph.context_stack import Managed
from netbuilder.proto import NetError

__all__ = ["Job", "JobRunner", "UploadTaskGroupBuilder", "epoch_limiter"]

_LOG = logging.getLogger(__name__)


class Job(Managed):
    """Groups of tasks of a training. Tasks made in its block join ``epoch_group``.

    Args:
        init_group: runs once before the first epoch, in the session's workspace, unless a checkpoint is resumed.
        epoch_group: runs in each epoch.
        download_group: runs after the last epoch.
        exit_group: runs after ``download_group``.
        stop_conditions: TaskOutputs or blobs; training ends after an epoch in which one is true.
        nodes_to_checkpoint: nodes whose blobs are saved; None: those of ``init_group``.

    >>> with Job() as job:
    ...     task = Task(step=Net("nothing"), name="idle")
    ...     epoch_limiter(job, 2)
    >>> job.nodes_to_checkpoint(), len(job.stop_conditions)
    (['local'], 1)
    """

    def __init__(
        self,
        init_group: TaskGroup | None = None,
        epoch_group: TaskGroup | None = None,
        download_group: TaskGroup | None = None,
        exit_group: TaskGroup | None = None,
        stop_conditions: Sequence[Any] | None = None,
        nodes_to_checkpoint: Sequence[str] | None = None,
    ) -> None:
        self.init_group: Any = TaskGroup(WorkspaceType.GLOBAL) if init_group is None else init_group
        self.epoch_group: Any = TaskGroup() if epoch_group is None else epoch_group
        self.download_group: Any = TaskGroup() if download_group is None else download_group
        self.exit_group: Any = TaskGroup() if exit_group is None else exit_group
        self.stop_conditions: list[Any] = list(stop_conditions or [])
        self._nodes_to_checkpoint = None if nodes_to_checkpoint is None else list(nodes_to_checkpoint)

    def nodes_to_checkpoint(self) -> list[str]:
        """Return the nodes whose blobs are saved in checkpoints."""
        if self._nodes_to_checkpoint is not None:
            return self._nodes_to_checkpoint
        nodes: list[str] = self.init_group.used_nodes()
        return nodes

    def compile(self, session_class: type[Session]) -> None:
        """Compile the groups for a class of sessions; nothing can be added afterwards."""
        self._nodes_to_checkpoint = self.nodes_to_checkpoint()
        for name in ("init_group", "epoch_group", "download_group", "exit_group"):
            setattr(self, name, session_class.compile(getattr(self, name)))

    def __enter__(self) -> Job:
        super().__enter__()
        self.epoch_group.__enter__()
        return self

    def __exit__(self, *args: Any) -> Any:
        self.epoch_group.__exit__(*args)
        return super().__exit__(*args)

    def add_stop_condition(self, output: Any) -> None:
        """End the training after an epoch that makes ``output`` true.

        Args:
            output: a TaskOutput of a task of the epoch, or a blob that the epoch writes.

        Raises:
            TypeError: it is neither.
        """
        if isinstance(output, BlobReference):
            output = Task(outputs=[output], group=self.epoch_group).outputs()[0]
        if not isinstance(output, TaskOutput):
            raise TypeError(f"Job.add_stop_condition needs a TaskOutput or a blob reference, got {output!r}")
        self.stop_conditions.append(output)


def epoch_limiter(job: Job, num_epochs: int) -> None:
    """End a job after ``num_epochs`` epochs, including those before a checkpoint that is resumed.

    Args:
        job: the job; the count is stored on the current node.
        num_epochs: at least 1.

    Raises:
        NetError: ``num_epochs`` is less than 1.
    """
    if num_epochs < 1:
        raise NetError(f"epoch_limiter: num_epochs must be at least 1, got {num_epochs!r}")
    with job.init_group:
        init = Net("epoch_counter_init")
        counter = init.CreateCounter([], init_count=num_epochs - 1)
        Task(step=init)
    with job.epoch_group:
        epoch = Net("epoch_countdown")
        finished = epoch.CountDown(counter)
        job.add_stop_condition(Task(step=epoch, outputs=finished).outputs()[0])


class UploadTaskGroupBuilder:
    """Base class: makes the tasks that upload a checkpoint at the end of the training."""

    def build(self, epoch: int, checkpoint_manager: Any) -> Any:
        """Return a group of tasks, compiled or not.

        Args:
            epoch: the last epoch.
            checkpoint_manager: has the names of the files.
        """
        raise NotImplementedError(f"{type(self).__name__}: build(epoch, checkpoint_manager) returns a group of tasks")


class JobRunner:
    """Runs a job epoch by epoch, and saves a checkpoint after each; can resume from one.

    Args:
        job: the job, compiled or not.
        checkpoint_manager: saves and loads, see ``CheckpointManager`` and ``MultiNodeCheckpointManager``; None: nothing
            is saved.
        resume_from_epoch: the epoch to resume from; None: start from the beginning, unless the manager's
            ``metadata_handler`` has an epoch.
        upload_task_group_builder: see ``UploadTaskGroupBuilder``; None: nothing is uploaded.
    """

    def __init__(
        self,
        job: Job,
        checkpoint_manager: Any = None,
        resume_from_epoch: int | None = None,
        upload_task_group_builder: UploadTaskGroupBuilder | None = None,
    ) -> None:
        self.resume_from_epoch = resume_from_epoch
        self.checkpoint_manager = checkpoint_manager
        self.job = job
        self.upload_task_group_builder = upload_task_group_builder

    def train(self, session: Session) -> int:
        """Run the job until one of its stop conditions holds, and return the number of the last epoch, from 1 on.

        If a checkpoint cannot be saved, the error is logged and training continues; if the checkpoint to resume cannot
        be loaded, an error is raised before anything runs.

        Raises:
            NetError, OSError, ParseError: the checkpoint to resume cannot be loaded, or an operator failed.
        """
        epoch = self._start(session)
        while True:
            epoch += 1
            session.run(self.job.epoch_group)
            stops = [bool(condition.fetch()) for condition in self.job.stop_conditions]
            if self.checkpoint_manager is not None:
                self.save_checkpoints(epoch, session)
            if any(stops):
                break
            if not stops:
                raise NetError(
                    "JobRunner.train: the job has no stop condition, so it would run for ever; add one with "
                    "job.add_stop_condition(output) or epoch_limiter(job, num_epochs)"
                )
        if self.upload_task_group_builder is not None:
            session.run(self.upload_task_group_builder.build(epoch, self.checkpoint_manager))
        session.run(self.job.download_group)
        session.run(self.job.exit_group)
        return epoch

    def _start(self, session: Session) -> int:
        """Run the init group, or load a checkpoint; return the number of the epoch."""
        manager, nodes = self.checkpoint_manager, self.job.nodes_to_checkpoint()
        if manager is None:
            if self.resume_from_epoch is not None:
                raise NetError(f"JobRunner: resuming epoch {self.resume_from_epoch} needs a checkpoint_manager")
            session.run(self.job.init_group)
            return 0
        manager.set_params(nodes=nodes)
        self.resume_from_epoch = manager.get_resume_from_epoch_id(self.resume_from_epoch)
        if self.resume_from_epoch is None:
            session.run(self.job.init_group)
            session.run(manager.init(nodes, retrieve_from_epoch=None))
            self.save_checkpoints(0, session)
            return 0
        session.run(manager.init(nodes, retrieve_from_epoch=self.resume_from_epoch))
        session.run(manager.load(self.resume_from_epoch))
        manager.report_checkpoint_stats("checkpoint_load")
        _LOG.info("resumed from the checkpoint of epoch %d", self.resume_from_epoch)
        return self.resume_from_epoch

    def load_blobs_from_checkpoints(self, blob_names: Sequence[str], epoch: int, session: Session) -> bool:
        """Load those of some blobs that an epoch's checkpoint has; return False if there is no such checkpoint."""
        manager = self._manager()
        result: bool = manager.load_blobs_locally(self.job.nodes_to_checkpoint(), blob_names, epoch, session)
        manager.report_checkpoint_stats("checkpoint_partial_load")
        return result

    def save_checkpoints(self, epoch: int, session: Session) -> None:
        """Save the checkpoint of an epoch; errors are logged, and training continues."""
        manager = self._manager()
        if not manager.cp_accessible(epoch=None):
            _LOG.warning(
                "no checkpoint of epoch %d: the checkpoint manager reports that its storage is not accessible", epoch
            )
            return
        try:
            session.run(manager.save(epoch))
            manager.write_checkpoint_metadata(epoch)
            manager.report_checkpoint_stats("checkpoint_save")
        except (OSError, ValueError, RuntimeError) as error:
            _LOG.error("no checkpoint of epoch %d: %s", epoch, error)

    def _manager(self) -> Any:
        if self.checkpoint_manager is None:
            raise NetError("JobRunner needs a checkpoint_manager to save and load checkpoints")
        return self.checkpoint_manager
