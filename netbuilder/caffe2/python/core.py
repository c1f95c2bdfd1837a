"""Nets, blobs, operators, plans and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import netbuilder.caffe2.observers  # noqa: F401  (adds the observer methods to nets)
from netbuilder.caffe2.device_copies import (
    InferOpBlobDevices,
    InferOpBlobDevicesAsDict,
    InferOpDeviceAsBlobDevices,
    InjectCrossDeviceCopies,
    InjectDeviceCopiesAmongNets,
    InjectDeviceCopiesAmongNetsWithoutB2D,
    RemapEntry,
    copy_func_between_devices,
    update_placeholder_op_output,
)
from netbuilder.caffe2.engine_preferences import (
    SetEnginePref,
    SetGlobalEnginePref,
    SetOpEnginePref,
    SetPerOpEnginePref,
)
from netbuilder.caffe2.flags import GetGlobalInitArgs, GlobalInit
from netbuilder.caffe2.immediate import IsImmediate, RunOperatorImmediate
from netbuilder.caffe2.lenient import LenientNet as Net
from netbuilder.caffe2.lenient import build_leniently
from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.missing_names import reason_of
from netbuilder.caffe2.net_records import clone_and_bind_net
from netbuilder.caffe2.python import _import_c_extension as C
from netbuilder.caffe2.python import scope, utils, workspace
from netbuilder.caffe2.python.lazy import TriggerLazyImport
from netbuilder.caffe2.python.scope import DeviceScope
from netbuilder.graph import (
    IR,
    BlobReference,
    ExecutionStep,
    GradientRegistry,
    GradientSlice,
    IsOperator,
    NameScope,
    Plan,
    ScopedBlobReference,
    ScopedName,
    add_nets_in_order,
    execution_step,
    get_op_ids_in_path,
    get_output_producers,
    get_ssa,
    get_undefined_blobs,
    scoped_execution_step,
    to_execution_step,
)
from netbuilder.graph.blob import as_names, blob_name
from netbuilder.graph.blob_devices import blob_devices
from netbuilder.graph.source import user_source
from netbuilder.graph.suggestions import name_reasons
from netbuilder.ops.control.python_op import python_arguments
from netbuilder.ops.core.registry import CPU, GPU, operator_types, prepared_kernels
from netbuilder.ops.core.renaming import rename_blobs, rename_in_subgraphs
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, Argument, OperatorDef, TensorProto
from netbuilder.proto import DeviceOption as _DeviceOption
from netbuilder.proto.arguments import make_device_option
from netbuilder.proto.netbuilder_pb2 import PROTO_HIP

__all__ = [
    "IR",
    "BlobReference",
    "C",
    "CreateOperator",
    "CreatePythonOperator",
    "DataType",
    "DeviceOption",
    "DeviceScope",
    "ExecutionStep",
    "GetGlobalInitArgs",
    "GetIndexFromGradientList",
    "GlobalInit",
    "GradientRegistry",
    "GradientSlice",
    "InferBlobDevices",
    "InferOpBlobDevices",
    "InferOpBlobDevicesAsDict",
    "InferOpDeviceAsBlobDevices",
    "InjectCrossDeviceCopies",
    "InjectDeviceCopiesAmongNets",
    "InjectDeviceCopiesAmongNetsWithoutB2D",
    "IsGPUDeviceType",
    "IsOperator",
    "IsOperatorWithEngine",
    "NameScope",
    "Net",
    "Plan",
    "RefreshRegisteredOperators",
    "RemapEntry",
    "ScopedBlobReference",
    "ScopedName",
    "SetEnginePref",
    "SetGlobalEnginePref",
    "SetOpEnginePref",
    "SetPerOpEnginePref",
    "TriggerLazyImport",
    "add_nets_in_order",
    "clone_and_bind_net",
    "control_op_remap",
    "copy_func_between_devices",
    "device_equal",
    "device_option_equal",
    "execution_step",
    "get_net_name",
    "get_op_ids_in_path",
    "get_output_producers",
    "get_ssa",
    "get_undefined_blobs",
    "output_to_list",
    "recurrent_network_op_remap",
    "remap_input",
    "remap_proto",
    "scoped_execution_step",
    "to_execution_step",
    "scope",
    "update_placeholder_op_output",
    "utils",
    "workspace",
]

_REGISTERED_OPERATORS = set(operator_types())

__getattr__ = names_of(__name__)


def _reason(name: str) -> str:
    """Return why a net, or its model, lacks a name of Caffe2's classes."""
    return reason_of(f"python.core.Net.{name}") or reason_of(f"python.model_helper.ModelHelper.{name}")


name_reasons.append(_reason)


class DataType:
    """The data types, with their numbers in TensorProto.

    >>> DataType.FLOAT, DataType.INT64
    (1, 10)
    """

    UNDEFINED = TensorProto.UNDEFINED
    FLOAT = TensorProto.FLOAT
    INT32 = TensorProto.INT32
    BYTE = TensorProto.BYTE
    STRING = TensorProto.STRING
    BOOL = TensorProto.BOOL
    UINT8 = TensorProto.UINT8
    INT8 = TensorProto.INT8
    UINT16 = TensorProto.UINT16
    INT16 = TensorProto.INT16
    INT64 = TensorProto.INT64
    FLOAT16 = TensorProto.FLOAT16
    DOUBLE = TensorProto.DOUBLE
    ZERO_COLLISION_HASH = TensorProto.ZERO_COLLISION_HASH
    REBATCHING_BUFFER = TensorProto.REBATCHING_BUFFER


def DeviceOption(
    device_type: int,
    device_id: int = 0,
    random_seed: int | None = None,
    node_name: str | None = None,
    numa_node_id: int | None = None,
    extra_info: Sequence[str] | None = None,
) -> _DeviceOption:
    """Return a device.

    Args:
        device_type: ``caffe2_pb2.CPU`` or ``caffe2_pb2.CUDA``.
        device_id: index of the GPU, or of the replica on the CPU.
        random_seed: seed of random operators on this device.
        node_name: the host, in nets for several hosts.
        numa_node_id: kept in the message.
        extra_info: strings kept in the message.

    >>> DeviceOption(1, 2).device_id
    2
    """
    fields = {
        "random_seed": random_seed,
        "node_name": node_name,
        "numa_node_id": numa_node_id,
        "extra_info": extra_info,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    return make_device_option(device_type, device_id, **given)


def CreateOperator(
    operator_type: str,
    inputs: Any,
    outputs: Any,
    name: str = "",
    control_input: Any = None,
    device_option: _DeviceOption | None = None,
    arg: Iterable[Argument] | None = None,
    engine: str | None = None,
    debug_info: str | None = None,
    **kwargs: Any,
) -> OperatorDef:
    """Return an operator without checking it: it is checked when it runs or when its net is created.

    In the immediate mode of ``workspace.StartImmediate`` it also runs now.

    Args:
        operator_type: its type.
        inputs, outputs: a blob (reference or string) or a list of blobs; the name scope is added to strings.
        name, control_input, device_option, arg, engine, debug_info, kwargs: as for the native ``CreateOperator``;
            an argument that the operator does not read is ignored, with an ``IgnoredArgumentWarning``.
    """
    op = build_leniently(
        operator_type,
        as_names(inputs, unnamed=True),
        as_names(outputs, unnamed=True),
        user_source(2) if debug_info is None else debug_info,
        OperatorDef(),
        name=name,
        control_input=control_input,
        device_option=device_option,
        arg=arg,
        engine=engine,
        **kwargs,
    )
    if IsImmediate():
        RunOperatorImmediate(op)
    return op


def IsGPUDeviceType(device_type: int) -> bool:
    """Whether a device type is a GPU."""
    return device_type in (PROTO_CUDA, PROTO_HIP)


def IsOperatorWithEngine(op_type: str, engine: str) -> bool:
    """Whether an operator exists and has a kernel with this engine; "" and "DEFAULT" mean any engine."""
    if not IsOperator(op_type) or engine in ("", "DEFAULT"):
        return IsOperator(op_type)
    return any(kernel.engine == engine for device in (CPU, GPU) for kernel in prepared_kernels(op_type, device))


def _GetRegisteredOperators() -> set[str]:
    """Return the names of all operators."""
    return set(operator_types())


def RefreshRegisteredOperators(trigger_lazy: bool = True) -> None:
    """Update the set of registered operators; netbuilder's own are registered from the start.

    Args:
        trigger_lazy: first try to load the libraries that ``lazy_dyndep`` was given.
    """
    if trigger_lazy:
        TriggerLazyImport()
    _REGISTERED_OPERATORS.update(operator_types())


def CreatePythonOperator(
    f: Any,
    inputs: Any,
    outputs: Any,
    grad_f: Any = None,
    pass_workspace: bool = False,
    python_func_type: Any = None,
    *args: Any,
    **kwargs: Any,
) -> OperatorDef:
    """Return an operator that calls Python functions.

    Args:
        f, grad_f, python_func_type, pass_workspace: as for ``Net.Python``.
        inputs, outputs: blobs.
        args, kwargs: further arguments of ``CreateOperator``.
    """
    arguments = python_arguments(f, grad_f, python_func_type, pass_workspace, must_fill=False)
    create: Callable[..., OperatorDef] = CreateOperator
    return create("Python", inputs, outputs, *args, **arguments, **kwargs)


def InferBlobDevices(net: Net) -> dict[str, _DeviceOption]:
    """Return the device of each blob: that of the first operator that reads or writes it."""
    return blob_devices([net.Proto()])


def GetIndexFromGradientList(g_list: Iterable[Any], name: Any) -> int | None:
    """Return the index of a blob in a list of dense or sparse gradients (as their indices or values), or None."""
    for index, gradient in enumerate(g_list):
        if gradient == name or isinstance(gradient, tuple) and name in gradient:
            return index
    return None


def get_net_name(netlike: Any) -> Any:
    """Return the name of a net, given as Net, NetDef or string; anything else is returned unchanged."""
    return workspace.GetNetName(netlike)


def output_to_list(op_output: Any) -> list[Any]:
    """Return the result of adding an operator, one reference or several, as a list."""
    return list(op_output) if isinstance(op_output, (list, tuple)) else [op_output]


def remap_input(op: OperatorDef, blob_name_remapping: Mapping[Any, Any]) -> None:
    """Rename inputs of an operator.

    Args:
        op: changed in place.
        blob_name_remapping: old blob -> new blob.
    """
    names = {blob_name(old): blob_name(new) for old, new in blob_name_remapping.items()}
    op.input[:] = [names.get(blob, blob) for blob in op.input]


def recurrent_network_op_remap(op: OperatorDef, prefix: str, blob_remap: Mapping[Any, Any]) -> None:
    """Rename blobs in the step nets and arguments of a recurrent operator; ``Clone`` does this automatically.

    Args:
        op: changed in place, except for its inputs and outputs.
        prefix: not used, as in Caffe2.
        blob_remap: old blob -> new blob.
    """
    rename_in_subgraphs(op, {blob_name(old): blob_name(new) for old, new in blob_remap.items()})


def control_op_remap(op: OperatorDef, prefix: str, blob_remap: Mapping[Any, Any]) -> None:
    """Rename blobs in the subnets of an If, While or Do; see ``recurrent_network_op_remap``."""
    recurrent_network_op_remap(op, prefix, blob_remap)


def remap_proto(argument: Argument, blob_remap: Mapping[Any, Any]) -> None:
    """Rename blobs in the net of an operator's argument.

    Args:
        argument: changed in place.
        blob_remap: old blob -> new blob.
    """
    rename_blobs(argument.n, {blob_name(old): blob_name(new) for old, new in blob_remap.items()})


def device_equal(src: _DeviceOption, dst: _DeviceOption) -> bool:
    """Whether two options name the same device on the same host."""
    return _place(src) == _place(dst)


def device_option_equal(
    opt1: _DeviceOption | None,
    opt2: _DeviceOption | None,
    ignore_node_name: bool = True,
    ignore_random_seed: bool = True,
) -> bool:
    """Whether two options name the same device; the CPU's id is not compared, and None equals only None.

    Args:
        opt1, opt2: the options.
        ignore_node_name, ignore_random_seed: do not compare these fields.
    """
    if opt1 is None or opt2 is None:
        return opt1 is opt2
    return (
        opt1.device_type == opt2.device_type
        and (opt1.device_type == PROTO_CPU or opt1.device_id == opt2.device_id)
        and (ignore_node_name or opt1.node_name == opt2.node_name)
        and (ignore_random_seed or opt1.random_seed == opt2.random_seed)
    )


def _place(option: _DeviceOption) -> tuple[int, int, str]:
    return option.device_type, option.device_id, option.node_name
