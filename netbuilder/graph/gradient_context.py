"""The gradient of one operator: the names of its blobs and gradients, and the operators that compute it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from netbuilder.graph.blob import GRADIENT_SUFFIX, BlobReference, GradientSlice, blob_name
from netbuilder.ops.core.contexts import Sparse
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.random_streams import RANDOM_ARGUMENTS, draws
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.ops.core.shared_operators import shared_operator
from netbuilder.proto import GradientError, OperatorDef
from netbuilder.proto.arguments import made_at, set_argument

__all__ = [
    "GradientFunction",
    "OperatorGradient",
    "OverwrittenInputError",
    "as_gradient",
    "gradient_functions",
    "operator_gradient",
]


class OverwrittenInputError(GradientError):
    """An operator overwrites an input that its gradient reads.

    Args:
        op: the operator.
        blobs: the inputs.
    """

    def __init__(self, op: OperatorDef, blobs: Sequence[str]) -> None:
        super().__init__(
            f"operator {op.type} {list(op.input)} -> {list(op.output)}{made_at(op, ',')} overwrites {list(blobs)}, "
            "which its gradient reads; give the output another name, or let it read "
            f"net.Sum([{blobs[0]!r}], '{blobs[0]}_kept')"
        )
        self.op, self.blobs = op, tuple(blobs)


Differentiate = Callable[..., Any]

GradientFunction = Callable[[OperatorDef, list[Any]], tuple[Any, Sequence[Any]]]
"""Maps an operator and the gradients of its outputs (or None) to its gradient operators and its inputs' gradients."""

gradient_functions: dict[str, GradientFunction] = {}
"""Operator type -> gradient of operators whose class has none; see ``GradientRegistry.RegisterGradient``."""


class OperatorGradient:
    """The gradient context of one operator (see ``netbuilder.ops.core.contexts.GradientContext``).

    Args:
        op: the forward operator.
        cls: its class.
        d_outputs: gradient of each output by index: a blob name, a ``Sparse``, or None.
        differentiate: differentiates a subgraph of the operator.
        number: of the operator in the backward pass, subgraphs included.
        names: for the gradient of each input; None: that of the input with the suffix "_grad".
    """

    __slots__ = (
        "_differentiate",
        "_inputs",
        "_names",
        "_outputs",
        "cls",
        "d_inputs",
        "d_outputs",
        "number",
        "op",
        "read",
    )

    def __init__(
        self,
        op: OperatorDef,
        cls: type[Operator],
        d_outputs: Mapping[int, str | Sparse | None],
        differentiate: Differentiate | None = None,
        number: int = 0,
        names: Sequence[str] | None = None,
    ) -> None:
        self.op = op
        self.number = number
        self.cls = cls
        self.d_outputs = d_outputs
        self.d_inputs: dict[int, str | Sparse] = {}
        self.read: set[str] = set()
        self._differentiate = differentiate
        self._names = names
        self._inputs = op.input
        self._outputs = op.output

    def _index(self, which: int | str, names: tuple[str, ...]) -> int:
        if isinstance(which, int):
            return which
        for i, name in enumerate(names):
            if name.rstrip("?*+") == which:
                return i
        raise GradientError(
            f"{self.op.type}: its gradient asks for {which!r}, which is none of {names}, the blobs of its signature"
        )

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
                f"{self.op.type}: output {self._outputs[index]!r} has no gradient, which the gradient of an input needs"
            )
        if isinstance(gradient, Sparse):
            raise GradientError(
                f"{self.op.type}: output {self._outputs[index]!r} has a sparse gradient "
                f"({gradient.indices!r}, {gradient.values!r}), and the operator's gradient needs a dense one"
            )
        return gradient

    def d_output_sparse(self, which: int | str) -> Sparse | None:
        gradient = self.d_outputs.get(self._index(which, self.cls.outputs))
        return gradient if isinstance(gradient, Sparse) else None

    def d_input(self, which: int | str) -> str:
        index = self._index(which, self.cls.inputs)
        name = self.d_inputs[index] = self._d_input_name(index)
        return name

    def d_input_name(self, which: int | str) -> str:
        return self._d_input_name(self._index(which, self.cls.inputs))

    def _d_input_name(self, index: int) -> str:
        return self._inputs[index] + GRADIENT_SUFFIX if self._names is None else self._names[index]

    def set_d_input(self, which: int | str, blob: str) -> None:
        self.d_inputs[self._index(which, self.cls.inputs)] = blob

    def set_d_input_sparse(self, which: int | str, indices: str, values: str) -> None:
        self.d_inputs[self._index(which, self.cls.inputs)] = Sparse(indices, values)

    def set_forward_argument(self, name: str, value: Any) -> None:
        set_argument(self.op, name, value)

    def differentiate(self, net: Any, losses: Any, **options: Any) -> Any:
        if self._differentiate is None:
            raise GradientError(f"{self.op.type} has subgraphs, which this caller cannot differentiate")
        return self._differentiate(net, losses, **options)


def operator_gradient(
    op: OperatorDef,
    d_outputs: Mapping[int, str | Sparse | None],
    differentiate: Differentiate | None = None,
    number: int = 0,
    names: Sequence[str] | None = None,
) -> tuple[list[OperatorDef], dict[int, str | Sparse]]:
    """Return the gradient operators of ``op``, and where the gradient of each forward input is, if it has one.

    The gradient operators get the forward operator's device, engine and source line and, unless its class sets
    ``copy_arguments`` to False, its arguments.

    Raises:
        NetError: the operator is unknown.
        GradientError: it has no gradient.
        OverwrittenInputError: it overwrites an input that its gradient reads.
    """
    function = gradient_functions.get(op.type)
    if function is not None and not _has_gradient(op.type):
        return _gradient_by_function(function, op, d_outputs)
    cls = find(op.type)
    context = OperatorGradient(op, cls, d_outputs, differentiate, number, names)
    try:
        made = shared_operator(cls, op).gradient(context)
    except NotImplementedError:
        raise GradientError(f"operator {op.type!r} has no gradient") from None
    if not isinstance(made, list):
        raise GradientError(
            f"operator {op.type!r}: its gradient must be a list of operators, got {type(made).__name__}; give "
            "[make_op(...)]"
        )
    if lost := context.read.intersection(op.output):
        raise OverwrittenInputError(op, sorted(lost))
    for gradient in made:
        if cls.copy_arguments and op.arg:
            if gradient.arg or cls.draws:
                own = {a.name for a in gradient.arg}.union(() if draws(gradient) else RANDOM_ARGUMENTS)
                gradient.arg.extend([a for a in op.arg if a.name not in own])
            else:
                gradient.arg.extend(op.arg)
        if op.HasField("device_option"):
            gradient.device_option.CopyFrom(op.device_option)
        if op.engine:
            gradient.engine = op.engine
        if op.debug_info:
            gradient.debug_info = op.debug_info
        gradient.is_gradient_op = True
    return made, context.d_inputs


def as_gradient(gradient: Any) -> str | Sparse | None:
    """Return a gradient in the form that the backward pass uses.

    Args:
        gradient: a blob (reference or name), the blobs of indices and values, or None.
    """
    if gradient is None or isinstance(gradient, Sparse):
        return gradient
    if isinstance(gradient, (tuple, list)) and len(gradient) == 2:
        return Sparse(blob_name(gradient[0]), blob_name(gradient[1]))
    return blob_name(gradient)


def _has_gradient(op_type: str) -> bool:
    return is_registered(op_type) and find(op_type).gradient is not Operator.gradient


def _gradient_by_function(
    function: GradientFunction, op: OperatorDef, d_outputs: Mapping[int, str | Sparse | None]
) -> tuple[list[OperatorDef], dict[int, str | Sparse]]:
    given: list[Any] = []
    for index in range(len(op.output)):
        gradient = d_outputs.get(index)
        if isinstance(gradient, Sparse):
            given.append(GradientSlice(BlobReference(gradient.indices), BlobReference(gradient.values)))
        else:
            given.append(None if gradient is None else BlobReference(gradient))
    made, inputs = function(op, given)
    if made is None:
        made = []
    elif isinstance(made, OperatorDef):
        made = [made]
    if len(inputs) > len(op.input):
        raise GradientError(
            f"{op.type}: the gradient function returned {len(inputs)} gradients for the {len(op.input)} inputs "
            f"{list(op.input)}; return one for each input, None for an input without gradient"
        )
    found = {index: gradient for index, gradient in enumerate(map(as_gradient, inputs)) if gradient is not None}
    return list(made), found
