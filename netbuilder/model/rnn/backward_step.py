"""The backward pass of a step net, as a separate net that runs once for each step, in reverse order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from netbuilder.graph.blob import gradient_name
from netbuilder.graph.gradients import differentiate
from netbuilder.ops.core.contexts import Sparse
from netbuilder.ops.core.renaming import rename_in_operator
from netbuilder.proto import GradientError, NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BackwardStep", "backward_step"]

_GIVEN = "_given"  # suffix of the names of incoming gradients while the pass is built
_ACCUMULATED = "_accum"

Gradient = str | Sparse


@dataclass
class BackwardStep:
    """The operators of the backward pass of one step, and the gradients that it computes.

    Args:
        step: the step net.
        given: state after the step -> blob of its incoming gradient.
        ops: the gradient operators.
        gradients: blob of the step -> its gradient.
        recomputed: blobs of the step that ``ops`` recomputes.
    """

    step: NetDef
    given: Mapping[str, str]
    ops: list[OperatorDef]
    gradients: Mapping[str, Gradient]
    recomputed: list[str]
    _taken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._taken |= set(self.given.values())

    def own(self, blob: str) -> str | None:
        """Return a blob with only the gradient of ``blob``; None if it has no gradient.

        A gradient that is also that of another blob, such as of another term of a sum, is copied.
        """
        found = self._dense(blob)
        if found is not None and found in self._taken:
            copy = gradient_name(blob)
            while copy in self._taken or any(copy in (*op.input, *op.output) for op in self.ops):
                copy += "_copy"
            self.ops.append(make_op("Copy", [found], [copy]))
            found = copy
        if found is not None:
            self._taken.add(found)
        return found

    def shared(self, blob: str) -> str | None:
        """Return the blob with the gradient of an input that is the same in all steps; None if it has none."""
        return self._dense(blob)

    def _dense(self, blob: str) -> str | None:
        found = self.gradients.get(blob)
        if isinstance(found, Sparse):
            raise GradientError(
                f"step net {self.step.name!r}: the gradient of {blob!r} is sparse, and cannot be accumulated over "
                "steps; look up the rows of the whole sequence before the recurrent net, or use dense_gradient"
            )
        return found

    def net(self) -> NetDef:
        """Return the pass as a net; the first external inputs are the step's local blobs that it reads."""
        written = {name for op in self.ops for name in op.output}
        read = {name for op in self.ops for name in op.input}
        ends = set(self.step.external_input).union(self.step.external_output)
        saved = [
            name
            for name in dict.fromkeys(name for op in self.step.op for name in op.output)
            if name in read and name not in ends and name not in self.recomputed
        ]
        net = NetDef(name="RecurrentBackwardStep", type="simple")
        net.op.extend(self.ops)
        net.external_input.extend(saved)
        net.external_input.extend(self.given.values())
        net.external_input.extend(self.step.external_input)
        net.external_input.extend(self.step.external_output)
        missing = read.difference(written, net.external_input)
        if missing:
            raise NetError(
                f"step net {self.step.name!r}: its backward pass reads {sorted(missing)}, which no operator writes"
            )
        return net


def backward_step(step: NetDef, given: Mapping[str, str], recompute: Sequence[str]) -> BackwardStep:
    """Return the backward pass of a step net.

    Args:
        step: the net.
        given: state after the step -> blob of its incoming gradient.
        recompute: blobs that the pass recomputes instead of reading them.

    Raises:
        GradientError: an operator has no gradient.
        NetError: the step does not write a blob of ``recompute``.
    """
    made = differentiate(step, {state: blob + _GIVEN for state, blob in given.items()})
    ops = [*_recomputing(step, recompute), *_with_accumulation(list(made.net.op), given)]
    names = {blob + _GIVEN: blob for blob in given.values()}
    gradients = {
        blob: names.get(gradient, gradient) if isinstance(gradient, str) else gradient
        for blob, gradient in made.gradients.items()
    }
    return BackwardStep(step, given, ops, gradients, list(recompute))


def _recomputing(step: NetDef, recompute: Sequence[str]) -> list[OperatorDef]:
    requested = set(recompute)
    ops = [op for op in step.op if requested.intersection(op.output)]
    if missing := requested.difference(*(op.output for op in ops)):
        raise NetError(f"step net {step.name!r}: no operator writes {sorted(missing)}, which are to be recomputed")
    return ops


def _with_accumulation(ops: list[OperatorDef], given: Mapping[str, str]) -> list[OperatorDef]:
    """Rename the gradients of states to the names in the step's links, and add to the incoming gradients in place."""
    for blob in given.values():
        total = next((i for i, op in enumerate(ops) if op.type == "Sum" and blob + _GIVEN in op.input), None)
        if total is not None:
            _accumulate(ops, total, blob)
        for op in ops:
            rename_in_operator(op, {blob + _GIVEN: blob})
    return ops


def _accumulate(ops: list[OperatorDef], total: int, blob: str) -> None:
    """Let the sum at ``total`` add to the incoming gradient in place; its first term is renamed."""
    end = ops[total]
    old = end.output[0]
    for op in ops[:total]:
        rename_in_operator(op, {old: blob + _ACCUMULATED})
    terms = [blob + _ACCUMULATED if name == old else name for name in end.input if name != blob + _GIVEN]
    ops[total] = make_op("Sum", [blob, *terms], [blob], device_option=end.device_option)
    if old != blob:
        for op in ops[total + 1 :]:
            rename_in_operator(op, {old: blob})
