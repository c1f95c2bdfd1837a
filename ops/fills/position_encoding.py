"""SinusoidPositionEncoding: positions encoded by sines and cosines."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["SinusoidPositionEncoding"]

_FLOAT = np.dtype(np.float32)


@register
@dataclass(frozen=True)
class SinusoidPositionEncoding(Operator):
    """output[m, k, i] = ``amplitude`` * sin(p / ``alpha``^(i / ``embedding_size``)) for even i, cos for odd i.

    p is positions[m, k], of any numeric type; the output is float32. No gradient.

    Source: Vaswani et al., "Attention Is All You Need", 2017, arXiv:1706.03762, section 3.5.
    """

    signature = "positions (M, K): float|int -> output (M, K, embedding_size): float32"
    embedding_size: int = 100
    alpha: float = 10000.0
    amplitude: float = 1.0

    def check(self) -> None:
        if self.embedding_size < 1 or not self.alpha > 0:
            raise ArgumentError(
                f"SinusoidPositionEncoding: embedding_size must be at least 1 and alpha positive, got "
                f"{self.embedding_size} and {self.alpha}"
            )

    def flops(self, positions: TensorSpec) -> int:
        return 2 * positions.size * self.embedding_size


@kernel(SinusoidPositionEncoding)
def sinusoid_position_encoding(op: SinusoidPositionEncoding, ctx: RunContext, positions: Any) -> tuple[Any, ...]:
    xp = ctx.xp
    position = xp.arange(op.embedding_size)
    angle = positions.astype(float)[:, :, None] * xp.exp(position * (-float(np.log(op.alpha)) / op.embedding_size))
    wave = xp.where(position % 2 == 0, xp.sin(angle), xp.cos(angle))
    return ((op.amplitude * wave).astype(_FLOAT),)
