"""The gradients of Do, If and While, one operator at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.graph import GradientRegistry
from netbuilder.graph.rename import rename_output
from netbuilder.proto import NetDef, OperatorDef, UsageError
from netbuilder.proto.arguments import make_op

__all__ = [
    "dedupe_g_output",
    "disambiguate_grad_if_op_output",
    "gen_do_gradient",
    "gen_if_gradient",
    "gen_while_gradient",
    "getNetArgument",
]

__getattr__ = names_of(__name__)


def gen_do_gradient(op: OperatorDef, g_output: Sequence[Any]) -> tuple[list[OperatorDef], list[Any]]:
    """Return the gradient operators of a Do, and the gradient of each input or None.

    Args:
        op: the operator.
        g_output: the gradient of each output, None for those without.
    """
    return _gradient("Do", op, g_output)


def gen_if_gradient(op: OperatorDef, g_output: Sequence[Any]) -> tuple[list[OperatorDef], list[Any]]:
    """The same for an If. A branch that leaves a blob alone hands its gradient through."""
    return _gradient("If", op, g_output)


def gen_while_gradient(op: OperatorDef, g_output: Sequence[Any]) -> tuple[list[OperatorDef], list[Any]]:
    """The same for a While, which is given arguments: what it has to keep for its gradient."""
    return _gradient("While", op, g_output)


def _gradient(kind: str, op: OperatorDef, g_output: Sequence[Any]) -> tuple[list[OperatorDef], list[Any]]:
    if op.type != kind or len(g_output) != len(op.output):
        raise UsageError(
            f"needs the gradients of the outputs of a {kind}, one each or None; got {len(g_output)} for a {op.type} "
            f"with the outputs {list(op.output)}"
        )
    return GradientRegistry.GetGradientForOp(op, g_output)


def dedupe_g_output(op: OperatorDef, g_output: Sequence[Any]) -> tuple[list[OperatorDef], list[Any]]:
    """Return gradients that are all different, and the operators that copy those which came twice.

    Args:
        op: the forward operator.
        g_output: the gradient of each of its outputs, or None; left unchanged.
    """
    seen: set[str] = set()
    copies, gradients = [], []
    for output, gradient in zip(op.output, g_output):
        if gradient is not None and str(gradient) in seen:
            name = f"{output}_{gradient}_DEDUP"
            copies.append(make_op("Copy", [str(gradient)], [name]))
            gradient = name
        if gradient is not None:
            seen.add(str(gradient))
        gradients.append(gradient)
    return copies, gradients


def disambiguate_grad_if_op_output(grad_op: OperatorDef, idx: int, new_grad_output: str) -> None:
    """Give an output of a gradient If another name, in the nets that it holds too.

    Args:
        grad_op: changed in place.
        idx: which output.
        new_grad_output: the name.
    """
    rename_output(grad_op, idx, new_grad_output)


def getNetArgument(op: OperatorDef, net_name: str) -> NetDef | None:
    """Return the net among an operator's arguments that has this name; None if there is none."""
    return next((argument.n for argument in op.arg if argument.name == net_name), None)
