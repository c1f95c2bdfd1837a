"""The gradient of While: iterates over the iterations in reverse, and recomputes each one from its start.

A loop overwrites its own blobs, so what the gradient of an iteration needs is gone when the loop has ended. The forward
operator stores the blobs that an iteration changes, as of its start. The gradient operator recomputes the iteration
from them, every value under a name of its own, and then computes its gradients.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from netbuilder.data.blob_values import BlobObject
from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import find, kernel, register
from netbuilder.ops.core.renaming import (
    arguments_with_blobs,
    blob_names,
    rename_blobs,
    rename_in_operator,
    rename_reads_and_writes,
    shares_names,
    written_blobs,
)
from netbuilder.proto import ArgumentError, GradientError, NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import make_op, set_argument
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Iterations", "WhileGradient", "loop_gradient"]

_CONTAINERS = ("If", "ParallelDo", "While")  # stateful only because they contain nets


class Iterations(BlobObject):
    """What a loop stores for its gradient: for each iteration, the values of blobs at its start."""

    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []


@register
@dataclass(frozen=True)
class WhileGradient(Operator):
    """The gradients of a loop, computed from those of its outputs.

    The inputs are the gradients of outputs, then the blobs that the loop reads but does not change; the outputs are the
    gradients of blobs that it changes, then those of the blobs that it only reads.

    Args:
        net: recomputes an iteration and then computes its gradients.
        record: the blob in which While stores its iterations.
        changed: the blobs that iterations change and that have gradients.
        starts: for each blob in ``kept``, its name in ``net`` at the start of the iteration.
        seeds: for each changed blob, the name in ``net`` of its gradient after the iteration.
        found: likewise before it, if ``depends``; otherwise the iteration does not depend on its previous value.
        depends: for each changed blob, whether it has a gradient before the iteration.
        given: for each changed blob, the index of the input that is its gradient after the loop; -1 for none.
        results: the changed blobs, by index, whose gradients are the first outputs.
        constants: for each of the other outputs, the name in ``net`` of the gradient of one iteration.
    """

    signature = "X+ (...): any -> Y* (...): any"
    inplace = "one-to-one"
    dynamic = True
    stateful = True
    net_names = "inputs"
    effects = "may loop without end"
    inputs_on_host = True
    blob_arguments: ClassVar[tuple[str, ...]] = ("record", "changed", "kept", "starts", "seeds", "found", "constants")
    net: NetDef | None = None
    record: str = ""
    changed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    seeds: tuple[str, ...] = ()
    found: tuple[str, ...] = ()
    depends: tuple[int, ...] = ()
    given: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    constants: tuple[str, ...] = ()

    def check(self) -> None:
        if self.net is None:
            raise ArgumentError("WhileGradient: the argument net, made by the gradient of While, must be given")


@kernel(WhileGradient)
def while_gradient(op: WhileGradient, ctx: RunContext, *inputs: Any) -> tuple[Any, ...]:
    workspace = ctx.workspace
    record = workspace.fetch(op.record) if workspace.has(op.record) else None
    if not isinstance(record, Iterations):
        raise NetError(
            f"WhileGradient: the loop has stored no iterations in blob {op.record!r}; run the loop in the net that has "
            "its gradient operators"
        )
    iterations, record.kept = record.kept, []
    gradients = [ctx.host(inputs[i]) if i >= 0 else None for i in op.given]
    first = len(op.given) - op.given.count(-1)
    totals: list[Any] = [np.zeros_like(ctx.host(inputs[first + k])) for k in range(len(op.constants))]
    call = ctx.compile(op.net or NetDef()) if iterations else None
    while iterations:
        kept = iterations.pop()
        for blob, name in zip(op.kept, op.starts):
            workspace.feed(name, kept[blob])
        for j, (blob, seed) in enumerate(zip(op.changed, op.seeds)):
            workspace.feed(seed, np.zeros_like(kept[blob]) if gradients[j] is None else gradients[j])
        assert call is not None
        call()
        gradients = [
            workspace.fetch(name) if depends else np.zeros_like(kept[blob])
            for blob, name, depends in zip(op.changed, op.found, op.depends)
        ]
        totals = [total + workspace.fetch(name) for total, name in zip(totals, op.constants)]
    made = [
        gradients[j] if gradients[j] is not None else np.zeros_like(workspace.fetch(op.changed[j])) for j in op.results
    ]
    return tuple(ctx.xp.asarray(value) for value in (*made, *totals))


def loop_gradient(op: Any, g: GradientContext) -> list[OperatorDef]:
    """Return the operators that compute the gradients of a While's inputs; set the arguments of what it must store.

    Raises:
        GradientError: an iteration cannot be recomputed, or has sparse gradients; the loss depends on a blob that
            ``cond_net`` writes.
    """
    condition, body = (list(net.op) if net is not None else [] for net in (op.cond_net, op.loop_net))
    ops = [*condition, *body]
    d_outputs = {g.output(j): g.d_output(j) for j in range(op.n_out) if g.has_d_output(j)}
    of_condition = {blob for one in condition for blob in one.output}
    if lost := sorted(of_condition & d_outputs.keys()):
        raise GradientError(f"While: the loss depends on {lost}, which cond_net writes; write it in loop_net instead")
    record = f"{next(iter(d_outputs))}_while_{g.number}"
    iteration = _Iteration(ops, record + "/")
    forward, done, changed = _differentiated(iteration, d_outputs, g, f"{record}_grad/")
    gradients = done.gradients
    net = NetDef(name=f"{op.loop_net.name}_grad", op=[*forward, *done.net.op])
    for one in net.op[len(forward) :]:
        one.is_gradient_op = True
    read = {blob for one in net.op for blob in one.input}
    kept = [blob for blob, name in iteration.starts.items() if name in read or blob in changed]
    kept += [blob for blob in changed if blob not in kept]
    positions = {name: i for i, name in reversed(list(enumerate(g.op.input)))}
    constants = [blob for blob in positions if blob not in iteration.written and blob in gradients]
    results = [j for j, blob in enumerate(changed) if blob in positions]
    if not constants and not results:
        return []
    found = [_dense(gradients.get(iteration.start(blob), iteration.seed(blob)), blob) for blob in changed]
    shares = [_dense(gradients[blob], blob) for blob in constants]
    g.set_forward_argument("keep_iterations", record)
    g.set_forward_argument("kept_blobs", kept)
    given = list(d_outputs)
    others = [blob for blob in positions if blob in read and blob not in constants and blob not in iteration.written]
    return [
        make_op(
            "WhileGradient",
            [*d_outputs.values(), *(g.input(positions[blob]) for blob in (*constants, *others))],
            [g.d_input(positions[blob]) for blob in (*(changed[j] for j in results), *constants)],
            net=net,
            record=record,
            changed=changed,
            kept=kept,
            starts=[iteration.start(blob) for blob in kept],
            seeds=[iteration.seed(blob) for blob in changed],
            found=found,
            depends=[int(iteration.start(blob) in gradients) for blob in changed],
            given=[given.index(blob) if blob in d_outputs else -1 for blob in changed],
            results=results,
            constants=shares,
        )
    ]


def _differentiated(
    iteration: _Iteration, d_outputs: Mapping[str, str], g: GradientContext, prefix: str
) -> tuple[list[OperatorDef], Any, list[str]]:
    """Return the operators of an iteration that its gradients need, these, and the changed blobs that have gradients.

    A blob that the loop changes has a gradient if it is given one after the loop, or if an iteration gives it one,
    which is then its gradient after the previous iteration.
    """
    changed = [blob for blob in iteration.written if blob in d_outputs]
    net = NetDef(name="iteration", op=iteration.ops)  # differentiation sets what loops in it must store
    while True:
        seeds = {iteration.final[blob]: iteration.seed(blob) for blob in changed}
        done = g.differentiate(net, seeds, prefix=prefix)
        more = [blob for blob, name in iteration.starts.items() if name in done.gradients and blob not in changed]
        if not more:
            break
        changed += more
    needed = {blob for one in done.net.op for blob in blob_names(one)}
    forward = []
    for one in reversed(net.op):
        if needed.isdisjoint(_written(one)):
            continue
        if not _repeatable(one):
            raise GradientError(
                f"While: the gradient recomputes each iteration, but {one.type} may give other results; compute "
                f"{list(one.output)} outside of the loop, or put a StopGradient after it"
            )
        forward.append(one)
        needed.update(blob_names(one))
    return forward[::-1], done, changed


def _repeatable(op: OperatorDef) -> bool:
    if op.type in _CONTAINERS:
        return all(_repeatable(inner) for argument in op.arg if argument.HasField("n") for inner in argument.n.op)
    return not find(op.type).stateful


def _written(op: OperatorDef) -> set[str]:
    """Return the blobs that an operator writes, those in which it stores something for its gradient included."""
    named = arguments_with_blobs(op)
    kept = {name.decode() for argument in op.arg if argument.name in named for name in (*argument.strings, argument.s)}
    return {*written_blobs([op]), *kept}


def _dense(gradient: Any, blob: str) -> str:
    if not isinstance(gradient, str):
        raise GradientError(f"While: the gradient of {blob!r} is sparse; a While can only return dense ones")
    return gradient


class _Iteration:
    """The operators of one iteration, with a different name for every value that they write.

    Attributes:
        ops: the operators.
        written: the blobs that they write.
        starts: blob -> its name at the start, for those that are read before they are written.
        final: blob -> its name at the end.
    """

    def __init__(self, ops: Sequence[OperatorDef], prefix: str) -> None:
        self._prefix = prefix
        self._versions = itertools.count(1)
        self.written = dict.fromkeys(blob for op in ops for blob in op.output)
        self.starts: dict[str, str] = {}
        self.final: dict[str, str] = {}
        self.ops: list[OperatorDef] = []
        for op in ops:
            self._add(op)

    def start(self, blob: str) -> str:
        """Return the name of a blob at the start."""
        return f"{self._prefix}{blob}_0"

    def seed(self, blob: str) -> str:
        """Return the name of a blob's gradient at the end."""
        return f"{self._prefix}{blob}_slope"

    def _add(self, op: OperatorDef) -> None:
        made = OperatorDef()
        made.CopyFrom(op)
        new = {blob: f"{self._prefix}{blob}_{next(self._versions)}" for blob in op.output}
        if op.type == "If":
            self._add_branches(made, new)
        elif shares_names(op):  # a loop has one name for a blob, before and after it changes the blob
            for blob in new:
                if blob in op.input:
                    self.ops.append(make_op("Copy", [self._read(blob)], [new[blob]]))
            rename_in_operator(made, {blob: new.get(blob) or self._read(blob) for blob in (*op.input, *op.output)})
        else:
            rename_reads_and_writes(made, {blob: self._read(blob) for blob in op.input}, new)
        self.ops.append(made)
        self.final.update(new)

    def _add_branches(self, made: OperatorDef, new: Mapping[str, str]) -> None:
        """Rename the values of an If; what only one of its nets writes, the other one copies."""
        prefix = new[made.output[0]] if new else made.input[0]
        if new and not any(argument.name == "else_net" for argument in made.arg):
            set_argument(made, "else_net", NetDef(name="else"))
        made.input[:] = [self._read(blob) for blob in made.input]
        for argument in made.arg:
            if argument.HasField("n"):
                self._branch(argument.n, new, f"{prefix}_{argument.name}/")
        made.input.extend(sorted(_free(made) - set(made.input)))
        made.output[:] = [new[blob] for blob in made.output]

    def _branch(self, net: NetDef, new: Mapping[str, str], prefix: str) -> None:
        """Rename the values of a branch; the final values of its outputs get the names in ``new``."""
        inner = _Iteration(net.op, prefix)
        names = {name: self._read(blob) for blob, name in inner.starts.items()}
        names.update((inner.final[blob], name) for blob, name in new.items() if blob in inner.final)
        del net.op[:], net.external_input[:], net.external_output[:]
        net.op.extend(inner.ops)
        outside = {blob for op in inner.ops for blob in op.input if not blob.startswith(prefix)}
        names.update((blob, self._read(blob)) for blob in outside)
        rename_blobs(net, names)
        net.op.extend(
            make_op("Copy", [self._read(blob)], [name]) for blob, name in new.items() if blob not in inner.final
        )

    def _read(self, blob: str) -> str:
        if blob in self.final:
            return self.final[blob]
        return self.starts.setdefault(blob, self.start(blob)) if blob in self.written else blob


def _free(op: OperatorDef) -> set[str]:
    """Return the external blobs that the nets of an If read."""
    free: set[str] = set()
    for argument in op.arg:
        written: set[str] = set()
        for inner in argument.n.op:
            free.update(blob for blob in inner.input if blob not in written)
            written.update(inner.output)
    return free
