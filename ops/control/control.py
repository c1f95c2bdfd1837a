"""If and While: operators that contain nets, and run them in the workspace of the enclosing net.

The nets access the blobs of the workspace by name. Their internal blobs are stored there too, so nets to be
differentiated need different names for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal
from weakref import WeakKeyDictionary

from netbuilder.ops.control.loop_gradient import Iterations, loop_gradient
from netbuilder.ops.core.conditions import truth_of
from netbuilder.ops.core.contexts import GradientContext, RunContext, Sparse
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, GradientError, NetDef, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["If", "While"]

_compiled: WeakKeyDictionary[Any, dict[str, Callable[[], None]]] = WeakKeyDictionary()


def _run(op: Any, ctx: RunContext, which: str) -> None:
    """Run one of the operator's nets, compiled at its first run."""
    calls = _compiled.setdefault(ctx, {})
    call = calls.get(which)
    if call is None:
        call = calls[which] = ctx.compile(getattr(op, which))
    call()


@register
@dataclass(frozen=True)
class If(Operator):
    """Run ``then_net`` if the condition is true, else ``else_net``, if there is one.

    The inputs after the condition are the external blobs that the nets read, the outputs those that they write for
    other operators.
    """

    signature = "condition (1) or (): bool, X* (...): any -> Y* (...): any"
    inplace = "one-to-one"
    dynamic = True
    stateful = True
    net_names = "around"
    effects = ""
    certain_nets = ("then_net", "else_net")
    then_net: NetDef | None = None
    else_net: NetDef | None = None

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index == 0 else "any"

    def check(self) -> None:
        if self.then_net is None:
            raise ArgumentError("If: the argument then_net, a net, must be given")

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        """Return an If of the gradients of the nets; a blob that a net does not read gets a zero gradient from it."""
        d_outputs = {g.output(j): g.d_output(j) for j in range(self.n_out) if g.has_d_output(j)}
        names = {g.op.input[i]: g.d_input_name(i) for i in range(1, self.n_in)}
        branches = [_Branch(net or NetDef(), d_outputs, names, g) for net in (self.then_net, self.else_net)]
        outer = {}  # forward input -> the name of its gradient outside of the nets
        for i in range(1, self.n_in):
            name = g.op.input[i]  # which blobs are read, the gradients of the nets tell
            if name not in outer and any(name in branch.gradients for branch in branches):
                outer[name] = g.d_input(i)
        if not outer:
            return []
        for branch in branches:
            branch.finish(outer)
        condition = g.input(0)
        visible = dict.fromkeys([*g.op.input, *g.op.output, *d_outputs.values()])
        read = {name for branch in branches for name in branch.net.external_input} - {condition}
        inputs = [condition, *(name for name in visible if name in read)]
        return [make_op("If", inputs, list(outer.values()), then_net=branches[0].net, else_net=branches[1].net)]


def _reads(ops: Iterable[OperatorDef]) -> dict[str, None]:
    """Return the blobs that operators read before one of them writes them, in order."""
    read: dict[str, None] = {}
    written: set[str] = set()
    for op in ops:
        read.update((name, None) for name in op.input if name not in written)
        written.update(op.output)
    return read


class _Branch:
    """The gradient of one of the nets of an If.

    What it computes for itself has names that nothing outside has: the name of a gradient in the net may be that of
    another gradient around it.

    Args:
        net: the net.
        d_outputs: output of the operator -> its gradient.
        names: input of the operator -> the name for its gradient.
        g: the context of the operator.
    """

    def __init__(self, net: NetDef, d_outputs: Mapping[str, str], names: Mapping[str, str], g: GradientContext) -> None:
        mentioned = {name for op in net.op for name in (*op.input, *op.output)}
        seeds = {blob: d for blob, d in d_outputs.items() if blob in mentioned}
        self.net = NetDef()
        # A blob that the net does not mention passes its gradient through.
        self.gradients: dict[str, str] = {blob: d for blob, d in d_outputs.items() if blob not in mentioned}
        self._prefix = f"{g.op.output[0]}_if_{g.number}/"
        if seeds:
            taken = mentioned.union(d_outputs.values())
            results = {blob: name for blob, name in names.items() if name not in taken}
            done = g.differentiate(net, seeds, prefix=self._prefix, results=results)
            self.net = done.net
            for blob in _reads(net.op):
                d = done.gradients.get(blob)
                if isinstance(d, Sparse):
                    raise GradientError(
                        f"If: the gradient of {blob!r} in net {net.name!r} is sparse; an If can only return dense ones"
                    )
                if d is not None:
                    self.gradients[blob] = d
        self.net.name = f"{net.name}_grad"

    def finish(self, outer: Mapping[str, str]) -> None:
        """Make the net write every gradient that the operator returns, under its name outside."""
        sources = {name: self.gradients.get(blob) for blob, name in outer.items()}
        for name, made in sources.items():
            if made != name and made is not None and sources.get(made, made) != made:  # it would be overwritten first
                sources[name] = f"{self._prefix}given/{made}"
                self.net.op.append(make_op("Copy", [made], [sources[name]]))
        for blob, name in outer.items():
            made = sources[name]
            if made is None:
                self.net.op.append(make_op("ConstantFill", [blob], [name], value=0.0))
            elif made != name:
                self.net.op.append(make_op("Copy", [made], [name]))
        for op in self.net.op:
            op.is_gradient_op = True
        self.net.external_input[:] = sorted(_reads(self.net.op))
        self.net.external_output[:] = list(outer.values())


@kernel(If)
def if_(op: If, ctx: RunContext, condition: Any, *others: Any) -> tuple[Any, ...]:
    if truth_of(ctx.host(condition), "If: the condition"):
        _run(op, ctx, "then_net")
    elif op.else_net is not None:
        _run(op, ctx, "else_net")
    return ()


@register
@dataclass(frozen=True)
class While(Operator):
    """Run ``loop_net`` while the condition is true; ``cond_net``, if given, runs before each test of it.

    Args:
        loop_net, cond_net: the nets.
        keep_iterations: set by the gradient: the blob that stores ``kept_blobs`` as of the start of every iteration.
    """

    signature = "condition (1) or (): bool, X* (...): any -> Y* (...): any"
    inplace = "one-to-one"
    dynamic = True
    stateful = True
    effects = "may loop without end"
    copy_arguments = False
    net_names = "around"
    repeats_nets = True
    certain_nets = ("cond_net",)
    blob_arguments: ClassVar[tuple[str, ...]] = ("keep_iterations", "kept_blobs")
    loop_net: NetDef | None = None
    cond_net: NetDef | None = None
    keep_iterations: str = ""
    kept_blobs: tuple[str, ...] = ()

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index == 0 else "any"

    def check(self) -> None:
        if self.loop_net is None:
            raise ArgumentError("While: the argument loop_net, a net, must be given")

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        """See ``loop_gradient``: the iterations in reverse, each recomputed from its start."""
        return loop_gradient(self, g)


@kernel(While)
def while_(op: While, ctx: RunContext, condition: Any, *others: Any) -> tuple[Any, ...]:
    name = ctx.op_def.input[0]
    record = Iterations()
    if op.keep_iterations:
        ctx.workspace.feed(op.keep_iterations, record)
    while True:
        if op.keep_iterations:
            began = {blob: ctx.workspace.fetch(blob) for blob in op.kept_blobs if _has_value(ctx, blob)}
        if op.cond_net is not None:
            _run(op, ctx, "cond_net")
        if not truth_of(ctx.workspace.fetch(name), f"While: the condition {name!r}"):
            return ()
        if op.keep_iterations:
            record.kept.append(began)
        _run(op, ctx, "loop_net")


def _has_value(ctx: RunContext, blob: str) -> bool:
    return bool(ctx.workspace.has(blob) and ctx.workspace.spec(blob) is not None)
