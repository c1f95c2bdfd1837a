"""Losses that read class labels, as machine code, in float32: SoftmaxWithLoss and its like, and their gradients.

Values are (samples, classes, positions): a sample without an image has one position. Vectors are along the classes
then, else along the positions. Labels are checked first. If one is wrong, nothing is written, and the plain kernel
raises the error. Sums are added in a fixed order, whatever the threads.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.argument_rows import call_of_threads, shares
from netbuilder.engines.llvm.checked_indices import CheckedIndices, checked_call
from netbuilder.engines.llvm.code import converted
from netbuilder.engines.llvm.emitter import LANES, Emitter, vector
from netbuilder.engines.llvm.functions import FUNCTIONS, exp_or_zero
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["LABEL_LOSSES"]

_BRIEF, _OF_A_THREAD = 1 << 13, 1 << 14  # elements; see ``argument_rows``
_BLOCK = 4 * LANES  # positions of an image; as much of a row is read at once
_F, _L = np.dtype(np.float32), np.dtype(np.int64)
_TINY = 1e-20
_IOTA = f"<{', '.join(f'i64 {lane}' for lane in range(LANES))}>"


@dataclass(frozen=True)
class _Kind:
    """What the code depends on.

    Args:
        how: "softmax" over the classes, and for each position its loss and its weight; "sum": the mean of these;
            "gradient" of that mean; "pick": the losses of probabilities; "pick gradient".
        label: the type of the labels; "float32": they are probabilities.
        along: vectors are along the classes.
        weight: there are weights.
        none: the label -1 stands for none, and the divisor of the mean is the sum of the weights of all others.
        by_weights: the divisor is the sum of the weights, else the number of samples.
    """

    how: str
    label: str = "int32"
    along: bool = True
    weight: bool = False
    none: bool = False
    by_weights: bool = False


_POINTERS = ("x", "label", "weight", "d_loss", "y", "losses", "weights", "rows", "status")
_INTEGERS = ("samples", "classes", "positions", "blocks", "scale", "begin", "end")


class _Code(CheckedIndices):
    """Writes the function of a kind.

    Its arguments: the addresses of the values X, or of the probabilities P; of the labels, their weights, the gradient
    of the loss or of the losses, and the result; of the losses and weights of all positions; of memory for the classes
    of a block of ``_BLOCK`` positions; the extents; the blocks of a sample; the bits of the scale; the first piece and
    the end: samples, or blocks.
    """

    def __init__(self, kind: _Kind) -> None:
        self._kind, self._label_type = kind, np.dtype(kind.label)
        self._entry, self._body = Emitter("e"), Emitter("v")

    def text(self) -> str:
        b, kind = self._body, self._kind
        self._arguments(_POINTERS, _INTEGERS)
        scale = b.let(f"bitcast i32 {b.let('trunc i64 %scale to i32')} to float")
        self._count = b.let("mul i64 %samples, %positions")
        if kind.how == "sum":
            self._mean(scale)
            return self._function()
        if self._label_type.kind != "f":
            self._check_range("%label", self._label_type, self._count, str(-int(kind.none)), "%classes")
        getattr(self, f"_{kind.how.replace(' ', '_')}")(scale)
        return self._function()

    # Sums over all positions

    def _total(self, pointer: str, *, of_labels: bool = False) -> str:
        """Return the sum of numbers, in float64, which is rounded at the end."""
        b, wide = self._body, vector("double")
        total = self._variable(wide, b.constant(0, "double"))
        for at, mask in self._across(self._count):
            value = self._weight(at, mask) if of_labels else self._vector(self._moved(pointer, _F, at), _F, mask)
            value = b.select(mask, value, b.constant(0)) if mask else value
            value = b.convert("fpext", value, "float", "double")
            self._set(total, wide, b.binary("fadd", self._get(total, wide), value, "double"))
        found = self._of_lanes(lambda x, y: b.binary("fadd", x, y, "double"), self._get(total, wide), "double")
        return b.let(f"fptrunc double {b.let(f'extractelement {wide} {found}, i64 0')} to float")

    def _mean(self, scale: str) -> None:
        b = self._body
        losses = b.let(f"fmul float {self._total('%losses')}, {scale}")
        b.add(f"store float {self._divided(losses, self._total('%weights'))}, ptr %y, align 4")

    def _divided(self, value: str, divisor: str) -> str:
        """Return a quotient, 0 where a sum of weights is not positive."""
        b = self._body
        positive = b.let(f"fcmp ogt float {divisor}, 0.0")
        return b.let(f"select i1 {positive}, float {b.let(f'fdiv float {value}, {divisor}')}, float 0.0")

    # Labels

    def _classes_of(self, at: str, mask: str) -> str:
        """Return the labels of some positions."""
        b = self._body
        return converted(b, self._vector(self._moved("%label", self._label_type, at), self._label_type, mask),
                         self._label_type, _L)  # fmt: skip

    def _weight(self, at: str, mask: str) -> str:
        """Return the weights of some positions, 0 for those without a label."""
        b, kind = self._body, self._kind
        weight = self._vector(self._moved("%weight", _F, at), _F, mask) if kind.weight else b.constant(1)
        if not kind.none:
            return weight
        labeled = b.compare("sge", self._classes_of(at, mask), b.constant(0, "i64"), "i64")
        counted = b.select(labeled, b.constant(1), b.constant(0))
        return b.binary("fmul", counted, weight) if kind.weight else counted

    # A softmax over the classes

    def _softmax(self, scale: str) -> None:
        with self._for("%begin", "%end", 1) as piece:
            if self._kind.along:
                self._softmax_along(piece)
            else:
                self._softmax_of_block(piece)

    def _larger(self, x: str, y: str) -> str:
        """Return the larger one; y if x is NaN, whose exponential makes all results NaN."""
        b = self._body
        return b.select(b.compare("ogt", x, y), x, y)

    def _softmax_along(self, sample: str) -> None:
        b, kind, whole = self._body, self._kind, vector("float")
        row = b.let(f"mul i64 {sample}, %classes")
        most, total = (self._variable(whole, b.constant(x)) for x in (-math.inf, 0))
        chosen = "" if kind.label == "float32" else b.let(f"load float, ptr {self._chosen(sample)}, align 4")
        for c, mask in self._across("%classes"):
            x = self._vector(self._moved("%x", _F, b.let(f"add i64 {row}, {c}")), _F, mask)
            x = b.select(mask, x, b.constant(-math.inf)) if mask else x
            self._set(most, whole, self._larger(x, self._get(most, whole)))
        largest = self._of_lanes(self._larger, self._get(most, whole))
        for c, mask in self._across("%classes"):
            at = b.let(f"add i64 {row}, {c}")
            x = self._vector(self._moved("%x", _F, at), _F, mask)
            e = exp_or_zero(b, b.binary("fsub", x, largest))
            self._write(e, _F, self._moved("%y", _F, at), mask)
            e = b.select(mask, e, b.constant(0)) if mask else e
            self._set(total, whole, b.binary("fadd", self._get(total, whole), e))
        sums = self._of_lanes(lambda x, y: b.binary("fadd", x, y), self._get(total, whole))
        self._set(total, whole, b.constant(0))
        for c, mask in self._across("%classes"):
            at = b.let(f"add i64 {row}, {c}")
            p = b.binary("fdiv", self._vector(self._moved("%y", _F, at), _F, mask), sums)
            self._write(p, _F, self._moved("%y", _F, at), mask)
            if not chosen:
                share = self._vector(self._moved("%label", _F, at), _F, mask)
                part = b.binary("fmul", share, FUNCTIONS["log"](b, self._at_least(p)))
                part = b.select(mask, part, b.constant(0)) if mask else part
                self._set(total, whole, b.binary("fsub", self._get(total, whole), part))
        if chosen:
            shifted = b.binary("fsub", b.splat(chosen, "float"), largest)
            loss = b.binary("fsub", FUNCTIONS["log"](b, sums), shifted)
        else:
            loss = self._of_lanes(lambda x, y: b.binary("fadd", x, y), self._get(total, whole))
        self._store_loss(b.let(f"extractelement {whole} {loss}, i64 0"), sample)

    def _store_loss(self, loss: str, sample: str) -> None:
        b, weight = self._body, "1.0"
        if self._kind.weight:
            weight = b.let(f"load float, ptr {self._moved('%weight', _F, sample)}, align 4")
            loss = b.let(f"fmul float {loss}, {weight}")
        counted = weight if self._kind.by_weights else "1.0"
        b.add(f"store float {loss}, ptr {self._moved('%losses', _F, sample)}, align 4")
        b.add(f"store float {counted}, ptr {self._moved('%weights', _F, sample)}, align 4")

    def _softmax_of_block(self, piece: str) -> None:
        """Write P, the losses and weights of a block.

        X is read once, and P written once: the rows between are next to each other in memory, while those of X and P
        are as many bytes apart as an image has, often a power of 2, so that they displace each other from the cache.
        """
        b, whole = self._body, vector("float")
        for vectors in self._block(piece):
            most = [self._variable(whole, b.constant(-math.inf)) for _ in vectors]
            with self._for("0", "%classes", 1) as c:
                for k, (first, _, mask) in enumerate(vectors):
                    x = self._of_class("%x", first, c, mask)
                    self._set(most[k], whole, self._larger(x, self._get(most[k], whole)))
                    self._write(x, _F, self._row(c, k))
            factors = [self._exponentials(k, self._get(most[k], whole), at, mask)
                       for k, (_, at, mask) in enumerate(vectors)]  # fmt: skip
            with self._for("0", "%classes", 1) as c:
                for k, (first, _, mask) in enumerate(vectors):
                    p = b.binary("fmul", self._vector(self._row(c, k), _F), factors[k])
                    self._write(p, _F, self._class_place("%y", first, c), mask)

    def _exponentials(self, k: int, most: str, at: str, mask: str) -> str:
        """Write exponentials in place of a vector of each row, losses and weights; return 1 / the sums."""
        b, whole = self._body, vector("float")
        total, chosen = (self._variable(whole, b.constant(0)) for _ in range(2))
        label = self._labels_of(at, mask)
        known = b.select(b.compare("slt", label, b.constant(0, "i32"), "i32"), b.constant(0, "i32"), label, "i32")
        with self._for("0", "%classes", 1) as c:
            shifted = b.binary("fsub", self._vector(self._row(c, k), _F), most)
            self._set(chosen, whole, b.select(self._is_class(known, c), shifted, self._get(chosen, whole)))
            e = exp_or_zero(b, shifted)
            self._set(total, whole, b.binary("fadd", self._get(total, whole), e))
            self._write(e, _F, self._row(c, k))
        sums, weight = self._get(total, whole), self._weight(at, mask)
        loss = b.binary("fsub", FUNCTIONS["log"](b, sums), self._get(chosen, whole))
        self._write(b.binary("fmul", loss, weight), _F, self._moved("%losses", _F, at), mask)
        self._write(weight, _F, self._moved("%weights", _F, at), mask)
        return b.binary("fdiv", b.constant(1), sums)

    def _block(self, piece: str) -> Iterator[list[tuple[str, str, str]]]:
        """Write what is done for a block of positions if it is whole; and else for each of its vectors.

        Each body is written while the iterator stands at it. It is given for each vector the place of its first
        element, that of its first position, and its mask.
        """
        b = self._body
        sample = b.let(f"udiv i64 {piece}, %blocks")
        column = b.let(f"mul i64 {b.let(f'urem i64 {piece}, %blocks')}, {_BLOCK}")
        rows = b.let(f"mul i64 {b.let(f'mul i64 {sample}, %classes')}, %positions")
        before = b.let(f"mul i64 {sample}, %positions")
        left = self._least(b.let(f"sub i64 %positions, {column}"), _BLOCK)
        whole = b.let(f"icmp eq i64 {left}, {_BLOCK}")

        def places(k: str | int, mask: str) -> tuple[str, str, str]:
            at = b.let(f"add i64 {column}, {k}")
            return b.let(f"add i64 {rows}, {at}"), b.let(f"add i64 {before}, {at}"), mask

        with self._if(whole):
            yield [places(k, "") for k in range(0, _BLOCK, LANES)]
        with self._if(b.let(f"xor i1 {whole}, true")), self._for("0", left, LANES) as k:
            yield [places(k, self._lanes(b.let(f"sub i64 {left}, {k}")))]

    def _class_place(self, pointer: str, first: str, c: str) -> str:
        b = self._body
        return self._moved(pointer, _F, b.let(f"add i64 {first}, {b.let(f'mul i64 {c}, %positions')}"))

    def _of_class(self, pointer: str, first: str, c: str, mask: str) -> str:
        return self._vector(self._class_place(pointer, first, c), _F, mask)

    def _row(self, c: str, k: int) -> str:
        """Return the place of a vector of a block's row."""
        row = self._moved("%rows", _F, self._body.let(f"mul i64 {c}, {_BLOCK}"))
        return self._moved(row, _F, k * LANES)

    def _labels_of(self, at: str, mask: str) -> str:
        """Return the labels of some positions, which have been checked, as i32."""
        b = self._body
        return b.convert("trunc", self._classes_of(at, mask), "i64", "i32")

    def _is_class(self, label: str, c: str) -> str:
        b = self._body
        return b.compare("eq", label, b.splat(b.let(f"trunc i64 {c} to i32"), "i32"), "i32")

    # The gradient of a softmax's mean loss

    def _gradient(self, scale: str) -> None:
        b, kind = self._body, self._kind
        d_loss = b.let("load float, ptr %d_loss, align 4")
        factor = b.let(f"fmul float {d_loss}, {scale}")
        if kind.by_weights:
            factor = self._divided(factor, self._total("%weight", of_labels=True))
        else:
            factor = b.let(f"fdiv float {factor}, {b.let('uitofp i64 %samples to float')}")
        factor = b.splat(factor, "float")
        with self._for("%begin", "%end", 1) as piece:
            if kind.along:
                self._slopes_along(piece, factor)
            else:
                self._slopes(piece, factor)

    def _slopes_along(self, sample: str, factor: str) -> None:
        b, kind = self._body, self._kind
        first = b.let(f"mul i64 {sample}, %classes")
        if kind.weight:
            weight = b.let(f"load float, ptr {self._moved('%weight', _F, sample)}, align 4")
        label = "" if kind.label == "float32" else b.splat(self._integer("%label", self._label_type, sample), "i64")
        for c, mask in self._across("%classes"):
            at = b.let(f"add i64 {first}, {c}")
            p = self._vector(self._moved("%x", _F, at), _F, mask)
            if label:
                is_label = b.compare("eq", b.binary("add", b.splat(c, "i64"), _IOTA, "i64"), label, "i64")
                slope = b.select(is_label, b.binary("fsub", p, b.constant(1)), p)
            else:
                slope = b.binary("fsub", p, self._vector(self._moved("%label", _F, at), _F, mask))
            slope = b.binary("fmul", slope, b.splat(weight, "float")) if kind.weight else slope
            self._write(b.binary("fmul", slope, factor), _F, self._moved("%y", _F, at), mask)

    def _slopes(self, piece: str, factor: str) -> None:
        b = self._body
        for vectors in self._block(piece):
            labels = [self._labels_of(at, mask) for _, at, mask in vectors]
            weights = [b.binary("fmul", self._weight(at, mask), factor) for _, at, mask in vectors]
            with self._for("0", "%classes", 1) as c:
                for (first, _, mask), label, weight in zip(vectors, labels, weights):
                    p = self._of_class("%x", first, c, mask)
                    slope = b.select(self._is_class(label, c), b.binary("fsub", p, b.constant(1)), p)
                    self._write(b.binary("fmul", slope, weight), _F, self._class_place("%y", first, c), mask)

    # The losses of probabilities

    def _pick(self, scale: str) -> None:
        b, whole = self._body, vector("float")
        self._entry.lines.append(f"  %some = alloca {whole}, align 64")
        blocks = b.let(f"mul i64 %begin, {LANES}")
        last = self._least(b.let(f"mul i64 %end, {LANES}"), "%samples")
        with self._for(blocks, last, LANES) as sample:
            left = b.let(f"sub i64 %samples, {sample}")
            b.add(f"store {whole} {b.constant(1)}, ptr %some, align 64")
            with self._for("0", self._least(left, LANES), 1) as lane:
                x = self._chosen(b.let(f"add i64 {sample}, {lane}"))
                value = b.let(f"load float, ptr {x}, align 4")
                b.add(f"store float {value}, ptr {self._moved('%some', _F, lane)}, align 4")
            loss = FUNCTIONS["log"](b, self._at_least(b.let(f"load {whole}, ptr %some, align 64")))
            self._write(b.negate(loss), _F, self._moved("%y", _F, sample), self._lanes(left))

    def _at_least(self, x: str) -> str:
        """Return probabilities, at least ``_TINY``; NaN stays."""
        b = self._body
        return b.select(b.compare("ult", x, b.constant(_TINY)), b.select(
            b.compare("uno", x, x), x, b.constant(_TINY)), x)  # fmt: skip

    def _chosen(self, sample: str, pointer: str = "%x") -> str:
        """Return the place of the element that the label of a sample selects."""
        b = self._body
        column = self._integer("%label", self._label_type, sample)
        return self._moved(pointer, _F, b.let(f"add i64 {b.let(f'mul i64 {sample}, %classes')}, {column}"))

    def _pick_gradient(self, scale: str) -> None:
        b = self._body
        b.declared.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        row = b.let("mul i64 %classes, 4")
        with self._for("%begin", "%end", 1) as sample:
            value = b.splat(b.let(f"load float, ptr {self._chosen(sample)}, align 4"), "float")
            least = b.let(f"extractelement {vector('float')} {self._at_least(value)}, i64 0")
            d_loss = b.let(f"load float, ptr {self._moved('%d_loss', _F, sample)}, align 4")
            slope = b.let(f"fdiv float {b.let(f'fneg float {d_loss}')}, {least}")
            target = self._moved("%y", _F, b.let(f"mul i64 {sample}, %classes"))
            b.add(f"call void @llvm.memset.p0.i64(ptr {target}, i8 0, i64 {row}, i1 false)")
            b.add(f"store float {slope}, ptr {self._chosen(sample, '%y')}, align 4")


@functools.lru_cache(64)
def _address(kind: _Kind) -> int | None:
    return machine.address_of(_Code(kind).text()) if machine.available() else None


def _call(
    op: Any, ctx: PlanContext, kinds: Sequence[_Kind], shape: tuple[int, int, int], buffers: Mapping[str, Any],
    given: Sequence[Any],
) -> Call:  # fmt: skip
    """Return the call of functions, one after another.

    Args:
        op: the operator.
        ctx: of the plan.
        kinds: of the functions. The first one is divided among threads.
        shape: samples, classes, positions.
        buffers: of ``_POINTERS``.
        given: what the plain kernel is given, for its error.
    """
    samples, classes, positions = shape
    size = samples * classes * positions
    blocks = -(-positions // _BLOCK)
    pieces = -(-samples // LANES) if kinds[0].how == "pick" else samples * (1 if kinds[0].along else blocks)
    threads = max(1, min(ctx.threads, pieces)) if size >= _OF_A_THREAD else 1
    status = np.zeros(threads, np.int64)
    pointers = [buffers[name].ctypes.data if name in buffers else 0 for name in _POINTERS[:-2]]
    rows = [buffers["rows"].ctypes.data + 4 * _BLOCK * classes * k if "rows" in buffers else 0 for k in range(threads)]
    scale = int(np.float32(getattr(op, "scale", 1.0)).view(np.uint32))
    calls = []
    for kind in kinds:
        target = [*pointers[:4], buffers["loss"].ctypes.data, *pointers[5:]] if kind.how == "sum" else pointers
        parts = [(0, 0)] if kind.how == "sum" else shares(pieces, threads)
        words = [
            np.array(
                [
                    _address(kind),
                    *target,
                    rows[k],
                    status.ctypes.data + 8 * k,
                    samples,
                    classes,
                    positions,
                    blocks,
                    scale,
                    *part,
                ],
                np.int64,
            )
            for k, part in enumerate(parts)
        ]
        calls.append(call_of_threads(ctx, words, (buffers, status), brief=size < _BRIEF))
    first = checked_call(calls[0], op, ctx, given, status)
    if len(calls) == 1:
        return first
    _, last = calls

    def run() -> None:
        first()
        last()

    return run


def _gradient(op: Any, ctx: PlanContext, x: TensorSpec, label: TensorSpec, *others: TensorSpec) -> Prepared | None:
    """Prepare the gradient of SoftmaxWithLoss or of SpatialSoftmaxWithLoss; X is not read."""
    spatial = op.type.startswith("Spatial")
    shape = _of_images(x) if spatial else (*op.matrix(x.shape), 1)
    weighted = len(others) > 2
    as_probabilities = not spatial and op.label_prob
    by_weights = spatial or (weighted and not op.average_by_batch_size)
    kind = _Kind("gradient", label.dtype.name, not spatial, weighted, spatial, by_weights)
    floats = [x, *others, *([label] if as_probabilities else [])]
    if any(spec.dtype != _F for spec in floats) or not x.size or _address(kind) is None:
        return None
    plain = [spec.plain for spec in (x, label, *others)]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        buffers = {"x": inputs[-2], "label": inputs[1], "d_loss": inputs[-1], "y": outputs[0]}
        buffers |= {"weight": inputs[2]} if weighted else {}
        return _call(op, ctx, [kind], shape, buffers, [inputs[-2], *inputs[1:]])

    place = len(plain) - 2
    return Prepared([None, *plain[1:]], [plain[0]], bind, inplace=((place, 0),), name="llvm label loss")


def _of_images(x: TensorSpec) -> tuple[int, int, int]:
    return x.shape[0], x.shape[1], math.prod(x.shape[2:])


def _softmax(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare SoftmaxWithLoss or SpatialSoftmaxWithLoss; P may overwrite X."""
    plain = [spec.plain for spec in specs]
    x, label, *weight = plain
    spatial = op.type.startswith("Spatial")
    shape = _of_images(x) if spatial else (*op.matrix(x.shape), 1)
    by_weights = spatial or (bool(weight) and not op.average_by_batch_size)
    kinds = [_Kind("softmax", label.dtype.name, not spatial, bool(weight), spatial, by_weights), _Kind("sum")]
    floats = [x, *weight, *([label] if not spatial and op.label_prob else [])]
    if any(spec.dtype != _F for spec in floats) or not x.size or any(_address(kind) is None for kind in kinds):
        return None
    count = shape[0] * shape[2]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        floats = scratch.view(_F)
        losses, weights = floats[: 2 * count].reshape(2, count)
        buffers = {"x": inputs[0], "label": inputs[1], "y": outputs[0], "loss": outputs[1]}
        buffers |= {
            "losses": losses,
            "weights": weights,
            "rows": floats[2 * count :],
            **({"weight": inputs[2]} if weight else {}),
        }
        return _call(op, ctx, kinds, shape, buffers, inputs)

    rows = ctx.threads * shape[1] * _BLOCK if spatial else 0
    pairs = () if spatial else ((0, 0),)
    return Prepared(plain, op.infer(*plain), bind, 4 * (2 * count + rows), inplace=pairs, name="llvm label loss")


def _cross_entropy(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    plain = [spec.plain for spec in specs]
    x, label, *d_loss = plain
    kind = _Kind("pick gradient" if d_loss else "pick", label.dtype.name)
    if any(spec.dtype != _F for spec in (x, *d_loss)) or not x.size or _address(kind) is None:
        return None
    shape = x.shape[0], math.prod(x.shape[1:]), 1

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        buffers = {"x": inputs[0], "label": inputs[1], "y": outputs[0], **({"d_loss": inputs[2]} if d_loss else {})}
        return _call(op, ctx, [kind], shape, buffers, inputs)

    return Prepared(plain, op.infer(*plain), bind, name="llvm label loss")


LABEL_LOSSES: Mapping[str, Callable[..., Prepared | None]] = {
    "LabelCrossEntropy": _cross_entropy,
    "LabelCrossEntropyGradient": _cross_entropy,
    "SoftmaxWithLoss": _softmax,
    "SoftmaxWithLossGradient": _gradient,
    "SpatialSoftmaxWithLoss": _softmax,
    "SpatialSoftmaxWithLossGradient": _gradient,
}
"""By operator type."""
