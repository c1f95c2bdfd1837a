"""Softmax, losses and accuracy of the rows of a matrix: one kernel each.

A group of threads, of a size that suits the number of columns, computes a row. Sums over rows are those of each block,
which the last block to end adds in their order: so results do not change from run to run.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from netbuilder.engines.cuda.code import c_type, stored, value_of, with_prelude
from netbuilder.engines.cuda.gpu_layout import ChannelsLast, elements_of, in_order, order_of, row_major_spec
from netbuilder.engines.cuda.kernel import BLOCK_SUM, THREADS, Kernel
from netbuilder.engines.cuda.noted_errors import REPORT, note_of, slot_of
from netbuilder.engines.gpu import gpu
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.extensions import CAPTURABLE
from netbuilder.ops.core.labels import label_error, label_or_none_error
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ROWS", "Variant"]

_MOST_BLOCKS = 1024
_TINY = "1e-20"  # probabilities are clamped to this before log and in divisions, as in the plain kernels


@dataclass(frozen=True)
class Variant:
    """What a kernel depends on besides extents.

    Args:
        lanes: threads that compute a row.
        x: the type of the elements of the matrix, or of the probabilities that a gradient reads.
        out: the type of the elements of the result that has an element for each of the matrix.
        label, weight, dy: the types of the other inputs; None: there is none. ``dy`` is the gradient of the result.
        by_class: the labels are probabilities of all classes.
        ignored: rows with the label -1 have the weight 0.
        weighted_mean: a sum over rows is divided by the sum of their weights, not by a given number.
    """

    lanes: int
    x: str
    out: str
    label: str | None = None
    weight: str | None = None
    dy: str | None = None
    by_class: bool = False
    ignored: bool = False
    weighted_mean: bool = False

    @property
    def wide(self) -> str:
        """The type in which rows are computed."""
        return "double" if self.x == "float64" else "float"

    @property
    def has_weights(self) -> bool:
        return self.weight is not None or self.ignored


def _row_functions(variant: Variant) -> str:
    """Return the functions that reduce over the threads of a row, and of a block."""
    wide, lanes = variant.wide, variant.lanes
    infinity = "__longlong_as_double(0x7ff0000000000000LL)" if wide == "double" else "__int_as_float(0x7f800000)"
    reduced = f"""
#define MINUS_INFINITY (-{infinity})
__device__ __forceinline__ {wide} reduced({wide} own, {wide}* shared, bool largest) {{
    const int lane = threadIdx.x % {lanes};
    shared[threadIdx.x] = own;
    __syncthreads();
    for (int half = {lanes} / 2; half > 0; half /= 2) {{
        if (lane < half) {{
            const {wide} a = shared[threadIdx.x], b = shared[threadIdx.x + half];
            shared[threadIdx.x] = largest ? ((a > b || a != a) ? a : b) : a + b;
        }}
        __syncthreads();
    }}
    const {wide} found = shared[threadIdx.x - lane];
    __syncthreads();
    return found;
}}
"""
    return f"#define MINUS_INFINITY (-{infinity})\n" if lanes == 1 else reduced


def _sums(finish: str) -> list[str]:
    """Return the statements that add ``total`` and ``weights`` of all threads, in a fixed order, before ``finish``."""
    return f"""
__shared__ double sums[{THREADS}];
__shared__ bool last;
volatile double* all = partial;
total = block_sum(total, sums);
weights = block_sum(weights, sums);
if (threadIdx.x == 0) {{
    all[blockIdx.x] = total;
    all[gridDim.x + blockIdx.x] = weights;
    __threadfence();
    last = atomicAdd(ended, 1u) == gridDim.x - 1;
}}
__syncthreads();
if (!last) return;
__threadfence();
total = weights = 0;
for (int k = threadIdx.x; k < gridDim.x; k += {THREADS}) {{
    total += all[k];
    weights += all[gridDim.x + k];
}}
total = block_sum(total, sums);
weights = block_sum(weights, sums);
if (threadIdx.x == 0) {{
    *ended = 0;  // for the next launch
    {finish}
}}
""".strip().splitlines()


def _kernel(
    title: str, variant: Variant, parameters: Sequence[str], row: Sequence[str], finish: str | None = None
) -> Kernel:
    """Return a kernel over rows.

    Args:
        title, variant: of the kernel.
        parameters: after the extents, which are the last but these.
        row: the statements for a row; ``inside``: there is one for this thread.
        finish: what one thread does with the sums; None: there are none.
    """
    groups, sums = THREADS // variant.lanes, finish is not None
    given = [*parameters, *(["double* partial", "unsigned* ended"] if sums else [])]
    given += ["i64 rows", "int columns", "i64 inner"]
    checks = any("report(" in line for line in row)
    given += ["i64 slot", "u64* note"] if checks else []
    text = [
        _row_functions(variant),
        BLOCK_SUM if sums else "",
        REPORT if checks else "",
        f'extern "C" __global__ void NAME({", ".join(given)}) {{',
        f"__shared__ {variant.wide} shared[{THREADS}];" if variant.lanes > 1 else "",
        f"const int lane = threadIdx.x % {variant.lanes};",
        "double total = 0, weights = 0;" if sums else "",
        f"for (i64 first = blockIdx.x * (i64){groups}; first < rows; first += gridDim.x * (i64){groups}) {{",
        f"const i64 row = first + threadIdx.x / {variant.lanes};",
        "const bool inside = row < rows, leads = inside && lane == 0;",
        "const i64 start = row / inner * columns * inner + row % inner;",
        *row,
        "}",
        *(_sums(finish) if finish is not None else []),
        "}",
        "",
    ]
    return Kernel(title, with_prelude("\n".join(filter(None, text))), model=variant)


def _each(variant: Variant, statements: str) -> str:
    """Return the loop of a thread over its elements of the row, of which ``at`` is the place."""
    head = f"for (int j = inside ? lane : columns; j < columns; j += {variant.lanes})"
    return f"{head} {{ const i64 at = start + j * inner; {statements} }}"


def _reduced(variant: Variant, name: str, *, largest: bool = False) -> str:
    return "" if variant.lanes == 1 else f"{name} = reduced({name}, shared, {'true' if largest else 'false'});"


def _call(variant: Variant, function: str, argument: str) -> str:
    return f"{function}{'' if variant.wide == 'double' else 'f'}({argument})"


def _read(variant: Variant, storage: str | None, text: str) -> str:
    """Return an element in the type in which rows are computed."""
    assert storage is not None
    return f"({variant.wide}){value_of(text, storage)}"


def _label(variant: Variant) -> list[str]:
    """Return the statements that read the row's label, if it is a class, and check it."""
    if variant.by_class or variant.label is None:
        return []
    known = "own != -1" if variant.ignored else "true"
    return [
        "i64 own = inside ? (i64)label[row] : 0;",
        f"const bool known = {known};" if variant.ignored else "",
        "if (!known) own = 0;" if variant.ignored else "",
        "if (own < 0 || own >= columns) { if (leads) report(note, slot, own); own = 0; }",
    ]


def _weight(variant: Variant) -> str:
    """Return the statement for the row's weight."""
    parts = ["known"] if variant.ignored else []
    parts += [_read(variant, variant.weight, "weight[row]")] if variant.weight is not None else []
    return f"const {variant.wide} w = inside ? {' * '.join(parts)} : 0;"


def _softmax_row(variant: Variant, store: str) -> list[str]:
    """Return the statements that compute the softmax of a row; ``store`` has each element of it as ``prob``."""
    x = _read(variant, variant.x, "x[at]")
    power = _call(variant, "exp", f"{x} - largest")
    return [
        f"{variant.wide} largest = MINUS_INFINITY, sum = 0;",
        _each(variant, f"const {variant.wide} v = {x}; if (v > largest || v != v) largest = v;"),
        _reduced(variant, "largest", largest=True),
        _each(variant, f"sum += {power};"),
        _reduced(variant, "sum"),
        _each(variant, f"const {variant.wide} prob = {power} / sum; {store}"),
    ]


def _inputs(variant: Variant, *names: str) -> list[str]:
    """Return the parameters for inputs: the matrix, and those others that there are."""
    types = {"label": variant.label, "weight": variant.weight, "dy": variant.dy}
    kinds = [(name, types.get(name, variant.x)) for name in names]
    return [f"const {c_type(kind)}* {name}" for name, kind in kinds if kind is not None]


def _output(name: str, storage: str) -> str:
    return f"{c_type(storage)}* {name}"


def _clamped(variant: Variant, name: str) -> str:
    """Return a probability for a logarithm or as a divisor; NaN stays."""
    return f"(({name} < ({variant.wide}){_TINY}) ? ({variant.wide}){_TINY} : {name})"


@functools.cache
def _softmax_kernel(v: Variant) -> Kernel:
    row = _softmax_row(v, f"y[at] = {stored('prob', v.out)};")
    return _kernel("softmax", v, [*_inputs(v, "x"), _output("y", v.out)], row)


@functools.cache
def _softmax_gradient_kernel(v: Variant) -> Kernel:
    y, dy = _read(v, v.x, "y[at]"), _read(v, v.dy, "dy[at]")
    row = [
        f"{v.wide} sum = 0;",
        _each(v, f"sum += {y} * {dy};"),
        _reduced(v, "sum"),
        _each(v, f"dx[at] = {stored(f'{y} * ({dy} - sum)', v.out)};"),
    ]
    return _kernel("softmax_gradient", v, [*_inputs(v, "y", "dy"), _output("dx", v.out)], row)


@functools.cache
def _loss_kernel(v: Variant) -> Kernel:
    clamped, store = _clamped(v, "prob"), f"p[at] = {stored('prob', v.out)};"
    if v.by_class:
        store += f" cross += {_read(v, v.label, 'label[at]')} * {_call(v, 'log', clamped)};"
        before, loss = [f"{v.wide} cross = 0;"], "-cross"
    else:  # the score is read before P, which may overwrite X
        before = [*_label(v), f"const {v.wide} score = leads ? {_read(v, v.x, 'x[start + own * inner]')} : 0;"]
        loss = f"{_call(v, 'log', 'sum')} - (score - largest)"
    row = [
        *before,
        *_softmax_row(v, store),
        _reduced(v, "cross") if v.by_class else "",
        _weight(v) if v.has_weights else "",
        f"if (leads) {{ total += {f'({loss}) * w; weights += w' if v.has_weights else loss}; }}",
    ]
    divisor = "weights" if v.weighted_mean else "divisor"
    mean = f"({v.wide})({divisor} > 0 ? total * scale / {divisor} : 0)"
    parameters = [*_inputs(v, "x", "label", "weight"), _output("p", v.out), _output("loss", v.out)]
    parameters += ["double scale", "double divisor"]
    return _kernel("softmax_with_loss", v, parameters, row, f"*loss = {stored(mean, v.out)};")


@functools.cache
def _weights_kernel(v: Variant) -> Kernel:
    row = [*_label(v), _weight(v), "if (leads) weights += w;"]
    parameters = [*_inputs(v, "label", "weight"), "double* sum"]
    return _kernel("weights_sum", v, parameters, row, "*sum = weights;")


@functools.cache
def _loss_gradient_kernel(v: Variant) -> Kernel:
    p = _read(v, v.x, "p[at]")
    target = _read(v, v.label, "label[at]") if v.by_class else "(j == own)"
    divisor = f"({v.wide}){'*sum' if v.weighted_mean else 'divisor'}"
    factor = f"({divisor} > 0 ? {_read(v, v.dy, '*dy')} * ({v.wide})scale / {divisor} : 0)"
    row = [
        *_label(v),
        _weight(v) if v.has_weights else "",
        f"const {v.wide} factor = {factor}{' * w' if v.has_weights else ''};",
        _each(v, f"dx[at] = {stored(f'({p} - {target}) * factor', v.out)};"),
    ]
    parameters = [*_inputs(v, "label", "weight", "p", "dy"), _output("dx", v.out)]
    parameters += ["double scale", "double divisor", *(["const double* sum"] if v.weighted_mean else [])]
    return _kernel("softmax_with_loss_gradient", v, parameters, row)


@functools.cache
def _accuracy_kernel(v: Variant) -> Kernel:
    p = _read(v, v.x, "p[at]")
    row = [
        "const i64 own = inside ? (i64)label[row] : 0;",
        "const bool known = own >= 0 && own < columns;",  # else the row counts as wrong
        f"const {v.wide} score = inside && known ? {_read(v, v.x, 'p[start + own * inner]')} : 0;",
        f"{v.wide} better = 0;",
        _each(v, f"const {v.wide} q = {p}; better += q == q ? q > score || (q == score && j < own) : q;"),
        _reduced(v, "better"),  # NaN for a row with NaN, which is less than no number
        "if (leads && known && better < top_k) total += 1;",
    ]
    parameters = [*_inputs(v, "p", "label"), _output("y", v.out), "i64 top_k"]
    return _kernel("accuracy", v, parameters, row, f"*y = {stored(f'({v.wide})(total / rows)', v.out)};")


@functools.cache
def _label_cross_entropy_kernel(v: Variant) -> Kernel:
    x = _read(v, v.x, "x[start + own]")
    row = [
        *_label(v),
        f"const {v.wide} prob = inside ? {x} : 1;",
        f"if (inside) y[row] = {stored('-' + _call(v, 'log', _clamped(v, 'prob')), v.out)};",
    ]
    return _kernel("label_cross_entropy", v, [*_inputs(v, "x", "label"), _output("y", v.out)], row)


@functools.cache
def _label_cross_entropy_gradient_kernel(v: Variant) -> Kernel:
    slope = f"-{_read(v, v.dy, 'dy[row]')} / {_clamped(v, 'prob')}"
    row = [
        *_label(v),
        _each(
            v,
            f"const {v.wide} prob = {_read(v, v.x, 'x[at]')};"
            f" dx[at] = {stored(f'(({v.wide})(j == own ? {slope} : 0))', v.out)};",
        ),
    ]
    parameters = [*_inputs(v, "x", "label", "dy"), _output("dx", v.out)]
    return _kernel("label_cross_entropy_gradient", v, parameters, row)


@functools.cache
def _cross_entropy_kernel(v: Variant) -> Kernel:
    logarithm = _call(v, "log", _clamped(v, "prob"))
    row = [
        f"{v.wide} sum = 0;",
        _each(
            v,
            f"const {v.wide} prob = {_read(v, v.x, 'x[at]')}; sum += {_read(v, v.label, 'label[at]')} * {logarithm};",
        ),
        _reduced(v, "sum"),
        f"if (leads) y[row] = {stored('-sum', v.out)};",
    ]
    return _kernel("cross_entropy", v, [*_inputs(v, "x", "label"), _output("y", v.out)], row)


@functools.cache
def _mean_kernel(v: Variant) -> Kernel:
    row = [f"if (inside) total += {_read(v, v.x, 'x[row]')};"]
    finish = f"*y = {stored(f'({v.wide})(total / rows)', v.out)};"
    return _kernel("averaged_loss", v, [*_inputs(v, "x"), _output("y", v.out)], row, finish)


@dataclass(frozen=True)
class _Rows:
    """The rows of a matrix: element (row, j) is at ``row // inner * columns * inner + j * inner + row % inner``."""

    rows: int
    columns: int
    inner: int = 1

    @property
    def lanes(self) -> int:
        """Threads for a row. Threads whose numbers are consecutive read consecutive elements."""
        if self.inner > 1:
            return 1
        return THREADS if self.columns > THREADS else min(1 << (self.columns - 1).bit_length(), 32)

    def blocks(self, lanes: int) -> int:
        return min(-(-self.rows * lanes // THREADS), _MOST_BLOCKS)

    def launch(
        self,
        kernel: Kernel,
        arguments: Sequence[Any],
        *,
        sums: Any = None,
        ended: Any = None,
        check: Sequence[Any] = (),
    ) -> Call:
        """Return the call of a kernel over these rows.

        Args:
            kernel: the kernel.
            arguments: what comes before the extents.
            sums, ended: memory for sums of blocks and for their number, where the kernel adds over rows.
            check: the slot and the note for labels, where the kernel checks them.
        """
        memory = [] if sums is None else [sums, ended]
        extents = [np.int64(self.rows), np.int32(self.columns), np.int64(self.inner)]
        blocks = self.blocks(kernel.model.lanes)
        return partial(kernel, blocks, (*arguments, *memory, *extents, *check))


def _sums_bytes(rows: _Rows, lanes: int) -> int:
    return 16 * rows.blocks(lanes)


def _ended(array: Any) -> Any:
    """Return memory for the number of blocks that have ended, on the GPU of an array; each launch leaves it 0."""
    with gpu(array.device.id) as here:
        return here.xp.zeros(1, np.uint32)


def _check(ctx: PlanContext, array: Any, error: Callable[[int], Exception]) -> list[Any]:
    """Return the arguments of a kernel that checks labels."""
    here = gpu(array.device.id)
    return [slot_of(ctx.run, here, "labels", error).number, note_of(here).array]


def _serves(*specs: TensorSpec) -> bool:
    """Whether all values are floating-point and none is empty."""
    return all(spec.dtype.kind == "f" and spec.dtype.itemsize <= 8 and spec.size > 0 for spec in specs)


def _flat(op: Any, spec: TensorSpec) -> _Rows:
    axis = op.axis % spec.ndim
    return _Rows(math.prod(spec.shape[:axis]), math.prod(spec.shape[axis:]))


def _pairs(specs: Sequence[TensorSpec | None], out: TensorSpec) -> list[tuple[int, int]]:
    """Return which inputs an output may overwrite: those with an element for each of its."""
    return [(i, 0) for i, spec in enumerate(specs) if spec == out]


def _as_stored(spec: TensorSpec) -> TensorSpec:
    return row_major_spec(spec, elements_of(spec))


def _name(kernel: Kernel) -> str:
    return f"cuda {kernel.name}"


def softmax(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    """Prepare Softmax: X -> Y."""
    if not _serves(x) or x.ndim == 0:
        return None
    rows = _flat(op, x)
    kernel = _softmax_kernel(Variant(rows.lanes, elements_of(x), x.dtype.name))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        return rows.launch(kernel, [inputs[0], outputs[0]])

    given = [_as_stored(x)]
    return Prepared(given, [x.plain], bind, inplace=_pairs(given, x.plain), name=_name(kernel), extensions=CAPTURABLE)


def softmax_gradient(op: Any, ctx: PlanContext, y: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare SoftmaxGradient: Y, dY -> dX."""
    if not _serves(y, dy) or y.ndim == 0:
        return None
    rows, out = _flat(op, y), y.dtype.name
    kernel = _softmax_gradient_kernel(Variant(rows.lanes, elements_of(y), out, dy=elements_of(dy)))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        return rows.launch(kernel, [*inputs, outputs[0]])

    given = [_as_stored(y), _as_stored(dy)]
    return Prepared(given, [y.plain], bind, inplace=_pairs(given, y.plain), name=_name(kernel), extensions=CAPTURABLE)


@dataclass(frozen=True)
class _Loss:
    """What SoftmaxWithLoss, SpatialSoftmaxWithLoss and their gradients have in common."""

    rows: _Rows
    order: ChannelsLast | None
    by_class: bool
    ignored: bool
    weighted_mean: bool
    error: Callable[[int], Exception]

    @property
    def divisor(self) -> float:
        return float(self.rows.rows)

    def variant(self, x: str, out: str, label: TensorSpec, weight: Sequence[TensorSpec], dy: Any = None) -> Variant:
        return Variant(
            self.rows.lanes, x, out, label.dtype.name, weight[0].dtype.name if weight else None, dy,
            self.by_class, self.ignored, self.weighted_mean,
        )  # fmt: skip


def _loss(op: Any, x: TensorSpec, label: TensorSpec, weight: Sequence[TensorSpec]) -> _Loss | None:
    """Return what is common to a loss and its gradient; ``x`` has the order; None: the plain kernel serves."""
    spatial = op.type.startswith("Spatial")
    if not _serves(x, *weight) or label.dtype.kind not in ("i" if spatial else "iuf"):
        return None
    if spatial:
        images, classes, *extents = x.shape
        order, pixels = order_of(x), math.prod(extents)
        rows = _Rows(images * pixels, classes, pixels if order is None else 1)
        return _Loss(rows, order, False, True, True, partial(label_or_none_error, op, classes))
    rows = _Rows(*op.matrix(x.shape))
    weighted = bool(weight) and not op.average_by_batch_size
    return _Loss(rows, None, op.label_prob, False, weighted, partial(label_error, op, rows.columns))


def softmax_with_loss(
    op: Any, ctx: PlanContext, x: TensorSpec, label: TensorSpec, *weight: TensorSpec
) -> Prepared | None:
    """Prepare SoftmaxWithLoss and SpatialSoftmaxWithLoss: X, label, weight? -> P, loss."""
    loss = _loss(op, x, label, weight)
    if loss is None:
        return None
    given = [in_order(x, loss.order, elements_of(x)), label.plain, *(spec.plain for spec in weight)]
    p = in_order(x, loss.order, x.dtype.name)
    kernel = _loss_kernel(loss.variant(elements_of(x), x.dtype.name, label, weight))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        numbers = [np.float64(op.scale), np.float64(loss.divisor)]
        check = [] if loss.by_class else _check(ctx, outputs[0], loss.error)
        return loss.rows.launch(
            kernel, [*inputs, *outputs, *numbers], sums=scratch, ended=_ended(outputs[0]), check=check
        )

    return Prepared(
        given,
        [p, x.with_shape(()).plain],
        bind,
        scratch=_sums_bytes(loss.rows, loss.rows.lanes),
        inplace=[(0, 0)] if given[0] == p else [],
        name=_name(kernel),
        extensions=CAPTURABLE,
    )


def softmax_with_loss_gradient(
    op: Any, ctx: PlanContext, x: TensorSpec, label: TensorSpec, *others: TensorSpec
) -> Prepared | None:
    """Prepare the gradients of SoftmaxWithLoss and SpatialSoftmaxWithLoss: X, label, weight?, P, dloss -> dX.

    X is not read. dX is stored in 16 bits if X is.
    """
    *weight, p, dloss = others
    loss = _loss(op, p, label, weight)
    if loss is None or not _serves(dloss):
        return None
    out = in_order(x, loss.order, elements_of(x))
    variant = loss.variant(elements_of(p), elements_of(x), label, weight, dloss.dtype.name)
    kernel, rows = _loss_gradient_kernel(variant), loss.rows
    sums = _sums_bytes(rows, 1)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        dx = outputs[0]
        numbers = [np.float64(op.scale), np.float64(loss.divisor)]
        check = [] if loss.by_class else _check(ctx, dx, loss.error)
        if not loss.weighted_mean:
            return rows.launch(kernel, [*inputs[1:], dx, *numbers], check=check)
        labels = variant.label if loss.ignored else None
        adds = _weights_kernel(Variant(1, variant.x, "float64", labels, variant.weight, ignored=loss.ignored))
        total = scratch[sums : sums + 8]
        add_weights = rows.launch(
            adds,
            [*inputs[1 if loss.ignored else 2 : -2], total],
            sums=scratch[:sums],
            ended=_ended(dx),
            check=check if loss.ignored else [],
        )
        spread = rows.launch(kernel, [*inputs[1:], dx, *numbers, total], check=check)

        def call() -> None:
            add_weights()
            spread()

        return call

    given = [None, label.plain, *(spec.plain for spec in weight), in_order(p, loss.order, elements_of(p)), dloss.plain]
    return Prepared(
        given,
        [out],
        bind,
        scratch=sums + 8 if loss.weighted_mean else 0,
        inplace=[(len(given) - 2, 0)] if given[-2] == out else [],
        name=_name(kernel),
        extensions=CAPTURABLE,
    )


def accuracy(op: Any, ctx: PlanContext, p: TensorSpec, label: TensorSpec) -> Prepared | None:
    """Prepare Accuracy: P, label -> the fraction of rows that are right."""
    if not _serves(p):
        return None
    rows = _Rows(*p.shape)
    kernel = _accuracy_kernel(Variant(rows.lanes, elements_of(p), p.dtype.name, label.dtype.name))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        arguments = [*inputs, outputs[0], np.int64(op.top_k)]
        return rows.launch(kernel, arguments, sums=scratch, ended=_ended(outputs[0]))

    return Prepared(
        [_as_stored(p), label.plain],
        [p.with_shape(()).plain],
        bind,
        scratch=_sums_bytes(rows, rows.lanes),
        name=_name(kernel),
        extensions=CAPTURABLE,
    )


_ROW_LOSSES = {
    "CrossEntropy": _cross_entropy_kernel,
    "LabelCrossEntropy": _label_cross_entropy_kernel,
    "LabelCrossEntropyGradient": _label_cross_entropy_gradient_kernel,
}


def row_loss(op: Any, ctx: PlanContext, x: TensorSpec, label: TensorSpec, *dy: TensorSpec) -> Prepared | None:
    """Prepare losses of rows of probabilities: X, label -> Y, and X, label, dY -> dX."""
    if not _serves(x, *dy):
        return None
    rows, by_class = _Rows(x.shape[0], x.size // x.shape[0]), op.type == "CrossEntropy"
    lanes = 1 if op.type == "LabelCrossEntropy" else rows.lanes
    variant = Variant(
        lanes, elements_of(x), x.dtype.name, label.dtype.name, dy=dy[0].dtype.name if dy else None, by_class=by_class
    )
    kernel = _ROW_LOSSES[op.type](variant)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        check = [] if by_class else _check(ctx, outputs[0], partial(label_error, op, rows.columns))
        return rows.launch(kernel, [*inputs, outputs[0]], check=check)

    given = [_as_stored(x), label.plain, *(spec.plain for spec in dy)]
    outs = op.infer(x.plain, *(spec.plain for spec in (label, *dy)))
    inplace = _pairs(given[:1], outs[0]) if dy else []
    return Prepared(given, outs, bind, inplace=inplace, name=_name(kernel), extensions=CAPTURABLE)


def averaged_loss(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    """Prepare AveragedLoss: X -> the mean of its elements."""
    if not _serves(x):
        return None
    rows = _Rows(x.size, 1)
    kernel = _mean_kernel(Variant(1, elements_of(x), x.dtype.name))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        return rows.launch(kernel, [inputs[0], outputs[0]], sums=scratch, ended=_ended(outputs[0]))

    outs = [x.with_shape(()).plain]
    return Prepared(
        [_as_stored(x)], outs, bind, scratch=_sums_bytes(rows, 1), name=_name(kernel), extensions=CAPTURABLE
    )


ROWS: dict[str, Callable[..., Prepared | None]] = {
    "Accuracy": accuracy,
    "AveragedLoss": averaged_loss,
    "Softmax": softmax,
    "SoftmaxGradient": softmax_gradient,
    **dict.fromkeys(_ROW_LOSSES, row_loss),
    **{f"{kind}SoftmaxWithLoss": softmax_with_loss for kind in ("", "Spatial")},
    **{f"{kind}SoftmaxWithLossGradient": softmax_with_loss_gradient for kind in ("", "Spatial")},
}
"""Operators of rows."""
