"""Models of images for netbuilder-prove: batch normalization on each device, and over all."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.model import ModelHelper, brew
from netbuilder.tools.proof.models import SAMPLES, UNEVEN, ProofModel

__all__ = ["IMAGES"]

_CHANNELS, _CLASSES = 4, 4


def _images(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "data": rng.standard_normal((SAMPLES, 3, 8, 8), np.float32),
        "label": rng.integers(0, _CLASSES, SAMPLES).astype(np.int32),
    }


def _normalized(model: ModelHelper, loss_scale: float, outside: Any) -> list[Any]:
    """Add a residual block with normalization before the activation and before the sum.

    The activation is smooth: at the kink of a Relu the gradient jumps, and updates that divide by it, as those of Adam,
    make a difference in the last bit large.
    """

    def conv(x: Any, name: str, channels: int) -> Any:
        x = brew.conv(model, x, name, channels, _CHANNELS, kernel=3, pad=1, no_bias=1)
        return brew.spatial_bn(model, x, f"{name}_bn", _CHANNELS, epsilon=1e-3, momentum=0.9, is_test=False)

    x = model.net.Tanh(conv("data", "conv1", 3), "tanh1")
    y = model.net.Tanh(conv(x, "conv2", _CHANNELS), "tanh2")
    x = model.net.Tanh(brew.sum(model, [x, conv(y, "conv3", _CHANNELS)], "block"), "tanh3")
    x = brew.average_pool(model, x, "pooled", kernel=8)
    _, loss = model.net.SoftmaxWithLoss([brew.fc(model, x, "fc", _CHANNELS, _CLASSES), "label"], ["softmax", "loss"])
    return [model.net.Scale(loss, "scaled_loss", scale=loss_scale)]


IMAGES: dict[str, ProofModel] = {
    "BN of each device": ProofModel(_normalized, _images, by_devices=True),
    "uneven combined BN": ProofModel(
        _normalized, _images, options={"combine_spatial_bn": True, **UNEVEN["options"]}, last=UNEVEN["last"]
    ),
    "combined BN": ProofModel(_normalized, _images, options={"combine_spatial_bn": True}),
    "combined BN of a shared model": ProofModel(
        _normalized, _images, options={"combine_spatial_bn": True, "shared_model": True}
    ),
}
"""Name -> model."""
