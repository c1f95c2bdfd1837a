"""NumPy's equivalents of the kernels for batch normalization over the parts of a batch (ops.engines.cuda.channels)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.engines.cuda.kernel import Kernel

__all__ = ["CHANNEL_KERNELS", "over_channels"]


class _Images:
    """The arguments of a kernel by the names in its source; images as (images, channels, pixels)."""

    def __init__(self, kernel: Kernel, arguments: Sequence[Any], load: Any, store: Any) -> None:
        text = kernel.source[kernel.source.index("__global__") :]
        parameters = text[text.index("(") + 1 : text.index(")")].split(", ")
        names = [parameter.rsplit("* ")[-1].rsplit(" ")[-1] for parameter in parameters]
        assert len(names) == len(arguments), f"{kernel}: {names} are {len(arguments)} arguments"
        self.values = dict(zip(names, arguments))
        pointers = {name: text for name, text in zip(names, parameters) if "* " in text}
        self.reads = [self.values[name]._region for name, text in pointers.items() if text.startswith("const ")]
        self.writes = [self.values[name]._region for name, text in pointers.items() if not text.startswith("const ")]
        self.variant, self._load, self._store = kernel.model, load, store
        self.types = dict(self.variant.images)
        self.extents = [int(self.values[name]) for name in ("images", "channels", "pixels")]
        self.wide = np.dtype(np.float64 if self.variant.wide == "double" else np.float32)

    def image(self, name: str) -> Any:
        n, c, s = self.extents
        values = self._load(self.values[name], self.types[name]).astype(self.wide)
        return values.reshape(n, s, c).transpose(0, 2, 1) if self.variant.last else values.reshape(n, c, s)

    def store_image(self, name: str, found: Any) -> Any:
        """Store an image; return it as it is stored."""
        ordered = np.ascontiguousarray(found.transpose(0, 2, 1) if self.variant.last else found)
        self._store(self.values[name], self.types[name], ordered)
        return self.image(name)

    def number(self, name: str, default: Any = None) -> Any:
        """One number for each channel, to broadcast over images."""
        if name not in self.values:
            return default
        return self.values[name]._values.reshape(-1)[:, None]

    def store(self, name: str, found: Any) -> None:
        self.values[name]._values.reshape(-1)[...] = np.asarray(found).reshape(-1)


def _stats(images: _Images) -> None:
    x = images.image("x")
    counted = images.number("weight", np.ones((1, 1)))[0, 0] != 0
    for name, values in (("sum", x), ("sumsq", x * x)):
        images.store(name, np.where(counted, values.sum(axis=(0, 2), dtype=np.float64), 0))
    if images.variant.counts:
        images.store("number", x[:, 0].size * counted)


def _backprop_stats(images: _Images) -> None:
    x, dz = images.image("x"), images.image("dy")
    if images.variant.relu:
        dz = dz + images.image("addend") if images.variant.has("addend") else dz
        dz = images.store_image("dz", dz * (images.image("y") > 0))
    products = dz * (x - images.number("mean"))
    images.store("dscale", products.sum(axis=(0, 2), dtype=np.float64) * images.number("inverse")[:, 0])
    images.store("dbias", dz.sum(axis=(0, 2), dtype=np.float64))


def _normalize(images: _Images) -> None:
    x, wide, (n, _, s) = images.image("x"), images.wide.type, images.extents
    total = np.float64(images.number("count", np.full((1, 1), n * s * images.values["num_batches"]))[0, 0])
    counted = max(total, 1.0)
    mean = images.number("sums").astype(np.float64) / counted
    square = np.maximum(images.number("sumsq").astype(np.float64) / counted - mean * mean, 0)
    inverse = wide(1) / np.sqrt(square.astype(wide) + wide(images.values["epsilon"]))
    fresh = 1.0 - images.values["momentum"] if total > 0 else 0.0
    factor = images.number("scale") * inverse
    y = x * factor + (images.number("bias") - mean.astype(wide) * factor)
    y = y + images.image("addend") if images.variant.has("addend") else y
    images.store_image("y", np.maximum(y, 0) if images.variant.relu else y)
    images.store("new_mean", (1 - fresh) * images.number("mean") + fresh * mean)
    unbiased = counted / max(counted - 1, 1)
    images.store("new_variance", (1 - fresh) * images.number("variance") + fresh * unbiased * square)
    images.store("saved_mean", mean)
    images.store("saved_inverse", inverse)


def _gradient(images: _Images) -> None:
    x, dy, wide, (n, _, s) = images.image("x"), images.image("dy"), images.wide.type, images.extents
    parts = wide(images.values["num_batches"])
    total = wide(max(images.number("count", np.full((1, 1), n * s * parts))[0, 0], 1))
    scale_sum, bias_sum = images.number("dscale_sum").copy(), images.number("dbias_sum").copy()
    normal = (x - images.number("mean")) * images.number("inverse")
    dx = images.number("scale") * images.number("inverse") * (dy - bias_sum / total - normal * (scale_sum / total))
    images.store_image("dx", dx if images.number("weight", np.ones((1, 1)))[0, 0] != 0 else np.zeros_like(dx))
    images.store("dscale", scale_sum / parts)
    images.store("dbias", bias_sum / parts)


CHANNEL_KERNELS: dict[str, Callable[[_Images], None]] = {
    "channel_backprop_stats": _backprop_stats,
    "channel_stats": _stats,
    "normalize_part": _normalize,
    "normalize_part_gradient": _gradient,
    "relu_channel_backprop_stats": _backprop_stats,
}
"""What the kernels compute, by their titles."""


def over_channels(title: str, load: Any, store: Any) -> Callable[[Any, Kernel, int, Sequence[Any]], None]:
    """Return the equivalent of a kernel.

    Args:
        title: of the kernel.
        load, store: read and write the elements of an array.
    """

    def launch(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
        images = _Images(kernel, arguments, load, store)

        def do() -> None:
            with np.errstate(all="ignore"):
                CHANNEL_KERNELS[title](images)

        machine.launch(kernel.name, images.reads, images.writes, do=do)

    return launch
