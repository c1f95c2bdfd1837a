"""Nets of the zoo, made ready to run: a training step, or inference, on one device or on several."""

from __future__ import annotations

import math
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.graph import BlobReference
from netbuilder.model import ModelHelper
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.optimizers import add_weight_decay, build_sgd
from netbuilder.parallel import CreateNet, Parallelize, RunInitNet
from netbuilder.proto import NetError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime import Workspace
from netbuilder.tools.common_options import split_problem
from netbuilder.tools.profiling.ready import Ready
from netbuilder.tools.training.fed_images import FedImages
from netbuilder.tools.training.nets import NETS, add_net, instead_of_net

__all__ = ["ZooOptions", "image_shape", "load_zoo", "no_such_net", "zoo_model"]

_MEAN, _STD = (128.0,), (64.0,)
_GRAY = {"mlp": 28, "lenet": 28}  # nets for images of one channel -> height and width


@dataclass(frozen=True)
class ZooOptions:
    """How to run a net of the zoo.

    Args:
        batch: samples per step, over all devices.
        image_size: height and width in pixels; None: the net's usual size.
        classes: number of classes.
        training: forward, backward and update; else inference.
        devices: number of replicas, which share the batch.
        gpu: whether devices are GPUs.
        net_type: how the net is executed, such as "dag".
        observable: which blobs can be fetched after a run, see ``Workspace.create_net``.
        memory_budget: of a run, see there.
        dtype: how activations are stored, see ``ModelHelper``; None: float32.
        pixels: images are bytes, which the net normalizes, as the trainer feeds them to GPUs.
    """

    batch: int = 32
    image_size: int | None = None
    classes: int = 1000
    training: bool = True
    devices: int = 1
    gpu: bool = False
    net_type: str = "dag"
    observable: str | None = None
    memory_budget: str | None = None
    dtype: str | None = None
    pixels: bool = False


def load_zoo(workspace: Workspace, name: str, options: ZooOptions) -> Ready:
    """Create a net of the zoo with random images.

    Args:
        workspace: where the net is created.
        name: one of ``netbuilder.tools.training.nets.NETS``.
        options: how to run it. Training uses momentum SGD with weight decay.

    Raises:
        NetError: there is no such net, or the devices cannot share the batch.
        DeviceError: a GPU is missing.
    """
    _check(name, options)
    many = options.devices > 1 or options.gpu
    return _parallel(workspace, name, options) if many else _on_one_device(workspace, name, options)


def _check(name: str, options: ZooOptions) -> None:
    if name not in NETS:
        raise no_such_net(name)
    if problem := split_problem(options.batch, options.devices):
        raise NetError(f"--batch: {problem}")


def no_such_net(name: str) -> NetError:
    """Return the error for a name that is neither that of a file or folder nor of a net of the zoo."""
    files = [str(path) for path in Path(name).parent.glob("*")]
    return NetError(f"{name!r} is not a file, a folder or a net of the zoo{instead_of_net(name, files)}")


def zoo_model(name: str, options: ZooOptions) -> tuple[ModelHelper, dict[str, TensorSpec]]:
    """Build a net of the zoo for one device, that of the current scope; return it with the specs of its inputs.

    Raises:
        NetError: there is no such net.
    """
    _check(name, options)
    model, _ = _built(name, options)
    images = _images(name, options)
    channels, height, width = images.shape
    shape = (height, width, channels) if options.pixels else images.shape
    kind = np.dtype(np.uint8 if options.pixels else np.float32)
    specs = {images.blob: TensorSpec((options.batch, *shape), kind)}
    if options.training:
        specs["label"] = TensorSpec((options.batch,), np.dtype(np.int32))
    return model, specs


def image_shape(name: str, options: ZooOptions) -> tuple[int, int, int]:
    """Return channels, height and width of the images for a net of the zoo."""
    side = options.image_size or _GRAY.get(name) or (32 if name.endswith("-cifar") else 224)
    return 1 if name in _GRAY else 3, side, side


def _images(name: str, options: ZooOptions) -> FedImages:
    """Return the images that a net is fed."""
    return FedImages(image_shape(name, options), (_MEAN, _STD) if options.pixels else None)


def _forward(model: ModelHelper, name: str, options: ZooOptions) -> Any:
    """Add the net; return its loss in training."""
    _images(name, options).add(model)
    label = "label" if options.training else None
    found = add_net(model, name, image_shape(name, options), options.classes, is_test=not options.training, label=label)
    return found[1] if options.training else None


def _update(model: ModelHelper) -> object:
    add_weight_decay(model, 1e-4)
    return build_sgd(model, 0.01, momentum=0.9)


def _model(name: str, options: ZooOptions) -> ModelHelper:
    return ModelHelper(name=name, arg_scope={"order": "NCHW"}, dtype=options.dtype)


def _feed(workspace: Workspace, name: str, options: ZooOptions, scopes: list[str]) -> None:
    rng = np.random.default_rng(0)
    count = options.batch // len(scopes)
    images = _images(name, options)
    shape = count, *images.shape
    if 4 * math.prod(shape) > sys.maxsize:
        raise NetError(f"a batch of shape {shape} is larger than any memory; give a smaller batch or image size")
    for scope in scopes:
        values = rng.standard_normal(shape, dtype=np.float32)
        if options.pixels:
            values = np.clip(values.transpose(0, 2, 3, 1) * _STD[0] + _MEAN[0], 0, 255).astype(np.uint8)
        workspace.feed(scope + images.blob, values)
        if options.training:
            workspace.feed(f"{scope}label", rng.integers(0, options.classes, count).astype(np.int32))


def _made(model: ModelHelper) -> frozenset[str]:
    return frozenset(blob for op in model.param_init_net.Proto().op for blob in op.output)


def _built(name: str, options: ZooOptions) -> tuple[ModelHelper, frozenset[str]]:
    """Return the model, and the gradients of its parameters."""
    model = _model(name, options)
    loss = _forward(model, name, options)
    gradients = frozenset[str]()
    if options.training:
        model.AddGradientOperators([loss])
        gradients = frozenset(str(grad) for grad in model.param_to_grad.values() if isinstance(grad, BlobReference))
        _update(model)
    return model, gradients


def _on_one_device(workspace: Workspace, name: str, options: ZooOptions) -> Ready:
    model, gradients = _built(name, options)
    _feed(workspace, name, options, [""])
    workspace.run_net_once(model.param_init_net)
    name = workspace.create_net(model.net, observable=options.observable, memory_budget=options.memory_budget)
    statistics = frozenset(map(str, model.GetComputedParams()))
    return Ready(workspace, name, _made(model), gradients, statistics)


def _parallel(workspace: Workspace, name: str, options: ZooOptions) -> Ready:
    model = _model(name, options)

    def forward(model: ModelHelper, loss_scale: float) -> list[Any]:
        loss = _forward(model, name, options)
        return [model.net.Scale(loss, "scaled_loss", scale=loss_scale)] if options.training else []

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "model .* has no update")  # profiling does not need trained parameters
        record = Parallelize(
            model,
            input_builder_fun=lambda model: None,
            forward_pass_builder_fun=forward,
            optimizer_builder_fun=_update if options.training else None,
            devices=list(range(options.devices)),
            net_type=options.net_type,
            cpu_device=not options.gpu,
        )
    if options.memory_budget is not None:
        model.net.set_memory_budget(options.memory_budget)
    if options.observable is not None:
        model.net.set_observable(options.observable)
    _feed(workspace, name, options, list(record.devices.scopes))
    RunInitNet(model, workspace=workspace)
    if model.net.Name() not in workspace.nets():
        CreateNet(model, workspace=workspace)
    return Ready(workspace, model.net.Name(), _made(model))
