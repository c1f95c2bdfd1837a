"""Convolutions that compute on channels-last copies of their images, a chunk images at a time.

For filters larger than 1x1 oneDNN has two families of kernels. Those for blocked channels, the layout between
operators, are faster for the gradients of weights; those for channels last are often faster for the rest, especially
with strides. Here the operator's images keep their layout, and those of one chunk of the batch at a time are copied to
channels last and back while they are in the caches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.arguments import MemoryRef, Part, Scratch
from netbuilder.engines.onednn.blocked_layout import (
    BlockedLayout,
    Desc,
    View,
    channel_block,
    channel_blocked,
    image_view,
    plain_in,
)
from netbuilder.engines.onednn.convolutions import Views, any_order, backward_data, forward
from netbuilder.engines.onednn.primitive import Extra, PostOp, Primitive, Step
from netbuilder.engines.onednn.reorders import reorder_primitive
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "CHUNK_BYTES",
    "ChannelsLastConvolution",
    "backward_data_channels_last",
    "can_be_channels_last",
    "channels_last_desc",
    "forward_channels_last",
]

CHUNK_BYTES = 4 << 20  # bytes of images, read and written, in a chunk
_ALIGNMENT = 64


@dataclass(frozen=True)
class ChannelsLastConvolution:
    """A convolution that runs chunk by chunk over a batch.

    Args:
        view: the weights.
        conv: the primitive for one chunk, with images in channels last.
        read, written: the numbers of its arguments that are images.
        fetch, store: the copies to and from channels last.
        load: the copy to channels last of the values that the result is added to, if any.
        parts: number of chunks.
        source_bytes, target_bytes: bytes of one chunk, in the operator's layouts.
    """

    view: View
    conv: Primitive
    read: int
    written: int
    fetch: Primitive
    store: Primitive
    load: Primitive | None
    parts: int
    source_bytes: int
    target_bytes: int

    saved_flops: ClassVar[int] = 0

    @property
    def scratch(self) -> int:
        """Bytes of scratch memory for the copies."""
        return self._start + self.conv.nbytes(self.written)

    @property
    def _start(self) -> int:
        return -(-self.conv.nbytes(self.read) // _ALIGNMENT) * _ALIGNMENT

    def weights(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec in which the weights are read."""
        return self.conv.spec(c.WEIGHTS, spec, self.view)

    def steps(
        self, source: MemoryRef, target: MemoryRef, weights: MemoryRef, bias: MemoryRef | None = None, *, base: int = 0
    ) -> list[Step | Extra]:
        """Return the executions for a whole batch.

        Args:
            source, target: the images, in the operator's layouts.
            weights, bias: of the convolution; None without a bias.
            base: the offset of the copies in scratch memory.
        """
        read = Scratch(base, self.conv.nbytes(self.read))
        written = Scratch(base + self._start, self.conv.nbytes(self.written))
        arguments: dict[int, MemoryRef] = {self.read: read, c.WEIGHTS: weights, self.written: written}
        if bias is not None:
            arguments[c.BIAS] = bias
        steps: list[Step | Extra] = []
        for part in range(self.parts):
            here = Part(source, part * self.source_bytes, self.source_bytes)
            there = Part(target, part * self.target_bytes, self.target_bytes)
            steps.append(Step(self.fetch, {c.SRC: here, c.DST: read}))
            if self.load is not None:
                steps.append(Step(self.load, {c.SRC: there, c.DST: written}))
            steps += [Step(self.conv, arguments), Step(self.store, {c.SRC: written, c.DST: there})]
        return steps


def forward_channels_last(
    v: Views, x: TensorSpec, y: TensorSpec, code: int, bias: Desc | None, inference: bool, post: Sequence[PostOp],
    *, threads: int,
) -> ChannelsLastConvolution | None:  # fmt: skip
    """Return the forward convolution; None if the library has no such kernel, or cannot copy the layouts by chunks.

    Args:
        v: the views of the convolution.
        x, y: the specs of the images, in the operator's layouts.
        code: the element type of images and weights.
        bias: None if there is none.
        inference, post: see ``convolutions.forward``.
        threads: number of threads.
    """
    chunk = _Chunk.of(v, x, y, threads)
    if chunk is None:
        return None
    src, dst = (channels_last_desc(_of_images(view, chunk.images), code) for view in (v.x, v.y))
    conv = forward(
        v.kind, src, any_order(v.weights, code), bias, dst, v.window, inference, tuple(post), threads=threads
    )  # fmt: skip
    add = any(op.kind == "sum" for op in post)
    return chunk.convolution(v.weights, conv, (c.SRC, src, v.x, x), (c.DST, dst, v.y, y), add=add)


def backward_data_channels_last(
    v: Views, dx: TensorSpec, dy: TensorSpec, code: int, *, threads: int
) -> ChannelsLastConvolution | None:
    """Return the gradient of the images; None as for ``forward_channels_last``."""
    chunk = _Chunk.of(v, dy, dx, threads)
    if chunk is None:
        return None
    src, dst = (channels_last_desc(_of_images(view, chunk.images), code) for view in (v.x, v.y))
    weights = any_order(v.weights, code)
    hint = forward(v.kind, src, weights, None, dst, v.window, False, (), threads=threads)
    if hint is None:
        return None
    conv = backward_data(v.kind, src, weights, dst, v.window, hint, threads=threads)
    return chunk.convolution(v.weights, conv, (c.DIFF_DST, dst, v.y, dy), (c.DIFF_SRC, src, v.x, dx))


@dataclass(frozen=True)
class _Chunk:
    """The division of a batch into chunks."""

    images: int
    parts: int
    threads: int

    @staticmethod
    def of(v: Views, source: TensorSpec, target: TensorSpec, threads: int) -> _Chunk | None:
        """Return how to divide a batch; None if the images are in channels last already."""
        if not can_be_channels_last(v):
            return None
        n = v.x.dims[0]
        fitting = max(threads, CHUNK_BYTES * n // max(source.nbytes + target.nbytes, 1))
        images = next((m for m in range(min(n, fitting), 0, -1) if n % m == 0 and m % threads == 0), n)
        return _Chunk(images, n // images, threads)

    def convolution(
        self,
        weights: View,
        conv: Primitive | None,
        source: tuple[int, Desc, View, TensorSpec],
        target: tuple[int, Desc, View, TensorSpec],
        *,
        add: bool = False,
    ) -> ChannelsLastConvolution | None:
        if conv is None or conv.slow or "brg" not in conv.name:
            return None
        (read, first, view, spec), (written, last, out_view, out_spec) = source, target
        source_desc, target_desc = self._part(view, spec), self._part(out_view, out_spec)
        if source_desc is None or target_desc is None:
            return None
        fetch = reorder_primitive(source_desc, first, threads=self.threads)
        store = reorder_primitive(last, target_desc, threads=self.threads)
        load = reorder_primitive(target_desc, last, threads=self.threads) if add else None
        if fetch is None or store is None or (add and load is None):
            return None
        return ChannelsLastConvolution(
            weights,
            conv,
            read,
            written,
            fetch,
            store,
            load,
            self.parts,
            spec.nbytes // self.parts,
            out_spec.nbytes // self.parts,
        )

    def _part(self, view: View, spec: TensorSpec) -> Desc | None:
        """Describe one chunk of images in its layout; None if it is not contiguous in memory."""
        chunk = _of_images(view, self.images)
        layout = spec.layout
        if layout is None:
            return plain_in(chunk, c.F32)
        if not isinstance(layout, BlockedLayout) or layout.view is None:
            return plain_in(chunk, layout.code) if isinstance(layout, BlockedLayout) else None
        block = channel_block(layout)
        found = channel_blocked(chunk, layout.code, block) if block else None
        return Desc(chunk.dims, layout.code, found) if found is not None and found.view is not None else None


def _of_images(view: View, images: int) -> View:
    return dataclasses.replace(view, dims=(images, *view.dims[1:]))


def can_be_channels_last(v: Views) -> bool:
    """Whether the images of a convolution are in another order than channels last."""
    return v.kind == "convolution" and all(view.strides[1] != 1 or view.dims[1] == 1 for view in (v.x, v.y))


def channels_last_desc(view: View, code: int) -> Desc:
    """Describe images in channels last, with elements of the type ``code``."""
    images, channels, *spatial = view.dims
    return plain_in(image_view((images, *spatial, channels), True), code)
