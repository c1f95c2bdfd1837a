"""Export of If, While and ONNXWhile: as ONNX's If and Loop, which run the graphs of their nets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.exchange.onnx.graph import Graph, rule
from netbuilder.exchange.onnx.library import onnx_library
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.renaming import shares_names
from netbuilder.proto import NetDef, OperatorError
from netbuilder.proto.late_dataclass import dataclass

__all__: list[str] = []


@rule("If", runs_nets=True)
def _if(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    hint, blobs = _hint(y), {blob: name for blob, name in zip(g.message.output, y) if name}
    branches = {}
    for branch, net in (("then", op.then_net), ("else", op.else_net or NetDef())):
        graph = g.inner(net, g.specs, _written(net, blobs), g.visible, f"{hint}/{branch}/")
        results = {blob: _result(graph, "If", blob, f"{hint}/{branch}_after") for blob in blobs}
        branches[branch] = graph, list(results.values())
    specs = [[_form(graph, name) for name in names] for graph, names in branches.values()]
    for blob, name, then, other in zip(blobs, blobs.values(), *specs):
        if then != other:
            raise OperatorError(
                f"If: {blob!r} has shape {then.shape} of {then.dtype} if the condition holds, else {other.shape} of "
                f"{other.dtype}; both nets must make it alike to be exported"
            )
        g.specs[name] = then
    bodies = {f"{branch}_branch": _body(g, graph, [], names) for branch, (graph, names) in branches.items()}
    g.add("If", [x[0]], list(blobs.values()), **bodies)


@rule("While", runs_nets=True)
def _while(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    """Write the net of the condition before the Loop, and at the end of its body."""
    if op.keep_iterations:
        raise OperatorError("While: it keeps its iterations for the gradient; export a net without a backward pass")
    hint, condition = _hint(y), g.message.input[0]
    blobs = {blob: name for blob, name in zip(g.message.output, y) if name}
    conditions, body = op.cond_net or NetDef(), NetDef()
    g.absorb(g.inner(conditions, g.specs, _all_written(conditions), g.visible, f"{hint}/first/"))
    body.op.extend([*op.loop_net.op, *conditions.op])
    carried = dict.fromkeys([condition, *_written(body, _reads(body)), *blobs])
    for blob in carried:
        if blob not in g.visible:
            raise OperatorError(
                f"While: {blob!r} has no value before the loop, and ONNX's Loop needs one; fill it before, with the "
                "shape that the loop gives it"
            )
    states = {blob: g.visible[blob] for blob in carried}
    _loop(g, _Loop(op.type, body, states, {blob: blob for blob in carried}, condition, g.visible), blobs)


@rule("ONNXWhile", runs_nets=True)
def _onnx_while(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    iteration, condition, *names = op.body.external_input
    count = len(names) - op.captured
    if any(y[count:]):
        raise OperatorError(
            "ONNXWhile: it collects a blob of each iteration, and how many there are is known only when it runs"
        )
    going_on, *after = op.body.external_output[: 1 + count]
    first = x[1] if op.has_cond else g.constant(f"{_hint(y)}/condition", True)
    states = {condition: first, **dict(zip(names[:count], x[2:]))}
    seen = dict(zip(names[count:], x[2 + count :]))
    following = {condition: going_on if op.has_cond else condition, **dict(zip(names, after))}
    limit = x[0] if op.has_trip_count else ""
    loop = _Loop(op.type, op.body, states, following, condition, seen, limit, iteration)
    _loop(g, loop, {blob: name for blob, name in zip(names, y) if name})


@dataclass(frozen=True)
class _Loop:
    """A loop to write.

    Args:
        kind: the operator's type, for messages.
        body: the net of a step.
        states: blobs that pass from step to step, the condition among them -> their values before the first.
        after: these blobs -> the blobs that a step leaves their next values in.
        condition: the blob that tells whether there is another step.
        seen: the values of other blobs that the body may read.
        limit: the value that is the greatest number of steps, or "".
        iteration: the blob that is the number of the step, or "".
    """

    kind: str
    body: NetDef
    states: Mapping[str, str]
    after: Mapping[str, str]
    condition: str
    seen: Mapping[str, str]
    limit: str = ""
    iteration: str = ""


def _loop(g: Graph, loop: _Loop, outputs: Mapping[str, str]) -> None:
    """Write a Loop; ``outputs`` are blobs and the names that their values get after it."""
    hint = _hint(list(outputs.values()))
    before = {blob: f"{hint}/before/{blob}" for blob in loop.states}
    specs = {name: _form(g, loop.states[blob]) for blob, name in before.items()}
    number, holds = f"{hint}/loop/number", f"{hint}/loop/holds"
    specs |= {number: TensorSpec((), np.dtype(np.int64)), holds: TensorSpec((), np.dtype(np.bool_))}
    seen = {**loop.seen, **before} | ({loop.iteration: number} if loop.iteration else {})
    graph = g.inner(loop.body, {**g.specs, **specs}, _written(loop.body, loop.after.values()), seen, f"{hint}/step/")
    results = {blob: _result(graph, loop.kind, name, f"{hint}/after") for blob, name in loop.after.items()}
    for blob, name in results.items():
        found, given = _form(graph, name), specs[before[blob]]
        if found != given:
            raise OperatorError(
                f"{loop.kind}: a step makes {blob!r} of shape {found.shape} of {found.dtype}, from shape {given.shape} "
                f"of {given.dtype}; only loops that keep them can be exported"
            )
    condition = _result(graph, loop.kind, loop.after[loop.condition], f"{hint}/loop/goes_on")
    body = _body(g, graph, [number, holds, *before.values()], [condition, *results.values()])
    made = [outputs.get(blob) or g.fresh(f"{hint}/last/{blob}") for blob in before]
    g.specs.update(zip(made, (specs[name] for name in before.values())))
    g.add("Loop", [loop.limit, loop.states[loop.condition], *loop.states.values()], made, body=body)


def _form(g: Graph, name: str) -> TensorSpec:
    return TensorSpec(g.spec(name).shape, g.spec(name).dtype)


def _result(graph: Graph, kind: str, blob: str, hint: str) -> str:
    """Return the value that a blob has after a net, under a name of its own: a graph returns no value of another."""
    name = graph.visible.get(blob)
    if name is None:
        raise OperatorError(f"{kind}: a net leaves {blob!r} without a value, and there is none before it")
    made = graph.between("Identity", [name], f"{hint}/{blob}")
    graph.specs[made] = graph.spec(name)
    return made


def _body(g: Graph, graph: Graph, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """Return a graph as an attribute; its values have any extents, since those of the batch differ."""
    helper = onnx_library().helper

    def info(name: str) -> Any:
        spec = graph.spec(name)
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(spec.dtype), [None] * spec.ndim)

    return g.as_body(graph, list(map(info, inputs)), list(map(info, outputs)))


def _all_written(net: NetDef) -> list[str]:
    return list(dict.fromkeys(name for op in net.op for name in op.output))


def _written(net: NetDef, blobs: Iterable[str]) -> list[str]:
    """Return those of some blobs that a net writes."""
    made = set(_all_written(net))
    return [blob for blob in dict.fromkeys(blobs) if blob in made]


def _reads(net: NetDef) -> list[str]:
    """Return the blobs that a net reads, or whose values it may keep, before an operator certainly writes them."""
    read: dict[str, None] = {}
    written: set[str] = set()
    for op in net.op:
        kept = op.output if shares_names(op) else ()
        read.update((name, None) for name in (*op.input, *kept) if name not in written)
        written.update(op.output)
    return list(read)


def _hint(y: Sequence[str]) -> str:
    return next(filter(None, y))
