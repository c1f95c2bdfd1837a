"""Saving and resuming training: a model's blobs and all other state that the next step depends on."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from netbuilder.data import DBReader
from netbuilder.distributed import ProcessGroup
from netbuilder.exchange.checkpoint_file import Checkpoint, read_checkpoint, write_checkpoint
from netbuilder.exchange.checkpointed_blobs import CheckpointBlobs, checkpoint_blobs
from netbuilder.exchange.divided import Divided, rows_divided, value_in
from netbuilder.exchange.matching import LACKING, LoadReport, Match, match_blobs
from netbuilder.model import ModelHelper
from netbuilder.ops.core.operator import TensorSpec, spec_of
from netbuilder.parallel import FinalizeAfterCheckpoint, forget_gradients, has_record, pending_steps
from netbuilder.parallel.block_exchange import settle
from netbuilder.parallel.gradient_scaling import SCALE_STATE
from netbuilder.proto import BlobError, NetError, ParseError
from netbuilder.proto.call_checks import checked
from netbuilder.proto.errors import counted
from netbuilder.runtime import RandomState, Workspace, random_state, set_random_state
from netbuilder.runtime.execute import default

__all__ = ["checkpoint_to_write", "load_checkpoint", "save_checkpoint", "take_checkpoint"]

PathLike = str | os.PathLike[str]

_log = logging.getLogger("netbuilder")
_LISTED = 10  # blobs that an error lists


@checked("metric")
def take_checkpoint(
    model: ModelHelper,
    *,
    workspace: Workspace | None = None,
    step: int | None = None,
    metric: float | None = None,
    state: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Return a checkpoint of a model in memory; all processes that train a model call it, and get the same.

    Of divided tables, and of what one process owns, each has its own part (``Divided``).

    If each replica computes its own computed parameters (``broadcast_computed_params=False``), the first replica's are
    copied to the others first, so that this training continues from the same values as a resumed one.

    Args:
        model: data-parallel or not; its init net has run.
        workspace: has its blobs; None: the current default one.
        step: number of completed steps; None: how many times the main net has run.
        metric: the number by which the best checkpoint is chosen.
        state: the caller's own state (see ``Checkpoint``), such as its position in the data.

    Raises:
        NetError: two blobs would get the same name; or only some micro-batches of a step have run.
        BlobError: blobs are missing in the workspace, or hold no value.
    """
    return _taken(model, workspace, step, metric, state, later=False)


def checkpoint_to_write(
    model: ModelHelper,
    *,
    workspace: Workspace | None = None,
    step: int | None = None,
    metric: float | None = None,
    state: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Return a checkpoint that is written before the next step: what is divided over processes is not copied.

    Args:
        model, workspace, step, metric, state: see ``take_checkpoint``.
    """
    return _taken(model, workspace, step, metric, state, later=True)


def _taken(
    model: ModelHelper,
    workspace: Workspace | None,
    step: int | None,
    metric: float | None,
    state: Mapping[str, Any] | None,
    *,
    later: bool,
) -> Checkpoint:
    workspace = workspace or default.workspace()
    if has_record(model.net.Proto()) and (pending := pending_steps(model, workspace)):
        raise NetError(
            f"model {model.name!r}: {pending} micro-batches of a step have run, and checkpoints do not hold their "
            "gradients; take the checkpoint after an update, or call forget_gradients"
        )
    settle(model, workspace)
    blobs = checkpoint_blobs(model)
    _require(model, blobs, workspace)
    _equalize(model, blobs, workspace)
    drawn, net = random_state(workspace), model.net.Name()
    return Checkpoint(
        _values(blobs, workspace, later=later),
        step=drawn.iterations.get(net, 0) if step is None else step,
        metric=metric,
        model=model.name,
        net=net,
        random=drawn,
        readers={name: reader.position for name, reader in _readers(workspace).items()},
        state=dict(state or {}),
    )


@checked("metric")
def save_checkpoint(
    path: PathLike,
    model: ModelHelper,
    *,
    workspace: Workspace | None = None,
    step: int | None = None,
    metric: float | None = None,
    state: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Write all that training needs to resume to a file, whole or not at all; return what was written.

    If tables or the optimizer's state are divided over processes, all of them call it, and the first one writes.

    The file is a minidb as Caffe2's Save operator writes it: Caffe2's Load, and ``read_blobs``, read it, too.

    Args:
        path: the file; an existing one is replaced.
        model, workspace, step, metric, state: see ``take_checkpoint``.

    Raises:
        NetError: two blobs would get the same name, or ``state`` cannot be stored.
        BlobError: blobs are missing in the workspace, or hold no value.
        OSError: the file cannot be written; an existing one is unchanged.
    """
    checkpoint = checkpoint_to_write(model, workspace=workspace, step=step, metric=metric, state=state)
    write_checkpoint(path, checkpoint)
    return checkpoint


@checked()
def load_checkpoint(
    source: PathLike | Checkpoint,
    model: ModelHelper,
    *,
    workspace: Workspace | None = None,
    parameters_only: bool = False,
    partial: bool = False,
    rename: Mapping[str, str] | None = None,
    skip: str | Sequence[str] = (),
    show: Callable[[str], object] = print,
) -> LoadReport:
    """Load a checkpoint into a model, on any number of devices of any kind; return what was loaded.

    Without ``parameters_only``, ``partial`` and ``skip`` this resumes training: blobs, random operators and database
    readers continue where they were. Otherwise it loads only values. An error leaves everything unchanged. All
    processes that train a model call it, each with the same checkpoint.

    Args:
        source: a file written by ``save_checkpoint`` or Caffe2's Save operator, or a checkpoint in memory.
        model: data-parallel or not; its init net has run in the workspace.
        workspace: None: the current default one.
        parameters_only: leave the optimizer's state as it is.
        partial: load what matches, though blobs are missing, are left over, or differ in shape or type.
        rename, skip: see ``match_blobs``.
        show: called with the report, with ``partial`` or ``skip``.

    Raises:
        FileNotFoundError: there is no such file.
        ParseError: the file is truncated, damaged or not a checkpoint.
        NetError: blobs do not match (the message lists ten), no parameter would be loaded although not all are skipped,
            or an entry of ``rename`` or ``skip`` matches nothing.
        BlobError: blobs of the model are not in the workspace: run its init net first.
    """
    workspace = workspace or default.workspace()
    settle(model, workspace)
    blobs = checkpoint_blobs(model)
    label = "checkpoint" if isinstance(source, Checkpoint) else repr(os.fspath(source))
    _require(model, blobs, workspace)
    checkpoint = source if isinstance(source, Checkpoint) else _read(source, blobs, workspace, whole=bool(rename))
    wanted = _specs(blobs, workspace)
    skip = [skip] if isinstance(skip, str) else list(skip)
    if blobs.differs_between_processes:
        checkpoint = dataclasses.replace(checkpoint, blobs=blobs.of_this_process(checkpoint.blobs))
    stored = {name: _stored(value) for name, value in checkpoint.blobs.items()}
    match = match_blobs(stored, wanted, rename=rename, skip=skip, only=blobs.parameters if parameters_only else None)
    if not partial:
        _refuse_differences(label, model, match, ignore_left_over=parameters_only)
    _require_some(label, model, match, blobs)
    resumed = not (parameters_only or partial or skip)
    if resumed:
        _set_readers(checkpoint.readers, _readers(workspace))
    _apply(checkpoint, match, model, blobs, workspace)
    if resumed and checkpoint.random is not None:
        _set_randomness(checkpoint, checkpoint.random, model, workspace)
    if resumed and has_record(model.net.Proto()):
        forget_gradients(model, workspace)
    report = LoadReport(label, tuple(match.targets), match.skipped, match.left)
    if partial or skip:
        show(str(report))
    return report


def _read(path: PathLike, blobs: CheckpointBlobs, workspace: Workspace, *, whole: bool) -> Checkpoint:
    """Return a checkpoint with the parts of divided values that this process keeps.

    Raises:
        ParseError: the file is damaged; also where another process has found that.
    """
    own = {} if whole else _own(blobs)
    if not own:
        return read_checkpoint(path)
    found: Checkpoint | Exception
    try:
        found = read_checkpoint(path, own)
    except (OSError, ParseError) as error:
        found = error
    problems = ProcessGroup.over(_world(blobs, workspace)).gather(str(found) if isinstance(found, Exception) else "")
    if isinstance(found, Exception):
        raise found
    if others := [text for text in problems if text]:
        raise ParseError(others[0])
    return found


def _require(model: ModelHelper, blobs: CheckpointBlobs, workspace: Workspace) -> None:
    """Raise BlobError if blobs have no value yet."""
    found = {blob: workspace.find(blob) for blob in blobs.here.values()}
    if missing := [name for name, blob in found.items() if blob is None or blob.is_empty]:
        raise BlobError(
            f"model {model.name!r}: {', '.join(missing[:12])}{' and more' if len(missing) > 12 else ''} "
            f"{'has' if len(missing) == 1 else 'have'} no value in the workspace; run the model's init net first "
            "(RunInitNet, or run_net_once(model.param_init_net))"
        )


def _values(blobs: CheckpointBlobs, workspace: Workspace, *, later: bool) -> dict[str, Any]:
    """Return the values of a checkpoint, with those of other processes if they have values of their own.

    Args:
        blobs: of the model.
        workspace: has them.
        later: read what is divided over processes only when it is written.
    """
    divided = {name for name in blobs.here if name in blobs.owners or name in blobs.divided}
    values = {name: workspace.fetch(blob) for name, blob in blobs.here.items() if name not in divided}
    if not blobs.differs_between_processes:
        return _with_divided(blobs, values, workspace, later) if blobs.owners or blobs.divided else values
    names, group = blobs.over_processes(), ProcessGroup.over(_world(blobs, workspace))
    parts = group.gather({names[name]: value for name, value in values.items()})
    return {name: value for part in reversed(parts) for name, value in part.items()}


def _world(blobs: CheckpointBlobs, workspace: Workspace) -> Any:
    """Return the common world of the processes that train a model."""
    assert blobs.record is not None
    (world,) = np.asarray(workspace.fetch(blobs.record.world.barrier)).reshape(-1)
    return world


def _with_divided(blobs: CheckpointBlobs, values: dict[str, Any], workspace: Workspace, later: bool) -> dict[str, Any]:
    """Return the values, in their order, with those that are divided over the processes."""
    specs, world, found = _specs(blobs, workspace), _world(blobs, workspace), dict[str, Any]()
    for name, blob in blobs.names.items():
        spec = specs[name]
        if name in values:
            found[name] = values[name]
            continue
        fetch: Callable[[], Any] = partial(value_in, workspace, blob)
        if not later and name in blobs.here:
            fetch = partial(np.asarray, workspace.fetch(blob))
        if name in blobs.owners:
            own = fetch if name in blobs.here else np.empty(0, spec.dtype)
            found[name] = Divided(spec.shape, spec.dtype, [(blobs.owners[name], spec.size)], own, world)
        else:
            found[name] = rows_divided(spec.shape[0], _spec(workspace, blob), world, fetch)
    return found


def _specs(blobs: CheckpointBlobs, workspace: Workspace) -> dict[str, TensorSpec]:
    """Return shape and type of the values of a checkpoint; all processes call it if one owns some."""
    specs = {name: _spec(workspace, blob) for name, blob in blobs.here.items()}
    for name, rows in blobs.divided.items():
        specs[name] = specs[name].with_shape((rows, *specs[name].shape[1:]))
    if blobs.owners:
        own = {name: (specs[name].shape, specs[name].dtype.str) for name in blobs.owners if name in specs}
        for part in ProcessGroup.over(_world(blobs, workspace)).gather(own):
            specs |= {name: TensorSpec(shape, np.dtype(kind)) for name, (shape, kind) in part.items()}
    return {name: specs[name] for name in blobs.names}


def _own(blobs: CheckpointBlobs) -> dict[str, Callable[[tuple[int, ...]], slice]]:
    """Return which rows of divided values this process reads from a file."""

    def chooses(name: str) -> Callable[[tuple[int, ...]], slice]:
        return lambda shape: blobs.own_rows(name, shape[0] if shape else 1)

    return {name: chooses(name) for name in (*blobs.owners, *blobs.divided)}


def _stored(value: Any) -> TensorSpec:
    return TensorSpec(value.shape, value.dtype) if isinstance(value, Divided) else spec_of(value)


def _spec(workspace: Workspace, blob: str) -> TensorSpec:
    spec = workspace.spec(blob)
    if spec is None:
        raise NetError(f"blob {blob!r}: a checkpoint can hold tensors and strings, not {workspace.fetch(blob)!r}")
    return spec


def _equalize(model: ModelHelper, blobs: CheckpointBlobs, workspace: Workspace) -> None:
    record = blobs.record
    if record is None or record.block is not None:
        return  # with block-wise updates, each replica's values are saved
    if record.world.size > 1 and record.computed and not record.broadcasts_computed:
        _log.info(
            "model %r: each replica computes its own %s; the first replica's values are saved, and copied to the "
            "others", model.name, ", ".join(record.computed),
        )  # fmt: skip
        FinalizeAfterCheckpoint(model, record.computed, workspace=workspace)


def _readers(workspace: Workspace) -> dict[str, DBReader]:
    found = {name: workspace.get(name).buffer for name in workspace.blobs()}
    return {name: value for name, value in found.items() if isinstance(value, DBReader)}


def _refuse_differences(label: str, model: ModelHelper, match: Match, *, ignore_left_over: bool) -> None:
    """Raise NetError if blobs of the model or of the checkpoint have no counterpart.

    The scale of gradients needs none: it belongs to the type in which activations are stored, not to the training.
    """
    found = {**({} if ignore_left_over else match.skipped), **match.left}
    excepted = {*match.intended, *SCALE_STATE}
    differing_first = sorted(found, key=lambda name: found[name].endswith(LACKING))
    if problems := {name: found[name] for name in differing_first if name not in excepted}:
        raise NetError(
            f"{label} does not match model {model.name!r}; nothing is loaded:{_listed(problems)}\n"
            "give rename= for other names, parameters_only=True to ignore the optimizer's state, or partial=True to "
            "load what matches"
        )


def _listed(problems: Mapping[str, str]) -> str:
    """Return a line for each of the first problems of blobs, and one that counts the others."""
    lines = [f"\n  - {name}: {why}" for name, why in itertools.islice(problems.items(), _LISTED)]
    more = len(problems) - len(lines)
    return "".join(lines) + (f"\n  - and {counted(more, 'other blob')}" if more else "")


def _require_some(label: str, model: ModelHelper, match: Match, blobs: CheckpointBlobs) -> None:
    """Raise NetError if no parameter is loaded, though some are to be: then the checkpoint is that of another net."""
    due = [name for name in blobs.parameters if name not in match.left or name not in match.intended]
    if due and not any(name in match.targets for name in due):
        listed = _listed({name: match.left.get(name, "not loaded") for name in sorted(due)})
        raise NetError(
            f"{label} matches no parameter of model {model.name!r}; nothing is loaded:{listed}\n"
            "give rename= for other names, such as {'old/*': 'new/*'}, or the checkpoint of this model"
        )


def _apply(
    checkpoint: Checkpoint, match: Match, model: ModelHelper, blobs: CheckpointBlobs, workspace: Workspace
) -> None:
    divided, here = blobs.divided, blobs.here
    for name, stored in match.targets.items():
        if name not in here:
            continue
        value = checkpoint.blobs[stored]
        if name in divided:
            value = _own_rows(blobs, name, value, _spec(workspace, here[name]))
        elif isinstance(value, Divided):
            value = value.own.reshape(value.shape)
        workspace.feed(here[name], value)
    if copied := blobs.replicated(match.targets):
        FinalizeAfterCheckpoint(model, copied, workspace=workspace)


def _own_rows(blobs: CheckpointBlobs, name: str, value: Any, shard: TensorSpec) -> Any:
    """Return this process's rows of a table, in an array of the shape and type of ``shard``."""
    result, rows = np.zeros(shard.shape, shard.dtype), blobs.own_rows(name, value.shape[0])
    own = value.own if isinstance(value, Divided) else value[rows]
    result[: rows.stop - rows.start] = own.reshape(-1, *result.shape[1:])
    return result


def _set_readers(positions: Mapping[str, int], readers: Mapping[str, DBReader]) -> None:
    """Move readers to where they were; all of them, or none."""
    before = {name: reader.position for name, reader in readers.items() if name in positions}
    try:
        for name in before:
            readers[name].seek(positions[name])
    except BaseException:
        for name, position in before.items():
            with contextlib.suppress(NetError):  # the database has lost records since
                readers[name].seek(position)
        raise


def _set_randomness(checkpoint: Checkpoint, drawn: RandomState, model: ModelHelper, workspace: Workspace) -> None:
    counts = dict(drawn.iterations)
    if checkpoint.net in counts:  # the model may have been renamed since
        counts[model.net.Name()] = counts.pop(checkpoint.net)
    set_random_state(workspace, RandomState(drawn.seed, counts))
