"""Toy models: small builders as Parallelize takes them, and the softmax loss under which tests put their layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from netbuilder.model import Initializer, ModelHelper, brew

__all__ = [
    "chain",
    "convnet",
    "dropped",
    "layers",
    "looked_up",
    "max_pooled",
    "mlp",
    "normalized",
    "scaled_loss",
    "softmax_loss",
]


def softmax_loss(model: ModelHelper, scores: Any, label: Any = "label") -> Any:
    """Add the blobs ``softmax`` and ``loss``; return the loss."""
    return model.net.SoftmaxWithLoss([scores, label], ["softmax", "loss"])[1]


def scaled_loss(model: ModelHelper, scores: Any, loss_scale: float) -> list[Any]:
    """Return what a builder of a data-parallel model returns: the softmax loss, scaled."""
    return [model.Scale(softmax_loss(model, scores), scale=loss_scale)]


def layers(*widths: int) -> Callable[..., list[Any]]:
    """Return a builder of dense layers fc1, fc2, ... with Relu between them: data (N, widths[0]), label (N,)."""

    def forward(model: ModelHelper, loss_scale: float) -> list[Any]:
        x = "data"
        for number, (before, after) in enumerate(zip(widths, widths[1:]), 1):
            x = brew.fc(model, x, f"fc{number}", before, after)
            if number < len(widths) - 1:
                x = brew.relu(model, x, f"relu{number}")
        return scaled_loss(model, x, loss_scale)

    return forward


def mlp(model: ModelHelper, loss_scale: float) -> list[Any]:
    """Two layers: data (N, 6), label (N,) of 4 classes."""
    x = brew.relu(model, brew.fc(model, "data", "fc1", 6, 8), "fc1")
    return scaled_loss(model, brew.fc(model, x, "fc2", 8, 4), loss_scale)


def dropped(model: ModelHelper, loss_scale: float) -> list[Any]:
    """Two layers with dropout between them: data (N, 6), label (N,) of 4 classes."""
    x = brew.dropout(model, brew.fc(model, "data", "fc1", 6, 32), "dropped", ratio=0.5, is_test=False)
    return scaled_loss(model, brew.fc(model, x, "fc2", 32, 4), loss_scale)


def looked_up(model: ModelHelper, loss_scale: float) -> list[Any]:
    """Rows of a table are looked up, so that its gradient is sparse: data (N, 6), label (N,) of 4 classes."""
    rows = model.create_param("table", [4, 6], Initializer("UniformFill", min=-0.5, max=0.5))
    x = model.net.Add([model.net.Gather([rows, "label"], "rows"), "data"], "sum")
    return scaled_loss(model, brew.fc(model, x, "fc", 6, 4), loss_scale)


def convnet(model: ModelHelper, loss_scale: float) -> list[Any]:
    """A residual block and pooling, no normalization: data (N, 3, 8, 8), label (N,) of 4 classes."""
    x = brew.relu(model, brew.conv(model, "data", "conv1", 3, 4, kernel=3, pad=1), "conv1")
    y = brew.conv(model, x, "conv2", 4, 4, kernel=3, pad=1)
    x = brew.average_pool(model, brew.sum(model, [x, y], "block"), "pooled", kernel=8)
    return scaled_loss(model, brew.fc(model, x, "fc", 4, 4), loss_scale)


def normalized(model: ModelHelper, loss_scale: float, is_test: bool = False) -> list[Any]:
    """Convolution with batch normalization: data (N, 3, 8, 8), label (N,) of 4 classes."""
    x = brew.conv(model, "data", "conv", 3, 4, kernel=3, pad=1)
    x = brew.relu(model, brew.spatial_bn(model, x, "bn", 4, is_test=is_test), "relu")
    x = brew.average_pool(model, x, "pooled", kernel=8)
    return scaled_loss(model, brew.fc(model, x, "fc", 4, 4), loss_scale)


def max_pooled(model: ModelHelper, loss_scale: float) -> list[Any]:
    """As ``normalized``, without a bias of the convolution and with the largest of 2 x 2 places."""
    x = brew.conv(model, "data", "conv", 3, 4, kernel=3, pad=1, no_bias=1)
    x = brew.relu(model, brew.spatial_bn(model, x, "bn", 4, epsilon=1e-3, is_test=False), "bn")
    x = brew.max_pool(model, x, "pool", kernel=2, stride=2)
    return scaled_loss(model, brew.fc(model, x, "fc", 4 * 16, 4), loss_scale)


def chain(count: int, channels: int, *, normalized: bool = True) -> Callable[..., list[Any]]:
    """Return a builder of convolutions, each with a normalization if wanted and Relu: data (N, 3, 8, 8), label (N,)."""

    def forward(model: ModelHelper, loss_scale: float) -> list[Any]:
        x, before = "data", 3
        for k in range(count):
            x = brew.conv(model, x, f"conv{k}", before, channels, kernel=3, pad=1)
            if normalized:
                x = brew.spatial_bn(model, x, f"bn{k}", channels, is_test=False)
            x, before = brew.relu(model, x, f"relu{k}"), channels
        x = brew.average_pool(model, x, "pooled", kernel=8)
        return scaled_loss(model, brew.fc(model, x, "fc", channels, 4), loss_scale)

    return forward
