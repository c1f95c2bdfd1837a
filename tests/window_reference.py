"""Convolution and pooling by definition, window by window, in float64 and channels-first: what kernels are held to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

__all__ = [
    "correlate",
    "correlate_gradients",
    "pool",
    "pool_gradient",
    "to_channels_first",
    "to_order",
    "transpose_correlate",
]

Array = np.ndarray
Every = slice(None)


def to_channels_first(x: Array, order: str) -> Array:
    return x if order == "NCHW" else np.moveaxis(x, -1, 1)


def to_order(x: Array, order: str) -> Array:
    return x if order == "NCHW" else np.moveaxis(x, 1, -1)


def _boxes(
    extents: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Yield each window's place and the index of its elements in padded images."""
    out = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(extents, kernel, strides, dilations)]
    for place in np.ndindex(*out):
        along = [slice(p * s, p * s + d * (k - 1) + 1, d) for p, k, s, d in zip(place, kernel, strides, dilations)]
        yield place, (Every, Every, *along)


def _padded(x: Array, begin: Sequence[int], end: Sequence[int]) -> Array:
    return np.pad(x, [(0, 0), (0, 0), *zip(begin, end)])


def _parts(channels: int, groups: int) -> list[slice]:
    size = channels // groups
    return [slice(g * size, (g + 1) * size) for g in range(groups)]


def correlate(x: Array, w: Array, strides: Any, dilations: Any, begin: Any, end: Any, groups: int) -> Array:
    """Return the convolution of images with filters, without bias."""
    padded, kernel = _padded(x, begin, end), w.shape[2:]
    found = dict(_boxes(padded.shape[2:], kernel, strides, dilations))
    out = tuple(1 + n for n in max(found))
    y = np.zeros((x.shape[0], w.shape[0], *out))
    inner = list(range(1, x.ndim))
    for place, box in found.items():
        for cs, ms in zip(_parts(x.shape[1], groups), _parts(w.shape[0], groups)):
            y[(Every, ms, *place)] = np.tensordot(padded[box][:, cs], w[ms], (inner, inner))
    return y


def correlate_gradients(
    x: Array, w: Array, dy: Array, strides: Any, dilations: Any, begin: Any, end: Any, groups: int
) -> tuple[Array, Array]:
    """Return the gradients of ``correlate`` by the filters and by the images."""
    padded = _padded(x, begin, end)
    dw, d_padded = np.zeros(w.shape), np.zeros(padded.shape)
    for place, box in _boxes(padded.shape[2:], w.shape[2:], strides, dilations):
        for cs, ms in zip(_parts(x.shape[1], groups), _parts(w.shape[0], groups)):
            slope = dy[(Every, ms, *place)]
            dw[ms] += np.tensordot(slope, padded[box][:, cs], (0, 0))
            d_padded[box][:, cs] += np.tensordot(slope, w[ms], (1, 0))
    inside = (Every, Every, *(slice(b, b + n) for b, n in zip(begin, x.shape[2:])))
    return dw, d_padded[inside]


def transpose_correlate(
    x: Array, w: Array, extents: Sequence[int], strides: Any, begin: Any, end: Any, groups: int
) -> Array:
    """Return the transposed convolution, (N, M, *extents), without bias: each element of X spreads a filter."""
    m = w.shape[1]
    padded = np.zeros((x.shape[0], m * groups, *(n + b + e for n, b, e in zip(extents, begin, end))))
    for place in np.ndindex(*x.shape[2:]):
        box = (Every, Every, *(slice(p * s, p * s + k) for p, s, k in zip(place, strides, w.shape[2:])))
        for g, cs in enumerate(_parts(x.shape[1], groups)):
            padded[box][:, g * m : (g + 1) * m] += np.tensordot(x[(Every, cs, *place)], w[cs], (1, 0))
    return padded[(Every, Every, *(slice(b, b + n) for b, n in zip(begin, extents)))]


def _clipped(
    extents: Sequence[int], kernel: Sequence[int], strides: Sequence[int], begin: Sequence[int], out: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    for place in np.ndindex(*out):
        firsts = [p * s - b for p, s, b in zip(place, strides, begin)]
        along = [slice(max(0, a), min(n, a + k)) for a, n, k in zip(firsts, extents, kernel)]
        yield place, (Every, Every, *along)


def pool(x: Array, kind: str, kernel: Any, strides: Any, begin: Any, out: Any, whole: bool = False) -> Array:
    """Return the "max" or "mean" of each window; with ``whole``, the mean counts the pads as zeros."""
    y = np.zeros((*x.shape[:2], *out))
    axes = tuple(range(2, x.ndim))
    for place, box in _clipped(x.shape[2:], kernel, strides, begin, out):
        window = x[box]
        if kind == "max":
            y[(Every, Every, *place)] = window.max(axis=axes)
        else:
            size = np.prod(kernel) if whole else np.prod(window.shape[2:])
            y[(Every, Every, *place)] = window.sum(axis=axes) / size
    return y


def pool_gradient(x: Array, dy: Array, kind: str, kernel: Any, strides: Any, begin: Any, whole: bool = False) -> Array:
    """Return dX; of equal maxima, each gets the whole gradient."""
    dx = np.zeros(x.shape)
    axes = tuple(range(2, x.ndim))
    for place, box in _clipped(x.shape[2:], kernel, strides, begin, dy.shape[2:]):
        window = x[box]
        slope = dy[(Every, Every, *place)].reshape(*dy.shape[:2], *(1,) * len(axes))
        if kind == "max":
            dx[box] += slope * (window == window.max(axis=axes, keepdims=True))
        else:
            dx[box] += slope / (np.prod(kernel) if whole else np.prod(window.shape[2:]))
    return dx
