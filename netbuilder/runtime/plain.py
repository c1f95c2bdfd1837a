"""Plain kernels as prepared ones: results are copied to where the plan wants them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from netbuilder.ops.contexts import Prepared
from netbuilder.ops.engines.gpu import copy_into, gpu
from netbuilder.ops.engines.layouts import HOST, Location
from netbuilder.ops.operator import Operator, TensorSpec
from netbuilder.proto import OperatorError
from netbuilder.runtime.run_context import KernelContext

__all__ = ["on_gpu", "plain_prepared", "transfer"]

Kernel = Callable[..., Any]


def plain_prepared(
    op: Operator,
    ctx: KernelContext,
    kernel: Kernel,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    location: Location,
) -> Prepared:
    """Return a plain kernel as a prepared one; any output may take the place of any input."""

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Callable[[], None]:
        overlap = any(out is given for out in outs for given in ins)
        put = _put_host if location == HOST else _put

        def call() -> None:
            results = kernel(op, ctx, *ins)
            if len(results) < len(outs):
                raise OperatorError(f"its kernel returned {len(results)} results for {len(outs)} outputs")
            if overlap and len(outs) > 1:  # a result may be a view of an input that an earlier copy overwrites
                results = [r.copy() for r in results]
            for out, result in zip(outs, results):
                if result is not out:
                    put(out, result)

        return call

    pairs = [(i, j) for i in range(len(inputs)) for j in range(len(outputs))]
    return Prepared(
        [spec.plain for spec in inputs], [spec.plain for spec in outputs], bind, inplace=pairs, name="plain"
    )


def _put_host(out: Any, result: Any) -> None:
    if np.shape(result) != out.shape:
        raise OperatorError(f"its kernel returned shape {np.shape(result)} where its shapes say {out.shape}")
    try:
        np.copyto(out, result)
    except TypeError:
        raise OperatorError(
            f"its result has elements of type {np.asarray(result).dtype}, which the output's type {out.dtype} cannot "
            "hold; give inputs of one floating type"
        ) from None


def _put(out: Any, result: Any) -> None:
    if result.shape != out.shape:
        raise OperatorError(f"its kernel returned shape {result.shape} where its shapes say {out.shape}")
    copy_into(out, result)


def transfer(source: TensorSpec) -> Prepared:
    """Return the prepared copy of a plain value to another place (host or GPU)."""

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        return partial(copy_into, outs[0], ins[0])

    return Prepared([source.plain], [source.plain], bind, capturable=False, name="transfer")


def on_gpu(call: Callable[[], object], number: int) -> Callable[[], None]:
    """Return ``call`` run on a GPU, on its stream."""
    device = gpu(number)

    def run() -> None:
        with device:
            call()

    return run
