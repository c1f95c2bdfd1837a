"""DeformConv and its gradient as machine code, in parts that stay in the cache.

Samples (see ``deformed_samples``) are the left factor of the product with the filters (see ``products``) for some
positions.

The gradient goes through parts of the batch, or of an image, whose samples fit in ``_PART``. Of each, first the
gradients of the samples are computed, then the samples with the gradients of offsets and masks, position by position,
and then, channel by channel, the gradient of X, whose pixels are shared by positions, and that of the filters. All sums
are in the order of the positions, whatever the number of threads.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from netbuilder.engines.llvm.argument_rows import call_of_threads, one_row, shares
from netbuilder.engines.llvm.copies import Pair, copying
from netbuilder.engines.llvm.deformed_samples import GEOMETRY, Kind, address_of, row_of
from netbuilder.engines.llvm.emitter import LANES
from netbuilder.engines.llvm.products import Panels, may_be_copied, product_row
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["DEFORMED_WINDOWS", "filter_panels"]

_F, _I = np.dtype(np.float32), np.dtype(np.int32)
_MOST = 1 << 24
"""Numbers of pixels from here on have no exact float32."""

_TABLE = 1 << 23
"""Bytes of images that are stored pixel by pixel at once, about; at least one is."""

_SAMPLES, _PART = 1 << 16, 1 << 21
"""Elements of the samples that a thread multiplies at once, and of those of a part of a gradient, about."""

_FEWEST = 48
"""Positions whose samples are multiplied at once, at least: the tiles of a product, see ``products``, are whole."""

_BRIEF, _OF_A_THREAD = 1 << 17, 1 << 16  # multiplications


class _FilterPanels(Panels):
    """The layout of filters in panels of ``LANES`` outputs, (groups, panels, taps, channels, LANES).

    Args:
        groups: of the channels.
        outputs, channels: of the result and of X, in a group.
        taps: elements of a window.
    """

    __slots__ = ("groups", "taps")

    def __init__(self, groups: int, outputs: int, channels: int, taps: int) -> None:
        super().__init__(outputs, channels * taps, True)
        self.groups, self.taps = groups, taps
        self.nbytes *= groups

    def __repr__(self) -> str:
        return f"<panels of {self.groups} groups of {self.rows}x{self.columns // self.taps}x{self.taps}>"

    def parts(self, matrix: Any, memory: Any) -> list[Pair]:
        by_output = matrix.reshape(self.groups, self.rows, -1, self.taps).transpose(0, 3, 2, 1)
        *shape, outputs = by_output.shape
        found, whole = memory.view(_F).reshape(self.groups, -1, *shape[1:], LANES), outputs // LANES
        inside = by_output[..., : whole * LANES].reshape(*shape, whole, LANES).transpose(0, 3, 1, 2, 4)
        pairs, last, rest = [(inside, found[:, :whole])], found[:, -1], outputs % LANES
        if rest:
            pairs += [(by_output[..., whole * LANES :], last[..., :rest]), _zeros(last[..., rest:])]
        return pairs


filter_panels = functools.lru_cache(1024)(_FilterPanels)


def _zeros(target: Any) -> Pair:
    return np.broadcast_to(np.zeros((), target.dtype), target.shape), target


@dataclass(frozen=True, eq=False)
class _Windows:
    """The shapes of a deformed convolution.

    Args:
        x, filters, y: specs of X, of the filters, and of the result.
        integers: what all functions are given, by name, see ``GEOMETRY``.
        origins: row and column of each position's first element, (2, positions), int32.
        groups: of the channels.
    """

    x: TensorSpec
    filters: TensorSpec
    y: TensorSpec
    integers: Mapping[str, int]
    origins: Any
    groups: int

    @staticmethod
    def of(op: Any, x: TensorSpec, offset: TensorSpec, filters: TensorSpec) -> _Windows:
        geometry, shape = op.geometry(x, offset, filters)
        (_, channels, height, width), (high, wide) = x.shape, geometry.kernel
        axes = [np.arange(n) * s - a for n, s, a in zip(geometry.out, geometry.strides, geometry.begin)]
        origins = np.stack(np.meshgrid(*axes, indexing="ij")).astype(_I).reshape(2, -1)
        segment = math.gcd(channels // op.group, channels // op.deformable_group)
        numbers = [
            height, width, height * width, channels, high, wide, *geometry.dilations, high * wide, origins.shape[1],
            op.deformable_group, segment, channels // op.deformable_group // segment, channels // op.group // segment,
        ]  # fmt: skip
        return _Windows(x, filters, x.with_shape(shape), dict(zip(GEOMETRY, numbers)), origins, op.group)

    @property
    def outputs(self) -> int:
        """Channels of the result in a group."""
        return self.y.shape[1] // self.groups

    @property
    def k(self) -> int:
        """Elements of a window in the channels of a group."""
        return math.prod(self.filters.shape[1:])

    @property
    def columns(self) -> int:
        """Elements in a group if each segment has whole vectors for each element of the window."""
        numbers = self.integers
        return numbers["taps"] * numbers["of_group"] * -(-numbers["segment"] // LANES) * LANES

    @property
    def positions(self) -> int:
        return self.origins.shape[1]

    def part(self) -> tuple[int, int]:
        """Return of how many images, and of how many positions, the gradient is computed at once."""
        most = max(LANES, _PART // (2 * self.groups * self.columns + 2 * self.y.shape[1]))
        if self.positions <= most:
            return min(self.images_at_once(), most // self.positions), self.positions
        return 1, -(-self.positions // -(-self.positions // most) // LANES) * LANES

    @property
    def cost(self) -> int:
        """About how many multiplications it takes."""
        return self.x.shape[0] * self.positions * self.k * (self.y.shape[1] + 8 * self.groups)

    def images_at_once(self) -> int:
        """Return how many images are stored pixel by pixel at once."""
        return max(1, min(self.x.shape[0], _TABLE // (self.x.nbytes // self.x.shape[0])))

    @property
    def panels(self) -> _FilterPanels:
        taps = self.integers["taps"]
        return filter_panels(self.groups, self.outputs, self.k // taps, taps)

    def by_columns(self, filters: Any, memory: Any, *, in_panels: bool) -> list[Pair]:
        """Return parts of filters, with their places in a matrix of ``columns``.

        Args:
            filters: as the operator has them.
            memory: of the matrix, (groups, outputs, columns), or of its panels, (groups, panels, outputs, LANES).
            in_panels: which of them it is.
        """
        numbers = self.integers
        taps, segments, segment = (numbers[name] for name in ("taps", "of_group", "segment"))
        whole = segment // LANES
        given = filters.reshape(self.groups, self.outputs, segments, segment, taps).transpose(0, 1, 4, 2, 3)
        if in_panels:
            target = memory.reshape(self.groups, taps, segments, -1, self.outputs, LANES).transpose(0, 4, 1, 2, 3, 5)
        else:
            target = memory.reshape(self.groups, self.outputs, taps, segments, -1, LANES)
        inside, rest = given[..., : whole * LANES], given[..., whole * LANES :]
        split = inside.reshape(*inside.shape[:4], whole, LANES)
        return [(split, target[..., :whole, :]), (rest, target[..., -1, : rest.shape[-1]])]

    def row(self, kind: Kind, arrays: Mapping[str, Any], integers: Mapping[str, int]) -> Any:
        """Return the row of arguments of a function, of arrays (None: not read) and what else it is given."""
        return row_of(kind, {"origins": self.origins, **arrays}, {**self.integers, **integers})


class _Memory:
    """Parts of scratch memory, each of which begins at a multiple of 64 bytes.

    Args:
        sizes: of the parts, in elements of float32, by name.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = {name: -(-size // LANES) * LANES for name, size in sizes.items()}
        self.nbytes = sum(self._sizes.values()) * _F.itemsize

    def of(self, scratch: Any) -> dict[str, Any]:
        ends = np.cumsum([*self._sizes.values()])
        return dict(zip(self._sizes, np.split(scratch.view(_F), ends[:-1])))


def _threads(ctx: PlanContext, cost: int) -> int:
    return max(1, min(ctx.threads, cost // _OF_A_THREAD))


def _in_order(calls: Sequence[Call]) -> Call:
    def run() -> None:
        for call in calls:
            call()

    return run


def _kind(op: Any, step: str, *, more: bool = False) -> Kind:
    return Kind(step, op.padding_mode == "zeros", bool(op.masked) and step != "pixels", more)


def _served(op: Any, specs: Sequence[TensorSpec], *kinds: Kind) -> _Windows | None:
    """Return the shapes; None: they, the types or the CPU are none for which there is code."""
    if any(spec.dtype != _F or not spec.size for spec in specs):
        return None
    windows = _Windows.of(op, *(spec.plain for spec in specs[:3]))
    served = windows.integers["pixels"] < _MOST and None not in map(address_of, kinds)
    return windows if served else None


class _Forward:
    """How Y is computed, and in which memory.

    Args:
        op: the operator.
        ctx: of the plan.
        windows: the shapes.
    """

    def __init__(self, op: Any, ctx: PlanContext, windows: _Windows) -> None:
        self._op, self._ctx, self._windows = op, ctx, windows
        self._kind = _kind(op, "samples")
        self._at_once, k = windows.images_at_once(), windows.k
        most = max(_FEWEST, _SAMPLES // (windows.groups * k) // _FEWEST * _FEWEST)
        share = -(-self._at_once * windows.positions // ctx.threads)
        self._chunk = min(most, *(-(-count // LANES) * LANES for count in (windows.positions, share)))
        self._chunks = -(-windows.positions // self._chunk)
        self._threads = min(_threads(ctx, windows.cost), self._at_once * self._chunks)
        self.constant = may_be_copied(ctx, 2, windows.panels)
        sizes = {"images": self._at_once * math.prod(windows.x.shape[1:])}
        sizes["filters"] = 0 if self.constant else windows.panels.nbytes // _F.itemsize
        for thread in range(self._threads):
            sizes[f"samples{thread}"] = windows.groups * self._chunk * k
            sizes[f"result{thread}"] = self._chunk * windows.outputs
        self.memory = _Memory(sizes)

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        (x, offset, filters, *more), (y,) = inputs, outputs
        bias, mask = self._op.bias_and_mask(more)
        bias = np.zeros(y.shape[1], _F) if bias is None else bias
        own, calls = self.memory.of(scratch), list[Call]()
        if not self.constant:
            calls.append(copying(self._ctx, self._windows.panels.parts(filters, own["filters"])))
            filters = own["filters"]
        for start in range(0, len(x), self._at_once):
            part = slice(start, start + self._at_once)
            pixels = _pixel_by_pixel(x[part])
            images = _view(own["images"], pixels.shape)
            calls.append(copying(self._ctx, [(pixels, images)]))
            arrays = {"offset": offset[part], "mask": None if mask is None else mask[part], "images": images,
                      "filters": filters, "bias": bias, "y": y[part]}  # fmt: skip
            calls.append(self._of_images(len(images), arrays, own))
        return _in_order(calls)

    def _of_images(self, count: int, arrays: Mapping[str, Any], own: Mapping[str, Any]) -> Call:
        """Return the call that computes Y of some images."""
        windows, rows, products = self._windows, [], []
        sizes, panels = (self._chunk, windows.outputs, windows.k), -(-windows.outputs // LANES)
        numbers = {"groups": windows.groups, "outputs": windows.outputs, "panels": panels, "k": windows.k,
                   "chunk": self._chunk, "chunks": self._chunks}  # fmt: skip
        for thread, (begin, end) in enumerate(shares(count * self._chunks, self._threads)):
            samples, result = own[f"samples{thread}"], own[f"result{thread}"]
            products.append(_product((samples, arrays["filters"], result, arrays["bias"]), sizes, (0, panels)))
            given = {**arrays, "samples": samples, "result": result, "product": products[-1]}
            rows.append(windows.row(self._kind, given, {**numbers, "begin": begin, "end": end}))
        return call_of_threads(self._ctx, rows, (windows, arrays, own, products), brief=windows.cost < _BRIEF)


def _deform_conv(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare DeformConv: X, offset, filter, [bias], [mask] -> Y."""
    windows = _served(op, specs, _kind(op, "samples"))
    if windows is None:
        return None
    forward, expected = _Forward(op, ctx, windows), [spec.plain for spec in specs]
    if forward.constant:
        expected[2] = specs[2].with_layout(windows.panels)
    return Prepared(expected, [windows.y], forward.bind, scratch=forward.memory.nbytes, name="llvm deformed windows")


def _pixel_by_pixel(x: Any) -> Any:
    """Return a view of images as (n, pixels, channels)."""
    return x.reshape(*x.shape[:2], -1).swapaxes(1, 2)


def _view(memory: Any, shape: tuple[int, ...]) -> Any:
    """Return the first elements of a part of memory as an array."""
    return memory[: math.prod(shape)].reshape(shape)


def _product(
    buffers: Sequence[Any], sizes: tuple[int, int, int], panels: tuple[int, int], *, adds: bool = False
) -> Any:
    """Return the row of arguments of a product of A, B, to Y, with a bias if it is there; see ``product_row``."""
    a, b, y, *bias = (0 if each is None else each.ctypes.data for each in buffers)
    return np.array(product_row(a, b, y, sizes, panels, bias=bias[0] if bias else 0, adds=adds), np.int64)


def _outputs(op: Any) -> list[str]:
    """Return the names of what a gradient writes."""
    return ["d_offset", "d_filters", *([] if op.no_bias else ["d_bias"]), "dx", "d_mask"][: op.n_out]


def _kinds_of_gradient(op: Any) -> tuple[Kind, Kind]:
    return _kind(op, "moves", more="d_mask" in _outputs(op)), _kind(op, "pixels")


class _Gradient:
    """The calls that compute a gradient, in buffers.

    Args:
        op: the operator.
        ctx: of the plan.
        windows: the shapes.
        arrays: its inputs and outputs by name; those that are not written are missing.
        own: its memory.
        threads: that compute.
    """

    def __init__(
        self, op: Any, ctx: PlanContext, windows: _Windows, arrays: Mapping[str, Any], own: Mapping[str, Any],
        threads: int,
    ) -> None:  # fmt: skip
        self._ctx, self._windows, self._arrays, self._own, self._threads = ctx, windows, arrays, own, threads
        self._moves, self._pixels = _kinds_of_gradient(op)

    def calls(self) -> Iterator[Call]:
        windows, arrays, own = self._windows, self._arrays, self._own
        x, dx = arrays["x"], arrays.get("dx")
        filters = windows.by_columns(arrays["filters"], own["filters"], in_panels=True)
        yield copying(self._ctx, [*filters, _zeros(own["d_filters"])])
        images, first = windows.part()
        for start in range(0, len(x), images):
            part = slice(start, start + images)
            pixels = _pixel_by_pixel(x[part])
            table, d_table = (_view(own[name], pixels.shape) for name in ("images", "dx"))
            yield copying(self._ctx, [(pixels, table), *([] if dx is None else [_zeros(d_table)])])
            for begin in range(0, windows.positions, first):
                yield from self._of_part(part, table, d_table, begin, min(windows.positions - begin, first))
            if dx is not None:
                yield copying(self._ctx, [(d_table, _pixel_by_pixel(dx[part]))])
        found = windows.by_columns(arrays["d_filters"], own["d_filters"], in_panels=False)
        yield copying(self._ctx, [(source, target) for target, source in found])
        if "d_bias" in arrays:
            yield partial(np.add.reduce, arrays["dy"], (0, 2, 3), out=arrays["d_bias"])

    def _of_part(self, part: slice, table: Any, d_table: Any, first: int, count: int) -> Iterator[Call]:
        """Yield the calls for some positions of some images."""
        windows, own, groups = self._windows, self._own, self._windows.groups
        images, columns, outputs = len(table), windows.columns, windows.outputs
        rows = images * count
        dy = self._arrays["dy"].reshape(-1, groups, outputs, windows.positions)[part, ..., first : first + count]
        d_rows = _view(own["dy_rows"], (groups, images, count, outputs))
        d_outputs = _view(own["dy_outputs"], (groups, outputs, images, count))
        yield copying(self._ctx, [(dy.transpose(1, 0, 3, 2), d_rows), (dy.transpose(1, 2, 0, 3), d_outputs)])

        d_rows, d_outputs = d_rows.reshape(groups, rows, outputs), d_outputs.reshape(groups, outputs, rows)
        d_samples = _view(own["d_samples"], (groups, rows, columns))
        samples = _view(own["samples"], (groups, columns // LANES, rows, LANES))
        filters = _view(own["filters"], (groups, columns // LANES, outputs, LANES))
        d_filters = _view(own["d_filters"], (groups, outputs, columns))
        yield self._call(
            [
                _product(
                    (d_rows[g, a:z], filters[g], d_samples[g, a:z]), (z - a, columns, outputs), (0, columns // LANES)
                )
                for g in range(groups)
            ]
            for a, z in shares(rows, self._threads)
        )

        arrays = {"offset": self._arrays["offset"][part], "pixels_of_x": table, "samples": samples,
                  "d_offset": self._arrays["d_offset"][part], "d_samples": d_samples, "dx": d_table}  # fmt: skip
        arrays |= {name: self._arrays[name][part] if name in self._arrays else None for name in ("mask", "d_mask")}
        numbers = {"images": images, "first": first, "count": count, "rows": rows, "columns": columns}

        def row(kind: Kind, bounds: tuple[int, int]) -> Any:
            return windows.row(kind, arrays, {**numbers, "begin": bounds[0], "end": bounds[1]})

        yield self._call([row(self._moves, each)] for each in shares(images * -(-count // LANES), self._threads))
        vectors = windows.x.shape[1] // windows.integers["segment"] * -(-windows.integers["segment"] // LANES)
        yield self._call(
            [
                *([row(self._pixels, of_x)] if "dx" in self._arrays else []),
                *(
                    _product((d_outputs[g], samples[g], d_filters[g]), (outputs, columns, rows), of_filters, adds=True)
                    for g in range(groups)
                ),
            ]
            for of_x, of_filters in zip(*(shares(n, self._threads) for n in (vectors, columns // LANES)))
        )

    def _call(self, rows: Iterable[Sequence[Any]]) -> Call:
        """Return the call of the functions of each thread, one after another."""
        jobs = [one_row(each) for each in rows]
        return call_of_threads(
            self._ctx, jobs, (self._windows, self._arrays, self._own), brief=self._windows.cost < _BRIEF
        )


def _deform_conv_gradient(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare DeformConvGradient: X, offset, filter, dY, [mask] -> d_offset, d_filter, [d_bias], dX, [d_mask]."""
    windows = _served(op, specs, *_kinds_of_gradient(op))
    if windows is None:
        return None
    plain = [spec.plain for spec in specs]
    images, count = windows.part()
    rows, size = images * count, images * math.prod(specs[0].shape[1:])
    by_row, by_filter = windows.groups * windows.columns, windows.y.shape[1] * windows.columns
    sizes = {"images": size, "dx": size, "filters": by_filter, "d_filters": by_filter}
    sizes |= dict.fromkeys(("dy_rows", "dy_outputs"), rows * windows.y.shape[1])
    sizes |= dict.fromkeys(("d_samples", "samples"), rows * by_row)
    memory = _Memory(sizes)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        arrays = dict(zip(("x", "offset", "filters", "dy", "mask"), inputs)) | dict(zip(_outputs(op), outputs))
        gradient = _Gradient(op, ctx, windows, arrays, memory.of(scratch), _threads(ctx, 3 * windows.cost))
        return _in_order([*gradient.calls()])

    return Prepared(plain, list(op.infer(*plain)), bind, scratch=memory.nbytes, name="llvm deformed windows gradient")


DEFORMED_WINDOWS: Mapping[str, Callable[..., Prepared | None]] = {
    "DeformConv": _deform_conv,
    "DeformConvGradient": _deform_conv_gradient,
}
"""By operator type."""
