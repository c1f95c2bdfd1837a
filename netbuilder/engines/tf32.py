"""TF32 in CuPy's products: factors of float32 are rounded to 10 bits, for tensor cores, where a net allows it.

CuPy's setting is that of the process. It is changed while a kernel starts its products, so products that another thread
starts at the same time may use TF32, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from netbuilder.engines.arrays import array_module
from netbuilder.engines.described_gpu import described_gpu
from netbuilder.engines.gpu import gpu
from netbuilder.proto import PROTO_CUDA

__all__ = ["FIRST", "TF32", "has_tf32", "tf32", "with_tf32"]

FIRST = 80  # compute capability of the first GPUs that have it, Ampere
TF32 = 7  # COMPUTE_TYPE_TF32 of cupy._core


def has_tf32(number: int) -> bool:
    """Whether a GPU has TF32."""
    if (planned := described_gpu()) is not None:
        return planned.compute_capability >= FIRST
    with gpu(number) as here:
        return int(here.xp.cuda.Device(number).compute_capability) >= FIRST


@contextmanager
def tf32() -> Iterator[None]:
    """Inside, CuPy's products of float32 matrices use TF32; the current GPU must have it."""
    routines = array_module(PROTO_CUDA)._core._routines_linalg
    before = routines.get_compute_type("f")
    routines.set_compute_type("f", TF32)
    try:
        yield
    finally:
        routines.set_compute_type("f", before)


def with_tf32(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a plain kernel for GPUs whose products use TF32, if the operator's GPU has it."""

    def run(op: Any, ctx: Any, *inputs: Any) -> Any:
        if not has_tf32(ctx.op_def.device_option.device_id):
            return kernel(op, ctx, *inputs)
        with tf32():
            return kernel(op, ctx, *inputs)

    return run
