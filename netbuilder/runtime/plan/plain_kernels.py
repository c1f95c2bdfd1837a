"""Plain kernels as prepared ones: their results are copied to the buffers of the plan, or on a GPU made there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from netbuilder.engines.gpu import GPU, begin_copy, copy_into, gpu
from netbuilder.engines.layouts import HOST, Location
from netbuilder.engines.result_buffers import ResultBuffers, overlap
from netbuilder.engines.upload import PinnedRing
from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.extensions import CopiesInPlace, SplitKernel
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.proto import OperatorError
from netbuilder.proto.errors import counted
from netbuilder.runtime.plan.run_context import KernelContext

__all__ = ["PLAIN", "on_gpu", "plain_prepared", "transfer"]

PLAIN = "plain"
"""The name of these kernels."""

Kernel = Callable[..., Any]


def plain_prepared(
    op: Operator,
    ctx: KernelContext,
    kernel: Kernel,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    location: Location,
    *,
    reshape: bool = False,
) -> Prepared:
    """Return a plain kernel as a prepared one; any output may overwrite any input, but on a GPU it is then copied.

    Args:
        op: the operator.
        ctx: the run context that the kernel is given.
        kernel: the plain kernel.
        inputs, outputs: the specs of its tensors; layouts are ignored.
        location: where the operator runs.
        reshape: the specs of the outputs do not come from the operator, whose shapes depend on data, so results may
            differ from them in axes of extent 1.
    """

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Callable[[], None]:
        in_place = any(out is given or overlap(out, given) for out in outs for given in ins)
        put: Callable[[Any, Any], None] = _put_host if location == HOST else _put
        if reshape:
            put = partial(_put_reshaped, put)
        compute = partial(kernel, op, ctx, *ins)
        if location != HOST and not in_place:
            there = [None if isinstance(out, np.ndarray) or not out.nbytes else out for out in outs]
            compute = partial(ResultBuffers(location[1], there).run, compute)

        def call() -> None:
            results = compute()
            if not isinstance(results, (tuple, list)):
                raise OperatorError(
                    f"its kernel returned {_kind(results)}; it must return a tuple with an array for each output, "
                    "such as (y,)"
                )
            if len(results) < len(outs):
                raise OperatorError(
                    f"its kernel returned {counted(len(results), 'result')} for {counted(len(outs), 'output')}"
                )
            if in_place and len(outs) > 1:  # a view of an input, which an earlier copy may overwrite
                results = [r if r.base is None and not any(r is x for x in ins) else r.copy() for r in results]
            for out, result in zip(outs, results):
                if result is not out:
                    put(out, result)

        return call

    pairs = [(i, j) for i in range(len(inputs)) for j in range(len(outputs))]
    return Prepared(
        [spec.plain for spec in inputs],
        [spec.plain for spec in outputs],
        bind,
        inplace=pairs,
        name=PLAIN,
        extensions=() if location == HOST else (CopiesInPlace(),),
    )


def _kind(result: Any) -> str:
    shape = getattr(result, "shape", None)
    return "None" if result is None else f"a {type(result).__name__}" + (f" of shape {shape}" if shape else "")


def _put_host(out: Any, result: Any) -> None:
    if np.shape(result) != out.shape:
        raise OperatorError(f"its kernel returned shape {np.shape(result)}, and its infer gives {out.shape}")
    try:
        np.copyto(out, result)
    except TypeError:
        raise OperatorError(
            f"its result has elements of type {np.asarray(result).dtype}, which the output's type {out.dtype} cannot "
            "hold; give inputs of one floating type"
        ) from None


def _put(out: Any, result: Any) -> None:
    if result.shape != out.shape:
        raise OperatorError(f"its kernel returned shape {result.shape}, and its infer gives {out.shape}")
    if result is not out:
        copy_into(out, result)


def _put_reshaped(put: Callable[[Any, Any], None], out: Any, result: Any) -> None:
    if [n for n in result.shape if n != 1] != [n for n in out.shape if n != 1]:
        raise OperatorError(f"its result {tuple(result.shape)} must have the shape of its state, {tuple(out.shape)}")
    put(out, result.reshape(out.shape))


def transfer(source: TensorSpec, owner: Location, receiver: Location) -> Prepared:
    """Return the prepared copy of a plain value to another location (host or GPU); between GPUs it is split."""
    split = HOST not in (owner, receiver)

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        if split:
            return partial(begin_copy, outs[0], ins[0], gpu(receiver[1]).new_event())
        if owner == HOST and source.nbytes:
            return partial(_upload, PinnedRing(gpu(receiver[1]), source.nbytes), ins[0], outs[0], gpu(receiver[1]))
        return partial(copy_into, outs[0], ins[0])

    return Prepared([source.plain], [source.plain], bind, name="transfer", extensions=(SplitKernel(),) if split else ())


def _upload(ring: PinnedRing, value: Any, target: Any, receiver: GPU) -> None:
    with receiver:
        ring.upload(value, target, receiver.stream().raw)


def on_gpu(call: Callable[[], object], number: int) -> Callable[[], None]:
    """Return a call that runs ``call`` on a GPU, on its stream."""
    device = gpu(number)

    def run() -> None:
        with device:
            call()

    return run
