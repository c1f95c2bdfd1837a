"""The exchange of a block while the next one runs: begun in the lane of collectives, waited for before its update.

While it is in flight nothing but its results is missing, so a checkpoint waits for it and holds them.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

import numpy as np

from netbuilder.graph.block_updates import BlockNets
from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.ops.collectives.in_place import InPlace, begin_on_host
from netbuilder.ops.core.operator import decode
from netbuilder.ops.core.registry import find
from netbuilder.proto import OperatorDef
from netbuilder.runtime import Workspace

__all__ = ["begin_exchange", "in_flight", "set_in_flight", "settle"]

_begun: WeakKeyDictionary[Workspace, dict[str, list[Callable[[], None]]]] = WeakKeyDictionary()
"""For the main nets with an exchange that was begun: functions that wait, and feed the results."""


def begin_exchange(model: ModelHelper, nets: BlockNets, workspace: Workspace) -> None:
    """Begin the exchange of a block whose ``send`` has run; with one process there is none."""
    ops = [] if nets.exchange is None else nets.exchange.Proto().op
    _begun.setdefault(workspace, {})[model.net.Name()] = [_begin(op, workspace) for op in ops]


def settle(model: ModelHelper, workspace: Workspace) -> None:
    """Wait for the exchange of a block, if one was begun, so that the workspace has its results; apply nothing.

    Raises:
        DistributedError: the processes did not agree, or one of them has failed.
    """
    for wait in _begun.get(workspace, {}).pop(model.net.Name(), []):
        wait()


def in_flight(record: Replicas, workspace: Workspace) -> bool:
    """Whether a block has ended whose update was not applied yet; in a resumed run its exchange may be over."""
    blob = _flag(record)
    return bool(blob) and bool(np.asarray(workspace.fetch(blob)).any())


def set_in_flight(record: Replicas, value: bool, workspace: Workspace) -> None:
    """Note whether the update of a block is still to be applied."""
    workspace.feed(_flag(record), np.array([value], np.int64))


def _flag(record: Replicas) -> str:
    """Return the blob that says it; "": the model has no overlap."""
    rule = record.block
    return record.devices.scopes[rule.master] + rule.in_flight if rule is not None and rule.overlap else ""


def _begin(op_def: OperatorDef, workspace: Workspace) -> Callable[[], None]:
    """Begin an operator over copies of its blobs; return what waits for it and feeds the results."""
    op, names = decode(find(op_def.type), op_def), list(op_def.output)
    assert isinstance(op, InPlace)
    values = [np.array(workspace.fetch(name), order="C") for name in names]
    wait = begin_on_host(op, workspace.fetch(op_def.input[0]), names, values)

    def end() -> None:
        wait()
        for name, value in zip(names, values):
            workspace.feed(name, value)

    return end
