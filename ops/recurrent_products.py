"""Gradients of weights in a recurrent net: one product over all steps in the place of one a step.

In a backward step net, FCGradient gives dW = dY^T X, which is added up over the steps. Where X and dY of all steps lie
one behind the other, their sum is one product of the stacked matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from netbuilder.ops.contexts import RunContext
from netbuilder.ops.fc import FC, FCGradient, FCTransposed, FCTransposedGradient
from netbuilder.ops.operator import TensorSpec, decode
from netbuilder.ops.recurrent_links import Recurrent
from netbuilder.ops.recurrent_steps import StepOperator
from netbuilder.proto.arguments import make_op

__all__ = ["ZEROS", "Product", "bind_product", "products", "zeros_of"]

Array = Any

ZEROS = "zeros for "
"""The beginning of the name of a slope's bias."""


@dataclass(frozen=True, eq=False)
class Product:
    """An FCGradient whose gradients of weights are computed behind the loop.

    Args:
        step: the operator.
        slope: the operator that takes its place in the loop, dX = dY W; None if dX is not wanted.
    """

    step: StepOperator
    slope: StepOperator | None

    @property
    def x(self) -> str:
        return self.step.inputs[0]

    @property
    def dy(self) -> str:
        return self.step.inputs[2]


def products(op: Recurrent, specs: Mapping[str, TensorSpec], fixed: Collection[str]) -> list[Product]:
    """Return the operators of the backward step net whose gradients of weights can wait.

    Args:
        op: the gradient operator.
        specs: of all blobs of a step.
        fixed: blobs that are the same in all steps.
    """
    net, sums = op.backward, set(op.param_grads)
    found = []
    for position, step in enumerate(net.ops):
        if not isinstance(step.op, (FCGradient, FCTransposedGradient)):
            continue
        (x, w, dy), results = step.inputs, step.outputs[:2]
        alone = all(
            name in sums and net.writes(name) == 1 and not any(name in other.inputs for other in net.ops)
            for name in results
        )
        later = {name for other in net.ops[position:] for name in other.outputs}
        stays = x not in later and dy not in later and x not in fixed and dy not in fixed
        if alone and stays and w in fixed and specs[x].dtype.itemsize >= 4:
            found.append(Product(step, _slope(step)))
    return found


def zeros_of(specs: Mapping[str, TensorSpec], product: Product) -> TensorSpec:
    """Return the spec of the bias of a slope, which is 0."""
    step: Any = product.step
    _, _, k = step.op.sizes(specs[product.x], specs[step.inputs[1]])
    return TensorSpec((k,), specs[product.x].dtype)


def _slope(step: StepOperator) -> StepOperator | None:
    """Return dX = dY W as an operator, a product with the weights the other way round."""
    if len(step.outputs) < 3:
        return None
    op: Any = step.op
    kind = FC if op._transposed else FCTransposed
    inputs, outputs = (step.inputs[2], step.inputs[1], ZEROS + step.outputs[2]), (step.outputs[2],)
    op_def = make_op(kind.__name__, inputs, outputs, axis=op.axis, axis_w=op.axis_w)
    return StepOperator(step.net, step.index, op_def, decode(kind, op_def), inputs, outputs)


def bind_product(
    product: Product, ctx: RunContext, x: Array, dy: Array, specs: tuple[TensorSpec, TensorSpec], dw: Array, db: Array
) -> Callable[[], None]:
    """Return the call that computes the gradients of weights and bias.

    Args:
        product: which.
        ctx: of the operator that holds the net.
        x, dy: those of all steps, one behind the other.
        specs: of X in one step, and of W.
        dw, db: where the gradients go.
    """
    op: Any = product.step.op
    m, n, k = op.sizes(*specs)
    inputs, slopes = x.reshape(-1, k), dy.reshape(-1, n)
    xp = ctx.xp

    def call() -> None:
        if op._transposed:
            xp.matmul(inputs.T, slopes, out=dw.reshape(k, n))
        else:
            xp.matmul(slopes.T, inputs, out=dw.reshape(n, k))
        xp.sum(slopes, axis=0, out=db)

    return call
