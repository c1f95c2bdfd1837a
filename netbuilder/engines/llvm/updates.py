"""Updates of all parameters as one call: a table says where each parameter's tensors are.

Denormal numbers are stored as 0, as GPUs do in float32: the moments of a weight whose gradient stays 0 become denormal
after a thousand steps, and many CPUs need a hundred cycles for each one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from netbuilder.engines.joined_updates import JoinedOperator, JoinedUpdates
from netbuilder.engines.llvm.argument_rows import Rows, Work, made
from netbuilder.engines.programs import Constant, Expression, NotTraced, Program, Step
from netbuilder.engines.traced import UpdateChain, keeps_zeros, trace_update_chain
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.instructions import PartFailed
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["join_updates"]


def join_updates(ctx: PlanContext, updates: JoinedUpdates) -> Prepared | None:
    """Return the kernel of many updates; None if one of them cannot be traced."""
    try:
        chains = _traced(ctx, updates)
        return _prepared(ctx, updates, [chain for chain in chains if chain.writes])
    except NotTraced:
        return None


def _traced(ctx: PlanContext, updates: JoinedUpdates) -> list[UpdateChain]:
    """Return the chains; those that do the same with tensors of other shapes share a program.

    Raises:
        NotTraced: one of them cannot be traced.
    """
    known: dict[Any, tuple[UpdateChain, list[int]]] = {}
    found = []
    for chain in updates.chains:
        key, values, shape = _what_it_does(chain, updates)
        if key in known:
            first, others = known[key]
            same = dict(zip(others, values))
            made = [spec.with_shape(shape) for spec in first.made]
            writes = [updates.outputs.index(same[updates.outputs[j]]) for j in first.writes]
            reads, tensors = [same[i] for i in first.reads], [same[i] for i in first.tensors]
            found.append(UpdateChain(first.program, reads, tensors, writes, made, shape, first.origins))
            continue
        traced = trace_update_chain(ctx, chain, updates, is_gpu=False)
        found.append(replace(traced, program=_without_denormals(traced.program)))
        if all(spec.shape == shape for spec in found[-1].made) and found[-1].shape == shape:
            known[key] = found[-1], values
    return found


def _without_denormals(program: Program) -> Program:
    """Return a program whose float32 and float64 outputs are 0 where those of ``program`` are denormal."""
    pairs = zip(program.outputs, program.dtypes)
    return replace(program, outputs=tuple(_or_zero(x, dtype) if dtype.char in "fd" else x for x, dtype in pairs))


def _or_zero(x: Expression, dtype: np.dtype[Any]) -> Step:
    size = Step("absolute", (x,), dtype, dtype)
    normal = Constant(np.finfo(dtype).smallest_normal, dtype)
    denormal = Step("less", (size, normal), dtype, np.dtype(np.bool_))
    return Step("where", (denormal, Constant(0.0, dtype), x), dtype, dtype)


def _what_it_does(chain: Sequence[JoinedOperator], updates: JoinedUpdates) -> tuple[Any, list[int], tuple[int, ...]]:
    """Return what the program of a chain depends on, its values in the order of their use, and its tensors' shape."""
    number: dict[int, int] = {}
    key: list[Any] = []
    given = [updates.specs[i] for joined in chain for i in joined.inputs if i < len(updates.specs)]
    shape = max(given, key=lambda spec: spec.size).shape
    for joined in chain:
        key.append((joined.op.type, repr(joined.op), joined.op.n_out))
        for k, i in enumerate((*joined.inputs, *joined.outputs)):
            outside = i < len(updates.specs)
            key.append(number.setdefault(i, len(number)))
            if outside and k < len(joined.inputs) and joined.op.input_location(k) == "host":
                key.append(i)  # the number that the host computes from it is part of the program
            elif outside:
                spec = updates.specs[i]
                key.append((spec.dtype, None if spec.shape == shape else spec.shape))
    key += [number[i] for i in updates.outputs if i in number]
    return tuple(key), [*number], shape


def _prepared(ctx: PlanContext, updates: JoinedUpdates, chains: Sequence[UpdateChain]) -> Prepared:
    expected = [spec.plain for spec in updates.specs]
    written: dict[int, TensorSpec] = {}
    pairs: list[tuple[int, int]] = []
    numbers: list[Any] = []
    values: list[Callable[[Any], Any]] = []
    works: list[Work] = []
    codes: dict[int, Any] = {}  # by program
    for chain in chains:
        common = _common(updates, chain)
        for i in chain.tensors:
            expected[i] = updates.specs[i].plain if common is None else common
        written |= {j: spec if common is None else common for j, spec in zip(chain.writes, chain.made)}
        pairs += [(i, j) for i in chain.tensors for j in chain.writes if expected[i] == written[j]]
        size = math.prod(chain.shape) if common is None else common.nbytes // common.dtype.itemsize
        own = []
        for number, origin in zip(chain.program.numbers, chain.origins):
            k = next((k for k, other in enumerate(numbers) if number.same_as(other)), len(numbers))
            if k == len(numbers):
                numbers.append(number)
                values.append(_value_of(number, origin))
            own.append(k)
        code = codes[id(chain.program)] if id(chain.program) in codes else made(chain.program)
        codes[id(chain.program)] = code
        if size:
            works.append(Work(code, [chain.reads[i] for i in code.read], chain.writes, own, size, (size,)))
    rows = Rows(ctx, works, values) if works else None

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        return (lambda: None) if rows is None else rows.bind(inputs, outputs)

    threads = 1 if rows is None else rows.threads
    return Prepared(
        expected,
        [written[j] for j in range(len(updates.outputs))],
        bind,
        inplace=pairs,
        name="llvm updates" if threads == 1 else f"llvm updates, {threads} threads",
    )


def _common(updates: JoinedUpdates, chain: UpdateChain) -> TensorSpec | None:
    """Return the one layout of a chain's tensors; None if it is plain order.

    That of parameters and moments, which stay in their blobs, is preferred.
    """
    specs = [updates.specs[i] for i in sorted(chain.tensors, key=lambda i: i not in updates.kept)]
    first = next((spec for spec in specs if spec.layout is not None and not spec.rounds), None)
    if first is None or {(spec.shape, spec.dtype) for spec in (*specs, *chain.made)} != {(first.shape, first.dtype)}:
        return None
    return first if keeps_zeros(chain.program) else None


def _value_of(number: Any, origin: JoinedOperator) -> Callable[[Any], Any]:
    """Return what computes a number; its errors name the operator."""

    def value(inputs: Sequence[Any]) -> np.generic[Any]:
        try:
            return number.value(inputs)
        except Exception as error:
            if origin.instruction is None:
                raise
            raise PartFailed(origin.instruction) from error

    return value
