"""The backward step net of a RecurrentNetwork without the argument ``backward_step_net``, derived from its step net."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from netbuilder.ops.core.contexts import GradientContext
from netbuilder.ops.core.instructions import Instruction
from netbuilder.ops.recurrent.links import Link, Recurrent
from netbuilder.proto import GradientError, NetDef
from netbuilder.proto.arguments import make_op

__all__ = ["derived_backward"]

_GRADIENT = "_grad"
_GIVEN = "_grad_given"


def derived_backward(op: Recurrent, g: GradientContext) -> dict[str, Any]:
    """Return the arguments of the gradient operator that describe its backward step net.

    The net recomputes what it reads of a step, except states and inputs: the forward pass has stored nothing else.

    Raises:
        GradientError: an operator of the step net has no gradient, or the gradient of a shared input is sparse.
    """
    ends = [link for link in op.links if link.internal in op.step.written]
    assert op.step_net is not None
    done = g.differentiate(op.step_net, {link.internal: link.internal + _GIVEN for link in ends})
    made = _StepGradients(op, done, {link.internal + _GIVEN for link in ends})
    links = [Link(link.internal + _GIVEN, link.external + _GRADIENT, link.offset, link.window) for link in ends]
    for link in op.links:
        if link not in ends and (name := made.own(link.internal)):
            links.append(Link(name, link.external + _GRADIENT, link.offset, link.window))
    shared = {i: name for i, name in enumerate(op.forward_inputs) if name not in op.linked}
    grads = {i: found for i, name in shared.items() if (found := made.own(name))}
    recomputed = _needed(op, made.net)
    net = NetDef(name="RecurrentBackwardStep", type="simple")
    net.op.extend(operator.op_def for operator in recomputed)
    blobs = dict.fromkeys(name for operator in recomputed for name in operator.outputs)
    net.op.extend(made.net.op)
    return {
        "backward_step_net": net,
        "backward_link_internal": [link.internal for link in links],
        "backward_link_external": [link.external for link in links],
        "backward_link_offset": [link.offset for link in links],
        "backward_link_window": [link.window for link in links],
        "param": list(grads),
        "param_grads": list(grads.values()),
        "recompute_blobs_on_backward": list(blobs),
    }


class _StepGradients:
    """The gradients of a step net, each requested one in a blob of its own."""

    def __init__(self, op: Recurrent, done: Any, taken: Iterable[str]) -> None:
        self.net: NetDef = done.net
        self._op, self._gradients, self._taken = op, done.gradients, set(taken)

    def own(self, blob: str) -> str:
        """Return the blob that holds the gradient of ``blob`` and of no other; "" if there is none."""
        found = self._gradients.get(blob)
        if found is None:
            return ""
        if not isinstance(found, str):
            raise GradientError(
                f"RecurrentNetwork: the gradient of {blob!r} in step net {self._op.step.name!r} is sparse, which "
                "steps cannot accumulate; look rows up before the recurrent net, for the whole sequence at once"
            )
        if found in self._taken:
            copy = f"{blob}{_GRADIENT}_own"
            self.net.op.append(make_op("Copy", [found], [copy]))
            found = copy
        self._taken.add(found)
        return found


def _needed(op: Recurrent, backward: NetDef) -> list[Instruction]:
    """Return the operators of the step net whose outputs a backward pass reads."""
    needed = {name for gradient in backward.op for name in gradient.input} - set(op.linked)
    found = []
    for operator in reversed(op.step.ops):
        if needed.intersection(operator.outputs):
            found.append(operator)
            needed.update(name for name in operator.inputs if name not in op.linked)
    return found[::-1]
