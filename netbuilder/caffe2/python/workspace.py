"""The current workspace: feed and fetch blobs, run operators, nets and plans."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from netbuilder.caffe2.background import BackgroundPlan
from netbuilder.caffe2.costs import Cost, GetOperatorCost, InferShapesAndTypes
from netbuilder.caffe2.flags import GlobalInit
from netbuilder.caffe2.gpus import GetCUDAVersion, GetCuDNNVersion, GetDeviceProperties, GetGPUMemoryInfo
from netbuilder.caffe2.immediate import (
    FeedImmediate,
    FetchImmediate,
    ImmediateBlobs,
    IsImmediate,
    RunOperatorImmediate,
    StartImmediate,
    StopImmediate,
    immediate_root_folder,
)
from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.predicting import Predictor
from netbuilder.caffe2.python import _import_c_extension as C
from netbuilder.caffe2.python.lazy import TriggerLazyImport
from netbuilder.caffe2.random_inputs import fill_random_inputs
from netbuilder.caffe2.transforms import apply_transform, apply_transform_if_faster
from netbuilder.engines.arrays import gpu_count
from netbuilder.engines.peers import can_access_peer
from netbuilder.graph import ExecutionStep, Net, Plan
from netbuilder.graph.blob import blob_name
from netbuilder.graph.scope import CurrentDeviceScope, CurrentNameScope
from netbuilder.proto import PROTO_CUDA, DeviceOption, NetDef, NetError
from netbuilder.runtime.execute import default

__all__ = [
    "ApplyTransform",
    "ApplyTransformIfFaster",
    "BenchmarkNet",
    "BenchmarkNetOnce",
    "Blobs",
    "C",
    "Cost",
    "CreateBlob",
    "CreateNet",
    "CurrentWorkspace",
    "DeserializeBlob",
    "FeedBlob",
    "FeedImmediate",
    "FetchBlob",
    "FetchBlobs",
    "FetchImmediate",
    "FillRandomNetworkInputs",
    "GetBlobSizeBytes",
    "GetCUDAVersion",
    "GetCuDNNVersion",
    "GetDeviceProperties",
    "GetGPUMemoryInfo",
    "GetGpuPeerAccessPattern",
    "GetNameScope",
    "GetNetName",
    "GetOperatorCost",
    "GlobalInit",
    "HasBlob",
    "ImmediateBlobs",
    "InferShapesAndTypes",
    "IsImmediate",
    "NumCudaDevices",
    "NumGpuDevices",
    "Predictor",
    "RegisteredOperators",
    "RemoveBlob",
    "ResetBlob",
    "ResetWorkspace",
    "RootFolder",
    "RunNet",
    "RunNetOnce",
    "RunOperatorImmediate",
    "RunOperatorMultiple",
    "RunOperatorOnce",
    "RunOperatorsOnce",
    "RunPlan",
    "RunPlanInBackground",
    "SerializeBlob",
    "StartImmediate",
    "StopImmediate",
    "StringifyBlobName",
    "StringifyNetName",
    "StringifyProto",
    "SwitchWorkspace",
    "TriggerLazyImport",
    "Workspace",
    "WorkspaceGuard",
    "Workspaces",
]

_refuse = names_of(__name__, C.LAZY)


def __getattr__(name: str) -> Any:
    return immediate_root_folder() if name == "_immediate_root_folder" else _refuse(name)


BenchmarkNet = C.benchmark_net
BenchmarkNetOnce = C.benchmark_net_once
Blobs = C.blobs
CreateBlob = C.create_blob
CurrentWorkspace = C.current_workspace
DeserializeBlob = C.deserialize_blob
GetBlobSizeBytes = C.get_blob_size_bytes
HasBlob = C.has_blob
NumCudaDevices = NumGpuDevices = C.num_cuda_devices
RegisteredOperators = C.registered_operators
ResetBlob = C.reset_blob
SerializeBlob = C.serialize_blob
SwitchWorkspace = C.switch_workspace
Workspace = C.Workspace
Workspaces = C.workspaces

has_hip_support = is_asan = False
has_fbgemm = True  # scripts check it before they save bfloat16, which is supported
GpuDeviceType = PROTO_CUDA


# Names.


def GetNameScope() -> str:
    """Return the current name scope, as a prefix."""
    return CurrentNameScope()


def StringifyBlobName(name: Any) -> str:
    """Return the name of a blob, given as a reference or string."""
    return blob_name(name)


def StringifyNetName(name: Any) -> str:
    """Return the name of a net, given as Net, NetDef or string.

    Raises:
        NetError: ``name`` is none of these.
    """
    if isinstance(name, (Net, NetDef, str, bytes)):
        return GetNetName(name)
    raise NetError(f"StringifyNetName: the net must be a string, a Net or a NetDef, got {name!r}")


def GetNetName(net: Any) -> str:
    """Return the name of a net, given as Net, NetDef or string."""
    if isinstance(net, bytes):
        return net.decode()
    return net.Name() if isinstance(net, Net) else net.name if isinstance(net, NetDef) else net


def StringifyProto(obj: Any) -> Any:
    """Return the bytes of a message or of an object with ``Proto()``; strings and bytes are returned unchanged.

    Raises:
        NetError: ``obj`` is none of these.
    """
    if isinstance(obj, (str, bytes)):
        return obj
    proto = obj.Proto() if hasattr(obj, "Proto") else obj
    if not hasattr(proto, "SerializeToString"):
        raise NetError(f"StringifyProto: the object must be a message, have Proto() or be a string, got {obj!r}")
    return proto.SerializeToString()


# Workspaces.


def ResetWorkspace(root_folder: str | None = None) -> bool:
    """Remove all blobs and nets of the current workspace; returns True.

    Random operators without a seed draw other numbers from now on.

    Args:
        root_folder: the new ``RootFolder``, created if it does not exist; None: the current directory.
    """
    if root_folder is not None:
        os.makedirs(root_folder, exist_ok=True)
    C.Workspace.current.reset()
    default.workspace().root_folder = os.fspath(root_folder) if root_folder is not None else "."
    return True


def RootFolder() -> str:
    """Return the root folder that ``ResetWorkspace`` set for the current workspace."""
    return default.workspace().root_folder


@contextmanager
def WorkspaceGuard(workspace_name: str) -> Iterator[None]:
    """Use another workspace inside the block, created if it does not exist."""
    before = C.current_workspace()
    C.switch_workspace(workspace_name, True)
    try:
        yield
    finally:
        C.switch_workspace(before)


# Blobs.


def FeedBlob(name: Any, arr: Any, device_option: DeviceOption | None = None) -> bool:
    """Set a blob of the current workspace; returns True.

    Args:
        name: the blob, a reference or a string; the name scope is not added.
        arr: an array, also of strings; a string, bytes, a number or a TensorProto.
        device_option: where to store it; None: on the device of the current device scope.

    Raises:
        NetError: NumPy cannot convert the value to an array, or its data type is not supported.
        DeviceError: the device is not available.
    """
    return C.feed_blob(name, arr, CurrentDeviceScope() if device_option is None else device_option)


def FetchBlob(name: Any) -> Any:
    """Return the value of a blob: a copy as array, bytes, or the object.

    Raises:
        BlobError: there is no such blob, or it has no value.
    """
    return C.fetch_blob(name)


def FetchBlobs(names: Iterable[Any]) -> list[Any]:
    """Return the values of several blobs."""
    return [C.fetch_blob(name) for name in names]


def RemoveBlob(name: Any) -> None:
    """Remove a blob.

    Raises:
        BlobError: there is no such blob.
    """
    default.workspace().remove(blob_name(name))


class _BlobDict(MutableMapping[str, Any]):
    """The blobs of the current workspace: ``blobs["x"]`` fetches, ``blobs["x"] = array`` feeds."""

    def __getitem__(self, key: Any) -> Any:
        return FetchBlob(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        FeedBlob(key, value)

    def __delitem__(self, key: Any) -> None:
        RemoveBlob(key)

    def __contains__(self, key: object) -> bool:
        return HasBlob(key)

    def get(self, key: Any, default: Any = None) -> Any:
        return FetchBlob(key) if key in self else default

    def __iter__(self) -> Iterator[str]:
        return iter(Blobs())

    def __len__(self) -> int:
        return len(Blobs())


blobs = _BlobDict()


# Operators, nets and plans.


def CreateNet(net: Any, overwrite: bool = False, input_blobs: Iterable[Any] | None = None) -> bool:
    """Compile a copy of a net, ready to run; returns True.

    Args:
        net: a Net, a NetDef or its bytes.
        overwrite: replace a net of this name.
        input_blobs: blobs to create empty first, so that they can be fed after the net is created.

    Raises:
        NetError: a net of this name exists, or the net is invalid.
    """
    TriggerLazyImport()
    for name in input_blobs or ():
        C.create_blob(name)
    return C.create_net(net, overwrite)


def RunNet(name: Any, num_iter: int = 1, allow_fail: bool = False) -> bool:
    """Run a created net.

    Args:
        name: a string, a Net or a NetDef.
        num_iter: number of runs.
        allow_fail: return False, instead of raising, when an operator fails.

    Returns:
        True, or False if an operator failed and ``allow_fail`` is set.

    Raises:
        NetError: there is no such net, or an operator failed.
    """
    return C.run_net(StringifyNetName(name), num_iter, allow_fail)


def RunNetOnce(net: Any) -> bool:
    """Run a net without keeping it; returns True.

    Args:
        net: a Net, a NetDef or its bytes.
    """
    return C.run_net_once(net)


def RunOperatorOnce(operator: Any) -> bool:
    """Run one operator, given as a message or its bytes; returns True."""
    return C.run_operator_once(operator)


def RunOperatorsOnce(operators: Iterable[Any]) -> bool:
    """Run operators one after the other; returns True."""
    for operator in operators:
        C.run_operator_once(operator)
    return True


def RunOperatorMultiple(operator: Any, num_runs: int) -> bool:
    """Run one operator ``num_runs`` times; returns True."""
    return RunOperatorsOnce([operator] * num_runs)


def RunPlan(plan_or_step: Any) -> bool:
    """Create the nets of a plan and run its steps; returns True.

    Args:
        plan_or_step: a Plan, a PlanDef or its bytes, or a single ExecutionStep.
    """
    return C.run_plan(_as_plan(plan_or_step))


def RunPlanInBackground(plan_or_step: Any) -> BackgroundPlan:
    """Run a plan in another thread, in the current workspace; return an object that tells whether it is done.

    Args:
        plan_or_step: see ``RunPlan``.
    """
    return C.run_plan_in_background(_as_plan(plan_or_step))


def _as_plan(plan_or_step: Any) -> Any:
    return Plan(plan_or_step) if isinstance(plan_or_step, ExecutionStep) else plan_or_step


def FillRandomNetworkInputs(
    net: Any, input_dims: Sequence[Sequence[Sequence[int]]], input_types: Sequence[Sequence[str]]
) -> None:
    """Feed random values to the external inputs of a net's operators.

    Args:
        net: a Net.
        input_dims: for each operator, the shapes of its inputs.
        input_types: for each operator, the data types of its inputs: "float", "double", "int", "int64", "bool", ...

    Raises:
        NetError: the numbers of shapes and types do not match the net, or a type is unknown.
    """
    fill_random_inputs(default.workspace(), net, input_dims, input_types)


def ApplyTransform(transform_key: str, net: NetDef) -> NetDef:
    """Return a net transformed by a registered transformation: ConvToNNPack.

    Raises:
        NetError: there is no such transformation.
    """
    return apply_transform(transform_key, net)


def ApplyTransformIfFaster(transform_key: str, net: NetDef, init_net: NetDef, **kwargs: Any) -> NetDef:
    """Return the transformed net if it runs faster in the current workspace, else a copy of the net.

    Args:
        transform_key: see ``ApplyTransform``.
        net: the net.
        init_net: run first, to fill the net's inputs.
        kwargs: ``warmup_runs`` (5), runs before the timing; ``main_runs`` (10), timed runs;
            ``improvement_threshold`` (1.01), required speed-up.

    Raises:
        NetError: there is no such transformation.
        TypeError: a keyword is unknown.
    """
    options = {"warmup_runs": 5, "main_runs": 10, "improvement_threshold": 1.01}
    if unknown := kwargs.keys() - options.keys():
        raise TypeError(f"ApplyTransformIfFaster: keywords must be among {sorted(options)}, got {sorted(unknown)}")
    options.update(kwargs)
    return apply_transform_if_faster(
        default.workspace(),
        transform_key,
        net,
        init_net,
        int(options["warmup_runs"]),
        int(options["main_runs"]),
        options["improvement_threshold"],
    )


# GPUs.


def GetGpuPeerAccessPattern() -> np.ndarray[Any, Any]:
    """Return a matrix of bools: whether GPU i can read the memory of GPU j."""
    gpus = range(gpu_count())
    return np.array([[can_access_peer(i, j) for j in gpus] for i in gpus])
