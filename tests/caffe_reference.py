"""Caffe's layers in NumPy, float64, written from their definitions."""

import math
from itertools import product

import numpy as np


def conv(x, w, b=None, *, stride=(1, 1), pad=(0, 0), dilation=(1, 1), group=1):
    """Cross-correlation; output extents are rounded down."""
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in pad)])
    m, per_group = len(w), len(w) // group
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilation)]
    out = [(n - r) // s + 1 for n, r, s in zip(x.shape[2:], reach, stride)]
    y = np.zeros((len(x), m, *out))
    for channel in range(m):
        first = channel // per_group * w.shape[1]
        part = x[:, first : first + w.shape[1]]
        for at in product(*map(range, out)):
            window = tuple(slice(i * s, i * s + r, d) for i, s, r, d in zip(at, stride, reach, dilation))
            y[(slice(None), channel, *at)] = (part[(..., *window)] * w[channel]).reshape(len(x), -1).sum(1)
    return y if b is None else y + b.reshape(-1, *[1] * len(out))


def deconv(x, w, b=None, *, stride=(1, 1), pad=(0, 0), group=1):
    """The transposed convolution: each input element adds its filter to the output."""
    per_group, kernel = len(w) // group, w.shape[2:]
    full = [(n - 1) * s + k for n, s, k in zip(x.shape[2:], stride, kernel)]
    y = np.zeros((len(x), w.shape[1] * group, *full))
    for channel in range(len(w)):
        first = channel // per_group * w.shape[1]
        for at in product(*map(range, x.shape[2:])):
            window = tuple(slice(i * s, i * s + k) for i, s, k in zip(at, stride, kernel))
            added = x[(slice(None), channel, *at)].reshape(-1, *[1] * (1 + len(kernel))) * w[channel]
            y[(slice(None), slice(first, first + w.shape[1]), *window)] += added
    y = y[(..., *(slice(p, n - p) for p, n in zip(pad, full)))]
    return y if b is None else y + b.reshape(-1, 1, 1)


def pool(x, kernel, stride=(1, 1), pad=(0, 0), mean=False, ceil=True):
    """Windows from -pad on; a mean is over a window's part before the end of the padding, zeros of which count."""
    extents, out = x.shape[2:], []
    for n, k, s, p in zip(extents, kernel, stride, pad):
        count = (math.ceil if ceil else math.floor)((n + 2 * p - k) / s) + 1
        if any(pad) and (count - 1) * s >= n + p:
            count -= 1
        out.append(count)
    y = np.zeros((*x.shape[:2], *out))
    for at in product(*map(range, out)):
        begin = [i * s - p for i, s, p in zip(at, stride, pad)]
        end = [min(b + k, n + p) for b, k, n, p in zip(begin, kernel, extents, pad)]
        part = x[(..., *(slice(max(b, 0), min(e, n)) for b, e, n in zip(begin, end, extents)))].reshape(
            *x.shape[:2], -1
        )
        size = math.prod(e - b for b, e in zip(begin, end))
        y[(..., *at)] = part.sum(-1) / size if mean else part.max(-1)
    return y


def lrn(x, size=5, alpha=1.0, beta=0.75, k=1.0):
    y = np.zeros_like(x)
    for c in range(x.shape[1]):
        part = x[:, max(0, c - size // 2) : c + size // 2 + 1]
        y[:, c] = x[:, c] / (k + alpha / size * (part**2).sum(1)) ** beta
    return y


def softmax(x, axis=1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def along(values, ndim, axis):
    """The values in a shape that is broadcast from ``axis`` on."""
    return values.reshape([1] * axis + list(values.shape) + [1] * (ndim - axis - values.ndim))


def batch_norm(x, mean, var, count, eps=1e-5):
    return (x - along(mean / count, x.ndim, 1)) / np.sqrt(along(var / count, x.ndim, 1) + eps)
