"""RotaryEmbedding: features of queries and keys rotated by angles that grow with their positions."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.indexing import checked_indices
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["RotaryEmbedding"]


@register
@dataclass(frozen=True)
class RotaryEmbedding(Operator):
    """Y = X with each pair of features (i, i + D / 2) of row t rotated by the angle whose cosine is cos[t, i].

    With positions, row t is rotated by the angles of row positions[t] of the tables. With ``inverse``, by the negative
    angles, which is the gradient.

    Source: Su and others, "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, arXiv:2104.09864,
    section 3.4.2; with halves in place of neighbors, as in GPT-NeoX.
    """

    signature = """
        X (*S, T, D): float
        cos (L, D // 2): wide X, with L at least T
        sin (L, D // 2): wide X
        positions? (T): int32|int64
        -> Y (*S, T, D): as X
    """
    copy_arguments = False
    flops_per_element = 3
    inverse: bool = False

    def check_inputs(self, x: TensorSpec, cos: TensorSpec, sin: TensorSpec, *positions: TensorSpec) -> None:
        require(x.shape[-1] % 2 == 0, self, f"the number of features must be even, got {x.shape[-1]}")
        rows = cos.shape[0]
        fits = bool(positions) or rows >= x.shape[-2]
        require(fits, self, f"the tables have {rows} rows, X has {x.shape[-2]} positions; make longer tables")

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        tables = [g.input(i) for i in range(1, self.n_in)]
        back = None if self.inverse else 1
        return [make_op("RotaryEmbedding", [g.d_output("Y"), *tables], [g.d_input("X")], inverse=back)]


@kernel(RotaryEmbedding)
def rotary_embedding(
    op: RotaryEmbedding, ctx: RunContext, x: Any, cos: Any, sin: Any, positions: Any = None
) -> tuple[Any, ...]:
    wide, half = widen(x), x.shape[-1] // 2
    if positions is None:
        cos, sin = cos[: x.shape[-2]], sin[: x.shape[-2]]
    else:
        rows = checked_indices(ctx, "RotaryEmbedding", positions, cos.shape[0])
        cos, sin = cos[rows], sin[rows]
    cos, sin = widen(cos), -widen(sin) if op.inverse else widen(sin)
    first, second = wide[..., :half], wide[..., half:]
    y = ctx.xp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return (narrow(y, x),)
