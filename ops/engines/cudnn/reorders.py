"""Copies of values between layouts on a GPU: to another order, to another element type, or both."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from netbuilder.ops.core.contexts import Call, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.cudnn.compiled import compiled
from netbuilder.ops.engines.cudnn.convolutions import matrix_tensor
from netbuilder.ops.engines.cudnn.graphs import Cast
from netbuilder.ops.engines.cudnn.layout import ChannelsLast, elements_of, flat_elements, in_order, order_of
from netbuilder.ops.engines.cudnn.steps import scratch_memory
from netbuilder.proto import DeviceError

__all__ = ["reorder"]

_LARGEST = 1 << 30
"""Elements that one graph casts; cuDNN counts them in 32 bits."""


@dataclass(frozen=True)
class _Copy:
    """A copy between two layouts.

    Args:
        bind: ``bind(source, target, workspace)`` returns the calls that fill a buffer from another one.
        workspace: bytes of scratch memory that they need.
    """

    bind: Callable[[Any, Any, Any], list[Call]]
    workspace: int = 0


def reorder(source: TensorSpec, target: TensorSpec, device: int) -> Prepared:
    """Return the prepared copy of a value to another layout; shape and dtype are the same.

    Args:
        source, target: the specs.
        device: the number of the GPU.

    Raises:
        DeviceError: cuDNN has no kernel for the change of the element type.
    """
    specs = [source, *_between(source, target), target]
    memory = scratch_memory()
    between = [memory.allocate(spec.nbytes) for spec in specs[1:-1]]
    copies = [_copy(a, b, device) for a, b in itertools.pairwise(specs)]
    begin, own = memory.nbytes, max(copy.workspace for copy in copies)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        parts = [scratch[each.offset : each.offset + each.nbytes] for each in between]
        buffers = [inputs[0], *parts, outputs[0]]
        workspace = scratch[begin:] if own else None
        calls = [call for copy, a, b in zip(copies, buffers, buffers[1:]) for call in copy.bind(a, b, workspace)]

        def run() -> None:
            for call in calls:
                call()

        return calls[0] if len(calls) == 1 else run

    return Prepared([source], [target], bind, scratch=begin + own, name="reorder", capturable=True)


def _same_order(a: ChannelsLast | None, b: ChannelsLast | None) -> bool:
    if a is None or b is None:
        return a is b
    return (a.images, a.channels, a.pixels) == (b.images, b.channels, b.pixels)


def _between(source: TensorSpec, target: TensorSpec) -> Iterator[TensorSpec]:
    """Yield the values between several copies. The order changes while elements have the fewest bits."""
    before, after = order_of(source), order_of(target)
    given, wanted = elements_of(source), elements_of(target)
    if _same_order(before, after):
        return
    narrow_first = given != wanted and given == "float32"
    if narrow_first:
        yield in_order(source, before, wanted)
    if before is not None and after is not None:
        yield in_order(source, None, wanted if narrow_first else given)
    if given != wanted and not narrow_first:
        yield in_order(source, after, given)


def _copy(source: TensorSpec, target: TensorSpec, device: int) -> _Copy:
    if elements_of(source) == elements_of(target):
        return _transposition(source, target)
    return _cast(source, target, device)


def _transposition(source: TensorSpec, target: TensorSpec) -> _Copy:
    order = order_of(source) or order_of(target)
    extents = (source.size, 1, 1) if order is None else (order.images, order.channels, order.pixels)

    def view(buffer: Any, spec: TensorSpec) -> Any:
        flat, (images, channels, pixels) = flat_elements(buffer, spec), extents
        if order_of(spec) is None:
            return flat.reshape(extents)
        return flat.reshape(images, pixels, channels).transpose(0, 2, 1)

    def bind(a: Any, b: Any, workspace: Any) -> list[Call]:
        values, into = view(a, source), view(b, target)

        def call() -> None:
            into[...] = values

        return [call]

    return _Copy(bind)


def _cast(source: TensorSpec, target: TensorSpec, device: int) -> _Copy:
    starts = range(0, source.size, _LARGEST)
    graphs = []
    for start in starts:
        tensor = matrix_tensor(1, min(_LARGEST, source.size - start), elements_of(source))
        graph = compiled(Cast(tensor, elements_of(target)), device)
        if graph is None:
            raise DeviceError(
                f"cuDNN cannot convert {tensor.size} elements from {elements_of(source)} to {elements_of(target)}; "
                "allow only other engines: Workspace(engines=...)"
            )
        graphs.append(graph)

    def bind(a: Any, b: Any, workspace: Any) -> list[Call]:
        values, into = flat_elements(a, source), flat_elements(b, target)
        return [
            graph.bind({"x": values[start : start + _LARGEST], "y": into[start : start + _LARGEST]}, workspace)
            for start, graph in zip(starts, graphs)
        ]

    return _Copy(bind, max(graph.workspace for graph in graphs))
