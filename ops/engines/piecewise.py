"""Elementwise operators as calls on pieces of their operands, so that several operators can share each piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.ops.core.registry import CPU, prepare
from netbuilder.ops.engines import flat

__all__ = ["Piecewise", "maker_of", "piecewise"]

Steps = Callable[[Sequence[Any], Sequence[Any], Sequence[Any], Sequence[bool]], Iterable[flat.Step]]


@dataclass(frozen=True, eq=False)
class Piecewise:
    """The calls of an elementwise operator for inputs of given specs.

    Args:
        spec: the spec of all tensors that it reads and writes.
        numbers: the indices of inputs that are one number for all pieces; the calls do not change them.
        steps: ``steps(inputs, outputs, temporaries, needed)`` returns the calls for one piece. Inputs and outputs are
            flat pieces, numbers 0-d arrays; an output may share memory with an input as the operator's ``inplace``
            allows. An output that is not ``needed`` is not read; the calls may use it as a temporary.
        temporaries: number of temporaries, of the size of a piece.
        units: indices of numbers that may be None where they are 1, so that the calls for them are left out.
        before: ``before(inputs)`` returns a call that is made once, before the calls of all pieces.
        copies: outputs that equal another one: index -> index of the other.
    """

    spec: TensorSpec
    numbers: frozenset[int]
    steps: Steps
    temporaries: int = 0
    units: frozenset[int] = frozenset()
    before: Callable[[Sequence[Any]], Call] | None = None
    copies: Mapping[int, int] = field(default_factory=dict)


Maker = Callable[..., Piecewise | None]

_makers: dict[str, Maker] = {}


def piecewise(cls: type[Operator]) -> Callable[[Maker], Maker]:
    """Register ``make(op, *specs) -> Piecewise | None`` for an operator on the CPU.

    It becomes a prepared kernel of the operator, and can be fused with others over the same pieces.
    """

    def add(make: Maker) -> Maker:
        def prepared(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
            made = make(op, *specs)
            return None if made is None else _alone(op, made, specs)

        _makers[cls.__name__] = make
        prepare(cls, device=CPU)(prepared)
        return make

    return add


def maker_of(op_type: str) -> Maker | None:
    """Return the function that was registered for an operator, or None."""
    return _makers.get(op_type)


def _alone(op: Operator, made: Piecewise, specs: Sequence[TensorSpec]) -> Prepared:
    spec, count, pairs = made.spec, op.n_out, type(op).inplace
    assert not isinstance(pairs, str)
    tensors = [i for i in range(len(specs)) if i not in made.numbers]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        operands = [array.reshape(()) if i in made.numbers else array for i, array in enumerate(inputs)]
        buffers = [*(inputs[i] for i in tensors), *outputs]
        steps: list[flat.Step] = []
        for parts in flat.pieces(spec, buffers, scratch, made.temporaries):
            for i, part in zip(tensors, parts):
                operands[i] = part
            rest = parts[len(tensors) :]
            steps += made.steps(operands, rest[:count], rest[count:], [True] * count)
        return flat.replay(steps, None if made.before is None else made.before(operands))

    return Prepared(
        [s.plain if i in made.numbers else spec for i, s in enumerate(specs)],
        [spec] * count,
        bind,
        scratch=flat.scratch_bytes(spec, made.temporaries),
        inplace=pairs,
        name="numpy",
    )
