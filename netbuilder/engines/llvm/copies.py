"""Copies between arrays of any strides as machine code: Transpose, Slice, Split, Concat, Tile and their like.

Each copy is one of an array to another of the same shape, whose axes are ordered by the strides of the target, and
joined where both arrays allow it. Along the last axis, elements are copied together if both arrays have them next to
each other, or repeated; where the source has those of another axis next to each other, squares of 16 by 16 elements are
transposed in registers; else they are copied one by one. Elements of 4 bytes are all that is transposed in squares.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.argument_rows import call_of_threads, one_row
from netbuilder.engines.llvm.emitter import LANES, Emitter, vector
from netbuilder.engines.llvm.loops import Loops
from netbuilder.engines.llvm.panels import transposed
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.extensions import Joined
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["COPIES", "copying"]

_BRIEF, _OF_A_THREAD = 1 << 15, 1 << 17  # bytes; see ``rows``
_LONG = 512
"""Bytes that C's function copies faster than a loop."""

_FEWEST_AXES = 2
"""Of those that surround a piece: where there are fewer, others of extent 1 are added, so that one function serves."""

_NOWHERE = -2
"""Stands for the place of an element that is copied from none."""

_BYTE, _WORD = np.dtype(np.int8), np.dtype(np.int32)

Pair = tuple[Any, Any]
"""A source and its target."""


@dataclass(frozen=True)
class _Kind:
    """What the code of a copy depends on.

    Args:
        how: "together", "repeated", "squares" or "single".
        itemsize: of the elements; 1 for those that are copied together.
        outer: the number of axes that surround the copy of a piece.
    """

    how: str
    itemsize: int
    outer: int

    @property
    def inner_loop(self) -> bool:
        """Whether the last of these axes is a loop in each piece, as finding the places of a piece takes time."""
        return self.how != "squares"


class _Code(Loops):
    """Writes the function of a kind.

    Its arguments: the addresses of source and target; the first piece and the end; the extents of the outer axes, then
    their strides in the source and in the target; of a piece, the extent, and, unless it is copied together, the stride
    of the source; of squares, also the extent of the other axis, its stride in the target, and the number of squares
    along it.
    """

    def __init__(self, kind: _Kind) -> None:
        self._kind, self._entry, self._body = kind, Emitter("e"), Emitter("v")

    def text(self) -> str:
        outer = self._kind.outer
        axes = [f"{name}{k}" for name in "nxy" for k in range(outer)]
        self._arguments(["source", "target"], ["begin", "end", *axes, "count", "step", "other", "jump", "squares"])
        b = self._body
        with self._for("%begin", "%end", 1) as piece:
            first = ""
            if self._kind.how == "squares":
                first = b.let(f"mul i64 {b.let(f'urem i64 {piece}, %squares')}, {LANES}")
                piece = b.let(f"udiv i64 {piece}, %squares")
            source, target = self._places(piece, outer - self._kind.inner_loop)
            if self._kind.inner_loop:
                with self._for("0", f"%n{outer - 1}", 1) as number:
                    source, target = (
                        self._moved(place, _BYTE, b.let(f"mul i64 {number}, %{name}{outer - 1}"))
                        for place, name in ((source, "x"), (target, "y"))
                    )
                    getattr(self, f"_{self._kind.how}")(source, target)
            else:
                getattr(self, f"_{self._kind.how}")(source, target, *([first] if first else []))
        return self._function()

    def _places(self, piece: str, axes: int) -> tuple[str, str]:
        b, offsets = self._body, ["0", "0"]
        for k in reversed(range(axes)):
            at = b.let(f"urem i64 {piece}, %n{k}") if k else piece
            piece = b.let(f"udiv i64 {piece}, %n{k}") if k else piece
            for j, name in enumerate("xy"):
                offsets[j] = b.let(f"add i64 {offsets[j]}, {b.let(f'mul i64 {at}, %{name}{k}')}")
        return self._moved("%source", _BYTE, offsets[0]), self._moved("%target", _BYTE, offsets[1])

    def _together(self, source: str, target: str) -> None:
        b = self._body
        few = b.let(f"icmp slt i64 %count, {_LONG}")
        whole = b.let(f"select i1 {few}, i64 {b.let(f'and i64 %count, {-4 * LANES}')}, i64 0")
        with self._for("0", whole, 4 * LANES) as i:
            self._write(self._vector(self._moved(source, _BYTE, i), _WORD), _WORD, self._moved(target, _BYTE, i))
        left = b.let(f"sub i64 %count, {whole}")
        source, target = (self._moved(place, _BYTE, whole) for place in (source, target))
        b.declared.add("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
        b.add(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {left}, i1 false)")

    def _repeated(self, source: str, target: str) -> None:
        b, size = self._body, self._kind.itemsize
        element = f"i{8 * size}"
        value = b.let(f"load {element}, ptr {source}, align {size}")
        many = b.splat(value, element)
        whole = b.let(f"and i64 %count, {-LANES}")
        with self._for("0", whole, LANES) as i:
            place = b.let(f"getelementptr {element}, ptr {target}, i64 {i}")
            b.add(f"store {vector(element)} {many}, ptr {place}, align {size}")
        with self._for(whole, "%count", 1) as i:
            b.add(
                f"store {element} {value}, ptr {b.let(f'getelementptr {element}, ptr {target}, i64 {i}')}, align {size}"
            )

    def _single(self, source: str, target: str) -> None:
        b, size = self._body, self._kind.itemsize
        element, whole = f"i{8 * size}", b.let("and i64 %count, -4")
        for start, end, together in (("0", whole, 4), (whole, "%count", 1)):
            with self._for(start, end, together) as i:
                place = self._moved(source, _BYTE, b.let(f"mul i64 {i}, %step"))
                written = b.let(f"getelementptr {element}, ptr {target}, i64 {i}")
                for k in range(together):
                    value = b.let(f"load {element}, ptr {place}, align {size}")
                    at = b.let(f"getelementptr {element}, ptr {written}, i64 {k}")
                    b.add(f"store {element} {value}, ptr {at}, align {size}")
                    place = self._moved(place, _BYTE, "%step")

    def _squares(self, source: str, target: str, first: str) -> None:
        """Transpose the squares along the target's last axis that begin at an element of the other axis."""
        b = self._body
        b.declared.add("declare i64 @llvm.smin.i64(i64, i64)")
        n = self._label()
        high = b.let(f"sub i64 %other, {first}")
        source = self._moved(source, _WORD, first)
        target = self._moved(target, _BYTE, b.let(f"mul i64 {first}, %jump"))
        whole, wide = b.let(f"and i64 %count, {-LANES}"), b.let(f"icmp sge i64 {high}, {LANES}")
        b.add(f"br i1 {wide}, label %wide{n}, label %narrow{n}")
        b.add(f"wide{n}:")
        with self._for("0", whole, LANES) as i:
            self._square(source, target, i, "", "")
        b.add(f"br label %ends{n}")
        b.add(f"narrow{n}:")
        b.add(f"br label %ends{n}")
        b.add(f"ends{n}:")
        start = b.let(f"select i1 {wide}, i64 {whole}, i64 0")
        with self._for(start, "%count", LANES) as i:
            self._square(source, target, i, high, b.let(f"sub i64 %count, {i}"))

    def _square(self, source: str, target: str, i: str, high: str, left: str) -> None:
        b, rows = self._body, []
        mask = self._lanes(high) if high else ""
        last = b.let(f"sub i64 {left}, 1") if left else ""
        for lane in range(LANES):
            number = b.let(f"call i64 @llvm.smin.i64(i64 {lane}, i64 {last})") if left else str(lane)
            row = b.let(f"mul i64 {b.let(f'add i64 {i}, {number}')}, %step")
            rows.append(self._vector(self._moved(source, _BYTE, row), _WORD, mask))
        own = self._lanes(left) if left else ""
        for k, value in enumerate(transposed(b, rows, "i32")):
            place = self._moved(target, _BYTE, b.let(f"mul i64 {k}, %jump"))
            place = self._moved(place, _WORD, i)
            if not left:
                self._write(value, _WORD, place)
                continue
            inside = b.splat(b.let(f"icmp sgt i64 {high}, {k}"), "i1")
            self._write(value, _WORD, place, b.binary("and", own, inside, "i1"))


@functools.lru_cache(256)
def _address(kind: _Kind) -> int | None:
    return machine.address_of(_Code(kind).text())


Axis = tuple[int, int, int]
"""The extent of an axis, and its strides in the source and in the target, in bytes."""


def _axes(source: Any, target: Any) -> list[Axis]:
    """Return the axes, ordered by the target's strides, neighbors joined."""
    given = sorted(
        (axis for axis in zip(target.shape, source.strides, target.strides) if axis[0] != 1), key=lambda axis: -axis[2]
    )
    joined: list[Axis] = []
    for extent, x, y in given:
        if joined and joined[-1][1] == extent * x and joined[-1][2] == extent * y:
            joined[-1] = (joined[-1][0] * extent, x, y)
        else:
            joined.append((extent, x, y))
    return joined or [(1, target.itemsize, target.itemsize)]


def _job(source: Any, target: Any) -> tuple[_Kind, int, list[int]]:
    """Return the kind of a copy, the number of its pieces, and the arguments after these."""
    size = target.itemsize
    *outer, (count, step, last) = _axes(source, target)
    if last != size:  # the target's elements are not next to each other
        outer, count, step = [*outer, (count, step, last)], 1, size
    if step == size:
        kind, rest, size = "together", [count * size, 0, 0, 0, 0], 1
    elif step == 0:
        kind, rest = "repeated", [count, 0, 0, 0, 0]
    else:
        other = next((axis for axis in outer if axis[1] == size), None) if size == 4 else None
        kind, rest = "single", [count, step, 0, 0, 0]
        if other is not None and min(count, other[0]) > 3:
            outer.remove(other)
            kind, rest = "squares", [count, step, other[0], other[2], -(-other[0] // LANES)]
    outer += [(1, 0, 0)] * (_FEWEST_AXES - len(outer))
    made = _Kind(kind, size, len(outer))
    pieces = math.prod(extent for extent, _, _ in outer[: len(outer) - made.inner_loop]) * max(rest[4], 1)
    arguments = [axis[k] for k in range(3) for axis in outer]
    return made, pieces, [*arguments, *rest]


def copying(ctx: PlanContext, pairs: Sequence[Pair]) -> Call:
    """Return the call that copies each source to its target; these are the same or do not overlap."""
    nbytes = sum(target.nbytes for _, target in pairs)
    if not nbytes:
        return lambda: None
    threads = ctx.threads if nbytes >= _OF_A_THREAD else 1
    rows: list[list[list[int]]] = [[] for _ in range(threads)]
    for source, target in pairs:
        if not target.size or _is(source, target):
            continue
        kind, pieces, rest = _job(source, target)
        address, count = _address(kind), min(threads, pieces)
        assert address is not None
        for part in range(count):
            bounds = [pieces * k // count for k in (part, part + 1)]
            rows[part].append([address, source.ctypes.data, target.ctypes.data, *bounds, *rest])
    if not any(rows):
        return lambda: None
    return call_of_threads(ctx, [one_row(each) for each in rows if each], pairs, brief=nbytes < _BRIEF)


def _is(source: Any, target: Any) -> bool:
    """Whether two views are the same memory, element for element."""
    return source.ctypes.data == target.ctypes.data and (source.shape, source.strides) == (target.shape, target.strides)


# The operators

Views = Callable[[Any, Sequence[Any], Sequence[Any]], list[Pair]]


def _copies(
    views: Views, *, reads: int | None = 1, inplace: bool = False, info: bool = False
) -> Callable[..., Prepared | None]:
    """Return what prepares an operator.

    Args:
        views: returns sources and targets for the operator, and the buffers of its inputs and outputs.
        reads: how many of its inputs are read; None: all; -1: the last one.
        inplace: what the operator declares to have the memory of its input is not copied then.
        info: the second output, of integers, is not written if nobody reads it.
    """

    def make(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
        if not machine.available() or any(spec is None or spec.dtype == STRING for spec in specs[:1]):
            return None
        if not op.static_for(*specs):
            return None
        plain = [spec.plain for spec in specs]
        made = list(op.infer(*(spec if spec.known is not None else spec.plain for spec in specs)))[: max(op.n_out, 1)]
        chosen = slice(-1, None) if reads == -1 else slice(reads)
        types = {spec.dtype for spec in (made[0], *plain[chosen])}
        if len(types) > 1 or STRING in types:
            return None
        if not machine.compiled_functions and _address(_Kind("together", 1, _FEWEST_AXES)) is None:
            return None
        outs: list[TensorSpec | None] = [*made]
        if info and len(outs) > 1 and ctx.demand(1) == "never":
            outs[1] = None

        def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
            pairs = [pair for pair in views(op, inputs, outputs) if pair[1] is not None]
            return copying(ctx, [(x, y) for x, y in pairs if not (inplace and np.may_share_memory(x, y))])

        read: list[TensorSpec | None] = [None] * len(plain)
        read[chosen] = plain[chosen]
        return Prepared(read, outs, bind, inplace=op.inplace if inplace else (), name="llvm copy")

    return make


def _transpose(op: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Pair]:
    return [(inputs[0].transpose(op.order(inputs[0].ndim)), outputs[0])]


def _moved_channels(source: int, target: int, op: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Pair]:
    return [(np.moveaxis(inputs[0], source, target), outputs[0])]


def _slice(op: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Pair]:
    return [(inputs[0][op.box(inputs[0].shape, op.starts, op.ends)], outputs[0])]


def _slice_gradient(op: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Pair]:
    dx, zero = outputs[0], np.zeros((), outputs[0].dtype)
    box = op.box(dx.shape, op.starts, op.ends)
    pairs = [(inputs[-1], dx[box])]
    for axis, part in enumerate(box):  # what is before the box along this axis, and after it
        for rest in (slice(0, part.start), slice(part.stop, None)):
            target = dx[(*box[:axis], rest)]
            pairs.append((np.broadcast_to(zero, target.shape), target))
    return pairs


def _split(op: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Pair]:
    axis, start, pairs = op.axis_in(inputs[0].ndim, inputs[0].shape), 0, []
    for out in outputs:
        end = start + (1 if op.adds_axis else out.shape[axis])
        part = inputs[0][(slice(None),) * axis + (slice(start, end),)]
        pairs.append((part.squeeze(axis) if op.adds_axis else part, out))
        start = end
    return pairs


def _concat(op: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Pair]:
    whole = outputs[0]
    axis, start, pairs = op.axis_in(whole.ndim, whole.shape), 0, []
    extents = [1 if op.adds_axis else part.shape[axis] for part in inputs]
    for part, extent in zip(inputs, extents):
        target = whole[(slice(None),) * axis + (slice(start, start + extent),)]
        pairs.append((part, target.squeeze(axis) if op.adds_axis else target))
        start += extent
    pairs += [(_integers(extents, out), out) for out in outputs[1:]]
    return pairs


def _tile(op: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Pair]:
    x, axis = inputs[0], op.axis % inputs[0].ndim
    shape = (*x.shape[:axis], op.tiles, *x.shape[axis:])
    copies = np.broadcast_to(x.reshape(*x.shape[:axis], 1, *x.shape[axis:]), shape)
    return [(copies, outputs[0].reshape(shape))]


def _expand(op: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Pair]:
    return [(np.broadcast_to(inputs[0], outputs[0].shape), outputs[0])]


def _reshape(op: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Pair]:
    x, *info = outputs
    return [(inputs[0].reshape(x.shape), x), *((_integers(inputs[0].shape, out), out) for out in info)]


def _pad(op: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Pair]:
    count = inputs[0].ndim
    return _bordered(list(zip(op.pads[:count], op.pads[count:])), op, inputs[0], outputs[0])


def _pad_image(op: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Pair]:
    none = [(0, 0)]
    pads = [*none, *op.borders, *none] if op.order == "NHWC" else [*none, *none, *op.borders]
    return _bordered(pads, op, inputs[0], outputs[0])


def _bordered(pads: Sequence[tuple[int, int]], op: Any, x: Any, y: Any) -> list[Pair]:
    """Return each part of a padded array with what it is copied from: the element ``op.value``, or a part of X."""
    parts = [_runs(extent, *widths, op.mode) for extent, widths in zip(x.shape, pads)]
    element = np.asarray(getattr(op, "value", 0), x.dtype)
    pairs = []
    for chosen in itertools.product(*parts):
        target = y[tuple(to for to, _ in chosen)]
        sources = tuple(source for _, source in chosen if source is not None)
        pairs.append((np.broadcast_to(x[sources] if len(sources) == len(chosen) else element, target.shape), target))
    return pairs


def _runs(extent: int, before: int, after: int, mode: str) -> list[tuple[slice, slice | None]]:
    """Return the parts of an axis with a border, each with the part that it is copied from; None: no part.

    >>> _runs(3, 2, 0, "reflect")
    [(slice(0, 3, None), slice(2, None, -1)), (slice(3, 5, None), slice(1, 3, 1))]
    """
    widths = max(before, 0), max(after, 0)
    options: Any = {"constant_values": _NOWHERE} if mode == "constant" else {"mode": mode}
    places = np.pad(np.arange(extent), widths, **options)
    places = places[max(-before, 0) : len(places) - max(-after, 0)]
    found, start = list[tuple[slice, slice | None]](), 0
    while start < len(places):
        first = places[start]
        step = places[start + 1] - first if start + 1 < len(places) else 1
        step = int(step) if abs(step) <= 1 and places[start] != _NOWHERE else 0
        end = start + 1
        while end < len(places) and places[end] - places[end - 1] == step:
            end += 1
        source = slice(int(first), int(first) + 1)
        if step:
            stop = int(first) + step * (end - start)
            source = slice(int(first), stop if stop >= 0 else None, step)
        found.append((slice(start, end), None if first == _NOWHERE else source))
        start = end
    return found


def _integers(values: Sequence[int], out: Any) -> Any:
    return None if out is None else np.array(values, out.dtype)


def _constant(op: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Pair]:
    like = np.empty(0, outputs[0].dtype) if inputs else None  # its type says how exact the value is
    element = np.asarray(op.element_like(like), outputs[0].dtype)
    return [(np.broadcast_to(element, outputs[0].shape), outputs[0])]


def _constant_fill(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    return None if op.dynamic or len(specs) > 1 else _filled(op, ctx, *specs)


def _join(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    found = _joined_parts(op, ctx, *specs)
    if found is None or found.outputs[0] is None:
        return found
    shape = found.outputs[0].shape
    return found.extend(Joined()) if math.prod(shape[: op.axis_in(len(shape), shape)]) == 1 else found


_joined_parts = _copies(_concat, reads=None, info=True)
_filled = _copies(_constant, reads=0)
_same_elements = _copies(_reshape, inplace=True, info=True)

COPIES: dict[str, Callable[..., Prepared | None]] = {
    "Concat": _join,
    "ConstantFill": _constant_fill,
    "DepthConcat": _join,
    "DepthSplit": _copies(_split),
    "Expand": _copies(_expand),
    "NCHW2NHWC": _copies(partial(_moved_channels, 1, -1)),
    "NHWC2NCHW": _copies(partial(_moved_channels, -1, 1)),
    "Pad": _copies(_pad),
    "PadImage": _copies(_pad_image),
    "Slice": _copies(_slice),
    "SliceGradient": _copies(_slice_gradient, reads=-1),
    "Split": _copies(_split),
    "Tile": _copies(_tile),
    "Transpose": _copies(_transpose),
}
"""Operators that copy elements."""

COPIES |= dict.fromkeys(
    ("Alias", "AliasWithName", "Copy", "CopyCPUToGPU", "CopyFromCPUInput", "CopyGPUToCPU", "CopyOnDeviceLike",
     "EnsureCPUOutput", "EnsureDense", "ExpandDims", "Flatten", "FlattenToVec", "NegateGradient", "Reshape",
     "ResizeLike", "Squeeze", "StopGradient"), _same_elements,
)  # fmt: skip
