"""In which order the images of a whole predictor lie: channels in blocks, or last.

Kernels for either order are measured, convolution by convolution. In a training net the gradients of weights decide for
blocks, and the other order serves within single operators (see channels_last).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from netbuilder.ops.core.contexts import ANY_ORDER, CHANNELS_LAST, CompiledSegment, Prepared, Segment
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.onednn import declarations as c
from netbuilder.ops.engines.onednn.autotune import seconds, turned_off
from netbuilder.ops.engines.onednn.convolutions import WORTH, Views, described, serves
from netbuilder.ops.engines.onednn.kernels_conv import conv
from netbuilder.proto import OperatorDef

__all__ = ["best_image_order"]


@dataclass
class _Alone:
    """The plan context of a convolution with constant weights that is measured by itself."""

    threads: int
    precision: str
    image_order: str
    device_id: int = 0
    op_def: OperatorDef = field(default_factory=OperatorDef)
    run: Any = None

    def publish(self, output: int, key: str, value: Any) -> None:
        pass

    def published(self, input: int, key: str) -> Any:
        return None

    def is_constant(self, input: int) -> bool:
        return input > 0

    def repeats(self, input: int) -> bool:
        return False

    def compile_segment(self, segment: Segment) -> CompiledSegment:
        raise NotImplementedError("a convolution holds no net")

    def enabled(self, optimization: str) -> bool:
        return True

    def demand(self, output: int, reads: Sequence[int] = ()) -> Any:
        return "run"


def best_image_order(convs: Sequence[tuple[Any, Sequence[TensorSpec]]], threads: int, precision: str) -> str:
    """Return in which order a net with constant weights computes faster.

    Args:
        convs: its convolutions, with the specs of their inputs.
        threads: that compute.
        precision: of activations.
    """
    served = [(op, specs) for op, specs in convs if serves(*specs)]
    if turned_off() or sum(2 * op.products(specs[0], specs[1]) for op, specs in served) < WORTH:
        return ANY_ORDER
    times = {ANY_ORDER: 0.0, CHANNELS_LAST: 0.0}
    for op, specs in served:
        code = c.BF16 if precision == "bfloat16" else c.F32
        what = described(Views(op, specs[0], specs[1], transposed=False), code)
        for order in times:

            def make(order: str = order, op: Any = op, specs: Sequence[TensorSpec] = specs) -> Prepared | None:
                return conv(op, _Alone(threads, precision, order), *specs)

            times[order] += seconds(f"forward {what}, images in {order}", make, threads)
    return min(times, key=times.__getitem__)
