"""The gradients of Do, If and While, one operator at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.graph import GradientRegistry
from netbuilder.ops.core.renaming import rename_output
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
    """Return the gradient operators of a Do, and for each input its gradient or None.

    Args:
        op: the operator.
        g_output: for each output its gradient or None.
    """
    return _gradient("Do", op, g_output)


def gen_if_gradient(op: OperatorDef, g_output: Sequence[Any]) -> tuple[list[OperatorDef], list[Any]]:
    """Return the same for an If. A branch that does not write a blob passes the blob's gradient through."""
    return _gradient("If", op, g_output)


def gen_while_gradient(op: OperatorDef, g_output: Sequence[Any]) -> tuple[list[OperatorDef], list[Any]]:
    """Return the same for a While; sets arguments of ``op`` that name the blobs to keep for its gradient."""
    return _gradient("While", op, g_output)


def _gradient(kind: str, op: OperatorDef, g_output: Sequence[Any]) -> tuple[list[OperatorDef], list[Any]]:
    if op.type != kind or len(g_output) != len(op.output):
        raise UsageError(
            f"the operator must be a {kind}, with a gradient or None for each output; got {len(g_output)} gradients "
            f"for a {op.type} with the outputs {list(op.output)}"
        )
    return GradientRegistry.GetGradientForOp(op, g_output)


def dedupe_g_output(op: OperatorDef, g_output: Sequence[Any]) -> tuple[list[OperatorDef], list[Any]]:
    """Return operators that copy gradients which occur twice, and the gradients, now all different.

    Args:
        op: the forward operator.
        g_output: for each output its gradient or None; unchanged.
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
    """Rename an output of a gradient If, also in its subnets.

    Args:
        grad_op: changed in place.
        idx: index of the output.
        new_grad_output: the new name.
    """
    rename_output(grad_op, idx, new_grad_output)


def getNetArgument(op: OperatorDef, net_name: str) -> NetDef | None:
    """Return the net argument of this name, or None."""
    return next((argument.n for argument in op.arg if argument.name == net_name), None)
