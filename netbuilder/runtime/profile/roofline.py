"""The limits of a machine, measured: the peak rate of matrix products and the bandwidth of memory."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from netbuilder.engines.engine import library_engines
from netbuilder.engines.gpu import GPU, copy_into, gpu
from netbuilder.engines.tf32 import has_tf32, tf32
from netbuilder.proto import PROTO_CPU, NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.execute.workspace import Workspace
from netbuilder.runtime.plan.optimizations import OPTIMIZATIONS
from netbuilder.runtime.profile.timing import Recorder

__all__ = ["Limits", "measure_gpu_limits", "measure_limits", "normal"]

_SECONDS = 0.5  # approximate time of a measurement
_COPIED = 128 << 20  # bytes: much more than the caches hold
GPU_SIDE, GPU_COPIED = 8192, 1 << 30
_RANDOM = 1 << 22  # different values in an array for a GPU


@dataclass(frozen=True)
class Limits:
    """The peak rates of a device.

    Args:
        matrix_rate: rate of matrix products in float32, in flops per second.
        matrix_by: the kernel that reached that rate.
        copy_bandwidth: memory bandwidth of a long copy, in bytes per second, read and written ones together.
        threads: number of threads that computed and copied; 0 on a GPU.
        bfloat16_rate: rate of matrix products of bfloat16 values; 0: not measured.
        bfloat16_by: the kernel that reached that rate.
    """

    matrix_rate: float
    matrix_by: str
    copy_bandwidth: float
    threads: int
    bfloat16_rate: float = 0.0
    bfloat16_by: str = ""

    def seconds(self, flops: float, nbytes: float, *, bfloat16: bool = False) -> float:
        """Return the least time for so many operations and, at the same time, so many bytes read and written.

        Args:
            flops: number of operations.
            nbytes: number of bytes.
            bfloat16: inputs may be rounded to bfloat16, so the higher of the two rates counts.
        """
        rate = max(self.matrix_rate, self.bfloat16_rate) if bfloat16 else self.matrix_rate
        return max(flops / rate, nbytes / self.copy_bandwidth)


def measure_limits(threads: int, *, bfloat16: bool = False) -> Limits:
    """Measure the limits of this machine's CPU with so many threads; it takes about a second.

    The matrix rate is that of the fastest of an engine's inner product and convolutions, each in its preferred layout;
    without an engine that has products of its own it is that of ``numpy.dot``, whose number of threads BLAS decides.

    Args:
        threads: number of threads.
        bfloat16: also measure the rate in bfloat16, which only engines have.
    """
    if not any(engine.owns_threads for engine in library_engines(lambda name: True, PROTO_CPU)):
        return Limits(*_dot_rate(), _copy_bandwidth(threads), threads)
    rate, by = _kernel_rate(threads)
    rounded_rate, rounded_by = _kernel_rate(threads, "bfloat16") if bfloat16 else (0.0, "")
    return Limits(rate, by, _copy_bandwidth(threads), threads, rounded_rate, rounded_by)


def measure_gpu_limits(number: int, *, bfloat16: bool = False, allow_tf32: bool = False) -> Limits:
    """Measure the limits of a GPU.

    Args:
        number: the GPU.
        bfloat16: also measure the rate in 16 bits, with float16, which tensor cores multiply as fast as bfloat16.
        allow_tf32: products in float32 use TF32, if the GPU has it.

    Raises:
        DeviceError: there is no such GPU.
    """
    with gpu(number) as here:
        xp = here.xp
        with tf32() if allow_tf32 and has_tf32(number) else contextlib.nullcontext():
            rate = _gpu_rate(here, np.float32)
        rounded = _gpu_rate(here, np.float16) if bfloat16 else 0.0
        source = normal(here, (GPU_COPIED // 4,), np.float32)
        target = xp.empty_like(source)
        copy = _best(partial(copy_into, target, source), here)
        by = f"matmul of {GPU_SIDE} a side"
        return Limits(rate, by, 2 * GPU_COPIED / copy, 0, rounded, f"{by} in float16" if rounded else "")


def _gpu_rate(here: GPU, dtype: Any) -> float:
    a, b = (normal(here, (GPU_SIDE, GPU_SIDE), dtype) for _ in range(2))
    c = here.xp.empty_like(a)
    return 2 * GPU_SIDE**3 / _best(partial(here.xp.matmul, a, b, out=c), here)


def normal(here: GPU, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return random values: with equal ones a GPU draws less power, and so is faster than with those of a net."""
    size = math.prod(shape)
    some = np.random.default_rng(0).standard_normal(min(size, _RANDOM), np.float32).astype(dtype)
    return here.xp.tile(here.xp.asarray(some), -(-size // some.size))[:size].reshape(shape)


def _best(call: Callable[[], object], device: GPU | None = None, at_least: int = 5) -> float:
    """Return the seconds of the fastest of several calls."""
    end, count, best = time.perf_counter() + _SECONDS, 0, float("inf")
    while count < at_least or time.perf_counter() < end:
        began = time.perf_counter()
        call()
        if device is not None:
            device.synchronize()
        best = min(best, time.perf_counter() - began)
        count += 1
    return best


def _kernel_rate(threads: int, dtype: str = "float32") -> tuple[float, str]:
    """Return the best rate, and the kernel that reached it; 0 and "" if no kernel computes with this type."""
    workspace, scale = Workspace(threads=threads), max(1, threads // 8)
    rng = np.random.default_rng(0)
    for name, shape in (
        ("rows", (1024 * scale, 1024)), ("matrix", (1024, 1024)), ("zero", (1024,)),
        ("images", (8 * scale, 128, 28, 28)), ("window", (128, 128, 3, 3)), ("point", (256, 128, 1, 1)),
    ):  # fmt: skip
        workspace.feed(name, rng.standard_normal(shape, dtype=np.float32))
    net = NetDef(name="matrix rate", external_input=workspace.blobs())
    net.op.extend([
        make_op("FC", ["rows", "matrix", "zero"], ["inner product"]),
        make_op("Conv", ["images", "window"], ["convolution 3x3"], kernel=3, pad=1),
        make_op("Conv", ["images", "point"], ["convolution 1x1"], kernel=1),
    ])  # fmt: skip
    # Winograd's algorithm does fewer operations than the formula counts, so it would not measure the rate.
    workspace.create_net(net, dtype=dtype, without=[OPTIMIZATIONS["winograd"]])
    recorder = Recorder(workspace.net(net.name))
    recorder.run(keep=False)
    end = time.perf_counter() + _SECONDS
    while len(recorder.runs) < 3 or time.perf_counter() < end:
        recorder.run()
    rates = []
    for timed in recorder.plans[0].calls:
        step = timed.step
        assert step is not None
        if not step.moves and step.reads_rounded == (dtype == "bfloat16"):
            flops = timed.instruction.op.flops(*(value.spec.plain for value in step.node.inputs if value.spec))
            seconds = min(ended - began for _, began, ended in timed.spans) / 1e9
            rates.append((flops / seconds, f"{timed.instruction.outputs[0]}, {step.prepared.name}"))
    return max(rates, default=(0.0, ""))


def _dot_rate() -> tuple[float, str]:
    a = np.ones((1024, 1024), np.float32)
    return 2 * 1024**3 / _best(partial(np.dot, a, a, out=np.empty_like(a))), "numpy.dot"


def _copy_bandwidth(threads: int) -> float:
    source, target = (np.ones(_COPIED, np.uint8) for _ in range(2))
    parts: list[Any] = list(zip(np.array_split(target, threads), np.array_split(source, threads)))
    with ThreadPoolExecutor(threads) as pool:  # NumPy copies without the interpreter lock
        return 2 * _COPIED / _best(lambda: list(pool.map(lambda part: np.copyto(*part), parts)))
