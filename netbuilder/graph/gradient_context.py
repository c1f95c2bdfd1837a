"""The gradient of one operator: names of the blobs around it, and the operators that compute it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from netbuilder.graph.blob import GRADIENT_SUFFIX
from netbuilder.graph.source import warn_user
from netbuilder.ops.contexts import Sparse
from netbuilder.ops.operator import Operator, decode
from netbuilder.ops.registry import find
from netbuilder.proto import GradientError, OperatorDef

__all__ = ["OperatorGradient", "operator_gradient"]

Differentiate = Callable[..., Any]


class OperatorGradient:
    """The gradient context of one operator (see ``netbuilder.ops.contexts.GradientContext``).

    Args:
        op: the forward operator.
        cls: its class.
        d_outputs: gradient of each output by index: a blob name, a ``Sparse``, or None.
        differentiate: differentiates a net that the operator holds.
    """

    __slots__ = ("_differentiate", "_inputs", "_outputs", "cls", "d_inputs", "d_outputs", "op", "read")

    def __init__(
        self,
        op: OperatorDef,
        cls: type[Operator],
        d_outputs: Mapping[int, str | Sparse | None],
        differentiate: Differentiate | None = None,
    ) -> None:
        self.op = op
        self.cls = cls
        self.d_outputs = d_outputs
        self.d_inputs: dict[int, str | Sparse] = {}
        self.read: set[str] = set()
        self._differentiate = differentiate
        self._inputs = op.input
        self._outputs = op.output

    def _index(self, which: int | str, names: tuple[str, ...]) -> int:
        if isinstance(which, int):
            return which
        for i, name in enumerate(names):
            if name.rstrip("?*+") == which:
                return i
        raise KeyError(f"{self.op.type} has no blob {which!r} among {names}")

    def input(self, which: int | str) -> str:
        blob = self._inputs[self._index(which, self.cls.inputs)]
        self.read.add(blob)
        return blob

    def output(self, which: int | str) -> str:
        return self._outputs[self._index(which, self.cls.outputs)]

    def has_d_output(self, which: int | str) -> bool:
        return self.d_outputs.get(self._index(which, self.cls.outputs)) is not None

    def d_output(self, which: int | str) -> str:
        index = self._index(which, self.cls.outputs)
        gradient = self.d_outputs.get(index)
        if gradient is None:
            raise GradientError(
                f"{self.op.type}: output {self._outputs[index]!r} has no gradient, and its input needs it"
            )
        if isinstance(gradient, Sparse):
            raise GradientError(
                f"{self.op.type}: output {self._outputs[index]!r} has a sparse gradient "
                f"({gradient.indices!r}, {gradient.values!r}), and only a dense one can be passed on"
            )
        return gradient

    def d_output_sparse(self, which: int | str) -> Sparse | None:
        gradient = self.d_outputs.get(self._index(which, self.cls.outputs))
        return gradient if isinstance(gradient, Sparse) else None

    def d_input(self, which: int | str) -> str:
        index = self._index(which, self.cls.inputs)
        name = self._inputs[index] + GRADIENT_SUFFIX
        self.d_inputs[index] = name
        return name

    def set_d_input(self, which: int | str, blob: str) -> None:
        self.d_inputs[self._index(which, self.cls.inputs)] = blob

    def set_d_input_sparse(self, which: int | str, indices: str, values: str) -> None:
        self.d_inputs[self._index(which, self.cls.inputs)] = Sparse(indices, values)

    def differentiate(self, net: Any, losses: Any, **options: Any) -> Any:
        if self._differentiate is None:
            raise GradientError(f"{self.op.type}: this caller cannot differentiate the nets that an operator holds")
        return self._differentiate(net, losses, **options)


def operator_gradient(
    op: OperatorDef,
    d_outputs: Mapping[int, str | Sparse | None],
    differentiate: Differentiate | None = None,
) -> tuple[list[OperatorDef], dict[int, str | Sparse]]:
    """Return the gradient operators of ``op``, and for each forward input with a gradient, where it is.

    The gradient operators get the forward operator's device, engine and source line and, unless its class says
    otherwise, its arguments.

    An operator in place whose gradient would read what it overwrote gets a warning, and the gradient that Caffe2
    gives it.

    Raises:
        NetError: the operator is unknown.
        GradientError: it has no gradient.
    """
    cls = find(op.type)
    context = OperatorGradient(op, cls, d_outputs, differentiate)
    try:
        made = decode(cls, op).gradient(context)
    except NotImplementedError:
        raise GradientError(f"operator {op.type!r} has no gradient") from None
    if lost := context.read.intersection(op.output):
        warn_user(
            f"operator {op.type} {list(op.input)} -> {list(op.output)}{_made_at(op)} overwrites {sorted(lost)}, which "
            "its gradient reads: the gradient is that of Caffe2, and wrong; give the output another name"
        )
    for gradient in made:
        if cls.copy_arguments and op.arg:
            own = {a.name for a in gradient.arg}
            gradient.arg.extend([a for a in op.arg if a.name not in own])
        if op.HasField("device_option"):
            gradient.device_option.CopyFrom(op.device_option)
        if op.engine:
            gradient.engine = op.engine
        if op.debug_info:
            gradient.debug_info = op.debug_info
        gradient.is_gradient_op = True
    return made, context.d_inputs


def _made_at(op: OperatorDef) -> str:
    return f", made at {op.debug_info}," if op.debug_info else ""
