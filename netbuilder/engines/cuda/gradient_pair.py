"""The gradient of a batch normalization with the Relu after it, as a pair of kernels: sums per channel, then dX.

The first one reads X, dY and the Relu's result Y, and the second one X and dY again. Where the gradient of the Relu is
needed by others, or is that of a sum, the first one writes it and the second one reads it. Else the first one writes
a bit for each element of Y, which the second one reads in its place; where elements are read one by one, it reads Y.
Where a kernel of ours has normalized, and nothing was added, both compute Y again from X instead, to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from netbuilder.engines.cuda.channel_code import Launcher, images_of
from netbuilder.engines.cuda.channels import backprop_stats_kernel, gradient_kernel
from netbuilder.engines.cuda.steps import Reference, Step, one_call, prepared, scratch_memory
from netbuilder.engines.references import In, Out
from netbuilder.ops.core.contexts import Call, Prepared
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["gradient_pair", "gradient_step"]


def gradient_pair(
    op: Any, x: TensorSpec, channels: TensorSpec, *, add: bool, shared: bool, limit: float = math.inf,
    computes: bool = False,
) -> Prepared:  # fmt: skip
    """Prepare the gradient: X, scale, dY, mean, inverse deviation, Y, [addend] -> [dZ], dX, dscale, dbias.

    Args:
        op: the SpatialBNGradient, of a whole batch.
        x: the spec of X, in which all images are stored.
        channels: the spec of each number per channel, in float32.
        add: the gradient of Y is the sum of dY and an addend; only with ``shared``.
        shared: the gradient of the Relu's input is output 0.
        limit: the largest result of the Relu, which may be inf.
        computes: Y is computed again, as ``shifted_sums`` has stored it; in its place is the bias.
    """
    found, scratch = images_of(op, x), scratch_memory()
    last, addend = "bias" if computes else "y", ["addend"] if add else []
    names = ["x", "dy", *([] if computes else ["y"]), *addend, *(["dz"] if shared else [])]
    sums = Launcher(backprop_stats_kernel, found, dict.fromkeys([*names, "dx"], x), limit=limit)
    images_read = {"x": x, "dy": x, "dx": x} if shared else dict.fromkeys([*names, "dx"], x)
    gradient = Launcher(gradient_kernel, found, images_read, limit=None if shared else limit)
    inputs = ("x", "scale", "dy", "mean", "inverse", last, *addend)
    outputs = (*(["dz"] if shared else []), "dx", "dscale", "dbias")
    memory: dict[str, Reference] = {name: In(i) for i, name in enumerate(inputs)}
    memory |= {name: Out(j) for j, name in enumerate(outputs)}
    memory |= {name: scratch.allocate(channels.nbytes) for name in ("dscale_sum", "dbias_sum")}
    again = 2 * x.nbytes
    if sums.masked:
        mask = scratch.allocate(x.size // sums.width)
        memory["mask"], again = mask, again + mask.nbytes
    elif not shared and not computes:
        again += x.nbytes

    def bind(memory: Mapping[str, Any], workspace: Any) -> Call:
        given = {"mask": memory["dscale_sum"], **memory}  # without a mask, nothing is read or written there
        images = [given[name] for name in (*names, "dx")]
        of_relu = ["bias"] if computes else ["y", "mask"]
        noted = ["dz"] if shared else [] if computes else ["mask"]
        read = ["x", "mean", "inverse", *(["scale", "bias", "dy"] if computes else ["dy", "y"]), *addend]
        first = [given[name] for name in (*read, *noted, "dscale_sum", "dbias_sum")]
        read = ["x", "scale", "dz" if shared else "dy", "mean", "inverse", *([] if shared else of_relu)]
        second = [given[name] for name in (*read, "dscale_sum", "dbias_sum", "dx", "dscale", "dbias")]
        reads = [given[name] for name in ("x", "dz", "dx")] if shared else images
        return one_call([sums.bind(images, first, workspace), gradient.bind(reads, [*second, np.float64(1)])])

    specs = dict.fromkeys((*names, "dx"), x)
    step = Step(f"{sums.name}, {gradient.name}", bind, memory, sums.sums)
    given, made = ([specs.get(name, channels) for name in each] for each in (inputs, outputs))
    return prepared(given, made, [step], scratch, again=again)


def gradient_step(op: Any, x: TensorSpec, memory: Mapping[str, Reference]) -> Step:
    """Return the step that computes dX from dZ, the gradient of the Relu, and from sums over it, in float32.

    Args:
        op: the SpatialBNGradient, of a whole batch.
        x: the spec of X, in which all images are stored.
        memory: of ``x``, ``scale``, ``dz``, ``mean``, ``inverse``, ``dscale_sum``, ``dbias_sum``, ``dx``, ``dscale``,
            and ``dbias``.
    """
    gradient = Launcher(gradient_kernel, images_of(op, x), dict.fromkeys(("x", "dy", "dx"), x))
    numbers = ("scale", "dz", "mean", "inverse", "dscale_sum", "dbias_sum", "dx", "dscale", "dbias")

    def bind(memory: Mapping[str, Any], workspace: Any) -> Call:
        images = [memory[name] for name in ("x", "dz", "dx")]
        return gradient.bind(images, [memory["x"], *(memory[name] for name in numbers), np.float64(1)])

    return Step(gradient.name, bind, memory)
