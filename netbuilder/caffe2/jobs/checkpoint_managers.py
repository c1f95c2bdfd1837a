"""Checkpoint managers: tasks that save the blobs of nodes to a file for each epoch, and load them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from netbuilder.caffe2.jobs.cluster import Node
from netbuilder.caffe2.jobs.operations import ops
from netbuilder.caffe2.jobs.outputs import TaskOutput
from netbuilder.caffe2.jobs.session import Session
from netbuilder.caffe2.jobs.task import Task, TaskGroup, WorkspaceType
from netbuilder.graph import Net
from netbuilder.proto import NetError

__all__ = ["CheckpointManager", "MultiNodeCheckpointManager", "db_name", "get_ckpt_filename"]

_LOG = logging.getLogger(__name__)


def get_ckpt_filename(node_name: str, epoch: int) -> str:
    """Return the name of a node's file for an epoch.

    >>> get_ckpt_filename("trainer", 12)
    'trainer.12'
    """
    return f"{node_name}.{epoch}"


def db_name(epoch: int, node_name: str, db_prefix: str, path_prefix: str | None = None) -> str:
    """Return the path of a node's file for an epoch.

    Args:
        epoch, node_name: which file.
        db_prefix: its folder.
        path_prefix: prefix of the name, instead of the folder.

    >>> db_name(12, "trainer", "/runs/a"), db_name(12, "trainer", "/runs/a", "store/b-")
    ('/runs/a/trainer.12', 'store/b-trainer.12')
    """
    name = get_ckpt_filename(node_name, epoch)
    return path_prefix + name if path_prefix else os.path.join(db_prefix, name)


class _Managing:
    """Base class: location and type of the files, and the metadata handler."""

    def __init__(self, db_prefix: str, db_type: str, metadata_handler: Any) -> None:
        self._db_prefix = os.fspath(db_prefix)
        self._db_type = db_type
        self._metadata_handler = metadata_handler

    def write_checkpoint_metadata(self, epoch: int) -> None:
        """Notify ``metadata_handler`` that an epoch has been saved."""
        if self._metadata_handler is not None:
            self._metadata_handler.write(epoch=epoch)

    def get_resume_from_epoch_id(self, user_epoch: int | None = None) -> int | None:
        """Return the epoch to resume: what ``metadata_handler`` finds for ``user_epoch``, or ``user_epoch``."""
        if self._metadata_handler is not None:
            found: int | None = self._metadata_handler.last_epoch(user_epoch=user_epoch)
            return found
        return user_epoch

    def cp_accessible(self, epoch: int | None = None) -> bool:
        """Whether checkpoints can be saved, according to ``metadata_handler``; True without one."""
        return self._metadata_handler is None or bool(self._metadata_handler.cp_accessible(epoch))

    def report_checkpoint_stats(self, action_name: str) -> None:
        """Log the time of saving or loading, and notify ``metadata_handler`` if it has ``report``."""
        stats: dict[str, Any] = {}
        for manager in self._all():
            manager.collect_checkpoint_stats(stats)
        for path, taken in stats.items():
            _LOG.info("%s: %s in %.3f s", action_name, path, taken / 1e9)
        if hasattr(self._metadata_handler, "report"):
            self._metadata_handler.report(action_name, stats)

    def _all(self) -> list[CheckpointManager]:
        """Return the managers of single nodes."""
        raise NotImplementedError(f"{type(self).__name__}: _all returns the managers of single nodes")

    def _notify(self, nodes: Sequence[str], path_prefix: str | None, path_type: str | None) -> None:
        if self._metadata_handler is not None:
            self._metadata_handler.set_params(
                db_prefix=self._db_prefix,
                db_type=self._db_type,
                node_names=list(map(str, nodes)),
                path_prefix=path_prefix,
                path_type=path_type,
            )


class CheckpointManager(_Managing):
    """Saves all blobs that a node's workspace has after its init group, and loads them.

    The file also stores the blobs' names, in the blob ``blob_names``, so that an epoch can be resumed in a new process.
    The task of ``init`` must run before ``save`` and ``load`` are called.

    Args:
        db_prefix: the folder of the files.
        node_name: the node.
        db_type: "minidb" or "lmdb".
        metadata_handler: keeps track of checkpoints: an object with ``set_params``, ``last_epoch``,
            ``cp_accessible``, ``write`` and, optionally, ``report``; None: the caller keeps track.
    """

    BLOB_NAMES = "blob_names"

    def __init__(self, db_prefix: str, node_name: str, db_type: str, metadata_handler: Any = None) -> None:
        super().__init__(db_prefix, db_type, metadata_handler)
        self._node_name = node_name
        self._net = Net("!!checkpoint_mngr")
        self._blob_names = self._net.AddExternalInput(self.BLOB_NAMES)
        self._names_output: TaskOutput | None = None
        self._path_prefix: str | None = None
        self._path_type: str | None = None
        self._times: dict[str, TaskOutput] = {}

    def init(
        self,
        nodes: Sequence[str] | None = None,
        retrieve_from_epoch: int | None = None,
        path_prefix: str | None = None,
        path_type: str | None = None,
    ) -> Task:
        """Return a task that lists the blobs.

        Args:
            nodes: a list with the node; None: do not check it.
            retrieve_from_epoch: the epoch whose file has the names; None: list the blobs of the workspace.
            path_prefix, path_type: replace the folder and ``db_type``.

        Raises:
            NetError: there is not exactly one node.
        """
        if nodes is not None and len(nodes) != 1:
            raise NetError(
                f"CheckpointManager: saves one node, got {list(nodes)}; MultiNodeCheckpointManager saves several"
            )
        self._set_path(path_prefix, path_type)
        with _task() as task:
            if retrieve_from_epoch is None:
                ops.GetAllBlobNames([], self._blob_names, include_shared=False)
            else:
                ops.Load([], self._blob_names, **self._file(retrieve_from_epoch), keep_device=True)
        self._names_output = task.add_output(self._blob_names)
        return task

    def blob_list(self) -> list[str]:
        """Return the names of the blobs that a checkpoint has.

        Raises:
            NetError: the task of ``init`` has not run.
        """
        if self._names_output is None:
            raise NetError("CheckpointManager: the blobs are not known yet; run the task that init() returns first")
        return [name.decode() if isinstance(name, bytes) else str(name) for name in self._names_output.fetch().tolist()]

    def collect_checkpoint_stats(self, stats: dict[str, Any]) -> None:
        """Add to ``stats`` the nanoseconds of saving or loading, by file name."""
        for name, output in self._times.items():
            stats[name] = int(output.fetch().reshape(-1)[0])

    def load(self, epoch: int, path_prefix: str | None = None, path_type: str | None = None) -> Task:
        """Return a task that loads all blobs of an epoch.

        Raises:
            NetError: the task of ``init`` has not run.
        """
        self._set_path(path_prefix, path_type)
        blobs = self.blob_list()

        def add() -> None:
            ops.Load([], blobs, **self._file(epoch), keep_device=True)

        return self._timed_task("checkpoint_load", epoch, add)

    def load_blobs_from_checkpoint(self, blob_names: Sequence[str], epoch: int) -> Task:
        """Return a task that loads those of some blobs that an epoch's file has."""

        def add() -> None:
            ops.Load([], list(map(str, blob_names)), **self._file(epoch), allow_incomplete=True)

        return self._timed_task("checkpoint_partial_load", epoch, add)

    def load_blobs_locally(self, nodes: Sequence[str], blob_names: Sequence[str], epoch: int, session: Session) -> bool:
        """Load some blobs of an epoch into a session's workspace; return False if its file does not exist."""
        return _load_locally([self], blob_names, epoch, session)

    def check_db_exists(self, epoch: int) -> Task:
        """Return a task whose output is whether an epoch's file exists."""
        with _task() as task:
            file = self._file(epoch)
            exists = ops.Const(False)
            ops.DBExists([], [exists], db_name=file["db"], db_type=file["db_type"], absolute_path=True)
            task.add_output(exists)
        return task

    def save(self, epoch: int) -> Task:
        """Return a task that saves all blobs of an epoch, to a file that is written whole or not at all.

        Raises:
            NetError: the task of ``init`` has not run.
        """
        blobs = self.blob_list()

        def add() -> None:
            ops.Save(blobs, [], **self._file(epoch))

        return self._timed_task("checkpoint_save", epoch, add)

    def set_params(self, nodes: Sequence[str], path_prefix: str | None = None, path_type: str | None = None) -> None:
        """Set the location of the files, and notify ``metadata_handler``."""
        self._set_path(path_prefix, path_type)
        self._notify(nodes, path_prefix, path_type)

    def _all(self) -> list[CheckpointManager]:
        return [self]

    def path(self, epoch: int) -> str:
        """Return the path of an epoch's file."""
        return db_name(epoch, self._node_name, self._db_prefix, self._path_prefix)

    def _set_path(self, path_prefix: str | None, path_type: str | None) -> None:
        self._path_prefix = path_prefix or self._path_prefix
        self._path_type = path_type or self._path_type

    def _file(self, epoch: int) -> dict[str, Any]:
        return {"db": self.path(epoch), "db_type": self._path_type or self._db_type, "absolute_path": True}

    def _timed_task(self, cp_op_name: str, epoch: int, add_op: Callable[[], None]) -> Task:
        with _task(cp_op_name) as task:
            with ops.task_init():
                timer = ops.TimerBegin([], counter_name=self._node_name)
            add_op()
            with ops.task_exit():
                taken = ops.TimerGetAndEnd(timer)
            self._times = {self.path(epoch): task.add_output(taken)}
        return task


class MultiNodeCheckpointManager(_Managing):
    """Saves and loads the blobs of several nodes, with a file for each.

    Args:
        db_prefix, db_type, metadata_handler: see ``CheckpointManager``.
    """

    def __init__(self, db_prefix: str, db_type: str, metadata_handler: Any = None) -> None:
        super().__init__(db_prefix, db_type, metadata_handler)
        self._node_managers: list[tuple[str, CheckpointManager]] | None = None

    def init(
        self,
        nodes: Sequence[str],
        retrieve_from_epoch: int | None = None,
        path_prefix: str | None = None,
        path_type: str | None = None,
    ) -> TaskGroup:
        """Return tasks that list the blobs of the nodes; for the arguments see ``CheckpointManager``."""
        self._set_nodes(nodes)
        return self._task_group(
            lambda manager: manager.init(
                retrieve_from_epoch=retrieve_from_epoch, path_prefix=path_prefix, path_type=path_type
            )
        )

    def load(self, epoch: int, path_prefix: str | None = None, path_type: str | None = None) -> TaskGroup:
        """Return tasks that load all blobs of an epoch."""
        return self._task_group(lambda manager: manager.load(epoch, path_prefix, path_type))

    def load_blobs_locally(self, nodes: Sequence[str], blob_names: Sequence[str], epoch: int, session: Session) -> bool:
        """Load those of some blobs that the nodes' files have into a session's workspace.

        Returns:
            False, without loading anything, if a file does not exist.
        """
        self._set_nodes(nodes)
        return _load_locally(self._all(), blob_names, epoch, session)

    def get_ckpt_db_name(self, node_name: str, epoch: int) -> str | None:
        """Return the path of a node's file for an epoch, None if there is no such node."""
        return next((manager.path(epoch) for node, manager in self._managers() if node == node_name), None)

    def save(self, epoch: int) -> TaskGroup:
        """Return tasks that save all blobs of an epoch."""
        return self._task_group(lambda manager: manager.save(epoch))

    def set_params(self, nodes: Sequence[str], path_prefix: str | None = None, path_type: str | None = None) -> None:
        """Set the nodes and the location of the files, and notify ``metadata_handler``."""
        self._set_nodes(nodes)
        for manager in self._all():
            manager._set_path(path_prefix, path_type)
        self._notify(nodes, path_prefix, path_type)

    def _set_nodes(self, nodes: Sequence[str]) -> None:
        names = list(map(str, nodes))
        known = None if self._node_managers is None else [name for name, _ in self._node_managers]
        if known is None:
            self._node_managers = [(name, CheckpointManager(self._db_prefix, name, self._db_type)) for name in names]
        elif known != names:
            raise NetError(
                f"MultiNodeCheckpointManager was made for the nodes {known}, got {names}; use a new manager for those"
            )

    def _all(self) -> list[CheckpointManager]:
        return [manager for _, manager in self._managers()]

    def _managers(self) -> list[tuple[str, CheckpointManager]]:
        if self._node_managers is None:
            raise NetError("MultiNodeCheckpointManager: the nodes are not known yet; call init() first")
        return self._node_managers

    def _task_group(self, make: Callable[[CheckpointManager], Task]) -> TaskGroup:
        with TaskGroup(WorkspaceType.GLOBAL) as group:
            for node, manager in self._managers():
                with Node(node):
                    make(manager)
        return group


def _task(name: str | None = None) -> Task:
    """Return a task of the current group, or of a new one."""
    return Task(name=name, group=TaskGroup.current(required=False) or TaskGroup(WorkspaceType.GLOBAL))


def _load_locally(
    managers: Sequence[CheckpointManager], blob_names: Sequence[str], epoch: int, session: Session
) -> bool:
    """Load blobs of several files if all files exist; return whether they do."""
    for manager in managers:
        check = manager.check_db_exists(epoch)
        session.run(check)
        if not bool(check.outputs()[0].fetch()):
            _LOG.warning("there is no checkpoint %s", manager.path(epoch))
            return False
    for manager in managers:
        session.run(manager.load_blobs_from_checkpoint(blob_names, epoch))
    return True
