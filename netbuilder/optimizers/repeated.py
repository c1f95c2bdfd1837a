"""The updates of many parameters on one device: the operators of one of them, made again with the blobs of others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from netbuilder.graph.blob import BlobReference
from netbuilder.graph.net import Net, operator_watchers
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.optimizers.optimizer import Optimizer
from netbuilder.passes.replicate import Template
from netbuilder.proto import OperatorDef

__all__ = ["RepeatedUpdates", "Update"]


class RepeatedUpdates:
    """Adds the updates of parameters on one device, as calls of the optimizer for each of them do.

    The first update on a device also makes the blobs that the others share, such as the rate. Those after it differ
    only in the names of blobs if the optimizer says so (``Optimizer.repeats``) and the gradient is dense.

    Args:
        optimizer: the optimizer.
        model: gets the updates.
    """

    def __init__(self, optimizer: Optimizer, model: ModelHelper) -> None:
        self._optimizer, self._nets = optimizer, (model.net, model.param_init_net)
        self._repeats = "repeats" in vars(type(optimizer)) and optimizer.repeats and not operator_watchers
        self._first: set[str] | None = None  # what the first update writes
        self._update: Update | None = None

    def add(self, info: ParameterInfo) -> None:
        """Add the update of a parameter."""
        local = self._optimizer.get_auxiliary_parameters().local
        repeated = self._repeats and not info.blob_copy and isinstance(info.grad, BlobReference)
        blobs = info.name, str(info.grad)
        if repeated and self._update is not None and (names := self._update.append(blobs)) is not None:
            local.extend(BlobReference(names[str(blob)], blob.Net()) for blob in self._update.state)
            return
        starts, state = [net.op_len for net in self._nets], len(local)
        self._optimizer(*self._nets, info)
        if not repeated or self._update is not None:
            return
        added = [net.Proto().op[start:] for net, start in zip(self._nets, starts)]
        if self._first is None:
            self._first = {name for ops in added for op in ops for name in op.output}
            return
        self._repeats = not self._optimizer.uses_shapes
        self._update = Update(self._nets, added, blobs, local[state:], self._first)


class Update:
    """The update of one parameter, to be appended for others.

    Args:
        nets: the nets that have it.
        added: its operators in each of them.
        blobs: the parameter and its gradient.
        state: blobs that the optimizer keeps for the parameter.
        before: blobs that the first update on the device has written; others share those.
    """

    def __init__(
        self,
        nets: Sequence[Net],
        added: Sequence[Sequence[OperatorDef]],
        blobs: tuple[str, str],
        state: Sequence[BlobReference],
        before: Collection[str],
    ) -> None:
        self.state = state
        self._nets = nets
        self._parts = [list(map(Template, ops)) for ops in added]
        templates = [template for part in self._parts for template in part]
        own = {*blobs, *(name for template in templates for name in template.written if name not in before)}
        # Own blob -> which of ``blobs`` its name is made of, and what stands before and after that.
        self._made_of = {name: _made_of(name, blobs) for name in own}
        self._shared = {name: name for template in templates for name in template.blobs if name not in own}
        self._may_repeat = None not in self._made_of.values() and not any(t.draws or t.names_more for t in templates)
        self._gradient_of = _made_of(blobs[1], blobs[:1])

    def append(self, blobs: tuple[str, str]) -> dict[str, str] | None:
        """Append the update of another parameter; return name here -> name there.

        None, and the nets are unchanged, if the names of its blobs do not follow.
        """
        parameter, gradient = blobs
        if not self._may_repeat or _made_of(gradient, (parameter,)) != self._gradient_of:
            return None
        names = dict(self._shared)
        for name, made_of in self._made_of.items():
            assert made_of is not None
            place, before, after = made_of
            names[name] = before + blobs[place] + after
        if len(set(names.values())) < len(names):
            return None
        for net, part in zip(self._nets, self._parts):
            net.fill_ops(partial(template.operator, names) for template in part)
        return names


def _made_of(name: str, blobs: Sequence[str]) -> tuple[int, str, str] | None:
    """Return of which blob a name is made, and the text before and after it; None: of none, or of one twice."""
    for place in sorted(range(len(blobs)), key=lambda place: -len(blobs[place])):
        if name.count(blobs[place]) == 1:
            before, _, after = name.partition(blobs[place])
            return place, before, after
    return None
