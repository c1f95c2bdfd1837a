"""Random values for the external inputs of a net."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.graph import Net
from netbuilder.ops.core.registry import find
from netbuilder.proto import NetDef, NetError, OperatorDef
from netbuilder.runtime import Workspace

__all__ = ["fill_random_inputs"]

_TYPES = {
    "float": np.float32,
    "double": np.float64,
    "int": np.int32,
    "int32": np.int32,
    "int64": np.int64,
    "int64_t": np.int64,
    "uint8": np.uint8,
    "uint8_t": np.uint8,
    "uint16": np.uint16,
    "uint16_t": np.uint16,
    "bool": np.bool_,
}


def fill_random_inputs(
    workspace: Workspace, net: Net | NetDef, dims: Sequence[Sequence[Sequence[int]]], types: Sequence[Sequence[str]]
) -> None:
    """Feed every operator input that no earlier operator writes.

    Floats are uniform in [0, 1), integers are 0 or 1; inputs named indices are row indices of the operator's first
    input, and lengths add up to the number of indices (or of rows, if there are no indices).

    Args:
        workspace: where the blobs go.
        net: the net.
        dims: for each operator, the shapes of its inputs.
        types: for each operator, the data types of its inputs, such as "float", "int" or "int64".

    Raises:
        NetError: the number of shapes or types does not match the operators or their inputs, or a type is unknown;
            nothing has been fed.
    """
    ops = net.op if isinstance(net, NetDef) else net.Proto().op
    if not len(ops) == len(dims) == len(types):
        raise NetError(
            f"FillRandomNetworkInputs: the net has {len(ops)} operators, got shapes for {len(dims)} and types for "
            f"{len(types)}"
        )
    generator = np.random.default_rng()
    values: dict[str, Any] = {}
    written: set[str] = set()
    for op, shapes, kinds in zip(ops, dims, types):
        if not len(op.input) == len(shapes) == len(kinds):
            raise NetError(
                f"FillRandomNetworkInputs: {op.type} has the inputs {list(op.input)}, got {len(shapes)} shapes and "
                f"{len(kinds)} types"
            )
        if unknown := [kind for kind in kinds if kind not in _TYPES]:
            raise NetError(f"FillRandomNetworkInputs: {op.type}: types must be among {sorted(_TYPES)}, got {unknown}")
        for name, value in zip(op.input, _draw(generator, op, shapes, kinds)):
            if name not in written:
                values.setdefault(name, value)
        written.update(op.output)
    for name, value in values.items():
        workspace.feed(name, value)


def _draw(
    generator: np.random.Generator, op: OperatorDef, shapes: Sequence[Sequence[int]], kinds: Sequence[str]
) -> list[Any]:
    roles = [name.rstrip("?*+").upper() for name in find(op.type).inputs]
    roles += roles[-1:] * (len(shapes) - len(roles))
    sizes = [int(np.prod(shape)) for shape in shapes]
    rows = shapes[0][0] if shapes and shapes[0] else 1
    segments = next((size for role, size in zip(roles, sizes) if role == "INDICES"), rows)
    drawn = []
    for role, shape, kind, size in zip(roles, shapes, kinds, sizes):
        dtype = np.dtype(_TYPES[kind])
        value: Any
        if role == "INDICES":
            value = generator.integers(0, max(rows, 1), shape)
        elif role == "LENGTHS":
            value = generator.multinomial(segments, np.full(size, 1 / size)).reshape(shape) if size else np.zeros(shape)
        else:
            value = generator.random(shape) if dtype.kind == "f" else generator.integers(0, 2, shape)
        drawn.append(value.astype(dtype))
    return drawn
