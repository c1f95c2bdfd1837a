"""Export of operators on samples and on segments of rows to ONNX: products, distances, sums by lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.exchange.onnx.graph import Graph, rule
from netbuilder.exchange.onnx.library import onnx_library
from netbuilder.exchange.onnx.rules_elementwise import reduced
from netbuilder.ops.core.broadcasting import placed_shape, start_axis
from netbuilder.proto import OperatorError

__all__: list[str] = []


def _per_sample(g: Graph, value: str, like: str, hint: str) -> str:
    """Return one element per sample in a shape that is broadcast to that of ``like``."""
    shape = g.constant(f"{hint}/per_sample", [-1, *[1] * (g.spec(like).ndim - 1)], np.int64)
    return g.between("Reshape", [value, shape], f"{hint}/each")


def _inner(g: Graph, x: str) -> list[int]:
    return list(range(1, g.spec(x).ndim))


@rule("RowMul")
def _row_mul(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add("Mul", [x[0], _per_sample(g, x[1], x[0], y[0])], [y[0]])


@rule("ReduceTailSum")
def _reduce_tail_sum(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    reduced(g, "ReduceSum", x[0], y[0], _inner(g, x[0]))


@rule("ColwiseMax", "RowwiseMax")
def _matrix_max(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    reduced(g, "ReduceMax", x[0], y[0], [op.reduced])


@rule("DotProduct")
def _dot_product(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    reduced(g, "ReduceSum", g.between("Mul", x, f"{y[0]}/products"), y[0], _inner(g, x[0]))


@rule("L1Distance", "SquaredL2Distance")
def _distance(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    apart = g.between("Sub", x, f"{y[0]}/apart")
    if op.type == "L1Distance":
        reduced(g, "ReduceSum", g.between("Abs", [apart], f"{y[0]}/size"), y[0], _inner(g, x[0]))
        return
    total = g.fresh(f"{y[0]}/total")
    reduced(g, "ReduceSum", g.between("Mul", [apart, apart], f"{y[0]}/squares"), total, _inner(g, x[0]))
    g.add("Mul", [total, g.constant(f"{y[0]}/half", 0.5, g.spec(x[0]).dtype)], [y[0]])


@rule("CosineSimilarity")
def _cosine(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    least, sums = g.constant(f"{y[0]}/least", 1e-12, g.spec(x[0]).dtype), []
    for a, b in ((x[0], x[1]), (x[0], x[0]), (x[1], x[1])):
        sums.append(g.fresh(f"{y[0]}/sum"))
        reduced(g, "ReduceSum", g.between("Mul", [a, b], f"{y[0]}/products"), sums[-1], _inner(g, a))
    norms = [g.between("Sqrt", [g.between("Max", [s, least], f"{y[0]}/square")], f"{y[0]}/norm") for s in sums[1:]]
    g.add("Div", [sums[0], g.between("Mul", norms, f"{y[0]}/norms")], [y[0]])


@rule("Conditional")
def _conditional(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add("Where", [_per_sample(g, x[0], x[1], y[0]), *x[1:]], [y[0]])


@rule("SquareRootDivide")
def _square_root_divide(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    dtype = g.spec(x[0]).dtype
    scale = g.between("CastLike", [x[1], x[0]], f"{y[0]}/scale") if g.spec(x[1]).dtype != dtype else x[1]
    zero, one = (g.constant(f"{y[0]}/{n}", n, dtype) for n in (0, 1))
    used = g.between("Where", [g.between("Equal", [scale, zero], f"{y[0]}/none"), one, scale], f"{y[0]}/used")
    root = g.between("Sqrt", [used], f"{y[0]}/root")
    g.add("Div", [x[0], _per_sample(g, root, x[0], y[0])], [y[0]])


@rule("SumElementsInt")
def _sum_elements_int(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    reduced(g, "ReduceSum", x[0], y[0], list(range(g.spec(x[0]).ndim)))


@rule("SumSqrElements")
def _sum_squares(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    squares = g.between("Mul", [x[0], x[0]], f"{y[0]}/squares")
    reduced(g, "ReduceMean" if op.average else "ReduceSum", squares, y[0], list(range(g.spec(x[0]).ndim)))


@rule("Moments")
def _moments(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    axes, mean = list(op.reduced_axes(g.spec(x[0]).shape)), g.fresh(f"{x[0]}/mean")
    reduced(g, "ReduceMean", x[0], mean, axes, 1)
    if y[0]:
        reduced(g, "ReduceMean", x[0], y[0], axes, int(op.keepdims))
    if y[1]:
        apart = g.between("Sub", [x[0], mean], f"{y[1]}/apart")
        reduced(g, "ReduceMean", g.between("Mul", [apart, apart], f"{y[1]}/squares"), y[1], axes, int(op.keepdims))


@rule("LpNorm")
def _lp_norm(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    size = g.between("Abs", x, f"{y[0]}/size") if op.p == 1 else g.between("Mul", [x[0], x[0]], f"{y[0]}/squares")
    total = g.fresh(f"{y[0]}/total")
    reduced(g, "ReduceMean" if op.average else "ReduceSum", size, total, list(range(g.spec(x[0]).ndim)))
    g.add("Reshape", [total, g.constant(f"{y[0]}/shape", [1], np.int64)], [y[0]])


@rule("BatchMoments", "ChannelStats")
def _of_channels(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    if op.type == "ChannelStats" and (len(x) > 1 or any(y[2:])):
        raise OperatorError("ChannelStats: a weight, or the count of elements, cannot be exported to ONNX")
    ndim, kind = g.spec(x[0]).ndim, "ReduceMean" if op.type == "BatchMoments" else "ReduceSum"
    axes = [0, *range(2, ndim)] if op.order == "NCHW" else list(range(ndim - 1))
    if y[0]:
        reduced(g, kind, x[0], y[0], axes)
    if y[1]:
        reduced(g, kind, g.between("Mul", [x[0], x[0]], f"{y[1]}/squares"), y[1], axes)


@rule("BatchBoxCox")
def _box_cox(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    dtype, shape, hint = g.spec(x[0]).dtype, g.spec(x[0]).shape[1:], y[0]
    if not all(map(g.is_constant, x[1:])):
        raise OperatorError("BatchBoxCox: lambda1 and lambda2 must be constants in ONNX")
    powers, offsets = (g.elements(name).reshape(shape) for name in x[1:])
    zero = powers == 0
    numbers = {"offset": offsets, "least": 1e-6, "power": np.where(zero, 1, powers), "one": 1}
    offset, least, power, one = (g.constant(f"{hint}/{name}", value, dtype) for name, value in numbers.items())
    base = g.between("Max", [g.between("Add", [x[0], offset], f"{hint}/sum"), least], f"{hint}/base")
    raised = g.between("Sub", [g.between("Pow", [base, power], f"{hint}/raised"), one], f"{hint}/less_one")
    choice = [g.constant(f"{hint}/zero", zero), g.between("Log", [base], f"{hint}/log")]
    g.add("Where", [*choice, g.between("Div", [raised, power], f"{hint}/scaled")], [hint])


@rule("SumReduceLike")
def _sum_reduce_like(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    a, b = g.spec(x[0]).shape, g.spec(x[1]).shape
    if a == b:
        g.add("Identity", x[:1], [y[0]])
        return
    placed = placed_shape(op, a, b, start_axis(op.type, op.axis, op.axis_str, op.order, a, b))
    placed = (1,) * (len(a) - len(placed)) + tuple(placed)
    sums = g.fresh(f"{y[0]}/sums")
    reduced(g, "ReduceSum", x[0], sums, [i for i, (n, m) in enumerate(zip(a, placed)) if n != m], 1)
    g.add("Reshape", [sums, g.between("Shape", x[1:], f"{y[0]}/shape")], [y[0]])


@rule("ReduceFrontWeightedSum")
def _weighted_rows(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    weighted = g.between("Mul", [x[0], _per_sample(g, x[1], x[0], y[0])], f"{y[0]}/weighted")
    reduced(g, "ReduceSum", weighted, y[0], [0])


@rule("MakeTwoClass")
def _make_two_class(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    spec = g.spec(x[0])
    other = g.between("Sub", [g.constant(f"{y[0]}/one", 1, spec.dtype), x[0]], f"{y[0]}/other")
    last = g.constant(f"{y[0]}/last", [spec.ndim], np.int64)
    g.add("Concat", [g.between("Unsqueeze", [p, last], f"{y[0]}/part") for p in (other, x[0])], [y[0]], axis=spec.ndim)


@rule("Bucketize")
def _bucketize(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    spec = g.spec(x[0])
    bounds = g.constant(f"{y[0]}/boundaries", op.boundaries, spec.dtype)
    wide = g.between("Unsqueeze", [x[0], g.constant(f"{y[0]}/last", [spec.ndim], np.int64)], f"{y[0]}/wide")
    above = g.between("Cast", [g.between("Greater", [wide, bounds], f"{y[0]}/above")], f"{y[0]}/numbers", to=6)
    reduced(g, "ReduceSum", above, y[0], [spec.ndim])


@rule("BatchOneHot")
def _batch_one_hot(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    lengths = g.constant_of(x[1], op, "lengths")
    columns = g.constant(f"{y[0]}/columns", np.repeat(np.arange(lengths.size), lengths), np.int64)
    equal = g.between("Equal", [g.between("Gather", [x[0], columns], f"{y[0]}/wide", axis=1), x[2]], f"{y[0]}/equal")
    g.add("Cast", [equal], [y[0]], to=onnx_library().helper.np_dtype_to_tensor_dtype(g.spec(y[0]).dtype))


@rule("SequenceMask")
def _sequence_mask(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    spec, hint = g.spec(x[0]), y[0]
    _, rows, columns, elements = op.parts(spec.shape)
    i, j = np.arange(rows)[:, None], np.arange(columns)[None]
    if len(x) > 1:
        numbers = g.between("Cast", [x[1]], f"{hint}/numbers", to=7)
        numbers = g.between("Reshape", [numbers, g.constant(f"{hint}/shape", [-1, 1], np.int64)], f"{hint}/by_row")
        places = g.constant(f"{hint}/places", j, np.int64)
        if op.mode == "sequence":
            keep = g.between("Less", [places, numbers], f"{hint}/keep")
        else:
            apart = g.between("Abs", [g.between("Sub", [places, numbers], f"{hint}/apart")], f"{hint}/distance")
            keep = g.between("LessOrEqual", [apart, g.constant(f"{hint}/radius", op.radius, np.int64)], f"{hint}/keep")
    else:
        keep = g.constant(f"{hint}/keep", {"upper": j <= i, "lower": j >= i, "upperdiag": j < i}.get(op.mode, j > i))
    fill = g.constant(f"{hint}/fill", 0 if op.grad else op.fill_val, spec.dtype)
    last = spec.ndim - (op.repeat_from_axis % spec.ndim if op.repeat_from_axis else spec.ndim)
    first = 0 if op.batch is None else op.batch % spec.ndim + 1
    extents = list(spec.shape[first : spec.ndim - last]) + [1] * last
    if len(x) > 1 and not first:  # the rows are of the batch
        extents[0] = -1
    shaped = g.between("Reshape", [keep, g.constant(f"{hint}/shape", extents, np.int64)], f"{hint}/shaped")
    g.add("Where", [shaped, x[0], fill], [hint])


@rule("UnsortedSegmentSum", "UnsortedSegmentMean", from_constants=True)
def _unsorted_segments(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    if g.opset < 16:
        raise OperatorError(f"{op.type} needs opset 16, got {g.opset}; give opset=16")
    spec, hint = g.spec(y[0]), y[0]
    places = g.between("Unsqueeze", [x[1], g.constant(f"{hint}/last", [1], np.int64)], f"{hint}/places")
    places = g.between("Cast", [places], f"{hint}/places", to=7)
    empty = g.constant(f"{hint}/empty", np.zeros(spec.shape), spec.dtype)
    sums = g.between("ScatterND", [empty, places, x[0]], f"{hint}/sums", reduction="add")
    if op.type == "UnsortedSegmentSum":
        g.add("Identity", [sums], [hint])
        return
    ones = g.between("Expand", [g.constant(f"{hint}/one", 1, spec.dtype), g.between("Shape", x[1:], f"{hint}/n")],
                     f"{hint}/ones")  # fmt: skip
    none = g.constant(f"{hint}/none", np.zeros(spec.shape[:1]), spec.dtype)
    counts = g.between("ScatterND", [none, places, ones], f"{hint}/counts", reduction="add")
    least = g.between("Max", [counts, g.constant(f"{hint}/least", 1, spec.dtype)], f"{hint}/divisors")
    g.add("Div", [sums, _per_sample(g, least, x[0], hint)], [hint])


@rule("ReversePackedSegs")
def _reverse(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    lengths = g.between("Cast", [x[1]], f"{y[0]}/lengths", to=7)
    g.add("ReverseSequence", [x[0], lengths], [y[0]], batch_axis=1, time_axis=0)


@rule("RotaryEmbedding")
def _rotary(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    steps, half = g.spec(x[0]).shape[-2], g.spec(x[0]).shape[-1] // 2

    def rows(table: str) -> str:
        if len(x) > 3:
            return g.between("Gather", [table, x[3]], f"{y[0]}/rows", axis=0)
        ends = [g.constant(f"{y[0]}/{name}", [n], np.int64) for name, n in (("start", 0), ("end", steps), ("rows", 0))]
        return g.between("Slice", [table, *ends], f"{y[0]}/first_rows")

    cos, sin = rows(x[1]), rows(x[2])
    sin = g.between("Neg", [sin], f"{y[0]}/sin") if op.inverse else sin
    halves = [g.fresh(f"{y[0]}/half") for _ in range(2)]
    g.add("Split", [x[0], g.constant(f"{y[0]}/extents", [half, half], np.int64)], halves, axis=g.spec(x[0]).ndim - 1)
    a, b = ([g.between("Mul", [value, factor], f"{y[0]}/part") for factor in (cos, sin)] for value in halves)
    turned = [g.between("Sub", [a[0], b[1]], f"{y[0]}/first"), g.between("Add", [b[0], a[1]], f"{y[0]}/second")]
    g.add("Concat", turned, [y[0]], axis=g.spec(x[0]).ndim - 1)


@rule("LengthsSum", "LengthsMean", "LengthsMax", "LengthsWeightedSum")
def _lengths(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    rows = x[0]
    if op.type == "LengthsWeightedSum":
        rows = g.between("Mul", [x[0], _per_sample(g, x[1], x[0], y[0])], f"{y[0]}/weighted")
    _by_segment(g, op, rows, x[-1], y[0], g.spec(x[0]).shape[1:])


@rule("SparseLengthsSum", "SparseLengthsMean", "SparseLengthsMax", "SparseLengthsWeightedSum")
def _sparse_lengths(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    if g.spec(x[0]).dtype != np.float32:
        raise OperatorError(f"{op.type} of a table of {g.spec(x[0]).dtype} cannot be exported to ONNX")
    indices, lengths = x[-2:]
    g.free.update(x[1:-1])
    rows = g.between("Gather", [x[0], indices], f"{y[0]}/rows", axis=0)
    if op.type == "SparseLengthsWeightedSum":
        rows = g.between("Mul", [rows, _per_sample(g, x[1], x[0], y[0])], f"{y[0]}/weighted")
    _by_segment(g, op, rows, lengths, y[0], g.spec(x[0]).shape[1:])


def _by_segment(g: Graph, op: Any, rows: str, lengths: str, y: str, inner: Sequence[int] | None = None) -> None:
    """Scatter rows to their segments: that of a row is the number of segments that end before it."""
    least = 18 if op.type.endswith("Max") else 16
    if g.opset < least:
        raise OperatorError(f"{op.type} needs opset {least}, got {g.opset}; give opset={least}")
    inner = g.spec(rows).shape[1:] if inner is None else inner

    def numbers(name: str, *values: int) -> str:
        return g.constant(f"{y}/{name}", values, np.int64)

    count = g.between("Shape", [rows], f"{y}/count", start=0, end=1)
    segments = g.between("Shape", [lengths], f"{y}/segments")
    wide = g.between("Cast", [lengths], f"{y}/lengths", to=7)
    ends = g.between("CumSum", [wide, g.constant(f"{y}/axis", 0, np.int64)], f"{y}/ends")
    places = g.between("Unsqueeze", [ends, numbers("columns", 1)], f"{y}/places")
    one_more = g.between("Add", [count, numbers("one", 1)], f"{y}/one_more")
    marks = g.between("Expand", [numbers("none", 0), one_more], f"{y}/marks")
    ones = g.between("Expand", [numbers("each", 1), segments], f"{y}/ones")
    marked = g.between("ScatterND", [marks, places, ones], f"{y}/marked", reduction="add")
    numbered = g.between("CumSum", [marked, g.constant(f"{y}/axis", 0, np.int64)], f"{y}/numbered")
    ids = g.between("Slice", [numbered, numbers("first", 0), count, numbers("rows", 0)], f"{y}/ids")
    ids = g.between("Unsqueeze", [ids, numbers("columns", 1)], f"{y}/id_rows")
    start = -np.inf if op.type.endswith("Max") else 0
    shape = g.between("Concat", [segments, numbers("inner", *inner)], f"{y}/shape", axis=0) if inner else segments
    empty = g.between("Expand", [g.constant(f"{y}/start", start, np.float32), shape], f"{y}/empty")
    how = "max" if op.type.endswith("Max") else "add"
    if op.type.endswith("Sum"):
        g.add("ScatterND", [empty, ids, rows], [y], reduction=how)
        return
    made = g.between("ScatterND", [empty, ids, rows], f"{y}/made", reduction=how)
    sizes = g.between("Reshape", [wide, numbers("per_segment", -1, *[1] * len(inner))], f"{y}/sizes")
    if op.type.endswith("Max"):
        none = g.between("Equal", [sizes, numbers("zero", 0)], f"{y}/is_empty")
        g.add("Where", [none, g.constant(f"{y}/nothing", 0, np.float32), made], [y])
        return
    least_one = g.between("Max", [sizes, numbers("least", 1)], f"{y}/divisor")
    g.add("Div", [made, g.between("Cast", [least_one], f"{y}/number", to=1)], [y])
