"""TT, a fully connected layer whose weight matrix is a tensor train; and its gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["TT", "TTLinearGradient"]

Array = Any


@dataclass(frozen=True)
class _Train(Operator):
    """Base: the sizes of the cores."""

    inp_sizes: tuple[int, ...] = ()
    out_sizes: tuple[int, ...] = ()
    tt_ranks: tuple[int, ...] = ()

    def check(self) -> None:
        inner, outer, ranks = self.inp_sizes, self.out_sizes, self.tt_ranks
        fits = len(inner) == len(outer) == len(ranks) - 1 > 0 and min(*inner, *outer, *ranks) > 0
        if not fits or ranks[0] != 1 or ranks[-1] != 1:
            raise ArgumentError(
                f"{self.type}: inp_sizes and out_sizes must have the same length, tt_ranks one number more, all be "
                f"positive, and the first and the last rank 1; got {list(inner)}, {list(outer)} and {list(ranks)}"
            )

    @property
    def core_shapes(self) -> list[tuple[int, int]]:
        """The shape of each core as a matrix: rows are (input, rank after it), columns (rank before it, output)."""
        before, after = self.tt_ranks[:-1], self.tt_ranks[1:]
        return [(i * s, r * o) for i, o, r, s in zip(self.inp_sizes, self.out_sizes, before, after)]

    @property
    def weights(self) -> int:
        """The number of elements of all cores together."""
        return sum(rows * columns for rows, columns in self.core_shapes)

    def check_inputs(self, x: TensorSpec, *others: TensorSpec) -> None:
        wide = math.prod(self.inp_sizes)
        text = f"X must have samples of {wide} elements, the product of inp_sizes, got shape {x.shape}"
        require(x.ndim >= 2 and math.prod(x.shape[1:]) == wide, self, text)

    def cores_of(self, flat: Array) -> list[Array]:
        """Return the cores as matrices, first to last; they are stored in reverse order."""
        cores, end = [], flat.size
        for rows, columns in self.core_shapes:
            cores.append(flat[end - rows * columns : end].reshape(rows, columns))
            end -= rows * columns
        return cores

    def products(self, samples: int) -> int:
        """Return the floating-point operations of all products for this number of samples."""
        left, done, total = samples * math.prod(self.inp_sizes), 1, 0
        for (rows, columns), size, rank in reversed(list(zip(self.core_shapes, self.out_sizes, self.tt_ranks[1:]))):
            left //= rows // rank
            total += 2 * left * done * rows * columns
            done *= size
        return total


@register
@dataclass(frozen=True)
class TT(_Train):
    """Y = X W + b, where W, (K, N), is a tensor train: a product of cores.

    K is the product of ``inp_sizes``, N that of ``out_sizes``. Core k has the axes input, output and the ranks before
    and after it. Element (i, o) of W is the product of one matrix per core, which the digits of i and o in the bases
    ``inp_sizes`` and ``out_sizes`` select. The cores are stored in one vector, the last one first, each as (input, rank
    after it, rank before it, output); ``netbuilder.caffe2.tensor_cores`` makes them.

    Source: Novikov et al., "Tensorizing Neural Networks", 2015, arXiv:1509.06569.
    """

    signature = (
        "X (M, *S): float32|float64, b (prod(out_sizes)): as X, cores (weights): as X -> Y (M, prod(out_sizes)): as X"
    )

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.input("cores"), g.d_output("Y")]
        outputs = [g.d_input("X"), g.d_input("b"), g.d_input("cores")]
        return [make_op("TTLinearGradient", inputs, outputs)]

    def flops(self, x: TensorSpec, b: TensorSpec, cores: TensorSpec) -> int:
        return self.products(x.shape[0])


def _contract(op: _Train, x: Array, cores: Sequence[Array]) -> tuple[list[Array], Array]:
    """Return the matrix that each core is multiplied by, from the last core to the first, and X W, (M, N).

    A state is (samples and the inputs of the remaining cores, input and rank of the next core, outputs computed).
    """
    factors = []
    state = x.reshape(-1, cores[-1].shape[0], 1)
    for k in range(len(cores) - 1, -1, -1):
        left, rows, done = state.shape
        factor = state.swapaxes(1, 2).reshape(left * done, rows)
        factors.append(factor)
        columns = cores[k].shape[1]  # rank before, output
        state = (factor @ cores[k]).reshape(left, done, columns).swapaxes(1, 2)
        if k:
            before = op.inp_sizes[k - 1]
            state = state.reshape(left // before, before * op.tt_ranks[k], op.out_sizes[k] * done)
    return factors, state.reshape(x.shape[0], math.prod(op.out_sizes))


@kernel(TT)
def tt(op: TT, ctx: RunContext, x: Array, b: Array, cores: Array) -> tuple[Any, ...]:
    return (_contract(op, x, op.cores_of(cores))[1] + b,)


@register
@dataclass(frozen=True)
class TTLinearGradient(_Train):
    """The gradients of TT: of X, of b and of the cores."""

    signature = "X, cores, dY -> dX, db, dcores"
    gradient_of = TT

    def flops(self, x: TensorSpec, cores: TensorSpec, dy: TensorSpec) -> int:
        return 3 * self.products(x.shape[0])


@kernel(TTLinearGradient)
def tt_gradient(op: TTLinearGradient, ctx: RunContext, x: Array, cores: Array, dy: Array) -> tuple[Any, ...]:
    matrices = op.cores_of(cores)
    factors, _ = _contract(op, x, matrices)
    parts: list[Array] = []
    d_state = dy
    for k, (core, factor) in enumerate(zip(matrices, reversed(factors))):
        columns, done = core.shape[1], math.prod(op.out_sizes[k + 1 :])
        left = factor.shape[0] // done
        d_product = d_state.reshape(left, columns, done).swapaxes(1, 2).reshape(left * done, columns)
        parts.append((factor.T @ d_product).reshape(-1))
        d_state = (d_product @ core.T).reshape(left, done, core.shape[0]).swapaxes(1, 2)
    return d_state.reshape(x.shape), dy.sum(axis=0), ctx.xp.concatenate(parts[::-1])
