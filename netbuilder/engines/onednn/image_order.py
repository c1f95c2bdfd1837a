"""The choice of the image order of a whole predictor: blocked channels, or channels last.

The kernels for both orders are measured, for the largest convolutions, which have nearly all of the work, with images
as the convolutions before them write them. In a training net the gradients of weights are faster with blocks, and
channels last is used within single operators only (see ``channels_last``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from netbuilder.engines.engine import HOST
from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.autotune import seconds, turned_off
from netbuilder.engines.onednn.blocked_layout import BlockedLayout, View, channel_block, channel_blocked
from netbuilder.engines.onednn.convolutions import WORTH_MEASURING, Views, description_of, serves
from netbuilder.engines.onednn.kernels_conv import conv
from netbuilder.ops.core.contexts import ANY_ORDER, CHANNELS_LAST, Call, CompiledSubgraph, Prepared, Subgraph
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import OperatorDef
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["best_image_order"]

_NEGLECTED = 0.1
"""Of the work, that of small convolutions that are not measured."""

_CLEARLY_FASTER = 0.98  # of the other time: the copy of the net's images to channels last is not measured


@dataclass
class _MeasuringContext:
    """The plan context of a single convolution with constant weights, for measuring it."""

    threads: int
    precision: str
    image_order: str
    device_id: int = 0
    allow_tf32: bool = False
    builds_later: bool = False
    op_def: OperatorDef = field(default_factory=OperatorDef)
    run: Any = None

    def publish(self, output: int, key: str, value: Any) -> None:
        pass

    def published(self, input: int, key: str) -> Any:
        return None

    def is_constant(self, input: int) -> bool:
        return input > 0

    def location(self, input: int) -> tuple[int, int]:
        return HOST

    def repeats(self, input: int) -> bool:
        return False

    def ends_early(self, output: int, reads: Sequence[int]) -> bool:
        return False

    def may_be_read_by(self, output: int, op_type: str) -> bool:
        return False

    def together(self, jobs: Sequence[Call]) -> Call:
        """Return a call that does jobs in turn, where there are no threads of OpenMP to do them."""

        def in_turn() -> None:
            for job in jobs:
                job()

        return in_turn

    def compile_subgraph(self, subgraph: Subgraph) -> CompiledSubgraph:
        raise NotImplementedError("a convolution has no subgraph")

    def enabled(self, optimization: str) -> bool:
        return True

    def uses_engine(self, name: str) -> bool:
        return True

    def demand(self, output: int, reads: Sequence[int] = ()) -> Any:
        return "run"


def best_image_order(convs: Sequence[tuple[Any, Sequence[TensorSpec]]], threads: int, precision: str) -> str:
    """Return the order in which a net with constant weights computes faster; any order if that is not known yet.

    Args:
        convs: its convolutions, with the specs of their inputs.
        threads: number of threads.
        precision: of activations.
    """
    supported = [(2 * op.products(specs[0], specs[1]), op, specs) for op, specs in convs if serves(*specs)]
    work = sum(flops for flops, _, _ in supported)
    if turned_off() or work < WORTH_MEASURING:
        return ANY_ORDER

    def differs() -> bool:
        return best_image_order(convs, threads, precision) != ANY_ORDER

    times: dict[str, list[float | None]] = {ANY_ORDER: [], CHANNELS_LAST: []}
    written = _first_result(*supported[0][1:], threads, precision)
    left = work
    for flops, op, (x, w, *more) in sorted(supported, key=lambda each: -each[0]):
        if left < _NEGLECTED * work:
            break
        left -= flops
        view = Views(op, x, w, transposed=False)
        what = description_of(view, c.BF16 if precision == "bfloat16" else c.F32)
        for order, found in times.items():
            read = _like(written, x, view.x) if order == ANY_ORDER else x

            def make(order: str = order, op: Any = op, specs: Any = (read, w, *more)) -> Prepared | None:
                return conv(op, _MeasuringContext(threads, precision, order), *specs)

            key = f"forward {what}{'' if read == x else ', blocked channels'}, images in {order}"
            first_open = all(None not in each for each in times.values())  # that one answers for all of them
            decides = differs if first_open else _never
            found.append(seconds(key, make, threads, flops=flops, differs=decides))
    known = {order: [time for time in found if time is not None] for order, found in times.items()}
    if any(len(found) < len(times[order]) for order, found in known.items()):
        return ANY_ORDER
    least = {order: sum(found) for order, found in known.items()}
    return CHANNELS_LAST if least[CHANNELS_LAST] < _CLEARLY_FASTER * least[ANY_ORDER] else ANY_ORDER


def _first_result(op: Any, specs: Sequence[TensorSpec], threads: int, precision: str) -> TensorSpec | None:
    """Return what a convolution writes that may choose its orders."""
    made = conv(op, _MeasuringContext(threads, precision, ANY_ORDER), *specs)
    return None if made is None else made.outputs[0]


def _like(written: TensorSpec | None, x: TensorSpec, view: View) -> TensorSpec:
    """Return an image in blocks of channels, if ``written`` is and its channels can be divided so; else as it is."""
    layout = written.layout if written is not None else None
    block = channel_block(layout) if isinstance(layout, BlockedLayout) else 0
    if not isinstance(layout, BlockedLayout) or not block or view.dims[1] % block:
        return x
    return x.with_layout(channel_blocked(view, layout.code, block))


def _never() -> bool:
    return False
