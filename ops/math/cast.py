"""Cast: elements converted to another type."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.data_types import data_type, numpy_type
from netbuilder.ops.core.operator import STRING, InBatch, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, GradientError, OperatorDef, TensorProto
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Cast", "CastGradient"]


@register
@dataclass(frozen=True)
class Cast(Operator):
    """Y = X converted to the type ``to``, a number of TensorProto.DataType or a name.

    Converting to an integer type truncates; to bool, gives whether X is not 0; to string, gives integers in decimal,
    other numbers with six digits after the point, and bools as 0 and 1.
    The gradient is cast back to ``from_type`` or, without it, to the type of X; only floating results have one.
    """

    signature = """
        X (*S): any
        -> Y (*S): any, the type ``to``
    """
    in_batch = InBatch.LINEAR | InBatch.ROW_BY_ROW
    copy_arguments = False
    to: Any = TensorProto.FLOAT
    from_type: Any = None

    def with_arity(self, n_in: int, n_out: int) -> Any:
        object.__setattr__(self, "outputs_on_host", numpy_type(self.to, "Cast: to") == STRING)
        return super().with_arity(n_in, n_out)

    def check(self) -> None:
        if self.from_type is not None and numpy_type(self.from_type, "Cast: from_type") == STRING:
            raise ArgumentError(f"Cast: from_type must be a numeric type, got {self.from_type!r}")

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        require(x.dtype != STRING, self, "X holds strings; only numbers can be cast")
        return (x.with_dtype(numpy_type(self.to, "Cast: to")),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        kind = numpy_type(self.to, "Cast: to")
        if kind == STRING or kind.kind != "f":
            named = "strings have" if kind == STRING else f"a result of type {kind} has"
            raise GradientError(f"Cast: {named} no gradient")
        if self.from_type is None:
            return [make_op("CastGradient", [g.input("X"), g.d_output("Y")], [g.d_input("X")])]
        back: dict[str, Any] = {
            "to": data_type(self.from_type, "Cast: from_type"),
            "from_type": data_type(self.to, "Cast: to"),
        }
        return [make_op("Cast", [g.d_output("Y")], [g.d_input("X")], **back)]


@kernel(Cast)
def cast(op: Cast, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    if op.outputs_on_host:
        pattern = b"%.6f" if x.dtype.kind == "f" else b"%d"
        texts = np.array([pattern % element for element in ctx.host(x).reshape(-1).tolist()], object)
        return (texts.reshape(x.shape),)
    with np.errstate(all="ignore"):  # values out of range are undefined, as in C
        return (x.astype(numpy_type(op.to, "Cast: to")),)


@register
@dataclass(frozen=True)
class CastGradient(Operator):
    """dX = dY converted to the type of X, of which nothing else is read; zeros if those are no numbers with a point."""

    signature = """
        X (*S): any
        dY (*S): float
        -> dX: as X
    """
    flops_per_element = 0

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "any" if index == 0 else "here"


@kernel(CastGradient)
def cast_gradient(op: CastGradient, ctx: RunContext, x: Any, dy: Any) -> tuple[Any, ...]:
    return (dy.astype(x.dtype) if x.dtype.kind == "f" else ctx.xp.zeros(dy.shape, x.dtype),)
