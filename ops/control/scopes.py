"""Do, CreateScope, HasScope: a net in an operator, with blobs separate from those of the enclosing net.

The nets of Caffe2's control helpers are in Do operators. Here the net runs in the workspace of the enclosing net, with
its blobs renamed: those in ``inner_blobs`` to the outer blobs that they stand for, the others to names that begin with
that of the scope.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal
from weakref import WeakKeyDictionary

import numpy as np

from netbuilder.data.blob_values import BlobObject
from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.objects import OnHost, shared_object
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.renaming import rename_blobs
from netbuilder.proto import ArgumentError, GradientError, NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["CreateScope", "Do", "HasScope", "Scope"]

_compiled: WeakKeyDictionary[Any, Callable[[], None]] = WeakKeyDictionary()


class Scope(BlobObject):
    """The state of a Do operator between its run and that of its gradient.


    Attributes:
        runs: the number of runs of Do operators whose gradients have not run yet.
    """

    def __init__(self) -> None:
        self.runs = 0
        self._latest = False  # whether the scope still holds the activations of the last run

    def push(self) -> None:
        self.runs += 1
        self._latest = True

    def pop(self) -> None:
        """Remove the latest run.

        Raises:
            NetError: its blobs have been overwritten.
        """
        if not self._latest:
            raise NetError(
                "Do: the gradient needs the blobs of an earlier run of the net, but only those of the last one are "
                "kept; loops over Do operators have no gradient"
            )
        self.runs -= 1
        self._latest = False


@register
@dataclass(frozen=True)
class CreateScope(OnHost):
    """Create a scope, which a Do operator takes as its last input and output."""

    signature = "-> scope: object"
    effects = ""


@kernel(CreateScope)
def create_scope(op: CreateScope, ctx: RunContext) -> tuple[Any, ...]:
    return (Scope(),)


@register
@dataclass(frozen=True)
class HasScope(OnHost):
    """has_scope = whether a Do operator has run with a scope, and its gradient has not."""

    signature = "scope: object -> has_scope (1): bool"
    effects = ""


@kernel(HasScope)
def has_scope(op: HasScope, ctx: RunContext, scope: Any) -> tuple[Any, ...]:
    return (np.array([shared_object(op, scope, Scope, "CreateScope").runs > 0]),)


@register
@dataclass(frozen=True)
class Do(Operator):
    """Run ``net`` with blobs of its own.

    The last input and the last output are a scope. ``inner_blobs`` names blobs of the net, and ``outer_blobs_idx`` has
    for each the outer blob that it stands for: an index into the inputs followed by the outputs, without the scopes.
    """

    signature = """
        X+ (...): any, the last is the scope
        -> Y+ (...): any, the last is the scope
    """
    inplace = "one-to-one"
    dynamic = True
    stateful = True
    effects = ""
    copy_arguments = False
    net_names = "scoped"
    blob_arguments: ClassVar[tuple[str, ...]] = ("inner_blobs",)
    net: NetDef | None = None
    inner_blobs: tuple[str, ...] = ()
    outer_blobs_idx: tuple[int, ...] = ()
    saved_fwd_blobs: tuple[str, ...] = ()  # ignored: all blobs of the net are kept for its gradient
    reuse_workspace: bool = False

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "any"

    def check(self) -> None:
        if self.net is None:
            raise ArgumentError("Do: the argument net must be given")
        inner, positions = self.inner_blobs, self.outer_blobs_idx
        outer = self.n_in + self.n_out - 2
        if len(inner) != len(positions) or len(set(inner)) < len(inner):
            raise ArgumentError(
                "Do: inner_blobs must be distinct names, and outer_blobs_idx one number for each, "
                f"got {inner} and {positions}"
            )
        if not all(0 <= position < outer for position in positions):
            raise ArgumentError(
                f"Do: outer_blobs_idx must lie in [0, {outer}), the blobs without scopes, got {positions}"
            )

    def outside(self, op_def: OperatorDef) -> dict[str, str]:
        """Return for each of ``inner_blobs`` the name of its outer blob.

        Raises:
            NetError: the last input and the last output are not the same blob.
        """
        if op_def.input[-1] != op_def.output[-1]:
            raise NetError(
                f"Do: the last output must be the scope, the last input {op_def.input[-1]!r}, got {op_def.output[-1]!r}"
            )
        names = [*op_def.input[:-1], *op_def.output[:-1]]
        return {inner: names[position] for inner, position in zip(self.inner_blobs, self.outer_blobs_idx)}

    def bound(self, op_def: OperatorDef) -> NetDef:
        """Return the net with its blobs renamed to those of the enclosing workspace."""
        outside, scope = self.outside(op_def), op_def.input[-1]
        net = NetDef()
        net.CopyFrom(self.net or net)
        rename_blobs(net, lambda name: outside.get(name) or f"{scope}/{name}")
        return net

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        """Return a Do of the gradient of the net, with the same scope."""
        return _DoGradient(self, g).operators()


class _DoGradient:
    """Builds the gradient of a Do operator."""

    def __init__(self, op: Do, g: GradientContext) -> None:
        self._op, self._g = op, g
        self._outside = op.outside(g.op)
        self._inputs = {name: i for i, name in enumerate(g.op.input[:-1])}
        self._outputs = {name: j for j, name in enumerate(g.op.output[:-1])}
        self._read: dict[str, str] = {}  # blob of the gradient net -> outer blob that it reads
        self._written: dict[str, str] = {}  # blob of the gradient net -> outer blob that it writes

    def operators(self) -> list[OperatorDef]:
        net = self._differentiated()
        if not self._written:
            return []
        self._pass_forward_blobs(net)
        scope = self._g.output(len(self._g.op.output) - 1)
        inputs, outputs = list(dict.fromkeys(self._read.values())), list(self._written.values())
        positions = {name: position for position, name in enumerate([*inputs, *outputs])}
        inner = {**self._written, **self._read}
        return [
            make_op(
                "Do",
                [*inputs, scope],
                [*outputs, scope],
                net=net,
                inner_blobs=list(inner),
                outer_blobs_idx=[positions[name] for name in inner.values()],
            )
        ]

    def _differentiated(self) -> NetDef:
        """Return the gradient net; it ends with copies to the blobs in ``_written``."""
        seeds = {}
        for inner, outer in self._outside.items():
            j = self._outputs.get(outer)
            if j is not None and self._g.has_d_output(j):
                seeds[inner] = f"{inner}/_DO_OPERATOR_INNER_GRAD_"
                self._read[seeds[inner]] = self._g.d_output(j)
        net = NetDef(name=f"{self._op.net.name}_grad" if self._op.net else "")
        if not seeds:
            return net
        done = self._g.differentiate(self._op.net or NetDef(), seeds)
        net.CopyFrom(done.net)
        for inner, outer in self._outside.items():
            if outer in self._inputs and inner in done.gradients:
                self._copy_out(net, inner, self._inputs[outer], done.gradients[inner])
        for op in net.op:
            op.is_gradient_op = True
        return net

    def _copy_out(self, net: NetDef, inner: str, index: int, gradient: Any) -> None:
        if not isinstance(gradient, str):
            raise GradientError(f"Do: the gradient of {inner!r} is sparse; a Do can only return dense ones")
        name = self._g.d_input(index)
        if name in self._written.values():
            raise GradientError(f"Do: two of inner_blobs stand for {self._g.op.input[index]!r}; give it one inner blob")
        copy = f"{inner}/_DO_OPERATOR_INNER_GRAD_COPY_"
        net.op.append(make_op("Copy", [gradient], [copy]))
        self._written[copy] = name

    def _pass_forward_blobs(self, net: NetDef) -> None:
        """Pass to the gradient net those of ``inner_blobs`` that it reads."""
        read = {name for op in net.op for name in op.input}
        for inner, outer in self._outside.items():
            if inner in read:
                position = self._outputs.get(outer)
                self._read[inner] = self._g.input(self._inputs[outer]) if position is None else self._g.output(position)


@kernel(Do)
def do(op: Do, ctx: RunContext, *inputs: Any) -> tuple[Any, ...]:
    scope = inputs[-1]
    if not isinstance(scope, Scope):
        raise NetError(f"Do: the last input must be what CreateScope makes, got {type(scope).__name__}")
    call = _compiled.get(ctx)
    if call is None:
        call = _compiled[ctx] = ctx.compile(op.bound(ctx.op_def))
    if ctx.op_def.is_gradient_op:
        scope.pop()
        call()
    else:
        call()
        scope.push()
    return ()
