"""Gradients of weights in a recurrent net: one product over all steps instead of one per step.

In a backward step net, FCGradient computes dW = dY^T X, which is summed over the steps. If X and dY of all steps are
stored contiguously, the sum is one product of the stacked matrices.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from netbuilder.ops.core.instructions import Instruction, read_instruction
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.dense.fc import FC, FCGradient, FCTransposed, FCTransposedGradient
from netbuilder.ops.recurrent.links import Recurrent
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ALL", "Product", "products", "replacement"]

_ROWS_OF_MANY = 16
"""With so many rows in each step for each column of dW^T, adding dW up is a small part of the work, and X of all steps
takes much more memory than dW: there is nothing to gain from one product."""

_ZEROS = "zeros for "
ALL = "all steps of "
"""Prefix of a blob's name, for its values in all steps."""


@dataclass(frozen=True, eq=False)
class Product:
    """An FCGradient whose gradients of weights are computed after the loop.

    Args:
        operator: of the backward step net.
        in_loop: the operator that replaces it in the loop, dX = dY W + 0; None without dX, or
            if dX is computed after the loop too.
        joined: the operator after the loop, over X and dY of all steps; it reads and writes matrices, and also dX of
            all steps if that is the gradient of an input.
        specs: of the blobs of ``joined``, and of the zeros that ``in_loop`` adds.
    """

    operator: Instruction
    in_loop: Instruction | None
    joined: Instruction
    specs: Mapping[str, TensorSpec]

    @property
    def x(self) -> str:
        return self.operator.inputs[0]

    @property
    def w(self) -> str:
        return self.operator.inputs[1]

    @property
    def dy(self) -> str:
        return self.operator.inputs[2]

    @property
    def zeros(self) -> str | None:
        """The zeros that ``in_loop`` adds."""
        return None if self.in_loop is None else self.in_loop.inputs[2]


def products(
    op: Recurrent, specs: Mapping[str, TensorSpec], fixed: Collection[str], steps: int, ends: Collection[str]
) -> list[Product]:
    """Return the operators of the backward step net whose gradients of weights are computed after the loop.

    Args:
        op: the gradient operator.
        specs: of all blobs of a step.
        fixed: blobs that are the same in all steps.
        steps: their number.
        ends: blobs that are whole rows of the gradient of an input.
    """
    net, sums = op.backward, set(op.param_gradients)
    found = []
    for position, operator in enumerate(net.ops):
        if not isinstance(operator.op, (FCGradient, FCTransposedGradient)):
            continue
        (x, w, dy), results = operator.inputs, operator.outputs[:2]
        only_summed = all(
            name in sums and net.writes(name) == 1 and not any(name in other.inputs for other in net.ops)
            for name in results
        )
        overwritten = {name for other in net.ops[position:] for name in other.outputs}
        stackable = not overwritten.intersection((x, dy)) and x not in fixed and dy not in fixed
        m, n, _ = operator.op.sizes(specs[x], specs[w])
        worth = n * _ROWS_OF_MANY > m and specs[x].dtype.itemsize >= 4
        if only_summed and stackable and w in fixed and worth:
            dx = operator.outputs[2] if len(operator.outputs) > 2 else ""
            dx_waits = dx in ends and net.writes(dx) == 1 and not any(dx in other.inputs for other in net.ops)
            found.append(_product(operator, specs, steps, 3 if dx_waits else 2))
    return found


def _product(operator: Instruction, specs: Mapping[str, TensorSpec], steps: int, results: int) -> Product:
    op: Any = operator.op
    x = specs[operator.inputs[0]]
    m, n, k = op.sizes(x, specs[operator.inputs[1]])
    weights = (k, n) if op._transposed else (n, k)
    inputs, outputs = (
        tuple(ALL + name for name in operator.inputs),
        tuple(ALL + name for name in operator.outputs[:results]),
    )
    shapes = [(steps * m, k), weights, (steps * m, n), weights, (n,), (steps * m, k)]
    made = {name: x.with_shape(shape) for name, shape in zip((*inputs, *outputs), shapes)}
    joined = replacement(operator, operator.op_def.type, inputs, outputs)
    if len(operator.outputs) == results:
        return Product(operator, None, joined, made)
    zeros = _ZEROS + operator.outputs[2]
    made[zeros] = x.with_shape((k,))
    # dX = dY W, a product with the transposed weights
    kind = FC if op._transposed else FCTransposed
    back = (operator.inputs[2], operator.inputs[1], zeros)
    in_loop = replacement(operator, kind.__name__, back, (operator.outputs[2],), axis=op.axis, axis_w=op.axis_w)
    return Product(operator, in_loop, joined, made)


def replacement(
    operator: Instruction, op_type: str, inputs: tuple[str, ...], outputs: tuple[str, ...], **arguments: Any
) -> Instruction:
    """Return an operator that replaces ``operator`` of the step net."""
    return read_instruction(operator.index, make_op(op_type, inputs, outputs, **arguments))
