"""Time to build nets: Parallelize of ResNet-50, per operator, for different numbers of devices."""

from __future__ import annotations

import gc
import time

from netbuilder import ModelHelper, Parallelize_CPU
from netbuilder.graph import BlobReference
from netbuilder.optimizers import build_sgd
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.zoo.resnet import create_resnet50

__all__ = ["BuildTime", "build_time"]


@dataclass(frozen=True)
class BuildTime:
    """Number of operators in the two nets of a model, and the seconds to build them."""

    devices: int
    operators: int
    seconds: float

    @property
    def per_operator(self) -> float:
        """Microseconds per operator."""
        return 1e6 * self.seconds / self.operators


def _forward(model: ModelHelper, loss_scale: float) -> list[BlobReference]:
    prediction = create_resnet50(model, "data", 3, 1000, no_loss=True, no_bias=True)
    _, loss = model.net.SoftmaxWithLoss([prediction, "label"], ["softmax", "loss"])
    return [model.net.Scale(loss, "scaled_loss", scale=loss_scale)]


def build_time(devices: int) -> BuildTime:
    """Build a data-parallel ResNet-50 with momentum SGD; the nets are not run.

    Args:
        devices: number of CPU devices.
    """
    gc.collect()
    began = time.perf_counter()
    model = ModelHelper(name=f"resnet50_{devices}", arg_scope={"order": "NCHW"})
    Parallelize_CPU(
        model,
        input_builder_fun=lambda model: None,
        forward_pass_builder_fun=_forward,
        optimizer_builder_fun=lambda model: build_sgd(model, 0.1, momentum=0.9),
        devices=list(range(devices)),
    )
    seconds = time.perf_counter() - began
    return BuildTime(devices, len(model.net.Proto().op) + len(model.param_init_net.Proto().op), seconds)
