"""Whether what was fed, loaded or initialized since the last run is the same in all replicas and all processes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from weakref import WeakKeyDictionary

import numpy as np

from netbuilder.distributed.agreement import require_equal_blobs
from netbuilder.distributed.common_worlds import barrier_name
from netbuilder.distributed.worlds.world import CommonWorld
from netbuilder.graph.net import Net
from netbuilder.graph.replicas import Replicas
from netbuilder.graph.source import warn_user
from netbuilder.model import ModelHelper
from netbuilder.parallel.owned_updates import owned_state
from netbuilder.proto import NetError
from netbuilder.runtime import Workspace

__all__ = ["begin_together", "made_equal", "require_equal_replicas"]

_LISTED = 1200  # characters of names that ranks compare before they compare values

_states: WeakKeyDictionary[Net, tuple[int, frozenset[str]]] = WeakKeyDictionary()


def begin_together(model: ModelHelper, record: Replicas, workspace: Workspace) -> None:
    """Wait for the other processes; check that all of them, and all replicas, begin the run with the same state.

    Only state that was written since the last run by something else than the model's own nets is compared; without
    any, this is the barrier alone.

    Raises:
        NetError: replicas differ.
        DistributedError: in all processes: different blobs were written, or their values differ.
    """
    names = require_equal_replicas(model, record, workspace)
    if not record.world.common:
        return
    compares = bool(names) and not model.net.updates_as_in_caffe2
    if compares:
        _announce(names, record, workspace)
    workspace.run_net(barrier_name(model.net.Name()))
    if compares:
        scope, own = record.devices.scopes[0], set(_state(model, record))
        require_equal_blobs(
            model, [scope + name if scope + name in own else name for name in names], workspace=workspace
        )


def require_equal_replicas(model: ModelHelper, record: Replicas, workspace: Workspace) -> list[str]:
    """Check that the replicas of this process have the same state; return the names of what was written, sorted.

    The names are without a replica's scope. In the compatibility layer, as in Caffe2, it is no error if replicas
    differ, and a warning says so.

    Raises:
        NetError: they differ.
    """
    fed = workspace.generation.fed
    state = _state(model, record)
    if fed.isdisjoint(state):
        return []
    names = sorted(set(map(record.devices.short_name, fed & state)))
    made_equal(record, names, workspace)
    if (text := _difference(record, names, state, workspace)) is None:
        return names
    text = f"model {model.name!r}: {text}"
    if not model.net.updates_as_in_caffe2:
        raise NetError(text)
    warn_user(text)
    return names


def made_equal(record: Replicas, names: Iterable[str], workspace: Workspace) -> None:
    """Note that blobs are the same everywhere, until they are fed or loaded again.

    Args:
        names: without a replica's scope.
    """
    for name in names:
        workspace.generation.fed.difference_update((name, *record.devices.copies(name)))


def _state(model: ModelHelper, record: Replicas) -> frozenset[str]:
    """Return the blobs of all replicas, and outside of them, that have to be equal when a run begins.

    These are parameters, and what the init net makes and the main net changes: moments and iteration counters. Computed
    parameters are either copied in each step, or each replica's own; replicas of block-wise updates differ, and what
    one process owns no other has.
    """
    key, (length, found) = model.net, _states.get(model.net, (-1, frozenset()))
    if length == model.net.op_len:
        return found
    if record.block is None and record.trains:
        made = {blob for op in model.param_init_net.Proto().op for blob in op.output}
        changed = {blob for op in model.net.Proto().op for blob in op.output if blob in made}
        changed.update(record.outside, *(record.blobs(name) for name in record.parameters))
        changed.difference_update(record.accumulated, record.accumulated_rows, record.residuals)
        changed.difference_update(owned_state(model.param_init_net.Proto()), record.rows_of_sharded)
        found = frozenset(changed.difference(*(record.devices.copies(name) for name in record.computed)))
    else:
        found = frozenset()
    _states[key] = model.net.op_len, found
    return found


def _difference(record: Replicas, names: Iterable[str], state: frozenset[str], workspace: Workspace) -> str | None:
    """Return how the replicas differ in the first of these blobs that does; None if they do not."""
    for name in names:
        blobs = list(dict.fromkeys(blob for blob in record.blobs(name) if blob in state and workspace.has(blob)))
        filled = [blob for blob in blobs if not workspace.get(blob).is_empty]
        values = [np.asarray(workspace.fetch(blob)) for blob in filled]
        for blob, value in zip(filled[1:], values[1:]):
            nan_is_nan = value.dtype.kind == "f"
            if value.dtype != values[0].dtype or not np.array_equal(value, values[0], equal_nan=nan_is_nan):
                return (
                    f"blob {blob!r} differs from {filled[0]!r}, although all replicas train the same parameters; one "
                    "was fed, loaded or initialized since the last run: do that for all replicas, or for the first one "
                    f"and then call FinalizeAfterCheckpoint(model, [{name!r}])"
                )
    return None


def _announce(names: list[str], record: Replicas, workspace: Workspace) -> None:
    """Let the next barrier fail if other ranks have not fed or loaded the same blobs."""
    world = np.asarray(workspace.fetch(record.world.barrier)).item()
    if isinstance(world, CommonWorld):
        listed = ", ".join(names)
        digest = hashlib.blake2b(listed.encode(), digest_size=4).hexdigest() if len(listed) > _LISTED else ""
        text = f"blobs fed, loaded or initialized since the last run: {listed[:_LISTED]}{digest and f' ... {digest}'}"
        world.at_barrier = f"{world.at_barrier}, {text}" if world.at_barrier else text
