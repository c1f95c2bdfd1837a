"""Data-parallel models for tests: golden ones rebuilt, small ones, and how they are trained."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import golden_data
from golden_builders import ROWS_READ, TABLE_COLUMNS, names_of_calls
from netbuilder import graph, optimizers, parallel
from netbuilder.caffe2.python import data_parallel_model
from netbuilder.graph.net_names import reset_names
from netbuilder.model import ModelHelper
from netbuilder.optimizers import reset_optimizer_instance_count
from netbuilder.proto.arguments import make_device_option
from netbuilder.runtime import Workspace
from toy_models import mlp

__all__ = [
    "OPTIMIZERS",
    "Task",
    "distance",
    "golden_parallel",
    "in_float64",
    "no_input",
    "parallelize",
    "train",
]

OPTIMIZERS: dict[str, Callable[[ModelHelper], Any]] = {
    "sgd": lambda model: optimizers.build_sgd(model, 0.1),
    "momentum": lambda model: optimizers.build_sgd(model, 0.1, momentum=0.9, nesterov=1),
    "adagrad": lambda model: optimizers.build_adagrad(model, 0.05),
    "adam": lambda model: optimizers.build_adam(model, 0.01),
    "rms_prop": lambda model: optimizers.build_rms_prop(model, 0.01),
}


def no_input(model: ModelHelper) -> None:
    """Add nothing: tests feed the blobs of a batch."""


@dataclass
class Task:
    """What to train: a forward builder, and batches of the whole.

    Args:
        forward: as ``Parallelize`` takes it.
        shape: of the data, with the batch.
        steps: how many batches.
        options: further arguments of ``Parallelize``.
        seed: of the batches.
    """

    forward: Callable[[ModelHelper, float], list[Any]] = mlp
    shape: Sequence[int] = (24, 6)
    steps: int = 4
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 7

    def batches(self, dtype: Any = np.float32) -> Iterator[dict[str, np.ndarray]]:
        rng = np.random.default_rng(self.seed)
        for _ in range(self.steps):
            data = rng.normal(size=self.shape)
            yield {"data": data.astype(dtype), "label": rng.integers(0, 4, self.shape[0]).astype(np.int32)}


def parallelize(
    devices: Sequence[int], forward: Any = mlp, optimizer: Any = OPTIMIZERS["sgd"], name: str = "net", **options: Any
) -> tuple[ModelHelper, parallel.Replicas]:
    """Return a model on CPU replicas, and its record."""
    model = ModelHelper(name)
    record = parallel.Parallelize_CPU(
        model, no_input, forward, optimizer_builder_fun=optimizer, devices=list(devices), **options
    )
    return model, record


def train(
    devices: Sequence[int],
    optimizer: Any = OPTIMIZERS["sgd"],
    task: Task | None = None,
    *,
    prepare: Callable[[Workspace], None] | None = None,
    dtype: Any = np.float32,
    seed: int = 0,
    threads: int = 2,
) -> tuple[ModelHelper, parallel.Replicas, Workspace]:
    """Train on CPU replicas, each batch split over them in order.

    Args:
        prepare: called with the workspace once the init net has run.
        threads: of the workspace, distributed over the lanes.
    """
    task = task or Task()
    model, record = parallelize(devices, task.forward, optimizer, **task.options)
    workspace = Workspace(threads=threads, seed=seed)
    for number, batch in enumerate(task.batches(dtype)):
        for name, whole in batch.items():
            for blob, part in zip(record.devices.copies(name), np.split(whole, len(record))):
                workspace.feed(blob, part)
        if number == 0:
            parallel.RunInitNet(model, workspace=workspace)
            if prepare is not None:
                prepare(workspace)
        parallel.RunNet(model, workspace=workspace)
    return model, record, workspace


def in_float64(workspace: Workspace) -> None:
    """Convert all values in float32 to float64."""
    for name in workspace.blobs():
        spec = workspace.spec(name)
        if spec is not None and spec.dtype == np.float32:
            workspace.feed(name, workspace.fetch(name).astype(np.float64))


def distance(got: Sequence[Any], want: Sequence[Any]) -> float:
    """Return ||got - want|| / max(||want||, 1e-6 sqrt(n)) over all arrays together."""
    a, b = (np.concatenate([np.ravel(array).astype(np.float64) for array in arrays]) for arrays in (got, want))
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-6 * np.sqrt(b.size)))


def golden_parallel(name: str) -> tuple[ModelHelper, parallel.Replicas]:
    """Rebuild a golden data-parallel net, as in a fresh process; return the model and its record."""
    golden = golden_data.net(name)
    space = names_of_calls(core=_Core, caffe2_pb2=_Core)
    for source in golden.meta["source"]:
        exec(textwrap.dedent(source), space)
    reset_names()
    reset_optimizer_instance_count()
    model = ModelHelper(name, arg_scope={"order": "NCHW"})
    kept: dict[str, Any] = {}
    if "before_np" in space:
        space["before_np"](model, kept)
    builders = {
        "optimizer_builder_fun": None if "param_update" in space else _optimizer(golden),
        "param_update_builder_fun": space.get("param_update"),
    }
    options: dict[str, Any] = {"cpu_device": not name.startswith("gpu_"), "devices": list(range(_devices(golden)))}
    if name.endswith("shared_model"):
        options["shared_model"] = True
    if name.endswith("combine_bn"):
        options["combine_spatial_bn"] = True
    if name.endswith("nccl"):
        options["use_nccl"] = True
    if name.startswith("gpu_"):
        options["peer_access"] = lambda reader, owner: not name.endswith("no_peer_access")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "GPUs .* are not on this machine")
        record = data_parallel_model.Parallelize(model, no_input, _forward(name, space, kept), **builders, **options)
    if "after_np" in space:
        space["after_np"](model, kept)
    return model, record


def _devices(golden: golden_data.Net) -> int:
    return int(golden.meta.get("devices") or max(int(part) for part in golden.name.split("_") if part.isdigit()))


def _forward(name: str, space: dict[str, Any], kept: dict[str, Any]) -> Callable[[ModelHelper, float], list[Any]]:
    if "embed_outside" in name:
        return lambda model, scale: space["build_embed_fc"](model, kept["vecs"], scale, ROWS_READ, TABLE_COLUMNS)
    if "embed_inside" in name:
        return lambda model, scale: space["eb_in"](model, scale, None)
    if "lstm" in name:
        return lambda model, scale: space["build_lstm"](model, scale, 3, 4, 4)
    if "resnet50" in name:
        return lambda model, scale: space["resnet50"](model, scale, None)
    return lambda model, scale: space["build_convnet"](model, loss_scale=scale, c=4, classes=5)


def _optimizer(golden: golden_data.Net) -> Callable[[ModelHelper], Any]:
    if "embed" in golden.name:
        return lambda model: optimizers.build_sgd(model, 0.1, policy="fixed", momentum=0.0)
    if "resnet50" in golden.name:

        def build(model: ModelHelper) -> Any:
            optimizers.add_weight_decay(model, 1e-4)
            return optimizers.build_sgd(model, 0.1, policy="step", stepsize=100, gamma=0.1, momentum=0.9, nesterov=1)

        return build
    return lambda model: optimizers.build_sgd(model, 0.05, policy="fixed", momentum=0.9, nesterov=1)


class _Core:
    """The names of Caffe2's modules that the stored sources use."""

    NameScope = staticmethod(graph.NameScope)
    DeviceScope = staticmethod(graph.DeviceScope)
    DeviceOption = staticmethod(make_device_option)
    GradientSlice = graph.GradientSlice
    CPU = 0
