"""A folder with the latest checkpoints of a training run, and the best one."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from netbuilder.exchange.checkpoint_file import Checkpoint, read_checkpoint, read_manifest, write_whole
from netbuilder.exchange.checkpoints import checkpoint_to_write
from netbuilder.exchange.divided import give_divided, taken
from netbuilder.exchange.folder_lock import folder_lock
from netbuilder.model import ModelHelper
from netbuilder.proto import NetError, ParseError
from netbuilder.proto.call_checks import checked
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.os_errors import error_text, make_folder
from netbuilder.proto.whole_file import is_draft
from netbuilder.runtime import Workspace

__all__ = ["CheckpointFolder"]

_NAME = re.compile(r"step-(\d+)\.minidb")


@checked()
@dataclass(frozen=True)
class CheckpointFolder:
    """Checkpoints of one run in one folder, each a file ``step-<steps done>.minidb``.

    Args:
        folder: created by the first save.
        keep: how many of the latest are kept; older ones are removed after each save.
        best: "max" or "min", the metric that is best; the checkpoint with it is kept too. None: keep no best one.

    Raises:
        NetError: ``keep`` is less than 1, or ``best`` is none of these.

    >>> CheckpointFolder("out/checkpoints").paths()
    []
    """

    folder: str | os.PathLike[str]
    keep: int = 3
    best: Literal["max", "min"] | None = "max"

    def __post_init__(self) -> None:
        if isinstance(self.keep, bool) or not isinstance(self.keep, int) or self.keep < 1:
            raise NetError(f"CheckpointFolder: keep must be 1 or more, got {self.keep!r}")
        if self.best not in ("max", "min", None):
            raise NetError(f"CheckpointFolder: best must be 'max', 'min' or None, got {self.best!r}")

    @checked("metric")
    def save(
        self,
        model: ModelHelper,
        *,
        workspace: Workspace | None = None,
        step: int | None = None,
        metric: float | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write a checkpoint of a model, then remove those that are no longer kept; return its file.

        Args:
            model, workspace, step, metric, state: see ``take_checkpoint``.

        Raises:
            NetError, BlobError: see ``save_checkpoint``.
            OSError: the file cannot be written; existing ones are unchanged.
        """
        return self.write(checkpoint_to_write(model, workspace=workspace, step=step, metric=metric, state=state))

    @checked()
    def write(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, then remove those that are no longer kept; return its file.

        If the checkpoint has divided values, all processes call it, and the first one writes.

        Raises:
            NetError: the folder holds a checkpoint of a later step, which must be of another run; another process has
                locked the folder; or the checkpoint cannot be stored.
            OSError: the file cannot be written; existing ones are unchanged.
        """
        path = Path(self.folder) / f"step-{checkpoint.step:08d}.minidb"
        if give_divided(checkpoint.blobs):
            return path
        with taken(checkpoint.blobs) as pieces:
            folder = make_folder(self.folder)
            with folder_lock(folder, run=False):
                self.require_none_later(checkpoint.step)
                write_whole(path, checkpoint, pieces)
                self._clear(path)
        return path

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing checkpoints here during a ``with`` block, such as a whole run.

        Of several processes that train together, the one that writes the checkpoints locks the folder. The lock ends
        with the process, however it ends. Without it, several processes write one after another.

        Raises:
            NetError: another process has locked the folder; the message names it.
            OSError: the folder cannot be made, or no file in it.
        """
        make_folder(self.folder)
        with folder_lock(self.folder, run=True):
            yield

    @checked()
    def require_none_later(self, step: int) -> None:
        """Raise NetError if the folder holds a checkpoint of a later step, which must be of another run."""
        if (there := self.paths()) and _step(there[-1].name) > step:
            raise NetError(
                f"{os.fspath(self.folder)!r} holds {there[-1].name}, of a later step than {step}, so of another run; "
                "resume from it, remove it, or give another folder"
            )

    def paths(self) -> list[Path]:
        """Return the files of the checkpoints, sorted by step."""
        folder = Path(self.folder)
        names = os.listdir(folder) if folder.is_dir() else []
        return [folder / name for name in sorted((n for n in names if _NAME.fullmatch(n)), key=_step)]

    @checked()
    def latest(
        self, show: Callable[[str], object] = print, *, set_aside: bool = False
    ) -> tuple[Path, Checkpoint] | None:
        """Return the newest complete checkpoint and its file; None if there are no checkpoints.

        Args:
            show: called with a message about each newer one that cannot be read, and if the step of the one that is
                returned is not that of its name.
            set_aside: rename those, with ".damaged" at the end, so that they are no longer found.

        Raises:
            ParseError: there are checkpoints, but none is complete.
        """
        problems: dict[Path, str] = {}
        for path in reversed(self.paths()):
            try:
                found = read_checkpoint(path)
                if read_manifest(path) is None:
                    raise ParseError(f"{os.fspath(path)!r} has no record of its step")
            except (ParseError, OSError) as error:
                problems[path] = error_text(error)
                continue
            for damaged, problem in problems.items():
                show(f"skipped: {problem}")
                if set_aside:
                    damaged.rename(damaged.with_name(f"{damaged.name}.damaged"))
            if found.step != _step(path.name):
                show(f"{os.fspath(path)!r} holds step {found.step}, not {_step(path.name)}, as its name says")
            return path, found
        if problems:
            raise ParseError(f"{os.fspath(self.folder)!r}: no checkpoint is complete:\n" + "\n".join(problems.values()))
        return None

    def best_path(self) -> Path | None:
        """Return the file of the checkpoint with the best metric, the newest of equals; None if none has one."""
        if self.best is None:
            return None
        sign = 1 if self.best == "max" else -1
        rated = [
            (sign * metric, _step(path.name), path) for path in self.paths() if (metric := _metric(path)) is not None
        ]
        return max(rated)[2] if rated else None

    def _clear(self, newest: Path) -> None:
        """Remove checkpoints that are not kept, and unfinished files that a killed process has left."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.folder):
                if is_draft(name) and name.startswith(".step-"):
                    (Path(self.folder) / name).unlink()
        older = [path for path in self.paths() if path != newest]
        kept = {newest, *older[max(len(older) - self.keep + 1, 0) :], self.best_path()}
        for path in older:
            if path not in kept:
                with contextlib.suppress(OSError):
                    path.unlink()


def _step(name: str) -> int:
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else -1


def _metric(path: Path) -> float | None:
    """Return the metric of a checkpoint; None if it has none, or NaN."""
    try:
        found = (read_manifest(path) or {}).get("metric")
    except (ParseError, OSError):
        return None
    return found if isinstance(found, (int, float)) and found == found else None
