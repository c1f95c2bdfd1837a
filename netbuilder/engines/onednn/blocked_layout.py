"""oneDNN's layouts: how a value is stored in memory, and when that is the plain row-major order.

A float32 value may be stored as bfloat16: that is a property of its layout, and a reorder converts it.
"""

from __future__ import annotations

import abc
import functools
import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.library import check, dnnl
from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "BlockedLayout",
    "DerivedLayout",
    "Desc",
    "Exact",
    "View",
    "channel_block",
    "channel_blocked",
    "desc_in",
    "desc_of",
    "element_code",
    "elements",
    "filters_blocked",
    "grouped",
    "image_view",
    "layout_of",
    "orders_of",
    "per_channel",
    "plain_desc",
    "plain_in",
    "row_major",
    "rounded",
    "stored_as",
]

_TYPES = {np.dtype(name): code for name, code in (("f4", c.F32), ("i4", c.S32), ("i1", c.S8), ("u1", c.U8))}
_BYTES = {c.BF16: 2, c.F32: 4, c.S32: 4, c.S8: 1, c.U8: 1}


def _type_code(dtype: Any) -> int | None:
    """Return oneDNN's number for a NumPy dtype, or None."""
    return _TYPES.get(np.dtype(dtype))


@dataclass(frozen=True)
class View:
    """A plain array as oneDNN sees it: extents in oneDNN's order of dimensions, and strides in elements.

    An NHWC image becomes N, C, H, W with the strides of NHWC; the weights of a grouped convolution get one more
    dimension, for the group.
    """

    dims: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size(self) -> int:
        n = 1
        for extent in self.dims:
            n *= extent
        return n


@functools.lru_cache(1024)
def row_major(shape: tuple[int, ...]) -> View:
    """Return the view of a plain array with its own dimensions; a scalar becomes an array of one element."""
    shape = shape or (1,)
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return View(shape, tuple(strides))


@functools.lru_cache(1024)
def image_view(shape: tuple[int, ...], channels_last: bool = False) -> View:
    """Return the view N, C, spatial... of images (or O, I, spatial... of weights) in NCHW or NHWC order."""
    plain = row_major(shape)
    if not channels_last or len(shape) < 3:
        return plain
    order = (0, len(shape) - 1, *range(1, len(shape) - 1))
    return View(tuple(plain.dims[i] for i in order), tuple(plain.strides[i] for i in order))


@functools.lru_cache(1024)
def grouped(view: View, group: int) -> View:
    """Return weights O, I, ... as G, O/G, I, ...; with one group, unchanged."""
    if group == 1:
        return view
    per_group = view.dims[0] // group
    return View((group, per_group, *view.dims[1:]), (per_group * view.strides[0], *view.strides))


Digits = tuple[tuple[tuple[int, int], ...], ...]
"""For each dimension (extent, stride in memory) of its parts, the most significant first."""


class BlockedLayout:
    """A layout other than plain order in the value's dtype; equal layouts are the same object.

    Attributes:
        view: the plain array that the layout is for, so that any kernel can convert back; None for plain order in
            bfloat16, which all views share.
        code: oneDNN's number for the type of the stored elements.
        digits: the parts of the view's dimensions in memory; () where ``view`` is None.
    """

    engine = "ONEDNN"
    filled = False
    __slots__ = ("__weakref__", "code", "descriptor", "digits", "itemsize", "nbytes", "text", "view")

    def __init__(
        self, view: View | None, code: int, descriptor: Any, nbytes: int, text: str, digits: Digits = ()
    ) -> None:
        self.view = view
        self.code = code
        self.digits = digits
        self.descriptor = descriptor
        self.itemsize = _BYTES[code]
        self.nbytes = nbytes
        self.text = text

    def __repr__(self) -> str:
        return f"<oneDNN layout {self.text}>"

    def loops(self, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...] | None:
        """See ``netbuilder.ops.core.contexts.Layout``."""
        if self.view is None:
            return tuple(enumerate(shape))
        if len(self.view.dims) != len(shape):
            return None
        plain = row_major(shape)
        left = list(range(len(shape)))
        found = []  # (stride in memory, axis, extent)
        for extent, stride, digits in zip(self.view.dims, self.view.strides, self.digits):
            axis = next((a for a in left if (plain.dims[a], plain.strides[a]) == (extent, stride)), None)
            if axis is None:
                return None
            left.remove(axis)
            found += [(step, axis, n) for n, step in digits]
        found.sort(reverse=True)
        dense = all(step == math.prod(n for _, _, n in found[i + 1 :]) for i, (step, _, _) in enumerate(found))
        return tuple((axis, n) for _, axis, n in found) if dense else None


class DerivedLayout(abc.ABC):
    """A form of a value that is computed for a kernel to read; no kernel writes it, and it cannot be converted back.

    Args:
        view: of the value, as ``copy`` reads it.
        nbytes: its size.
        text: its description.
    """

    engine = "ONEDNN"
    itemsize = 4
    filled = True
    __slots__ = ("nbytes", "text", "view")

    def __init__(self, view: View, nbytes: int, text: str) -> None:
        self.view, self.nbytes, self.text = view, nbytes, text

    def __repr__(self) -> str:
        return f"<oneDNN layout {self.text}>"

    @abc.abstractmethod
    def copy(self, ctx: PlanContext, source: TensorSpec, target: TensorSpec) -> Prepared:
        """Prepare the kernel that computes it from a value in plain order, or in another layout of the same view."""


class Exact:
    """The memory descriptor of a primitive, which its backward primitive may require exactly."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: Any) -> None:
        self.descriptor = descriptor


@dataclass(frozen=True)
class Desc:
    """The description of an argument: extents, type, and order (None: the primitive chooses)."""

    dims: tuple[int, ...]
    code: int
    order: tuple[int, ...] | BlockedLayout | Exact | None

    @property
    def handle(self) -> Any:
        return _handle(self)

    @property
    def any_order(self) -> Desc:
        """The same value in an order that the primitive chooses."""
        return Desc(self.dims, self.code, None)


def plain_in(view: View, code: int) -> Desc:
    """Return the description of a value in the plain order of ``view``, with elements of the type ``code``."""
    return Desc(view.dims, code, view.strides)


def plain_desc(view: View, dtype: Any) -> Desc:
    """Return the description of a plain array of this view and dtype."""
    code = _type_code(dtype)
    assert code is not None, dtype
    return plain_in(view, code)


def desc_of(spec: TensorSpec, view: View) -> Desc:
    """Return the description of a value in its layout; if that is for another view, the plain description."""
    layout = spec.layout
    if isinstance(layout, BlockedLayout):
        if layout.view is None:
            return plain_in(view, layout.code)
        if layout.view == view:
            return Desc(view.dims, layout.code, layout)
    return plain_desc(view, spec.dtype)


def desc_in(spec: TensorSpec, view: View, code: int) -> Desc:
    """Return the description of a value with elements of the type ``code``, in its own order if possible."""
    desc = desc_of(spec, view)
    if desc.code == code:
        return desc
    block = channel_block(desc.order) if isinstance(desc.order, BlockedLayout) else 0
    layout = channel_blocked(view, code, block) if block else None
    return plain_in(view, code) if layout is None or layout.view is None else Desc(view.dims, code, layout)


def stored_as(spec: TensorSpec) -> int | None:
    """Return oneDNN's number for the type of a value's stored elements, or None if it has none."""
    return spec.layout.code if isinstance(spec.layout, BlockedLayout) else _type_code(spec.dtype)


def elements(spec: TensorSpec) -> int:
    """Return the number of elements in a value's memory, including padding."""
    itemsize = spec.layout.itemsize if spec.layout is not None else spec.dtype.itemsize
    return spec.nbytes // int(itemsize)


@functools.lru_cache(1024)
def _handle(desc: Desc) -> Any:
    if isinstance(desc.order, (BlockedLayout, Exact)):
        return desc.order.descriptor
    d = dnnl()
    out = d.ffi.new("md_t *")
    n = len(desc.dims)
    if desc.order is None:
        status = d.lib.dnnl_memory_desc_create_with_tag(out, n, desc.dims, desc.code, c.FORMAT_TAG_ANY)
    else:
        status = d.lib.dnnl_memory_desc_create_with_strides(out, n, desc.dims, desc.code, desc.order)
    check(status, f"memory descriptor {desc.dims}")
    return d.ffi.gc(out[0], d.lib.dnnl_memory_desc_destroy)


# The layouts in use; no two of them are equal.
_layouts: weakref.WeakValueDictionary[Any, BlockedLayout] = weakref.WeakValueDictionary()


def layout_of(descriptor: Any, view: View) -> BlockedLayout | None:
    """Return the layout of a memory descriptor, None if it describes a plain array of ``view``."""
    digits, padded, code, offset = _structure(descriptor)
    if padded == view.dims and offset == 0 and digits == _plain_digits(view):
        return rounded(view.size) if code == c.BF16 else None
    key = (view, digits, padded, code, offset)
    found = _layouts.get(key)
    if found is None:
        d = dnnl()
        out = d.ffi.new("md_t *")
        check(d.lib.dnnl_memory_desc_clone(out, descriptor), "memory descriptor")
        own = d.ffi.gc(out[0], d.lib.dnnl_memory_desc_destroy)
        nbytes = int(d.lib.dnnl_memory_desc_get_size(own))
        text = _describe(view, digits, padded) + (" in bfloat16" if code == c.BF16 else "")
        found = _layouts.setdefault(key, BlockedLayout(view, code, own, nbytes, text, digits))
    return found


def rounded(size: int) -> BlockedLayout:
    """Return the plain order of ``size`` elements, each rounded to bfloat16."""
    found = _layouts.get(size)
    if found is None:
        descriptor = plain_in(row_major((size,)), c.BF16).handle
        text = f"plain order of {size} in bfloat16"
        found = _layouts.setdefault(size, BlockedLayout(None, c.BF16, descriptor, size * _BYTES[c.BF16], text))
    return found


def _structure(descriptor: Any) -> tuple[Digits, tuple[int, ...], int, int]:
    """Return a canonical form of a descriptor, equal for two descriptors that mean the same.

    For each dimension it has (extent, stride) digits, the most significant first, without those of extent 1 and with
    adjacent ones merged; further the padded extents, the element type and the offset.
    """
    ndim = _number(descriptor, c.QUERY_NDIMS)
    dims = _dims(descriptor, c.QUERY_DIMS, ndim)
    padded = _dims(descriptor, c.QUERY_PADDED_DIMS, ndim)
    if _number(descriptor, c.QUERY_FORMAT) != c.FORMAT_BLOCKED:
        raise ValueError(f"oneDNN chose an opaque layout for a value of extents {dims}")
    strides = _dims(descriptor, c.QUERY_STRIDES, ndim)
    count = _number(descriptor, c.QUERY_BLOCK_COUNT)
    blocks = _dims(descriptor, c.QUERY_BLOCKS, count)
    block_dims = _dims(descriptor, c.QUERY_BLOCK_DIMS, count)

    inner: list[list[tuple[int, int]]] = [[] for _ in dims]  # least significant first
    stride = 1
    for extent, dim in zip(reversed(blocks), reversed(block_dims)):
        inner[dim].append((extent, stride))
        stride *= extent
    digits = []
    for dim, extent in enumerate(padded):
        outer = extent
        for block, _ in inner[dim]:
            outer //= block
        merged: list[tuple[int, int]] = []
        for n, s in [(outer, strides[dim]), *reversed(inner[dim])]:
            if n == 1:
                continue
            if merged and merged[-1][1] == n * s:
                merged[-1] = (merged[-1][0] * n, s)
            else:
                merged.append((n, s))
        digits.append(tuple(merged))
    return tuple(digits), padded, element_code(descriptor), _number(descriptor, c.QUERY_OFFSET, "dim_t *")


def _plain_digits(view: View) -> Digits:
    return tuple(((n, s),) if n != 1 else () for n, s in zip(view.dims, view.strides))


# oneDNN's tags of the layouts nChw16c, nChw8c and their like, by number of dimensions and extent of the block.
_CHANNEL_BLOCKS = {(3, 16): 56, (4, 16): 78, (5, 16): 121, (3, 8): 69, (4, 8): 102, (5, 8): 142}


@functools.lru_cache(1024)
def channel_blocked(view: View, code: int, block: int) -> BlockedLayout | None:
    """Return the layout with channels (dimension 1) in blocks; None if oneDNN has none, or it is plain order."""
    tag = _CHANNEL_BLOCKS.get((len(view.dims), block))
    return None if tag is None else _layout_by_tag(view, code, tag)


# oneDNN's tags of the layouts OIhw16i16o, OIhw8i8o, Ohwi16o and Ohwi8o, by extent of the block and whether it is of
# both dimensions of channels.
_FILTER_BLOCKS = {(16, True): 79, (8, True): 107, (16, False): 211, (8, False): 216}


@functools.lru_cache(1024)
def filters_blocked(view: View, block: int, *, both: bool) -> BlockedLayout | None:
    """Return the layout of filters O, I, height, width with O in blocks, the innermost; None: that is plain order.

    Args:
        view: of the filters.
        block: channels of a block.
        both: whether I is in blocks, too, outside of the window; otherwise it is inside, before the block of O.
    """
    return _layout_by_tag(view, c.F32, _FILTER_BLOCKS[block, both])


def _layout_by_tag(view: View, code: int, tag: int) -> BlockedLayout | None:
    d = dnnl()
    out = d.ffi.new("md_t *")
    status = d.lib.dnnl_memory_desc_create_with_tag(out, len(view.dims), view.dims, code, tag)
    check(status, f"memory descriptor {view.dims}")
    made = d.ffi.gc(out[0], d.lib.dnnl_memory_desc_destroy)
    return layout_of(made, view)


@functools.lru_cache(1024)
def per_channel(data: Desc) -> Desc:
    """Describe one float32 number per channel, as an image of one pixel in the order of the images ``data``."""
    dims = (1, data.dims[1], *(1 for _ in data.dims[2:]))
    block = channel_block(data.order) if isinstance(data.order, BlockedLayout) else 0
    if not block:
        return plain_in(row_major(dims), c.F32)
    d = dnnl()
    out = d.ffi.new("md_t *")
    tag = _CHANNEL_BLOCKS[len(dims), block]
    check(d.lib.dnnl_memory_desc_create_with_tag(out, len(dims), dims, c.F32, tag), f"memory descriptor {dims}")
    return Desc(dims, c.F32, Exact(d.ffi.gc(out[0], d.lib.dnnl_memory_desc_destroy)))


@functools.lru_cache(1024)
def channel_block(layout: BlockedLayout) -> int:
    """Return the extent of the blocks of channels, 0 for a layout of another kind."""
    view, code = layout.view, layout.code
    if view is None:
        return 0
    return next((block for block in (16, 8) if channel_blocked(view, code, block) is layout), 0)


def orders_of(spec: TensorSpec, view: View, code: int) -> list[Desc]:
    """Return descriptions of a value, with elements of the type ``code``, to try in this order.

    The layout that the value has comes first.
    """
    blocked = [channel_blocked(view, code, block) for block in (16, 8)]
    others = [Desc(view.dims, code, layout) for layout in blocked if layout is not None and layout.view is not None]
    return list(dict.fromkeys([desc_in(spec, view, code), *others, plain_in(view, code)]))


def element_code(descriptor: Any) -> int:
    """Return the number of the type of a descriptor's elements."""
    return _number(descriptor, c.QUERY_TYPE)


def _number(descriptor: Any, what: int, kind: str = "int *") -> int:
    d = dnnl()
    out = d.ffi.new(kind)
    check(d.lib.dnnl_memory_desc_query(descriptor, what, out), "query of a memory descriptor")
    return int(out[0])


def _dims(descriptor: Any, what: int, count: int) -> tuple[int, ...]:
    if not count:
        return ()
    d = dnnl()
    out = d.ffi.new("dim_t **")
    check(d.lib.dnnl_memory_desc_query(descriptor, what, out), "query of a memory descriptor")
    return tuple(d.ffi.unpack(out[0], count))


def _describe(view: View, digits: Digits, padded: Sequence[int]) -> str:
    """Return the layout as text: letters for dimensions, slowest first, with the extents of inner blocks."""
    loops = [(s, dim, n, k) for dim, parts in enumerate(digits) for k, (n, s) in enumerate(parts)]
    text = ""
    for _, dim, n, k in sorted(loops, key=lambda loop: -loop[0]):
        letter = "abcdefghijkl"[dim]
        text += f"{n}{letter}" if k else (letter.upper() if len(digits[dim]) > 1 else letter)
    return f"{text} of {'x'.join(map(str, view.dims))}" + (" padded" if tuple(padded) != view.dims else "")
