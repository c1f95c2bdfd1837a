"""Batch normalization from sums that a product has computed, shifted by the running mean; X is read once.

For each channel the sums are those of x - r and of its square, where r is the running mean: the variance is the mean of
the squares minus the square of the mean, which does not cancel where r is near to the batch's mean.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from netbuilder.engines.cuda.channel_code import (
    ChannelsVariant,
    Launcher,
    arrays,
    each_place,
    images_of,
    numbers_of,
    of_channels,
    own_channel,
    source,
)
from netbuilder.engines.cuda.kernel import Kernel
from netbuilder.engines.cuda.steps import Reference, Step
from netbuilder.ops.core.contexts import Call
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["normalize_step"]


@functools.cache
def _kernel(v: ChannelsVariant) -> Kernel:
    channels = of_channels(v, ["average", "factor", "offset"], [  # in float64, because the variance is a difference
        "const double total = (double)images * pixels, apart = sums[c] / total;",
        "const double square = sumsq[c] / total - apart * apart, exact = shift[c] + apart;",
        "all_average[slot] = (float)exact;",
        "const float inv = (float)(1 / sqrt((square < 0 ? 0 : square) + epsilon));",
        "all_factor[slot] = scale[c] * inv;",
        "all_offset[slot] = bias[c];",
        "if (part == 0) {",
        "saved_mean[c] = (float)exact;",
        "saved_inverse[c] = inv;",
        "}",
    ])  # fmt: skip
    own = own_channel(v)
    body = [
        f"float y_ = (x_ - average[{own}]) * factor[{own}] + offset[{own}]{' + addend_' if v.has('addend') else ''};"
    ]
    body += ["y_ = (y_ > 0 || y_ != y_) ? y_ : 0;"] if v.relu else []
    lines = [*channels, *each_place(v, [name for name in ("x", "addend") if v.has(name)], body, ["y"])]
    parameters = [*arrays(v, "x"), *numbers_of(v, "scale", "bias", "shift", "sums", "sumsq"), *arrays(v, "addend")]
    parameters += [*arrays(v, "y", const=False), "float* saved_mean", "float* saved_inverse", "double epsilon"]
    return Kernel("normalize_by_sums", source(v, parameters, lines))


def normalize_step(op: Any, x: TensorSpec, memory: Mapping[str, Reference], *, add: bool, relu: bool) -> Step:
    """Return the step of a normalization with the statistics of the batch, in float32.

    Args:
        op: the SpatialBN.
        x: the spec of X, in which all images are stored.
        memory: of ``x``, ``scale``, ``bias``, the ``shift`` of the ``sums`` and ``sumsq``, ``y``, the batch's ``mean``
            and ``inverse`` deviation; with ``add``, of the ``addend``.
        add: an addend is added after the normalization.
        relu: a Relu follows.
    """
    images = ["x", *(["addend"] if add else []), "y"]
    launch = Launcher(_kernel, images_of(op, x), dict.fromkeys(images, x), relu=relu)
    numbers = ("scale", "bias", "shift", "sums", "sumsq")

    def bind(memory: Mapping[str, Any], workspace: Any) -> Call:
        names = ["x", *numbers, *images[1:], "mean", "inverse"]
        return launch.bind(
            [memory[name] for name in images], [*(memory[name] for name in names), np.float64(op.epsilon)]
        )

    return Step(launch.name, bind, memory)
