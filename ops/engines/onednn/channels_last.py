"""Convolutions that work on copies of their images with channels last, a few images at a time.

For windows beyond 1x1 oneDNN has two families of kernels. Those for channels in blocks, the order in which values lie
between operators, are the faster ones for the gradients of weights; those for channels last often are for the rest,
above all with strides. Here an operator's images stay as they are, and those of a part of the batch are copied into
the other order and back while they are in the caches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.onednn import declarations as c
from netbuilder.ops.engines.onednn.arguments import Part, Place, Scratch
from netbuilder.ops.engines.onednn.convolutions import Views, backward_data, forward, free
from netbuilder.ops.engines.onednn.layout import (
    BlockedLayout,
    Desc,
    View,
    channel_block,
    channel_blocked,
    image_view,
    plain_in,
)
from netbuilder.ops.engines.onednn.primitive import Extra, PostOp, Primitive, Step
from netbuilder.ops.engines.onednn.reorders import reorder_primitive

__all__ = ["ThroughChannelsLast", "backward_data_through", "forward_through", "last_in", "may_turn"]

_ROOM = 4 << 20  # bytes of images, read and written, that are worked on at a time
_ALIGNMENT = 64


@dataclass(frozen=True)
class ThroughChannelsLast:
    """A convolution on parts of a batch.

    Args:
        view: the weights.
        conv: the primitive for one part, images with channels last.
        read, written: the numbers of its arguments that are images.
        fetch, store: the copies from and into the order in which images lie; ``load``: of what is added to the result.
        parts: how many there are.
        source_bytes, target_bytes: of one part as it lies.
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

    @property
    def scratch(self) -> int:
        """Bytes of scratch memory for the copies."""
        return self._start + self.conv.nbytes(self.written)

    @property
    def _start(self) -> int:
        return -(-self.conv.nbytes(self.read) // _ALIGNMENT) * _ALIGNMENT

    def weights(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec in which weights are wanted."""
        return self.conv.spec(c.WEIGHTS, spec, self.view)

    def steps(
        self, source: Place, target: Place, weights: Place, bias: Place | None = None, *, base: int = 0
    ) -> list[Step | Extra]:
        """Return the executions for a whole batch.

        Args:
            source, target: the images as they lie.
            weights, bias: of the convolution; no bias: None.
            base: where the copies start in scratch memory.
        """
        read = Scratch(base, self.conv.nbytes(self.read))
        written = Scratch(base + self._start, self.conv.nbytes(self.written))
        arguments: dict[int, Place] = {self.read: read, c.WEIGHTS: weights, self.written: written}
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


def forward_through(
    v: Views, x: TensorSpec, y: TensorSpec, code: int, bias: Desc | None, inference: bool, post: Sequence[PostOp],
    *, threads: int,
) -> ThroughChannelsLast | None:  # fmt: skip
    """Return the forward convolution; None if the library has no special kernel, or images lie in an order of others.

    Args:
        v: the views of the convolution.
        x, y: the images as they lie.
        code: the type of the elements of images and weights.
        bias: as it lies, None if there is none.
        inference, post: see ``convolutions.forward``.
    """
    chunk = _Chunk.of(v, x, y, threads)
    if chunk is None:
        return None
    src, dst = (last_in(_few(view, chunk.images), code) for view in (v.x, v.y))
    conv = forward(
        v.kind, src, free(v.weights, code), bias, dst, v.window, inference, tuple(post), threads=threads
    )  # fmt: skip
    add = any(op.kind == "sum" for op in post)
    return chunk.joined(v.weights, conv, (c.SRC, src, v.x, x), (c.DST, dst, v.y, y), add=add)


def backward_data_through(
    v: Views, dx: TensorSpec, dy: TensorSpec, code: int, *, threads: int
) -> ThroughChannelsLast | None:
    """Return the gradient of the images; None as for ``forward_through``."""
    chunk = _Chunk.of(v, dy, dx, threads)
    if chunk is None:
        return None
    src, dst = (last_in(_few(view, chunk.images), code) for view in (v.x, v.y))
    weights = free(v.weights, code)
    hint = forward(v.kind, src, weights, None, dst, v.window, False, (), threads=threads)
    if hint is None:
        return None
    conv = backward_data(v.kind, src, weights, dst, v.window, hint, threads=threads)
    return chunk.joined(v.weights, conv, (c.DIFF_DST, dst, v.y, dy), (c.DIFF_SRC, src, v.x, dx))


@dataclass(frozen=True)
class _Chunk:
    """A part of a batch."""

    images: int
    parts: int
    threads: int

    @staticmethod
    def of(v: Views, source: TensorSpec, target: TensorSpec, threads: int) -> _Chunk | None:
        """Return how a batch is to be divided; None if its images cannot be copied part by part."""
        if not may_turn(v):
            return None
        n = v.x.dims[0]
        fitting = max(threads, _ROOM * n // max(source.nbytes + target.nbytes, 1))
        images = next((m for m in range(min(n, fitting), 0, -1) if n % m == 0 and m % threads == 0), n)
        return _Chunk(images, n // images, threads)

    def joined(
        self,
        weights: View,
        conv: Primitive | None,
        source: tuple[int, Desc, View, TensorSpec],
        target: tuple[int, Desc, View, TensorSpec],
        *,
        add: bool = False,
    ) -> ThroughChannelsLast | None:
        if conv is None or conv.slow or "brg" not in conv.name:
            return None
        (read, first, view, spec), (written, last, out_view, out_spec) = source, target
        lies, will_lie = self._part(view, spec), self._part(out_view, out_spec)
        if lies is None or will_lie is None:
            return None
        fetch = reorder_primitive(lies, first, threads=self.threads)
        store = reorder_primitive(last, will_lie, threads=self.threads)
        load = reorder_primitive(will_lie, last, threads=self.threads) if add else None
        if fetch is None or store is None or (add and load is None):
            return None
        return ThroughChannelsLast(
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
        """Describe a part of images as they lie; None if it is not one piece of memory."""
        few = _few(view, self.images)
        layout = spec.layout
        if layout is None:
            return plain_in(few, c.F32)
        if not isinstance(layout, BlockedLayout) or layout.view is None:
            return plain_in(few, layout.code) if isinstance(layout, BlockedLayout) else None
        block = channel_block(layout)
        found = channel_blocked(few, layout.code, block) if block else None
        return Desc(few.dims, layout.code, found) if found is not None and found.view is not None else None


def _few(view: View, images: int) -> View:
    return dataclasses.replace(view, dims=(images, *view.dims[1:]))


def may_turn(v: Views) -> bool:
    """Whether the images of a convolution are not in the order of channels last already."""
    return v.kind == "convolution" and all(view.strides[1] != 1 or view.dims[1] == 1 for view in (v.x, v.y))


def last_in(view: View, code: int) -> Desc:
    """Describe images with elements of the type ``code`` in the order of channels last."""
    images, channels, *spatial = view.dims
    return plain_in(image_view((images, *spatial, channels), True), code)
