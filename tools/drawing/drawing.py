"""Layout of the drawing of a net: a lane for each device, time downwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from netbuilder.graph.defuse import undefined_inputs
from netbuilder.graph.listing import argument_items, listing, net_arguments
from netbuilder.graph.message import message_of
from netbuilder.graph.shapes import InferredShapes, infer_shapes
from netbuilder.graph.versions import EXTERNAL, Versions, number_versions
from netbuilder.ops.core.operator import STRING
from netbuilder.proto import PROTO_CPU, DeviceOption, NetDef, NetError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.tools.drawing.boxes import Blob, Box
from netbuilder.tools.drawing.folding import Fold, find_folds

__all__ = ["Drawing", "lay_out"]


@dataclass(frozen=True)
class Drawing:
    """A net laid out.

    Args:
        name: of the net.
        lanes: the devices.
        boxes: the operators, in their order.
        blobs: their inputs and outputs.
        folds: blocks of operators that are repeated.
        missing: external inputs with unknown shapes on which other shapes depend.
        problem: why shapes contradict each other, in which case none is shown; "" if they do not.
    """

    name: str
    lanes: list[str]
    boxes: list[Box]
    blobs: list[Blob]
    folds: list[Fold]
    missing: list[str]
    problem: str


def lay_out(net: Any, blob_specs: Mapping[Any, Any] | None = None, init_net: Any = None) -> Drawing:
    """Lay out a net.

    An operator is drawn below the earlier ones in its lane, and below those that write its inputs.

    Args:
        net: a Net or NetDef.
        blob_specs: shapes of external inputs, as for ``netbuilder.graph.infer_shapes``.
        init_net: makes the parameters; their shapes are inferred from it.

    If shapes contradict each other, the drawing has none, and ``problem`` says why.
    """
    message: NetDef = message_of(net)
    versions = number_versions(message.op)
    shapes, problem = _shapes(message, blob_specs, init_net)
    blobs = [
        Blob(name, _shape_text(shapes, name), versions.writers[value], _nbytes(shapes, name))
        for value, name in enumerate(versions.names)
    ]
    lanes: dict[str, int] = {}
    rows: list[int] = []
    free: list[int] = []
    boxes = []
    for index, op in enumerate(message.op):
        device = op.device_option if op.HasField("device_option") else message.device_option
        lane = lanes.setdefault(_device_text(device), len(lanes))
        free.extend([0] * (lane + 1 - len(free)))
        row = max([free[lane], *_rows_below(versions, rows, index)])
        rows.append(row)
        free[lane] = row + 1
        arguments = dict(item for item in argument_items(op) if item[0] != "device_option")
        arguments.update((name, listing(held, devices=False)) for name, held in net_arguments(op))
        boxes.append(
            Box(op.type, op.name, op.debug_info, lane, row, versions.inputs[index], versions.outputs[index],
                arguments, bool(op.is_gradient_op))
        )  # fmt: skip
    known = all(blob.shape for blob in blobs)
    missing = [] if known or problem else _missing(message, shapes, init_net)
    return Drawing(message.name, list(lanes), boxes, blobs, find_folds(boxes, blobs), missing, problem)


def _rows_below(versions: Versions, rows: list[int], index: int) -> list[int]:
    writers = (versions.writers[value] for value in versions.inputs[index])
    return [rows[writer] + 1 for writer in writers if writer != EXTERNAL]


def _device_text(device: DeviceOption) -> str:
    kind = "CPU" if device.device_type == PROTO_CPU else "GPU"
    host = f"{device.node_name}: " if device.node_name else ""
    return f"{host}{kind} {device.device_id}"


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
    made = set() if init_net is None else {blob for op in message_of(init_net).op for blob in op.output}
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
