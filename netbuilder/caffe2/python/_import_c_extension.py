"""``workspace.C``: the names of Caffe2's C extension that scripts use."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from netbuilder.caffe2 import workspaces as workspaces_module
from netbuilder.caffe2.background import BackgroundPlan
from netbuilder.caffe2.blobs import Blob, TensorCPU, feed, from_record, to_record
from netbuilder.caffe2.databases import DB, Cursor, Mode, Transaction, create_db
from netbuilder.caffe2.flags import GlobalInit as global_init
from netbuilder.caffe2.fp_exceptions import check_finite
from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.op_schema import OpSchema
from netbuilder.caffe2.workspaces import CreatedNet as Net
from netbuilder.caffe2.workspaces import Workspace
from netbuilder.data.db_reader import DATABASES
from netbuilder.engines.arrays import gpu_count
from netbuilder.engines.engine import find_engine
from netbuilder.graph.blob import blob_name
from netbuilder.graph.message import message_of
from netbuilder.ops.core.registry import operator_types
from netbuilder.proto import BlobError, DeviceOption, NetDef, NetError, OperatorDef, OperatorError, PlanDef, files
from netbuilder.proto.suggestions import similar
from netbuilder.runtime.execute import default
from netbuilder.runtime.execute.benchmark import benchmark_net as benchmark

__all__ = [
    "DB",
    "Blob",
    "Cursor",
    "Mode",
    "Net",
    "OpSchema",
    "TensorCPU",
    "Transaction",
    "Workspace",
    "benchmark_net",
    "benchmark_net_once",
    "blobs",
    "create_blob",
    "create_db",
    "create_net",
    "current_workspace",
    "define_caffe2_no_operator_schema",
    "delete_net",
    "deserialize_blob",
    "feed_blob",
    "fetch_blob",
    "get_blob_size_bytes",
    "get_build_options",
    "global_init",
    "has_blob",
    "nearby_opnames",
    "nets",
    "num_cuda_devices",
    "registered_dbs",
    "registered_operators",
    "reset_blob",
    "run_net",
    "run_net_once",
    "run_operator_once",
    "run_plan",
    "run_plan_in_background",
    "serialize_blob",
    "switch_workspace",
    "workspaces",
]

_log = logging.getLogger("netbuilder")

has_hip_support = use_rocm = use_trt = is_asan = define_caffe2_no_operator_schema = False
has_fbgemm = True  # scripts check it before they save bfloat16, which is supported

# Computed at first access, because they load libraries.
LAZY: dict[str, Callable[[], Any]] = {
    "has_cuda_support": lambda: gpu_count() > 0,
    "has_gpu_support": lambda: gpu_count() > 0,
    "has_mkldnn": lambda: find_engine("ONEDNN").available(),
    "use_mkldnn": lambda: find_engine("ONEDNN").available(),
}

__getattr__ = names_of(__name__, LAZY)


def num_cuda_devices() -> int:
    """Return the number of usable NVIDIA GPUs."""
    return gpu_count()


def registered_operators() -> list[str]:
    """Return the types of all operators."""
    return operator_types()


def nearby_opnames(name: str) -> list[str]:
    """Return operator types with similar names."""
    return similar(name, operator_types(), 5)


def get_build_options() -> dict[str, str]:
    """Return the build options under Caffe2's names; "" for libraries that are not used."""
    return {
        "USE_CUDA": "ON" if gpu_count() else "OFF",
        "USE_CUDNN": "",
        "USE_MKLDNN": "ON" if find_engine("ONEDNN").available() else "OFF",
        "USE_NNPACK": "",
        "USE_TRT": "",
    }


def registered_dbs() -> list[str]:
    """Return the types of databases that can be read."""
    return sorted(DATABASES)


# Workspaces.


def workspaces() -> list[str]:
    """Return the names of all workspaces."""
    return default.names()


def current_workspace() -> str:
    """Return the name of the current workspace."""
    return default.current_name()


def switch_workspace(name: str, create_if_missing: bool | None = None) -> None:
    """Make a workspace the current one.

    Args:
        name: of the workspace.
        create_if_missing: create it if it does not exist.

    Raises:
        NetError: there is no workspace of this name.
    """
    new = name not in default.names()
    workspace = default.switch(name, create=bool(create_if_missing))
    if new:
        workspace.draw_anew()


# Blobs.


def blobs() -> list[str]:
    """Return the names of the blobs in the current workspace."""
    return default.workspace().blobs()


def has_blob(name: Any) -> bool:
    """Whether the current workspace has a blob of this name."""
    return default.workspace().has(blob_name(name))


def create_blob(name: Any) -> bool:
    """Create an empty blob unless one of this name exists; returns True."""
    default.workspace().make(blob_name(name))
    return True


def reset_blob(name: Any) -> None:
    """Remove a blob's value.

    Raises:
        BlobError: there is no such blob.
    """
    default.workspace().remove(blob_name(name))
    create_blob(name)


def feed_blob(name: Any, arg: Any, device_option: DeviceOption | None = None) -> bool:
    """Set a blob of the current workspace; returns True."""
    return feed(default.workspace(), blob_name(name), arg, device_option)


def fetch_blob(name: Any) -> Any:
    """Return the value of a blob.

    Raises:
        BlobError: there is no such blob, or it has no value.
    """
    return default.workspace().fetch(blob_name(name))


def get_blob_size_bytes(name: Any) -> int:
    """Return the size of a tensor's elements in bytes.

    Raises:
        BlobError: there is no such blob, or it does not hold a tensor.
    """
    spec = default.workspace().spec(blob_name(name))
    if spec is None:
        raise BlobError(f"blob {blob_name(name)!r} does not hold a tensor, so it has no size")
    return spec.nbytes


def serialize_blob(name: Any) -> bytes:
    """Return a tensor as a BlobProto's bytes."""
    return to_record(default.workspace(), blob_name(name), blob_name(name))


def deserialize_blob(name: Any, content: bytes) -> None:
    """Set a blob from the bytes of a BlobProto."""
    from_record(default.workspace(), blob_name(name), content)


# Nets.


def nets() -> list[str]:
    """Return the names of the nets created in the current workspace."""
    return default.workspace().nets()


def create_net(net_def: Any, overwrite: bool = False) -> bool:
    """Make a net ready to run; returns True.

    Args:
        net_def: a Net, a NetDef or its bytes.
        overwrite: replace a net of this name.

    Raises:
        BlobError: the net reads blobs that neither it nor the workspace provides.
        NetError: a net of this name exists, or the net is invalid.
    """
    workspaces_module.create_net(default.workspace(), _message(net_def, NetDef), overwrite)
    return True


def delete_net(name: str) -> bool:
    """Delete a created net; returns True."""
    default.workspace().delete_net(name)
    return True


def run_net(name: str, num_iter: int = 1, allow_fail: bool = False) -> bool:
    """Run a created net.

    Args:
        name: of the net.
        num_iter: number of runs.
        allow_fail: log it and return False, instead of raising, when an operator reports an error; other exceptions,
            such as an IndexError in a Python operator, are raised.
    """
    net = default.workspace().net(name)
    try:
        net.run(num_iter)
        check_finite(net.workspace, net.proto.op)
    except (NetError, OperatorError) as error:
        cause = error.__cause__
        if not allow_fail or not (cause is None or isinstance(cause, (NetError, OperatorError))):
            raise
        _log.error("%s", error)
        return False
    return True


def run_net_once(net_def: Any) -> bool:
    """Run a net, given as Net, NetDef or bytes, without keeping it; returns True."""
    net, workspace = message_of(_message(net_def, NetDef)), default.workspace()
    workspace.run_net_once(net)
    check_finite(workspace, net.op)
    return True


def run_operator_once(op_def: Any) -> bool:
    """Run an operator, given as message or bytes; returns True."""
    op, workspace = _message(op_def, OperatorDef), default.workspace()
    workspace.run_operator_once(op)
    check_finite(workspace, [op])
    return True


def run_plan(plan_def: Any) -> bool:
    """Run a plan, given as Plan, PlanDef or bytes; returns True."""
    default.workspace().run_plan(_message(plan_def, PlanDef))
    return True


def run_plan_in_background(plan_def: Any) -> BackgroundPlan:
    """Run a plan, given as Plan, PlanDef or bytes, in another thread."""
    return BackgroundPlan(default.workspace(), _message(plan_def, PlanDef))


def benchmark_net(name: Any, warmup_runs: int, main_runs: int, run_individual: bool) -> list[float]:
    """Return the mean time of a run of a created net, in milliseconds, followed by the mean time of each operator.

    Args:
        name: of the net.
        warmup_runs: runs before those that are timed.
        main_runs: runs that are timed.
        run_individual: also time the operators one by one; otherwise their times are 0.
    """
    return benchmark(default.workspace(), name, warmup_runs, main_runs, each_operator=run_individual)


def benchmark_net_once(name: Any) -> float:
    """Return the time of one run of a created net, in milliseconds."""
    return benchmark(default.workspace(), name, 0, 1)[0]


def _message(thing: Any, kind: type[Any]) -> Any:
    if isinstance(thing, bytes):
        return files.parse(thing, kind, allow_unknown=True)
    return thing
