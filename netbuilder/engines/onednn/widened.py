"""Convolutions that read and write bfloat16 but multiply in float32, for processors that multiply bfloat16 slowly.

Some processors have instructions for products of bfloat16 that take several times as long as those of float32. There,
the kernel for float32 runs between reorders: images that are stored as bfloat16 are converted in scratch memory, and
its result is converted back. Between operators, values take half the memory, as with the kernels for bfloat16.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.arrays import as_flat
from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.autotune import fastest
from netbuilder.engines.onednn.blocked_layout import BlockedLayout, desc_in, layout_of, rounded, stored_as
from netbuilder.engines.onednn.reorders import reorder
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.extensions import Again, SplitKernel
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["LARGE_FLOPS", "widened_where_faster"]

Make = Callable[..., Prepared | None]


def widened_where_faster(make: Make, images: Callable[[Any], Sequence[int]]) -> Make:
    """Return a function that makes the same kernels, in bfloat16 those that multiply in float32 where that is faster.

    The choice is measured once for each machine, type of operator and extents of the window, on a few images.

    Args:
        make: makes the kernel, given the operator, the plan context and the specs of X, the weights, and other inputs.
        images: returns the outputs of an operator that are stored as bfloat16.
    """

    def prepare(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
        if ctx.precision != "bfloat16" or not ctx.enabled("wide_products") or not _large(op, specs):
            return make(op, ctx, *specs)
        few = [_few_images(spec, i) for i, spec in enumerate(specs)]
        chosen = fastest(
            f"products of bfloat16, {op.type} of {specs[1].shape[2:]}",
            {
                "bfloat16": lambda: _measured(make(op, _Measuring(ctx), *few)),
                "float32": lambda: _measured(_widened(make, op, _Measuring(ctx), few, images(op))),
            },
            ctx,
            flops=op.flops(*few),
            worth=op.flops(*specs),
        )
        found = _widened(make, op, ctx, specs, images(op)) if chosen == "float32" else None
        return found if found is not None else make(op, ctx, *specs)

    return prepare


LARGE_FLOPS = 20_000_000
"""Floating-point operations from which the choice of the type matters, and can be measured."""


def _large(op: Any, specs: Sequence[TensorSpec]) -> bool:
    return all(spec.dtype == np.float32 and spec.size for spec in specs) and op.flops(*specs) >= LARGE_FLOPS


_FEW = 4  # images


def _few_images(spec: TensorSpec, index: int) -> TensorSpec:
    """Return the spec of a few of the images that an input has; others, the weights among them, are unchanged."""
    if index == 1 or spec.ndim < 3:
        return spec
    few = TensorSpec((min(spec.shape[0], _FEW), *spec.shape[1:]), spec.dtype)
    return few.with_layout(rounded(few.size)) if stored_as(spec) == c.BF16 else few


def _measured(made: Prepared | None) -> list[Prepared]:
    return [] if made is None else [made]


class _Delegating:
    """A plan context that differs from another one."""

    def __init__(self, ctx: PlanContext) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


class _Measuring(_Delegating):
    """The context of a kernel that is measured, and not used."""

    def publish(self, output: int, key: str, value: Any) -> None:
        pass


class _Wide(_Delegating):
    """The context of the kernel for float32."""

    precision = "float32"


def _widened(make: Make, op: Any, ctx: Any, specs: Sequence[TensorSpec], images: Sequence[int]) -> Prepared | None:
    """Return the kernel for float32 between reorders; None if there is none."""
    made = make(op, _Wide(ctx), *(_in_float32(spec) for spec in specs))
    if made is None or made.get(SplitKernel):
        return None
    inputs, outputs, before, after = [*made.inputs], [*made.outputs], [], []
    begin = -(-made.scratch // 64) * 64
    overwrites = {j: i for i, j in made.inplace if made.inputs[i] == made.outputs[j]}
    offsets: dict[int, int] = {}  # of the inputs in float32
    for i, (given, wide) in enumerate(zip(specs, made.inputs)):
        if wide is not None and stored_as(given) == c.BF16:
            inputs[i] = narrow = _narrow(wide)
            before.append((i, wide, reorder(ctx, narrow, wide), begin))
            offsets[i] = begin
            begin += -(-wide.nbytes // 64) * 64
    for j, wide in enumerate(made.outputs):
        if wide is not None and j in images:
            outputs[j] = narrow = _narrow(wide)
            offset = offsets.pop(overwrites.get(j, -1), begin)
            after.append((j, wide, reorder(ctx, wide, narrow), offset))
            begin += -(-wide.nbytes // 64) * 64 if offset == begin else 0
    own = max([each.scratch for _, _, each, _ in (*before, *after)], default=0)

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Call:
        wide_ins, wide_outs, calls = [*ins], [*outs], []
        rest = scratch[begin:] if own else None
        for i, spec, change, offset in before:
            wide_ins[i] = _part(scratch, offset, spec)
            calls.append(change.bind([ins[i]], [wide_ins[i]], rest))
        for j, spec, _, offset in after:
            wide_outs[j] = _part(scratch, offset, spec)
        calls.append(made.bind(wide_ins, wide_outs, scratch if made.scratch else None))
        calls += [change.bind([wide_outs[j]], [outs[j]], rest) for j, _, change, _ in after]

        def run() -> None:
            for call in calls:
                call()

        return run

    return dataclasses.replace(
        made, inputs=inputs, outputs=outputs, bind=bind, scratch=begin + own, inplace=(),
        name=f"{made.name}, in float32", extensions=tuple(each for each in made.extensions if type(each) is not Again),
    )  # fmt: skip


def _part(scratch: Any, offset: int, spec: TensorSpec) -> Any:
    memory = scratch[offset : offset + spec.nbytes]
    return memory if spec.layout is not None else as_flat(memory, spec.dtype).reshape(spec.shape)


def _in_float32(spec: TensorSpec) -> TensorSpec:
    """Return the spec of a value in float32, in the same order if there is such a layout."""
    layout = spec.layout
    if not isinstance(layout, BlockedLayout) or layout.code != c.BF16:
        return spec
    if layout.view is None:
        return spec.plain
    return spec.with_layout(layout_of(desc_in(spec, layout.view, c.F32).handle, layout.view))


def _narrow(spec: TensorSpec) -> TensorSpec:
    """Return the spec of a value in bfloat16, in the same order if there is such a layout."""
    layout = spec.layout
    if not isinstance(layout, BlockedLayout) or layout.view is None:
        return spec.with_layout(rounded(spec.size))
    return spec.with_layout(layout_of(desc_in(spec, layout.view, c.BF16).handle, layout.view))
