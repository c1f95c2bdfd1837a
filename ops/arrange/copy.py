"""Copies, within a device and between devices, and operators that return their input: Alias, StopGradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, PlanContext, Prepared, RunContext
from netbuilder.ops.core.operator import STRING, Exchange, InBatch, Operator, TensorSpec
from netbuilder.ops.core.registry import CPU, kernel, prepare, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "Alias",
    "AliasWithName",
    "Copy",
    "CopyCPUToGPU",
    "CopyFromCPUInput",
    "CopyGPUToCPU",
    "CopyOnDeviceLike",
    "EnsureCPUOutput",
    "EnsureDense",
    "NegateGradient",
    "StopGradient",
]


@dataclass(frozen=True)
class _Copying(Operator):
    """Base of copies."""

    signature = "X (*S): any -> Y (*S): as X"
    flops_per_element = 0
    inplace: ClassVar[tuple[tuple[int, int], ...]] = ()


@register
@dataclass(frozen=True)
class Copy(_Copying):
    """Y = X, on the operator's device; X may be on another device of its kind."""

    in_batch = InBatch.LINEAR | InBatch.ROW_BY_ROW
    exchanges = Exchange.BETWEEN_DEVICES

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("CopyOnDeviceLike", [g.d_output("Y"), g.input("X")], [g.d_input("X")])]


@register
@dataclass(frozen=True)
class CopyOnDeviceLike(_Copying):
    """Y = X, on the device where the second input is."""

    signature = "X (*S): any, like (...): any -> Y (*S): as X"
    colocate_outputs_with = 1
    exchanges = Exchange.BETWEEN_DEVICES

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "any" if index == 1 else "here"


@register
@dataclass(frozen=True)
class CopyCPUToGPU(_Copying):
    """Y = X, from host memory to the operator's GPU."""

    in_batch = InBatch.LINEAR
    exchanges = Exchange.BETWEEN_DEVICES

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("CopyGPUToCPU", [g.d_output("Y")], [g.d_input("X")])]


@register
@dataclass(frozen=True)
class CopyGPUToCPU(_Copying):
    """Y = X, from a GPU to host memory."""

    in_batch = InBatch.LINEAR
    outputs_on_host = True
    exchanges = Exchange.BETWEEN_DEVICES

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("CopyCPUToGPU", [g.d_output("Y")], [g.d_input("X")])]


@register
@dataclass(frozen=True)
class CopyFromCPUInput(_Copying):
    """Y = X, from host memory to the operator's device, CPU or GPU. No gradient."""


@register
@dataclass(frozen=True)
class EnsureCPUOutput(_Copying):
    """Y = X, in host memory. Not differentiable."""

    in_batch = InBatch.LINEAR
    outputs_on_host = True

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []


@register
@dataclass(frozen=True)
class Alias(_Copying):
    """Y = X; the gradient of X is that of Y itself."""

    in_batch = InBatch.LINEAR

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        g.set_d_input("X", g.d_output("Y"))
        return []


@register
@dataclass(frozen=True)
class AliasWithName(Alias):
    """Alias with the arguments ``name`` and ``is_backward``, which are ignored."""

    name: str = ""
    is_backward: bool = False


@register
@dataclass(frozen=True)
class EnsureDense(_Copying):
    """Y = X; the gradient of X is that of Y, as a dense tensor."""

    inplace = ((0, 0),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        sparse = g.d_output_sparse("Y")
        if sparse is not None:
            return [make_op("SparseToDense", [sparse.indices, sparse.values, g.input("X")], [g.d_input("X")])]
        g.set_d_input("X", g.d_output("Y"))
        return []


@register
@dataclass(frozen=True)
class StopGradient(_Copying):
    """Y = X; the gradient stops here."""

    inplace = ((0, 0),)
    in_batch = InBatch.LINEAR | InBatch.ROW_BY_ROW

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []


@register
@dataclass(frozen=True)
class NegateGradient(_Copying):
    """Y = X; the gradient of X is that of Y with its sign changed, for adversarial training."""

    inplace = ((0, 0),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("Negative", [g.d_output("Y")], [g.d_input("X")])]


def _copy(op: _Copying, ctx: RunContext, x: Any, *like: Any) -> tuple[Any, ...]:
    if getattr(x, "dtype", STRING) == STRING and not isinstance(x, np.ndarray):
        return (x,)  # not a tensor: a counter, a reader, ...
    # CuPy copies an array of another device to the current one.
    return (x.copy() if x.dtype == STRING or not ctx.is_gpu else ctx.xp.asarray(x).copy(),)


def _copy_to_host(op: _Copying, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (x.copy() if isinstance(x, np.ndarray) else ctx.host(x),)


for _cls in (Copy, CopyOnDeviceLike, CopyCPUToGPU, CopyFromCPUInput):
    kernel(_cls)(_copy)
for _to_host in (CopyGPUToCPU, EnsureCPUOutput):
    kernel(_to_host)(_copy_to_host)


@kernel(Alias)
@kernel(AliasWithName)
def alias(op: Alias, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (x,)


@kernel(EnsureDense)
@kernel(NegateGradient)
@kernel(StopGradient)
def stop_gradient(op: EnsureDense | NegateGradient | StopGradient, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (x,)


def _prepare_copy(op: _Copying, ctx: PlanContext, x: TensorSpec, *like: TensorSpec) -> Prepared | None:
    if x.dtype == STRING:
        return None

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        if np.may_share_memory(inputs[0], outputs[0]):
            return lambda: None  # the input's own buffer: nothing to copy
        return partial(np.copyto, outputs[0], inputs[0])

    unread = (None,) * len(like)
    return Prepared((x.plain, *unread), (x.plain,), bind, inplace=op.inplace, name="numpy.copyto")


for _copying in (
    Copy,
    CopyOnDeviceLike,
    CopyCPUToGPU,
    CopyGPUToCPU,
    CopyFromCPUInput,
    EnsureCPUOutput,
    Alias,
    AliasWithName,
    EnsureDense,
    NegateGradient,
    StopGradient,
):
    prepare(_copying, device=CPU)(_prepare_copy)
