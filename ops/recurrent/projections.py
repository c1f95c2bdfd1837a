"""Products of rows of an input with weights: one over all steps before the loop, instead of one per step.

The rows of an input are stored contiguously, and none depends on a step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from netbuilder.ops.core.instructions import Instruction
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.dense.fc import FC, FCTransposed
from netbuilder.ops.dense.matmul import MatMul
from netbuilder.ops.recurrent.links import Recurrent
from netbuilder.ops.recurrent.products import ALL, replacement
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Projection", "projections"]


@dataclass(frozen=True, eq=False)
class Projection:
    """A product of the step net that is computed before the loop.

    Args:
        operator: of the step net.
        joined: the operator before the loop, over the rows of all steps; it reads and writes matrices.
        specs: of the blobs of ``joined``.
    """

    operator: Instruction
    joined: Instruction
    specs: Mapping[str, TensorSpec]

    @property
    def result(self) -> str:
        return self.operator.outputs[0]


def projections(op: Recurrent, specs: Mapping[str, TensorSpec], fixed: Collection[str], steps: int) -> list[Projection]:
    """Return the products of the step net in which only rows of an input vary between steps.

    Args:
        op: the operator that holds the step net.
        specs: of all blobs of a step.
        fixed: blobs that are the same in all steps.
        steps: their number.
    """
    found: list[Projection] = []
    seen: set[str] = set()
    for operator in op.step.ops:
        result = operator.outputs[0] if operator.outputs else ""
        link = op.linked.get(operator.inputs[0]) if operator.inputs else None
        rows = link is not None and link.window == 1 and link.external in op.forward_inputs
        if (
            rows
            and result not in op.linked
            and result not in seen
            and all(name in fixed for name in operator.inputs[1:])
        ):
            shapes = _matrices(operator, specs)
            if shapes is not None:
                found.append(_projection(operator, specs, shapes, steps))
        seen.update(operator.inputs, operator.outputs)
    return found


def _matrices(operator: Instruction, specs: Mapping[str, TensorSpec]) -> list[tuple[int, ...]] | None:
    """Return the shapes of the inputs and the output in a step, as matrices; None if this is not such a product."""
    op: Any = operator.op
    given = [specs[name] for name in operator.inputs]
    if isinstance(op, (FC, FCTransposed)):
        m, n, k = op.sizes(given[0], given[1])
        return [(m, k), (k, n) if op._transposed else (n, k), (n,), (m, n)]
    if isinstance(op, MatMul) and len(given) == 2 and not op.trans_a:
        m, n, k = op.sizes(given[0], given[1])
        return [(m, k), (n, k) if op.trans_b else (k, n), (m, n)]
    return None


def _projection(
    operator: Instruction, specs: Mapping[str, TensorSpec], shapes: list[tuple[int, ...]], steps: int
) -> Projection:
    inputs, outputs = tuple(ALL + name for name in operator.inputs), (ALL + operator.outputs[0],)
    for index in (0, -1):
        rows, width = shapes[index]
        shapes[index] = (steps * rows, width)
    kind = specs[operator.inputs[0]]
    made = {name: kind.with_shape(shape) for name, shape in zip((*inputs, *outputs), shapes)}
    arguments = {"trans_b": 1} if isinstance(operator.op, MatMul) and operator.op.trans_b else {}
    return Projection(operator, replacement(operator, operator.op_def.type, inputs, outputs, **arguments), made)
