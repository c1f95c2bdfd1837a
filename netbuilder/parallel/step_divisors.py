"""The divisors of a step's means, computed from its inputs before the first of its micro-batches."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from netbuilder.graph.defuse import operators_between, undefined_inputs
from netbuilder.graph.gradient_shares import is_backward
from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.ops.core.renaming import rename_in_operator
from netbuilder.proto import NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import arguments
from netbuilder.runtime import Workspace

if TYPE_CHECKING:
    from netbuilder.parallel.shares import Share

__all__ = ["OF_STEP", "StepDivisors", "forget_divisors", "require_divisors", "step_divisors", "why_not_before_a_step"]

OF_STEP = "_of_step"
"""Suffix of the blob that is fed with a divisor of all micro-batches of a step."""


_made_before: WeakKeyDictionary[ModelHelper, StepDivisors] = WeakKeyDictionary()


def why_not_before_a_step(ops: Sequence[OperatorDef], divisors: Collection[str], made: Collection[str]) -> str:
    """Return why divisors cannot be computed from the inputs of a net before it runs; "" if they can.

    Args:
        ops: the forward pass of a replica.
        divisors: the blobs that they are computed from.
        made: parameters, and the blobs that the init net fills.
    """
    needed = [ops[index] for index in operators_between(ops, (), divisors)]
    for op in needed:
        cls = find(op.type) if is_registered(op.type) else None
        if cls is None or cls.draws or cls.stateful or cls.waits or not op.input:
            return f"{op.type} {', '.join(map(repr, op.output))} decides about them, which is more than the inputs"
    written = {name for op in needed for name in op.output}
    read = [name for name in (*undefined_inputs(needed), *divisors) if name in made and name not in written]
    return f"they depend on {read[0]!r}, which is no input" if read else ""


def step_divisors(model: ModelHelper, record: Replicas) -> StepDivisors | None:
    """Return what computes the divisors of a step of a model; None: its micro-batches have none in common.

    Args:
        model: made by ``Parallelize``.
        record: the record of its replicas.
    """
    if not record.step_divisors:
        return None
    found = _made_before.get(model)
    if found is None or found.record != record:
        found = _made_before[model] = StepDivisors(model.net.Proto(), record)
    return found


class StepDivisors:
    """Computes the divisors of a step, by the operators of the first replica, on the CPU.

    Args:
        net: the main net.
        record: the record of its replicas, with ``step_divisors``.
    """

    def __init__(self, net: NetDef, record: Replicas) -> None:
        self.record, scope = record, record.devices.scopes[0]
        self._own = [name.removesuffix(OF_STEP) for name in record.step_divisors]
        forward = [op for op in net.op if not is_backward(op)]
        chosen = operators_between(forward, (), [scope + name for name in self._own])
        self._net = NetDef(name=f"{net.name}_step_divisors", op=[forward[index] for index in chosen])
        for op in self._net.op:
            if op.type == "MeanDivisor" and arguments(op).get("weighted"):
                del op.input[-1]
                kept = [argument for argument in op.arg if argument.name != "weighted"]
                del op.arg[:]
                op.arg.extend(kept)
            rename_in_operator(op, lambda name: name.removeprefix(scope))
            op.ClearField("device_option")
        self._inputs = undefined_inputs(self._net.op)
        self._workspace, self._lock = Workspace(threads=1), threading.Lock()
        self._dtype = np.dtype(np.float32)  # that of the divisors

    def of_step(self, shares: Sequence[Share]) -> dict[str, Any]:
        """Return for each blob of ``step_divisors`` a number per replica, given the micro-batches of a step.

        Raises:
            NetError: the batch lacks what the divisors are computed from.
        """
        if missing := [name for name in self._inputs if any(name not in share.own for share in shares)]:
            raise NetError(
                f"the batch lacks {missing}: the means of the net are over all micro-batches of a step, and their "
                "divisors are computed from them; give them together with the other inputs"
            )
        totals = np.zeros((len(self._own), len(self.record)))
        for share in shares:
            start = 0
            for replica, size in enumerate(share.sizes):
                if size:
                    rows = {name: share.own[name][start : start + size] for name in self._inputs}
                    totals[:, replica] += self._of(rows)  # in float64
                start += size
        return dict(zip(self.record.step_divisors, totals.astype(self._dtype)))

    def _of(self, rows: dict[str, Any]) -> Any:
        with self._lock:
            for name, array in rows.items():
                self._workspace.feed(name, array)
            if self._net.name not in self._workspace.nets():
                self._workspace.create_net(self._net, observable=self._own)
            self._workspace.run_net(self._net.name)
            found = [self._workspace.fetch(name)[0] for name in self._own]
            self._dtype = np.result_type(*found)
            return np.array(found, np.float64)


def require_divisors(record: Replicas, workspace: Workspace) -> None:
    """Raise NetError unless the divisors of the step that begins have been fed."""
    for name in record.step_divisors:
        blob = record.devices.copies(name)[0]
        if np.isnan(workspace.fetch(blob)).any():
            raise NetError(
                f"blob {blob!r}: the micro-batches of a step have a mean in common, whose divisor must be fed before "
                "the first of them; feed the batch by feed_shares or prefetch"
            )


def forget_divisors(record: Replicas, workspace: Workspace) -> None:
    """Note that the divisors that were fed are those of a step that has ended."""
    for name in record.step_divisors:
        for blob in record.devices.copies(name):
            workspace.feed(blob, np.full_like(workspace.fetch(blob), np.nan))
