"""GivenTensor fills: tensors whose values are an argument of the operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import PlanContext, Prepared, RunContext
from netbuilder.ops.core.data_types import numpy_type
from netbuilder.ops.core.operator import STRING, TensorSpec, require
from netbuilder.ops.core.registry import CPU, kernel, prepare, register
from netbuilder.ops.fills.fill import Fill
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "GivenTensorBoolFill",
    "GivenTensorByteStringToUInt8Fill",
    "GivenTensorDoubleFill",
    "GivenTensorFill",
    "GivenTensorInt16Fill",
    "GivenTensorInt64Fill",
    "GivenTensorIntFill",
    "GivenTensorStringFill",
]


@dataclass(frozen=True)
class _Given(Fill):
    """Base: Y = ``values``, in row-major order."""

    signature = """
        shape? (...): any, as of ConstantFill
        -> Y (...): any, the type in the operator's name
    """
    flops_per_element = 0
    # Not converted while the operator is decoded: a list may have millions of elements.
    values: Any = ()

    def check(self) -> None:
        super().check()
        if self.shards:
            raise ArgumentError(f"{self.type} has all values, so it fills no shard; use a fill with a formula")
        self.given()

    def given(self) -> np.ndarray[Any, Any]:
        """Return the values as a vector of the output's dtype."""
        cached = self.__dict__.get("_given")
        if cached is None:
            cached = self._read()
            object.__setattr__(self, "_given", cached)
        return cached

    def _read(self) -> np.ndarray[Any, Any]:
        values = self.values if isinstance(self.values, (list, tuple)) else [self.values]
        kind = self.output_dtype()
        try:
            if kind == STRING:
                if not all(isinstance(v, (bytes, str)) for v in values):
                    raise TypeError
                vector: np.ndarray[Any, Any] = np.empty(len(values), object)
                vector[:] = [v.encode() if isinstance(v, str) else v for v in values]
                return vector
            vector = np.array(values)
            if vector.size and (vector.dtype.kind not in "biuf" or (kind.kind in "iu" and vector.dtype.kind == "f")):
                raise TypeError
            return vector.astype(kind)
        except (TypeError, ValueError):
            text = f"{self.type}: values must be a list of {kind} elements, got {values[:3]!r}..."
            raise ArgumentError(text) from None

    def infer(self, like: TensorSpec | None = None, *rest: TensorSpec) -> tuple[TensorSpec, ...]:
        out = super().infer(like)[0]
        self._check_count(out.shape)
        return (out,)

    def _check_count(self, shape: tuple[int, ...]) -> None:
        count = TensorSpec(shape, self.output_dtype()).size
        text = f"values must have as many elements as shape {shape}, {count}, got {self.given().size}"
        require(count == self.given().size, self, text)


@register
@dataclass(frozen=True)
class GivenTensorFill(_Given):
    """Y = ``values``, float32 or of type ``dtype``."""

    dtype: Any = None

    def output_dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32) if self.dtype is None else numpy_type(self.dtype, "GivenTensorFill: dtype")


@register
@dataclass(frozen=True)
class GivenTensorDoubleFill(_Given):
    """Y = ``values``, float64 (a saved operator stores them as float32)."""

    fixed_dtype = np.dtype(np.float64)


@register
@dataclass(frozen=True)
class GivenTensorBoolFill(_Given):
    """Y = ``values``, bool."""

    fixed_dtype = np.dtype(np.bool_)


@register
@dataclass(frozen=True)
class GivenTensorInt16Fill(_Given):
    """Y = ``values``, int16."""

    fixed_dtype = np.dtype(np.int16)


@register
@dataclass(frozen=True)
class GivenTensorIntFill(_Given):
    """Y = ``values``, int32."""

    fixed_dtype = np.dtype(np.int32)


@register
@dataclass(frozen=True)
class GivenTensorInt64Fill(_Given):
    """Y = ``values``, int64."""

    fixed_dtype = np.dtype(np.int64)


@register
@dataclass(frozen=True)
class GivenTensorStringFill(_Given):
    """Y = ``values``, strings (bytes objects)."""

    fixed_dtype = STRING


@register
@dataclass(frozen=True)
class GivenTensorByteStringToUInt8Fill(_Given):
    """Y = the bytes of the one string in ``values``, uint8."""

    fixed_dtype = np.dtype(np.uint8)

    def _read(self) -> np.ndarray[Any, Any]:
        values = self.values if isinstance(self.values, (list, tuple)) else [self.values]
        if len(values) != 1 or not isinstance(values[0], bytes):
            raise ArgumentError(f"{self.type}: values must be one string of bytes, got {values[:3]!r}")
        return np.frombuffer(values[0], np.uint8)


def _given_fill(op: _Given, ctx: RunContext, like: Any = None) -> tuple[Any, ...]:
    shape = op.target(ctx, like)
    op._check_count(shape)
    values = op.given().reshape(shape)
    return (values.copy() if values.dtype == STRING else ctx.xp.array(values),)


def _prepare_given(op: _Given, ctx: PlanContext, like: TensorSpec | None = None) -> Prepared | None:
    if op.dynamic or op.output_dtype() == STRING:
        return None
    out = op.infer(like)[0]
    values = op.given().reshape(out.shape)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        return partial(np.copyto, outputs[0], values)

    return Prepared(() if like is None else (None,), (out,), bind, inplace=((0, 0),), name="numpy.copyto")


for _cls in (
    GivenTensorBoolFill,
    GivenTensorByteStringToUInt8Fill,
    GivenTensorDoubleFill,
    GivenTensorFill,
    GivenTensorInt16Fill,
    GivenTensorInt64Fill,
    GivenTensorIntFill,
    GivenTensorStringFill,
):
    kernel(_cls)(_given_fill)
    prepare(_cls, device=CPU)(_prepare_given)
