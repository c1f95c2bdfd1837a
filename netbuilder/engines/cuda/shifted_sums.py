"""Batch normalization from sums over X that are shifted by the running mean; X is read once.

A product has computed them, or a kernel here does, which only writes the statistics of the batch: where kernels that
read the normalized X compute it.

For each channel the sums are those of x - r and of its square, where r is the running mean: the variance is the mean of
the squares minus the square of the mean, which does not cancel where r is near to the batch's mean.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from netbuilder.engines.cuda.channel_code import (
    ChannelsVariant,
    Launcher,
    accumulators,
    arrays,
    each_place,
    images_of,
    memory_of_sums,
    normalized,
    numbers_of,
    of_channels,
    own_channel,
    rectified,
    source,
    sums,
)
from netbuilder.engines.cuda.code import c_type, stored, with_prelude
from netbuilder.engines.cuda.kernel import THREADS, Kernel
from netbuilder.engines.cuda.steps import Reference, Step
from netbuilder.ops.core.contexts import Call
from netbuilder.ops.core.operator import TensorSpec

__all__ = [
    "factors_step",
    "normalize_by_statistics_step",
    "normalize_step",
    "statistics_of_sums_step",
    "statistics_step",
]


def _statistics(one: str, two: str) -> list[str]:
    """Return the statements for a channel's mean, ``exact``, and its inverse deviation, ``inv``, from two sums."""
    return [  # in float64, because the variance is a difference
        f"const double apart = {one} / total, square = {two} / total - apart * apart, exact = shift[c] + apart;",
        "const float inv = (float)(1 / sqrt((square < 0 ? 0 : square) + epsilon));",
    ]


_SAVED = ["saved_mean[c] = (float)exact;", "saved_inverse[c] = inv;"]


def _normalizing(v: ChannelsVariant, mean: str, inverse: str, before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Return the statements that normalize, given a channel's mean and inverse deviation.

    Args:
        v: the variant.
        mean, inverse: of channel ``c``.
        before, after: statements before and after those that use them.
    """
    given = [
        f"all_average[slot] = {mean};", f"all_factor[slot] = scale[c] * {inverse};", "all_offset[slot] = bias[c];"
    ]  # fmt: skip
    channels = of_channels(v, ["average", "factor", "offset"], [*before, *given, *after])
    body = [f"float y_ = {normalized(v)}{' + addend_' if v.has('addend') else ''};", *rectified(v, "y_")]
    return [*channels, *each_place(v, [name for name in ("x", "addend") if v.has(name)], body, ["y"])]


@functools.cache
def _by_sums_kernel(v: ChannelsVariant) -> Kernel:
    before = ["const double total = (double)images * pixels;", *_statistics("sums[c]", "sumsq[c]")]
    lines = _normalizing(v, "(float)exact", "inv", before, ["if (part == 0) {", *_SAVED, "}"])
    parameters = [*arrays(v, "x"), *numbers_of(v, "scale", "bias", "shift", "sums", "sumsq"), *arrays(v, "addend")]
    parameters += [*arrays(v, "y", const=False), "float* saved_mean", "float* saved_inverse", "double epsilon"]
    return Kernel("normalize_by_sums", source(v, parameters, lines))


@functools.cache
def _by_statistics_kernel(v: ChannelsVariant) -> Kernel:
    parameters = [*arrays(v, "x"), *numbers_of(v, "scale", "bias", "mean", "inverse"), *arrays(v, "y", const=False)]
    return Kernel("normalize_by_statistics", source(v, parameters, _normalizing(v, "mean[c]", "inverse[c]", [], [])))


def normalize_step(op: Any, x: TensorSpec, memory: Mapping[str, Reference], *, add: bool, limit: float | None) -> Step:
    """Return the step of a normalization with the statistics of the batch, in float32.

    Args:
        op: the SpatialBN.
        x: the spec of X, in which all images are stored.
        memory: of ``x``, ``scale``, ``bias``, the ``shift`` of the ``sums`` and ``sumsq``, ``y``, the batch's ``mean``
            and ``inverse`` deviation; with ``add``, of the ``addend``.
        add: an addend is added after the normalization.
        limit: the largest result of the Relu that follows, which may be inf; None: none follows.
    """
    images = ["x", *(["addend"] if add else []), "y"]
    launch = Launcher(_by_sums_kernel, images_of(op, x), dict.fromkeys(images, x), limit=limit)
    numbers = ("scale", "bias", "shift", "sums", "sumsq")

    def bind(memory: Mapping[str, Any], workspace: Any) -> Call:
        names = ["x", *numbers, *images[1:], "mean", "inverse"]
        return launch.bind(
            [memory[name] for name in images], [*(memory[name] for name in names), np.float64(op.epsilon)]
        )

    return Step(launch.name, bind, memory)


def normalize_by_statistics_step(op: Any, x: TensorSpec, memory: Mapping[str, Reference], *, limit: float) -> Step:
    """Return the step of a normalization with statistics that are known, and the Relu after it; in float32.

    Args:
        op: the SpatialBN.
        x: the spec of X and Y.
        memory: of ``x``, ``scale``, ``bias``, ``mean``, ``inverse`` deviation, ``y``.
        limit: the largest result of the Relu, which may be inf.
    """
    launch = Launcher(_by_statistics_kernel, images_of(op, x), {"x": x, "y": x}, limit=limit)

    def bind(memory: Mapping[str, Any], workspace: Any) -> Call:
        names = ("x", "scale", "bias", "mean", "inverse", "y")
        return launch.bind([memory["x"], memory["y"]], [memory[name] for name in names])

    return Step(launch.name, bind, memory)


@functools.cache
def _statistics_kernel(v: ChannelsVariant) -> Kernel:
    own = v.width if v.last else 1
    lines = [
        accumulators(v),
        f"float middle[{own}] = {{}};",
        f"if (inside) for (int j = 0; j < {own}; j++) middle[j] = shift[first + j];",
        *each_place(v, ["x"], [f"const float apart_ = x_ - middle[{own_channel(v)}];",
                               "one[j] += apart_;", "two[j] += apart_ * apart_;"]),
        *sums(v, ["const double total = (double)images * pixels;", *_statistics("sum_one", "sum_two"), *_SAVED]),
    ]  # fmt: skip
    parameters = [*arrays(v, "x"), *numbers_of(v, "shift"), "float* saved_mean", "float* saved_inverse"]
    return Kernel("statistics", source(v, [*parameters, "double epsilon", *memory_of_sums()], lines))


def statistics_step(op: Any, x: TensorSpec, memory: Mapping[str, Reference]) -> Step:
    """Return the step that computes the statistics of a batch, of which nothing is normalized.

    Args:
        op: the SpatialBN.
        x: the spec of X, in which all images are stored.
        memory: of ``x``, the running mean ``shift``, the batch's ``mean`` and ``inverse`` deviation.
    """
    launch = Launcher(_statistics_kernel, images_of(op, x), {"x": x})

    def bind(memory: Mapping[str, Any], workspace: Any) -> Call:
        arguments = [*(memory[name] for name in ("x", "shift", "mean", "inverse")), np.float64(op.epsilon)]
        return launch.bind([memory["x"]], arguments, workspace)

    return Step(launch.name, bind, memory, launch.sums)


def _channel_kernel(title: str, inputs: str, outputs: Mapping[str, str], lines: Sequence[str]) -> Kernel:
    """Return a kernel with a thread for each channel ``c``, of float32 numbers; ``outputs`` are C's types by name."""
    parameters = [f"const float* {name}" for name in inputs.split()]
    parameters += [f"{kind}* {name}" for name, kind in outputs.items()]
    text = f"""
extern "C" __global__ void NAME({", ".join(parameters)}, double epsilon, double total, int channels) {{
    const int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= channels) return;
    {" ".join(lines)}
}}
"""
    return Kernel(title, with_prelude(text))


def _channel_step(kernel: Kernel, op: Any, x: TensorSpec, names: str, memory: Mapping[str, Reference]) -> Step:
    found = images_of(op, x)
    numbers = [np.float64(op.epsilon), np.float64(found.images * found.pixels), np.int32(found.channels)]

    def bind(memory: Mapping[str, Any], workspace: Any) -> Call:
        return partial(kernel, -(-found.channels // THREADS), [*(memory[name] for name in names.split()), *numbers])

    return Step(f"cuda {kernel.name}", bind, memory)


@functools.cache
def _statistics_of_sums() -> Kernel:
    lines = [*_statistics("sums[c]", "sumsq[c]"), *_SAVED]
    saved = dict.fromkeys(("saved_mean", "saved_inverse"), "float")
    return _channel_kernel("statistics_of_sums", "shift sums sumsq", saved, lines)


def statistics_of_sums_step(op: Any, x: TensorSpec, memory: Mapping[str, Reference]) -> Step:
    """Return the step that computes the statistics of a batch from sums over it.

    Args:
        op: the SpatialBN.
        x: the spec of X.
        memory: of the ``shift`` of the ``sums`` and ``sumsq``, the batch's ``mean`` and ``inverse`` deviation.
    """
    return _channel_step(_statistics_of_sums(), op, x, "shift sums sumsq mean inverse", memory)


@functools.cache
def _factors(elements: str) -> Kernel:
    lines = [
        "const float exact = scale[c] * inverse[c];",
        f"factor[c] = {stored('exact', elements)};",
        f"offset[c] = {stored('(bias[c] - mean[c] * exact)', elements)};",
    ]
    made = dict.fromkeys(("factor", "offset"), c_type(elements))
    return _channel_kernel("factors", "scale bias mean inverse", made, lines)


def factors_step(op: Any, x: TensorSpec, elements: str, memory: Mapping[str, Reference]) -> Step:
    """Return the step that rounds a normalization to x factor + offset, of numbers of another type.

    Args:
        op: the SpatialBN, or its gradient.
        x: the spec of X.
        elements: the type of factor and offset.
        memory: of ``scale``, ``bias``, ``mean``, ``inverse``; ``factor`` and ``offset``.
    """
    return _channel_step(_factors(elements), op, x, "scale bias mean inverse factor offset", memory)
