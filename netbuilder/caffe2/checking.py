"""Shared by the checkers of operators: running operators on given values in a new workspace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.caffe2.blobs import feed
from netbuilder.graph import infer_shapes
from netbuilder.graph.blob import blob_name
from netbuilder.ops.core.operator import STRING
from netbuilder.proto import DeviceOption, NetDef, OperatorDef, ShapeError
from netbuilder.runtime import Workspace

__all__ = ["check_inferred", "dense_gradient", "input_devices", "numeric_gradient", "run_with", "with_inputs"]


def input_devices(
    op: OperatorDef, device: DeviceOption | None, given: Mapping[str, DeviceOption] | None
) -> dict[str, DeviceOption | None]:
    """Return where each input of an operator is stored: as given, else on the operator's device."""
    others = {blob_name(name): option for name, option in (given or {}).items()}
    return {name: others.get(name, device) for name in op.input}


def with_inputs(values: Mapping[str, Any], devices: Mapping[str, DeviceOption | None]) -> Workspace:
    """Return a new workspace that holds these blobs."""
    workspace = Workspace()
    for name, value in values.items():
        feed(workspace, name, value, devices.get(name))
    return workspace


def run_with(
    values: Mapping[str, Any],
    devices: Mapping[str, DeviceOption | None],
    ops: Iterable[OperatorDef],
    requested: Sequence[str],
) -> list[Any]:
    """Run operators one by one on given blobs; return the requested blobs."""
    workspace = with_inputs(values, devices)
    for op in ops:
        workspace.run_operator_once(op)
    return [workspace.fetch(name) for name in requested]


def dense_gradient(workspace: Workspace, gradient: Any, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return a gradient as an array of the parameter's shape; rows of a sparse one are summed."""
    if not isinstance(gradient, tuple):
        return np.asarray(workspace.fetch(gradient))
    indices, values = (np.asarray(workspace.fetch(part)) for part in gradient)
    result = np.zeros(shape, values.dtype)
    np.add.at(result, indices.reshape(-1), values.reshape(-1, *shape[1:]))
    return result


def numeric_gradient(loss: Any, x: np.ndarray[Any, Any], step: float) -> np.ndarray[Any, Any]:
    """Return the gradient of ``loss(x)`` by central differences with ``step``; ``x`` is unchanged afterwards."""
    result = np.zeros_like(x)
    flat, slope = x.reshape(-1), result.reshape(-1)
    if not x.flags.c_contiguous:
        raise ValueError("numeric_gradient: x must be contiguous")
    for i, before in enumerate(flat.copy()):
        flat[i] = before + step
        above = loss(x)
        flat[i] = before - step
        below = loss(x)
        flat[i] = before
        slope[i] = (above - below) / (2 * step)
    return result


def check_inferred(op: OperatorDef, values: Mapping[str, Any], workspace: Workspace) -> None:
    """Check that the inferred shapes and types of an operator's outputs are the actual ones.

    Raises:
        ShapeError: nothing is inferred for an output, or another shape or type.
    """
    known = {name: np.asarray(value) for name, value in values.items()}
    found = infer_shapes([NetDef(op=[op])], known)
    for name in op.output:
        spec, made = found.spec(name), workspace.spec(name)
        if made is None or spec is not None and spec.dtype == STRING:
            continue
        if spec is None or spec.shape != made.shape or spec.dtype != made.dtype:
            raise ShapeError(f"{op.type}: output {name!r} is {made}, but is inferred to be {spec}")
