"""What the drawing of a net shows: operators, those of replicas once, and the blobs between them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from netbuilder.graph.blob import blob_name
from netbuilder.graph.defuse import undefined_inputs
from netbuilder.graph.drawing.boxes import BACKWARD, FORWARD, UPDATES, Blob, Box
from netbuilder.graph.drawing.folding import Fold, find_folds, kind_of, scope_folds
from netbuilder.graph.drawing.replicas import first_copies
from netbuilder.graph.listing import argument_items, listing, net_arguments
from netbuilder.graph.message import message_of
from netbuilder.graph.shapes import InferredShapes, infer_shapes
from netbuilder.graph.versions import EXTERNAL, Versions, number_versions
from netbuilder.ops.core.operator import STRING
from netbuilder.proto import PROTO_CPU, DeviceOption, NetDef, NetError, OperatorDef
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Drawing", "drawing_of"]

_MANY = 150  # boxes


@dataclass(frozen=True)
class Drawing:
    """What is drawn of a net.

    Args:
        name: of the net.
        operators: their number; those of replicas, which share a box, are counted, too.
        lanes: the devices.
        columns: whether each device has columns of its own.
        boxes: the operators, in their order.
        blobs: their inputs and outputs.
        folds: blocks of operators that are repeated.
        scopes: the operators of name scopes.
        by_scope: whether name scopes are folded, and not repeated blocks; a button of the page changes it.
        missing: external inputs with unknown shapes on which other shapes depend.
        problem: why shapes contradict each other, in which case none is shown; "" if they do not.
    """

    name: str
    operators: int
    lanes: list[str]
    columns: bool
    boxes: list[Box]
    blobs: list[Blob]
    folds: list[Fold]
    scopes: list[Fold]
    by_scope: bool
    missing: list[str]
    problem: str


def drawing_of(
    net: Any,
    blob_specs: Mapping[Any, Any] | None = None,
    init_net: Any = None,
    *,
    inputs: Collection[str] | None = None,
    columns: bool = False,
    by_scope: bool | None = None,
) -> Drawing:
    """Return what is drawn of a net.

    Args:
        net: a Net or NetDef.
        blob_specs: shapes of external inputs, as for ``netbuilder.graph.infer_shapes``.
        init_net: makes the parameters; their shapes are inferred from it.
        inputs: external inputs that are drawn as such, and not as parameters of operators; None: those that the init
            net does not make, or, without one, those with given shapes.
        columns: draw each device in columns of its own; otherwise what several compute alike has one box.
        by_scope: fold name scopes, such as ``tower/block1``; False: repeated blocks. None: name scopes if that many
            boxes would be drawn otherwise that nobody looks at all of them, and fewer are with them.

    If shapes contradict each other, the drawing has none, and ``problem`` says why.
    """
    message: NetDef = message_of(net)
    versions = number_versions(message.op)
    shapes, problem = _shapes(message, blob_specs, init_net)
    blobs = _blobs(versions, shapes, _inputs(message, blob_specs, init_net) if inputs is None else inputs)
    lanes: dict[str, int] = {}
    boxes = _boxes(message, versions, lanes)
    known = all(blob.shape for blob in blobs)
    missing = [] if known or problem else _missing(message, shapes, init_net)
    if not columns:
        boxes, blobs = _merged(boxes, blobs)
    folds, scopes = find_folds(boxes, blobs), scope_folds(boxes, _scopes(boxes, blobs))
    if by_scope is None:
        by_scope = bool(scopes) and _left(boxes, folds) > max(_MANY, _left(boxes, scopes))
    return Drawing(
        message.name, len(message.op), list(lanes), columns, boxes, blobs, folds, scopes, by_scope, missing, problem
    )


def _left(boxes: Sequence[Box], folds: Sequence[Fold]) -> int:
    """Return how many boxes are drawn if all blocks are folded."""
    return len(boxes) - len({index for fold in folds for index in fold.others})


def _scopes(boxes: Sequence[Box], blobs: Sequence[Blob]) -> list[str]:
    """Return the name scope of each box: that of its first output."""
    return [blobs[box.outputs[0]].name.rpartition("/")[0] if box.outputs else "" for box in boxes]


def _blobs(versions: Versions, shapes: InferredShapes, fed: Collection[str]) -> list[Blob]:
    found = []
    for name, writer in zip(versions.names, versions.writers):
        is_fed = writer == EXTERNAL and name in fed
        found.append(Blob(name, _shape_text(shapes, name), writer, _nbytes(shapes, name), is_fed))
    return found


def _boxes(net: NetDef, versions: Versions, lanes: dict[str, int]) -> list[Box]:
    """Return a box for each operator; ``lanes`` gets the devices in the order of their appearance."""
    boxes = []
    for index, (op, part) in enumerate(zip(net.op, _parts(net.op, versions))):
        device = op.device_option if op.HasField("device_option") else net.device_option
        lane = lanes.setdefault(_device_name(device), len(lanes))
        boxes.append(
            Box(index, op.type, op.name, op.debug_info, lane, part, versions.inputs[index], versions.outputs[index],
                _arguments(op))
        )  # fmt: skip
    return boxes


def _parts(ops: Sequence[OperatorDef], versions: Versions) -> list[int]:
    """Return the part of each operator: the backward pass has what gradient operators read, such as sums of shares."""
    begin = next((index for index, op in enumerate(ops) if op.is_gradient_op), len(ops))
    parts = [FORWARD] * begin
    read: set[int] = set()  # values that the rest of the backward pass reads
    for index in reversed(range(begin, len(ops))):
        is_backward = ops[index].is_gradient_op or not read.isdisjoint(versions.outputs[index])
        parts.insert(begin, BACKWARD if is_backward else UPDATES)
        if is_backward:
            read.update(versions.inputs[index])
    return parts


def _arguments(op: OperatorDef) -> dict[str, str]:
    found = dict(item for item in argument_items(op) if item[0] != "device_option")
    return found | {name: listing(held, devices=False) for name, held in net_arguments(op)}


def _merged(boxes: Sequence[Box], blobs: Sequence[Blob]) -> tuple[list[Box], list[Blob]]:
    """Return one box for the operators that compute the same on several devices, and the blobs that boxes have."""
    sources = [[blobs[value].writer for value in box.inputs if blobs[value].writer != EXTERNAL] for box in boxes]
    first = first_copies([box.lane for box in boxes], [kind_of(box, blobs) for box in boxes], sources)
    kept = [index for index, of in enumerate(first) if of == index]
    place = {index: number for number, index in enumerate(kept)}
    used = sorted({value for index in kept for value in (*boxes[index].inputs, *boxes[index].outputs)})
    number = {value: new for new, value in enumerate(used)}
    copies = [-1] * len(boxes)
    for of in first:
        copies[of] += 1
    merged = [
        replace(
            boxes[index],
            inputs=[number[value] for value in boxes[index].inputs],
            outputs=[number[value] for value in boxes[index].outputs],
            copies=copies[index],
        )
        for index in kept
    ]
    written = (blobs[value] for value in used)
    return merged, [
        blob if blob.writer == EXTERNAL else replace(blob, writer=place[first[blob.writer]]) for blob in written
    ]


def _device_name(device: DeviceOption) -> str:
    kind = "CPU" if device.device_type == PROTO_CPU else "GPU"
    host = f"{device.node_name}: " if device.node_name else ""
    return f"{host}{kind} {device.device_id}"


def _inputs(net: NetDef, specs: Mapping[Any, Any] | None, init_net: Any) -> set[str]:
    """Return the inputs that the init net does not make; without one, those with given shapes."""
    if init_net is None:
        return {blob_name(blob) for blob in specs or ()}
    return {*undefined_inputs(net.op)} - _made(init_net)


def _made(init_net: Any) -> set[str]:
    return {blob for op in message_of(init_net).op for blob in op.output}


def _shapes(net: NetDef, specs: Mapping[Any, Any] | None, init_net: Any) -> tuple[InferredShapes, str]:
    """Return the inferred shapes, and \"\"; or no shapes and the reason, if they contradict each other."""
    nets = [net] if init_net is None else [init_net, net]
    try:
        return infer_shapes(nets, specs), ""
    except NetError as error:
        return InferredShapes({}, {}, []), str(error)


def _missing(net: NetDef, shapes: InferredShapes, init_net: Any) -> list[str]:
    """Return the external inputs of unknown shape that the init net does not make.

    Blobs that the init net makes may have no known shape at the end either, if the net overwrites them, as updates do.
    """
    made = set() if init_net is None else _made(init_net)
    return [blob for blob in undefined_inputs(net.op) if blob not in made and shapes.spec(blob) is None]


def _shape_text(shapes: InferredShapes, name: str) -> str:
    spec = shapes.spec(name)
    if spec is None:
        return ""
    extents = " x ".join(map(str, spec.shape)) or "scalar"
    return f"{extents} {spec.dtype.name}"


def _nbytes(shapes: InferredShapes, name: str) -> int:
    """Return the size of a blob; 0 if it is not known, as that of texts and of shapes that depend on data."""
    spec = shapes.spec(name)
    return 0 if spec is None or spec.dtype == STRING else max(0, int(spec.nbytes))
