"""Graphs under construction: scopes, blob references, nets, plans, gradients, shapes, dependencies."""

import typing as _typing

from netbuilder._lazy import names_on_first_use as _names_on_first_use
from netbuilder.graph.blob import (
    BlobReference,
    GradientSlice,
    ScopedBlobReference,
    ScopedName,
    device_prefix,
    gradient_name,
    strip_prefix,
    with_prefix,
)
from netbuilder.graph.defuse import (
    dependencies,
    get_op_ids_in_path,
    get_output_producers,
    get_ssa,
    get_undefined_blobs,
    operators_between,
    undefined_inputs,
)
from netbuilder.graph.gradients import IR, Differentiated, GradientRegistry, differentiate
from netbuilder.graph.net import Net
from netbuilder.graph.net_names import reset_names
from netbuilder.graph.operators import CreateOperator, IsOperator
from netbuilder.graph.plan import (
    ExecutionStep,
    Plan,
    add_nets_in_order,
    execution_step,
    scoped_execution_step,
    to_execution_step,
)
from netbuilder.graph.scope import (
    CurrentDeviceScope,
    CurrentNameScope,
    DeviceScope,
    EmptyDeviceScope,
    EmptyNameScope,
    NameScope,
)
from netbuilder.graph.shapes import InferredShapes, infer_shapes
from netbuilder.graph.source import user_source

__all__ = [
    "IR",
    "BlobReference",
    "CreateOperator",
    "CurrentDeviceScope",
    "CurrentNameScope",
    "DeviceScope",
    "Differentiated",
    "EmptyDeviceScope",
    "EmptyNameScope",
    "ExecutionStep",
    "GradientRegistry",
    "GradientSlice",
    "InferredShapes",
    "IsOperator",
    "NameScope",
    "Net",
    "Plan",
    "ScopedBlobReference",
    "ScopedName",
    "add_nets_in_order",
    "dependencies",
    "device_prefix",
    "differentiate",
    "execution_step",
    "get_op_ids_in_path",
    "get_output_producers",
    "get_ssa",
    "get_undefined_blobs",
    "gradient_name",
    "infer_shapes",
    "operators_between",
    "reset_names",
    "scoped_execution_step",
    "strip_prefix",
    "to_execution_step",
    "undefined_inputs",
    "user_source",
    "with_prefix",
]

if not _typing.TYPE_CHECKING:  # for which all names are known
    __getattr__, __dir__ = _names_on_first_use(__name__, {})
