"""SoftmaxWithLoss on oneDNN, in plain order; results are float32, also of bfloat16 inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.arguments import In, Out
from netbuilder.engines.onednn.bfloat16 import types_as_given
from netbuilder.engines.onednn.blocked_layout import Desc, plain_desc, plain_in, rounded, row_major
from netbuilder.engines.onednn.primitive import (
    Primitive,
    Step,
    cached,
    compile_primitive,
    prepared,
    team_size,
    threads_after,
)
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.labels import Positions
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["softmax_with_loss", "softmax_with_loss_gradient"]

_WORTH_OVERWRITING = (
    1 << 16
)  # bytes of scores; of fewer, what the loss reads of them takes longer to keep than it saves
_RARE = np.float32(1e-30)  # smaller probabilities lose digits in float32


@cached
def _softmax(source: Desc, data: Desc, algorithm: int) -> Primitive:
    return compile_primitive("softmax_forward", c.FORWARD_TRAINING, algorithm, source.handle, data.handle, 1)


def _serves(*specs: TensorSpec) -> bool:
    return all(s.dtype == np.float32 and s.size > 0 and s.ndim > 0 for s in specs)


def _matrix(spec: TensorSpec, axis: int) -> Desc:
    """Describe a value as a matrix: the axes before ``axis`` are rows, the others columns."""
    columns = 1
    for extent in spec.shape[axis % spec.ndim :]:
        columns *= extent
    return plain_desc(row_major((spec.size // columns, columns)), np.float32)


def _forward(ctx: PlanContext, x: TensorSpec, axis: int, algorithm: int) -> tuple[TensorSpec, Primitive] | None:
    """Return the spec in which X is read, and the primitive, whose result is float32."""
    data = _matrix(x, axis)
    view = row_major(data.dims)
    for code in types_as_given(ctx, x):
        made = _softmax(plain_in(view, code), data, algorithm, threads=team_size(ctx, x.size))
        if made is not None and not (made.slow and code == c.BF16):
            return (x.plain if code == c.F32 else x.with_layout(rounded(x.size))), made
    return None


def _mark_undefined(p: Any, rows: Any) -> None:
    """Write NaN into those of ``rows`` that have no positive probability."""
    p[rows[~(p[rows].max(axis=1) > 0)]] = np.nan


def _labels_serve(op: Any, label: TensorSpec) -> bool:
    return not op.label_prob and label.dtype in (np.int32, np.int64)


def softmax_with_loss(op: Any, ctx: PlanContext, x: TensorSpec, label: TensorSpec, *weight: TensorSpec) -> Any:
    """Prepare SoftmaxWithLoss: X, label -> P, loss; not with weights or labels that are probabilities."""
    if weight or not _serves(x) or not _labels_serve(op, label):
        return None
    found = _forward(ctx, x, op.axis, c.SOFTMAX_ACCURATE)
    if found is None:
        return None
    needed, made = found
    dims = _matrix(x, op.axis).dims
    steps = [
        _overwritten_scores(op, ctx, dims),
        Step(made, {c.SRC: In(0), c.DST: Out(0)}, threads_after(ctx, x.size)),
        _mean_loss(op, ctx, dims),
    ]
    inplace = [(0, 0)] if needed.layout is None and x.nbytes >= _WORTH_OVERWRITING else ()
    outputs = [x.plain, TensorSpec((), x.dtype)]
    return prepared([needed, label.plain], outputs, steps, inplace=inplace, scratch=8 * dims[0])


def _kept_scores(scratch: Any, rows: int) -> tuple[Any, Any]:
    """Return the arrays in scratch memory for the labels' elements of X, and the largest of each row."""
    both = scratch[: 8 * rows].view(np.float32)
    return both[:rows], both[rows:]


def _overwritten_scores(op: Any, ctx: PlanContext, dims: tuple[int, ...]) -> Any:
    """Return the step that keeps what the loss may read of X, if P overwrites X."""

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call | None:
        if inputs[0].ctypes.data != outputs[0].ctypes.data:
            return None
        labels = Positions(op, ctx.run, inputs[1], dims[1])
        chosen, largest = _kept_scores(scratch, dims[0])
        x, maximum = inputs[0].reshape(dims), np.maximum.reduce
        flat = x.reshape(-1)

        def call() -> None:
            flat.take(labels.update(), None, chosen, "clip")
            maximum(x, 1, None, largest)

        return call

    return bind


def _mean_loss(op: Any, ctx: PlanContext, dims: tuple[int, ...]) -> Any:
    """Return the step that writes output 1, the scaled mean of the labels' negative log probabilities."""

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        labels = Positions(op, ctx.run, inputs[1], dims[1])
        x, p, loss = _rows(inputs[0], dims), outputs[0].reshape(dims), outputs[1]
        overwritten = inputs[0].ctypes.data == outputs[0].ctypes.data
        kept = _kept_scores(scratch, dims[0]) if overwritten else None
        flat, selected = p.reshape(-1), np.empty(dims[0], np.float32)
        shares, dot, log = np.full(dims[0], -op.scale / dims[0], np.float32), np.dot, np.log
        # The bytes of a comparison, since a reduction of few elements takes three times as long.
        rare, compare = np.array(_RARE), np.greater_equal
        are_large, all_large = np.empty(dims[0], np.bool_), b"\x01" * dims[0]

        def call() -> None:
            positions = labels.update()
            flat.take(positions, None, selected, "clip")
            if compare(selected, rare, are_large).tobytes() == all_large:
                log(selected, selected)
            else:
                rows = np.flatnonzero(~are_large)
                scores = (kept[0][rows], kept[1][rows]) if kept else _scores_of(x, rows, positions)
                _logarithms(selected, rows, *scores, p)
            dot(selected, shares, loss)

        return call

    return bind


def _rows(x: Any, dims: tuple[int, ...]) -> Any:
    """Return X as a matrix of float32, or of uint16, the bits of bfloat16."""
    return x.reshape(dims) if x.dtype == np.float32 else x.view(np.uint16)[: dims[0] * dims[1]].reshape(dims)


def _scores_of(x: Any, rows: Any, positions: Any) -> tuple[Any, Any]:
    """Return of some rows of X the labels' elements, and the largest ones."""
    given = x[rows]
    if given.dtype == np.uint16:
        given = (given.astype(np.uint32) << 16).view(np.float32)
    return given[np.arange(rows.size), positions[rows] % x.shape[1]], given.max(axis=1)


def _logarithms(selected: Any, rows: Any, chosen: Any, largest: Any, p: Any) -> None:
    """Replace probabilities by their logarithms; very small ones, which float32 rounds, are computed from X.

    Rows with NaN or infinity, for which oneDNN's probabilities are 0, become NaN.

    Args:
        selected: the labels' probabilities.
        rows: those that are very small.
        chosen, largest: of these rows of X, the labels' elements and the largest ones.
        p: all probabilities.
    """
    _mark_undefined(p, rows)
    np.log(np.maximum(selected, _RARE), selected)
    selected[rows] = chosen - largest + np.log(p[rows].max(axis=1))


def softmax_with_loss_gradient(
    op: Any, ctx: PlanContext, x: TensorSpec, label: TensorSpec, *others: TensorSpec
) -> Prepared | None:
    """Prepare SoftmaxWithLossGradient: X (not read), label, P, dloss -> dX; not with weights."""
    if len(others) != 2 or not _serves(x) or not _labels_serve(op, label):
        return None
    p, dloss = others
    if p.dtype != np.float32 or dloss.dtype != np.float32:
        return None
    dims = _matrix(x, op.axis).dims

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        labels = Positions(op, ctx.run, inputs[1], dims[1])
        p, dx = inputs[2].reshape(-1), outputs[0].reshape(-1)
        # 0-d arrays, which NumPy's functions process in half the time of its scalars.
        d_loss, share = inputs[3].reshape(()), np.array(op.scale / dims[0], np.float32)
        selected, factor, one = np.empty(dims[0], np.float32), np.empty((), np.float32), np.array(1, np.float32)
        subtract, multiply = np.subtract, np.multiply

        def call() -> None:
            positions = labels.update()
            p.take(positions, None, selected, "clip")  # before dX, which may have the same memory, is written
            subtract(selected, one, selected)
            multiply(d_loss, share, factor)
            multiply(selected, factor, selected)
            multiply(p, factor, dx)
            dx[positions] = selected

        return call

    return Prepared([None, label.plain, p.plain, dloss.plain], [x.plain], bind, inplace=((2, 0),), name="numpy")
