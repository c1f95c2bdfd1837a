"""Import of If, Loop and Scan: the branch or the steps that are known in place of the node, else nets to run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.exchange.onnx.reading import Reader, reads
from netbuilder.exchange.onnx.values import ValueForm
from netbuilder.proto import OperatorError

__all__: list[str] = []

_MOST_UNROLLED = 2048  # nodes


def _graphs(node: Any) -> dict[str, Any]:
    return {each.name: each.g for each in node.attribute if each.HasField("g")}


@reads("If")
def _if(r: Reader, node: Any) -> None:
    graphs, condition = _graphs(node), node.input[0]
    if condition in r.constants:
        taken = graphs["then_branch" if r.constants[condition].reshape(-1)[0] else "else_branch"]
        r.inline(taken, [], node.output)
        return
    nets, forms = {}, []
    outputs = [name or r.between(node.name) for name in node.output]
    for name in ("then_branch", "else_branch"):
        nets[name] = r.body(graphs[name], [], outputs)
        forms.append([r.form_of(output) for output in outputs])
        r.forget_found(outputs)
    read = dict.fromkeys(name for net in nets.values() for name in net.external_input)
    r.add("If", [condition, *read], outputs, then_net=nets["then_branch"], else_net=nets["else_branch"])
    for output, then, other in zip(outputs, *forms):
        r.declare(output, _common(then, other))


def _common(a: ValueForm, b: ValueForm) -> ValueForm:
    """Return what holds for either of two values."""
    dtype = a.dtype if a.dtype == b.dtype else None
    if a.extents is None or b.extents is None or len(a.extents) != len(b.extents):
        return ValueForm(dtype, None)
    return ValueForm(dtype, tuple(n if n == m else None for n, m in zip(a.extents, b.extents)))


@reads("Loop")
def _loop(r: Reader, node: Any) -> None:
    limit, condition, *values = [*node.input, ""][: max(len(node.input), 2)]
    body, before = _graphs(node)["body"], len(r.net.op)
    if not _unrolled(r, node, body, limit, condition, values):
        del r.net.op[before:]
        _while(r, node, body, limit, condition, values)


def _unrolled(r: Reader, node: Any, body: Any, limit: str, condition: str, values: Sequence[str]) -> bool:
    """Read the steps of a Loop one after the other if their number is known, and not 0; return whether it is."""
    if any(name and name not in r.constants for name in (limit, condition)):
        return False
    most = _MOST_UNROLLED // max(len(body.node), 1)
    count = int(r.constants[limit].item()) if limit else None
    goes_on = not condition or bool(r.constants[condition].item())
    if count is not None and count > most:
        return False
    carried, rows, step = list(values), [list[str]() for _ in body.output[1 + len(values) :]], 0
    while goes_on and (count is None or step < count):
        hint = r.between(next(filter(None, node.output), node.name))
        given = [r.constant(hint, np.array(step, np.int64)), r.constant(hint, np.array(True)), *carried]
        made = [f"{hint}/{i}" for i in range(len(body.output))]
        r.inline(body, given, made)
        step += 1
        if made[0] not in r.constants or step > most:
            return False
        goes_on, carried = bool(r.constants[made[0]].item()), made[1 : 1 + len(values)]
        for each, name in zip(rows, made[1 + len(values) :]):
            each.append(r.add("ExpandDims", [name], [f"{name}/row"], dims=[0]))
    for name, target in zip(carried, node.output if step else ()):
        if target:
            r.same(name, target)
    for each, target in zip(rows, node.output[len(values) :] if step else ()):
        if target:
            r.add("Concat", each, [target, r.between(target)], axis=0)
            r.declare(target, r.form_of(each[0].removesuffix("/row")).with_axis(step))
    return step > 0


def _while(r: Reader, node: Any, body: Any, limit: str, condition: str, values: Sequence[str]) -> None:
    hint = next(filter(None, node.output), node.name)
    inputs = [r.between(hint) for _ in range(2 + len(values))]
    targets = [r.between(hint) for _ in body.output]
    r.declare(inputs[0], ValueForm(np.dtype(np.int64), ()))
    r.declare(inputs[1], ValueForm(np.dtype(np.bool_), ()))
    first = [r.form_of(name) for name in values]
    for forms in (first, [each.with_open_extents() for each in first]):  # some steps change the extents
        for name, form in zip(inputs[2:], forms):
            r.declare(name, form)
        net = r.body(body, inputs, targets, collected=len(targets) - 1 - len(values))
        after = [r.form_of(name) for name in targets]
        if all(_common(form, new) == form for form, new in zip(forms, after[1:])):
            break
        r.forget_found(targets)
    else:
        raise OperatorError("the type, or the number of axes, of a value that is passed from step to step changes")
    if any(form.dtype is None or form.extents is None for form in forms):
        raise OperatorError("the type, or the number of axes, of a value that is passed from step to step is not known")
    captured = [name for name in net.external_input if name not in inputs]
    net.external_input[:] = [*inputs, *captured]
    limits = limit or r.constant(hint, np.array(0, np.int64)), condition or r.constant(hint, np.array(True))
    outputs = [name or r.between(hint) for name in node.output]
    rows = after[1 + len(values) :]
    collected = [ValueForm(each.dtype, each.extents[1:] if each.extents else None).with_axis(None) for each in rows]
    if any(each.dtype is None or each.extents is None for each in collected):
        raise OperatorError("the type, or the number of axes, of a value that is collected is not known")
    shapes = [[0, *(n if isinstance(n, int) else 0 for n in (each.extents or ())[1:])] for each in collected]
    empty = [r.constant(hint, np.zeros(shape, each.dtype)) for shape, each in zip(shapes, collected)]
    r.add(
        "ONNXWhile", [*limits, *values, *captured, *empty], outputs, body=net, has_trip_count=int(bool(limit)),
        has_cond=1, captured=len(captured), given_empty=1,
    )  # fmt: skip
    for name, form in zip(outputs, [*forms, *collected]):
        r.declare(name, form)


@reads("Scan")
def _scan(r: Reader, node: Any) -> None:
    """Read a Scan as a Loop, whose body gathers the rows of the step from the sequences."""
    if r.opset < 9:
        raise OperatorError("Scan is supported from opset 9 on")
    found, helper, hint = r.attributes(node), r.library.helper, r.between(node.output[0])
    count = found["num_scan_inputs"]
    states, sequences = node.input[: len(node.input) - count], node.input[len(node.input) - count :]
    axes = [axis % r.rank(name) for axis, name in zip(found.get("scan_input_axes", [0] * count), sequences)]
    backwards = found.get("scan_input_directions", [0] * count)
    extent = r.extents(sequences[0])[axes[0]]
    if isinstance(extent, int):
        steps = r.constant(hint, np.array([extent], np.int64))
    else:
        steps = r.add("Shape", sequences[:1], [r.between(hint)], axes=[axes[0]])
        r.declare(steps, ValueForm(np.dtype(np.int64), (1,)))
    step, back, holds, one = (f"{hint}/{name}" for name in ("step", "back", "holds", "one"))
    r.constants[one] = np.array([1], np.int64)

    body = type(_graphs(node)["body"])()
    body.CopyFrom(_graphs(node)["body"])
    rows = [each.name for each in body.input[len(states) :]]
    nodes = [
        helper.make_node("Sub", [steps, one], [f"{back}/last"]),
        helper.make_node("Sub", [f"{back}/last", step], [f"{back}/row"]),
        helper.make_node("Squeeze", [f"{back}/row"], [back], **({} if r.opset >= 13 else {"axes": [0]})),
    ]
    if r.opset >= 13:
        r.constants[f"{hint}/axes"] = np.array([0], np.int64)
        nodes[2].input.append(f"{hint}/axes")
    nodes, infos = nodes if any(backwards) else [], []
    for row, name, axis, turned in zip(rows, sequences, axes, backwards):
        nodes.append(helper.make_node("Gather", [name, back if turned else step], [row], axis=axis))
        form = r.form_of(name)
        if form.dtype is not None and form.extents is not None:
            extents = [n for i, n in enumerate(form.extents) if i != axis]
            infos.append(helper.make_tensor_value_info(row, helper.np_dtype_to_tensor_dtype(form.dtype), extents))
    nodes.append(helper.make_node("Identity", [holds], [f"{holds}/on"]))
    own = [helper.make_empty_tensor_value_info(name) for name in (step, holds, f"{holds}/on")]
    made = helper.make_graph(
        [*nodes, *body.node], body.name or "body", [*own[:2], *body.input[: len(states)]], [own[2], *body.output],
        list(body.initializer), value_info=[*body.value_info, *infos],
    )  # fmt: skip
    collected = list(node.output[len(states) :])
    out_axes = found.get("scan_output_axes", [0] * len(collected))
    turned_outputs = found.get("scan_output_directions", [0] * len(collected))
    raw = [r.between(hint) if name and (a or b) else name for name, a, b in zip(collected, out_axes, turned_outputs)]
    _loop(r, helper.make_node("Loop", [steps, "", *states], [*node.output[: len(states)], *raw], body=made))
    for source, target, axis, turned in zip(raw, collected, out_axes, turned_outputs):
        if source != target:
            _moved(r, source, target, axis % r.rank(source), turned)


def _moved(r: Reader, source: str, target: str, axis: int, turned: int) -> None:
    """Reverse what the steps have made, and move the axis of the steps."""
    rank = r.rank(source)
    if turned:
        last = np.iinfo(np.int64).max
        source = r.add("Slice", [source], [r.between(target) if axis else target], starts=[last, *[0] * (rank - 1)],
                       ends=[-last, *[last] * (rank - 1)], steps=[-1, *[1] * (rank - 1)])  # fmt: skip
    if axis:
        r.add("Transpose", [source], [target], axes=[*range(1, axis + 1), 0, *range(axis + 1, rank)])
