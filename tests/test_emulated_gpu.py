"""The emulated GPU itself: CuPy's functions against NumPy's, streams, graphs, memory, kernels written by hand."""

import os
import subprocess
import sys

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu import machine

pytestmark = pytest.mark.emulated

if emulated_gpu.active():
    import cupy

FLOATS = (np.float16, np.float32, np.float64)
INTEGERS = (np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint64)


def values(dtype, *shape):
    rng = np.random.default_rng(len(shape))
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.random(shape) < 0.5
    if kind in "iu":
        return rng.integers(0 if kind == "u" else -50, 50, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def near(dtype):
    return {"float16": 2e-3, "float32": 1e-6, "complex64": 2e-6}.get(np.dtype(dtype).name, 1e-14)


def agree(function, *arrays, rtol=0.0):
    """Compare function(numpy, ...) with function(cupy, ...) of the same arrays: types, shapes, values."""
    expected = function(np, *[a.copy() for a in arrays])
    found = function(cupy, *[cupy.asarray(a) for a in arrays])
    if not isinstance(expected, tuple):
        expected, found = (expected,), (found,)
    for want, got in zip(expected, found, strict=True):
        got, want = cupy.asnumpy(got), np.asarray(want)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got, want, rtol, rtol)


# CuPy against NumPy.


@pytest.mark.slow
@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS))
def test_arithmetic(dtype):
    a, b = values(dtype, 7, 5), values(dtype, 5)
    for name in "add subtract multiply maximum minimum equal less not_equal".split():
        agree(lambda xp, a, b, name=name: getattr(xp, name)(a, b), a, b)
    agree(lambda xp, a, b: xp.where(a > b, a, b), a, b)
    for other in (*FLOATS, *INTEGERS, np.bool_):
        whole = np.abs(a * dtype(20)) if np.dtype(dtype).kind == "f" else a
        agree(lambda xp, a, other=other: a.astype(other), whole)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_of_floats(dtype):
    a, b = np.abs(values(dtype, 40)) + dtype(0.1), values(dtype, 40)
    unary = "exp log sqrt sin cos tanh log1p expm1 floor ceil rint trunc arctan cbrt square reciprocal sign isnan"
    for name in unary.split():
        agree(lambda xp, a, name=name: getattr(xp, name)(a), a, rtol=near(dtype))
    for name in "arctan2 power true_divide floor_divide remainder fmod hypot copysign logaddexp fmax".split():
        agree(lambda xp, a, b, name=name: getattr(xp, name)(a, b), a, b, rtol=near(dtype))
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], dtype)
    with np.errstate(all="ignore"):
        for name in "maximum minimum fmax add multiply less logical_and".split():
            agree(lambda xp, a, name=name: getattr(xp, name)(a[:, None], a[None]), odd)
        for name in "isnan isinf isfinite sign max min argmax argmin nanmax".split():
            agree(lambda xp, a, name=name: getattr(xp, name)(a), odd)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", INTEGERS)
def test_functions_of_integers(dtype):
    a, b = values(dtype, 30), np.abs(values(dtype, 30)).astype(dtype) + dtype(1)
    for name in "floor_divide remainder bitwise_and bitwise_xor".split():
        agree(lambda xp, a, b, name=name: getattr(xp, name)(a, b), a, b)
    for name in "left_shift power".split():
        agree(lambda xp, a, b, name=name: getattr(xp, name)(a, b), a, (b % dtype(4)).astype(dtype))
    agree(lambda xp, a: ~a, a)


@pytest.mark.slow
def test_halves():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    agree(lambda xp, a: a.astype(np.float32), every)
    agree(lambda xp, a: a.astype(np.float32).astype(np.float16), every)
    with np.errstate(over="ignore"):
        agree(lambda xp, a: a.astype(np.float16), np.linspace(-2, 2, 70001).astype(np.float32) ** 9)
        agree(lambda xp, a: a.astype(np.float16), values(np.float64, 20000) * np.exp(np.linspace(-20, 12, 20000)))


def test_shapes():
    a = values(np.float32, 4, 5, 6)
    for make in (
        lambda xp, a: xp.ascontiguousarray(a.transpose(2, 0, 1)),
        lambda xp, a: a[::2, ::-1, 1:5:2].copy(),
        lambda xp, a: xp.concatenate([a, a[1:]], 0),
        lambda xp, a: xp.stack([a, a + 1], 1),
        lambda xp, a: xp.pad(a, ((1, 2), (0, 0), (3, 1))),
        lambda xp, a: xp.tile(a, (2, 1, 3)),
        lambda xp, a: xp.repeat(a, 3, 1),
        lambda xp, a: xp.broadcast_to(a[:, :1], (4, 9, 6)) + 0,
        lambda xp, a: xp.diff(a, axis=1),
        lambda xp, a: tuple(xp.meshgrid(a[0, 0], a[0, :, 0])),
    ):
        agree(make, a)


def assigned(a, at, value):
    a[at] = value
    return a


def test_indexing():
    a, i, j = values(np.float32, 4, 5, 6), np.arange(-4, 4), np.arange(-5, 3)
    for make in (
        lambda xp, a, i, j: a[i, j],
        lambda xp, a, i, j: a[:, i % 5, 1:],
        lambda xp, a, i, j: a[a > 0],
        lambda xp, a, i, j: a[a[:, 0, 0] > 0],
        lambda xp, a, i, j: assigned(a, a > 0, 3.0),
        lambda xp, a, i, j: assigned(a, xp.unique(i % 4), 3.0),
        lambda xp, a, i, j: xp.take(a, i % 6, axis=2),
        lambda xp, a, i, j: xp.take_along_axis(a, xp.argsort(a, 1), 1),
        lambda xp, a, i, j: xp.nonzero(a > 0.5),
    ):
        agree(make, a, i, j)
    line = cupy.arange(6.0)
    assert line[cupy.asarray([0, 7, -9])].tolist() == [0, 1, 3], "CuPy wraps indices that are out of range"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.float16])
def test_scatters(dtype):
    rows, parts = np.arange(500) * 7 % 6, (values(np.int32, 500, 3) % 3).astype(dtype)

    def scatter(xp, rows, parts):
        total = xp.zeros((6, 3), parts.dtype)
        xp.add.at(total, rows, parts)
        return total

    agree(scatter, rows, parts)
    agree(lambda xp, rows: (xp.bincount(rows, minlength=9), xp.bincount(rows, weights=rows * 0.5)), rows)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(3,), (700,), (33, 6), (2, 1000, 3), (1030, 40)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.float16, np.bool_])
def test_reductions(shape, dtype):
    a = values(dtype, *shape)
    rtol = {"f2": 4e-3, "f4": 2e-5, "f8": 1e-12}.get(np.dtype(dtype).str[1:], 0)

    def reduced(xp, name, a, axis):
        if xp is np and rtol and name in ("sum", "mean"):  # NumPy's own sums of halves are no better than a GPU's
            return np.asarray(getattr(np, name)(a.astype(np.float64), axis=axis)).astype(a.dtype)
        return getattr(xp, name)(a, axis=axis)

    for axis in (None, *range(len(shape)), *([(0, 1)] if len(shape) > 1 else [])):
        for name in "sum max min mean any all".split():
            agree(lambda xp, a, name=name, axis=axis: reduced(xp, name, a, axis), a, rtol=max(rtol, 1e-12))
        if not isinstance(axis, tuple):
            for name in ("argmax", "argmin"):
                agree(lambda xp, a, name=name, axis=axis: reduced(xp, name, a, axis), a)


@pytest.mark.slow
def test_sorts_and_searches():
    for dtype in (np.float32, np.int64, np.float16):
        a = values(dtype, 6, 50)
        agree(lambda xp, a: (xp.sort(a, 0), xp.sort(a, 1), xp.argsort(a, 1, kind="stable")), a)
        agree(lambda xp, a: xp.unique(a.ravel(), return_inverse=True, return_counts=True), a)
        agree(lambda xp, a: xp.sort(xp.partition(a, 7, 1)[:, :7], 1), a)
    agree(lambda xp, a: xp.lexsort(a), values(np.int32, 3, 60))
    agree(lambda xp, a, b: xp.searchsorted(xp.sort(a), b, side="right"), values(np.float32, 50), values(np.float32, 20))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.complex64, np.int32])
def test_products(dtype):
    rtol = {np.float16: 1e-2, np.float64: 1e-12, np.int32: 0}.get(dtype, 2e-5)
    a, b, c = values(dtype, 13, 7), values(dtype, 7, 9), values(dtype, 4, 13, 7)
    for make in (
        lambda xp, a, b, c: a @ b,
        lambda xp, a, b, c: b.T @ a.T,
        lambda xp, a, b, c: c @ b,
        lambda xp, a, b, c: c @ c.transpose(0, 2, 1),
        lambda xp, a, b, c: xp.dot(a[0], b[:, 0]),
        lambda xp, a, b, c: a @ b[:, 1],
        lambda xp, a, b, c: xp.tensordot(c, a, axes=([1, 2], [0, 1])),
        lambda xp, a, b, c: xp.einsum("nij,jk->nik", c, b),
        lambda xp, a, b, c: xp.outer(a[0], b[0]),
        lambda xp, a, b, c: a[:, ::2] @ b[::2],
        lambda xp, a, b, c: xp.vdot(a, a),
        lambda xp, a, b, c: a[:, :0] @ b[:0],
    ):
        agree(make, a, b, c, rtol=rtol)


# Streams, events, memory.


def test_products_that_cublas_refuses():
    from cupy.cuda import cublas

    handle, one, x = cupy.cuda.device.get_cublas_handle(), np.ones(1, np.float32), cupy.ones((4, 4), np.float32)
    by, at = one.ctypes.data, x.data.ptr

    def multiply(kinds=(0, 0, 0), leading=4, compute=cublas.CUBLAS_COMPUTE_32F):
        of_a, of_b, of_c = ((at, kind, leading) for kind in kinds)
        cublas.gemmEx(handle, 0, 0, 4, 4, 4, by, *of_a, *of_b, by, *of_c, compute, -1)

    multiply()
    for message, options in (
        ("INVALID_VALUE", {"leading": 3}),
        ("NOT_SUPPORTED", {"kinds": (0, 1, 0)}),
        ("NOT_SUPPORTED", {"compute": cublas.CUBLAS_COMPUTE_64F}),
        ("NOT_SUPPORTED", {"kinds": (2, 2, 2), "compute": cublas.CUBLAS_COMPUTE_32F_FAST_TF32}),
    ):
        with pytest.raises(cublas.CUBLASError, match=message):
            multiply(**options)
    with cupy.cuda.Device(1), pytest.raises(cublas.CUBLASError, match="EXECUTION_FAILED"):
        multiply()


@pytest.fixture
def late():
    if "EMULATED_GPU_EAGER" in os.environ:
        pytest.skip("everything is done at once")


def new_streams(count):
    return [cupy.cuda.Stream(non_blocking=True) for _ in range(count)]


def test_a_stream_that_is_not_waited_for_has_not_begun(late):
    one, other = new_streams(2)
    with one:
        x = cupy.zeros(4, np.float32)
        one.synchronize()
        x += 1
        done = one.record()
    assert not one.done and not done.done
    with other:
        y = x + 0
    assert y.get(stream=other).tolist() == [0] * 4, "the sum is not there yet"
    other.wait_event(done)
    with other:
        y = x + 0
    assert y.get(stream=other).tolist() == [1] * 4 and done.done
    assert machine.faults()


def test_a_wait_is_for_what_the_event_had_recorded():
    one, other = new_streams(2)
    x = cupy.zeros(1, np.float32)
    cupy.cuda.Device().synchronize()
    event = cupy.cuda.Event(disable_timing=True)
    with one:
        x += 1
        event.record(one)
    other.wait_event(event)
    with one:
        x += 1
        event.record(one)
    with other:
        y = x.copy()
    event.synchronize()
    assert x.get(stream=one).tolist() == [2] and y.get(stream=other)[0] in (1, 2)
    assert machine.faults(), "the second addition is not waited for"


def test_the_legacy_stream_and_blocking_streams_wait_for_each_other():
    blocking = cupy.cuda.Stream()
    x = cupy.zeros(1, np.float32)
    for expected in (2, 4, 6):
        with blocking:
            x += 1
        x += 1
        assert x.get().tolist() == [expected]


def test_pinned_memory_is_read_when_the_copy_is_done(late):
    (stream,) = new_streams(1)
    pinned = np.frombuffer(cupy.cuda.alloc_pinned_memory(16), np.float32, 4)
    plain, x, y = np.ones(4, np.float32), *cupy.empty((2, 4), np.float32)
    cupy.cuda.Device().synchronize()
    pinned[...] = 1
    x.set(pinned, stream=stream)
    y.data.copy_from_host_async(plain.ctypes.data, 16, stream)
    pinned[...] = plain[...] = 2
    assert x.get(stream=stream).tolist() == [2] * 4, "memory that is pinned must stay as it is until the copy is done"
    assert y.get(stream=stream).tolist() == [1] * 4
    assert machine.faults() == ["pinned memory is overwritten before it is copied to GPU 0"]


def test_memory():
    with pytest.raises(MemoryError):
        cupy.cuda.alloc(2 * cupy.cuda.Device().mem_info[1])
    free = cupy.cuda.Device().mem_info[0]
    x = cupy.cuda.Memory(1 << 20)
    assert cupy.cuda.Device().mem_info[0] == free - (1 << 20)
    garbage = cupy.ndarray(4, np.uint8, cupy.cuda.MemoryPointer(x, 0))
    assert garbage.tolist() == [0xA5] * 4
    attributes = cupy.cuda.runtime.pointerGetAttributes(x.ptr)
    assert attributes.type == cupy.cuda.runtime.memoryTypeDevice and attributes.device == 0


def test_functions_of_the_host_run_in_their_turn():
    (stream,) = new_streams(1)
    seen = []
    with stream:
        x = cupy.zeros(1, np.float32)
        stream.launch_host_func(lambda _: seen.append("first"), None)
        x += 1
        stream.launch_host_func(lambda _: seen.append("second"), None)
    stream.synchronize()
    assert seen == ["first", "second"]


def test_what_returns_at_once_does_so_while_another_thread_calls_a_function_of_the_host(late, tmp_path):
    """CuPy asks streams and events, records events and ends streams with Python's lock, which the function needs."""
    program = tmp_path / "program.py"
    program.write_text(
        "import threading, cupy\n"
        "begun, asked, after = threading.Event(), threading.Event(), threading.Event()\n"
        "def function(_):\n"
        "    begun.set()\n"
        "    asked.wait()\n"
        "one, other, ended = (cupy.cuda.Stream(non_blocking=True) for _ in range(3))\n"
        "one.launch_host_func(function, None)\n"
        "done = one.record()\n"
        "thread = threading.Thread(target=one.synchronize)\n"
        "thread.start()\n"
        "begun.wait()\n"
        "for each in (other, ended):\n"
        "    each.wait_event(done)\n"
        "ended.launch_host_func(lambda _: after.set(), None)\n"
        "del each, ended\n"
        "events = [other.record() for _ in range(5000)]\n"
        "for _ in range(5):\n"
        "    assert not one.done and not done.done and not other.done and not events[-1].done\n"
        "assert not after.is_set()\n"
        "asked.set()\n"
        "thread.join()\n"
        "while not events[-1].done: pass\n"
        "cupy.cuda.Device().synchronize()\n"
        "assert after.is_set()\n"
    )
    command = [sys.executable, "-m", "emulated_gpu", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_times():
    before, after = cupy.cuda.Event(), cupy.cuda.Event()
    before.record()
    cupy.zeros(1000) + 1
    after.record()
    after.synchronize()
    assert 0 < cupy.cuda.get_elapsed_time(before, after) < 60_000


@pytest.mark.multi_gpu
def test_several_devices():
    with cupy.cuda.Device(1):
        there = cupy.arange(6) * 2
        stream = cupy.cuda.Stream(non_blocking=True)
    assert there.device.id == 1
    assert cupy.asarray(there).tolist() == [0, 2, 4, 6, 8, 10]
    with pytest.raises(RuntimeError, match="cudaErrorInvalidDevice"):
        cupy.cuda.Device(99).use()
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="cudaErrorInvalidResourceHandle"):
        cupy.cuda.Event().record(stream)


# Graphs.


def test_a_graph_is_replayed_on_what_its_buffers_hold():
    (stream,) = new_streams(1)
    with stream:
        x, y = cupy.ones(4, np.float32), cupy.zeros(4, np.float32)
        warm = cupy.multiply(x, 2) + x @ x
        stream.synchronize()
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        cupy.multiply(x, 2, out=y)
        cupy.add(y, x, out=y)
        graph = stream.end_capture()
        stream.synchronize()
        assert y.get().tolist() == [0] * 4, "a capture computes nothing"
        for value in (1, 5):
            x.fill(value)
            graph.launch(stream)
            assert y.get().tolist() == [3 * value] * 4
    assert warm.shape == (4,)


def test_a_capture_takes_in_streams_that_wait_for_it():
    one, other = new_streams(2)
    x, y = cupy.ones(4, np.float32), cupy.zeros(4, np.float32)
    cupy.add(x, 1) + cupy.multiply(x, 3)
    cupy.cuda.Device().synchronize()
    forked, joined = (cupy.cuda.Event(disable_timing=True) for _ in range(2))
    with one:
        one.begin_capture()
        cupy.add(x, 1, out=x)
        forked.record(one)
    other.wait_event(forked)
    with other:
        cupy.multiply(x, 3, out=y)
        joined.record(other)
    one.wait_event(joined)
    with one:
        cupy.add(y, 1, out=y)
        graph = one.end_capture()
        graph.launch(one)
        graph.launch(one)
    one.synchronize()
    assert (x.tolist(), y.tolist()) == ([3] * 4, [10] * 4)


def refused(stream, match, action):
    """A capture in which a call is an error is none that can be replayed."""
    with stream:
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match=match):
            action()
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="Invalidated"):
            stream.end_capture()


def test_what_cuda_refuses_while_it_captures():
    one, other = new_streams(2)
    x = cupy.ones(4, np.float32)
    x += 1
    cupy.cuda.Device().synchronize()
    unrelated = cupy.cuda.Event(disable_timing=True)
    with other:
        x += 1
        unrelated.record(other)
    runtime = cupy.cuda.runtime
    refused(one, "Unsupported", one.synchronize)
    refused(one, "Unsupported", cupy.cuda.Device().synchronize)
    refused(one, "Unsupported", lambda: runtime.malloc(1 << 20))
    refused(one, "Unsupported", lambda: runtime.memcpy(x.data.ptr, np.ones(4, np.float32).ctypes.data, 16, 1))
    refused(one, "Isolation", lambda: one.wait_event(unrelated))
    with one:
        event = cupy.cuda.Event(disable_timing=True)
        refused(one, "CapturedEvent", lambda: (event.record(one), event.synchronize()))
    blocking = cupy.cuda.Stream()
    refused(blocking, "Implicit", lambda: runtime.memsetAsync(x.data.ptr, 0, 16, 0))
    with one:
        one.begin_capture()
        event.record(one)
        other.wait_event(event)
        runtime.memsetAsync(x.data.ptr, 0, 16, other.ptr)
        with pytest.raises(runtime.CUDARuntimeError, match="Unjoined"):
            one.end_capture()
    other.synchronize()
    with pytest.raises(runtime.CUDARuntimeError, match="Unmatched"):
        runtime.streamEndCapture(one.ptr)


# Kernels written by hand.

SUM_OF_BLOCKS = r"""
extern "C" __global__ void sum_of_blocks(const float* x, float* y) {
    extern __shared__ float parts[];
    float v = x[blockIdx.x * blockDim.x + threadIdx.x];
    for (int by = 16; by; by >>= 1) v += __shfl_down_sync(0xffffffffu, v, by);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x == 0) {
        float sum = 0;
        for (int i = 0; i < blockDim.x / 32; ++i) sum += parts[i];
        atomicAdd(y + blockIdx.x % 2, sum);
    }
}"""


def test_shuffles_shared_memory_and_atomics():
    kernel = cupy.RawKernel(SUM_OF_BLOCKS, "sum_of_blocks")
    x, y = cupy.arange(512, dtype=np.float32), cupy.zeros(2, np.float32)
    kernel((4,), (128,), (x, y), shared_mem=16)
    parts = np.arange(512).reshape(4, 128).sum(axis=1)
    assert y.tolist() == [parts[0] + parts[2], parts[1] + parts[3]]
    with pytest.raises(cupy.cuda.driver.CUDADriverError):
        kernel((4,), (128,), (x, y), shared_mem=100 << 10)
    kernel.max_dynamic_shared_size_bytes = 100 << 10
    kernel((4,), (128,), (x, y), shared_mem=100 << 10)
    with pytest.raises(cupy.cuda.driver.CUDADriverError):
        kernel((4,), (2048,), (x, y))


MODULE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
__constant__ float factors[2];
template <class T> __global__ void scaled(const T* x, T* y) { y[threadIdx.x] = T(float(x[threadIdx.x]) * factors[1]); }
__global__ void pairs(const __half2* x, __half* sum) {
    const float2 v = __half22float2(__hadd2(x[threadIdx.x], __floats2half2_rn(1.0f, 2.0f)));
    atomicAdd(sum, __float2half(v.x + v.y));
}
__global__ void wide(const float4* x, float4* y) { float4 v = x[threadIdx.x]; v.w = -v.w; y[threadIdx.x] = v; }
"""


def test_templates_constants_short_floats_and_vectors():
    module = cupy.RawModule(code=MODULE, name_expressions=["scaled<float>", "scaled<__nv_bfloat16>", "pairs", "wide"])
    x, y = cupy.arange(8, dtype=np.float32), cupy.zeros(8, np.float32)
    scaled = module.get_function("scaled<float>")
    cupy.ndarray(2, np.float32, module.get_global("factors"))[...] = 3
    scaled((1,), (8,), (x, y))
    assert y.tolist() == [0, 3, 6, 9, 12, 15, 18, 21]
    short = (x.view(np.uint32) >> 16).astype(np.uint16)  # small whole numbers are exact in bfloat16
    module.get_function("scaled<__nv_bfloat16>")((1,), (8,), (short, short))
    assert (short.astype(np.uint32) << 16).view(np.float32).tolist() == y.tolist()
    total = cupy.zeros(1, np.float16)
    module.get_function("pairs")((1,), (4,), (x.astype(np.float16), total))
    assert total.tolist() == [28 + 4 * 3]
    module.get_function("wide")((1,), (2,), (x, y))
    assert y.tolist() == [0, 1, 2, -3, 4, 5, 6, -7]


def test_denormal_floats_are_zero_in_kernels_without_doubles():
    tiny = cupy.asarray(np.array([1e-40, 1e-30], np.float32))
    assert (tiny * 1).tolist() == [0, float(np.float32(1e-30))]


def test_a_kernel_that_the_compiler_refuses_is_an_error():
    with pytest.raises(emulated_gpu.KernelError, match="nonsense"):
        cupy.RawKernel('extern "C" __global__ void broken() { nonsense(); }', "broken").compile()


# Accesses that no right program makes, each of which gives the numbers that its author wanted, most of the time.


def fault():
    """Do all work; return the one fault that was found."""
    machine.finish_all()
    (found,) = machine.faults()
    return found


def kernel(body, parameters="float* x, int n"):
    prelude = "const int t = threadIdx.x + blockIdx.x * blockDim.x; "
    return cupy.RawKernel(f'extern "C" __global__ void k({parameters}) {{ {prelude} {body} }}', "k")


def run(body, blocks=2, threads=64, size=128, dtype=np.float32):
    x = cupy.zeros(size, dtype)
    kernel(body, f"{'float' if dtype == np.float32 else 'unsigned short'}* x, int n")((blocks,), (threads,), (x, size))
    machine.finish_all()
    return machine.faults()


def test_accesses_beyond_an_array():
    (found,) = run("x[t] = 1;", size=100)
    assert found.endswith("thread 36 of block 1, writes 4 bytes beyond the last one of an array of 400 bytes on GPU 0")
    assert "beyond the last one of an array of 4096 bytes" in run("if (t == 0) x[0] = x[n];", size=1024)[0]
    assert "4 bytes before the first one of an array" in run("if (t == 0) x[0] = x[-1];", size=4096)[0]
    x, host = cupy.zeros(1, np.float32), np.zeros(1, np.float32)
    kernel("x[0] = p[0];", "float* x, const float* p")((1,), (1,), (x, host.ctypes.data))
    assert "reads memory that is no array of a GPU" in fault()


def test_threads_that_race():
    (found,) = run("x[0] += 1;")
    assert "thread 1 of block 0, reads byte 0" in found and "thread 0 of block 0 writes" in found
    assert "which threads of several blocks read" in run("x[t == 127 ? 0 : t + 1] = x[0] + 1;")[0]
    assert "block 1" in run("if (threadIdx.x == 0) x[0] += 1;")[0]
    assert run("x[t] = t > 0 ? x[t - 1] : 0;"), "in place, from the neighbour"
    assert run("x[0] = t;")
    assert run("atomicAdd(x, 1); if (t == 5) x[0] = 0;")
    assert run("__shared__ float s[64]; s[threadIdx.x] = x[t]; x[t] = s[63 - threadIdx.x];")
    assert run("__shared__ float s[64]; s[threadIdx.x] = x[t]; __syncwarp(); x[t] = s[63 - threadIdx.x];")
    late = "__shared__ bool last; __shared__ unsigned dummy; x[blockIdx.x + 1] = 1;"
    assert run(f"{late} last = atomicAdd((unsigned*)x, 1u) == 1; if (last) x[3] = x[1] + x[2];", threads=1)


def test_threads_that_do_not_race():
    assert not run("x[t] += 1; x[t] *= 2;")
    assert not run("x[0] = 7;"), "all write the same"
    assert not run("atomicAdd(x, 1); if (x[0] > 3) atomicAdd(x + 1, 1);")
    assert not run("x[t] = t;", dtype=np.uint16), "neighbours in one word"
    assert not run("__shared__ float s[64]; s[threadIdx.x] = x[t]; __syncthreads(); x[t] = s[63 - threadIdx.x];")
    assert not run("__shared__ float s[64]; s[threadIdx.x] = x[t]; __syncwarp(); x[t] = s[threadIdx.x ^ 31];")
    assert not run("x[t] += __shfl_xor_sync(~0u, x[t], 1);")
    fenced = "x[blockIdx.x + 1] = 1; __threadfence(); const bool last = atomicAdd((unsigned*)x, 1u) == 1;"
    assert not run(f"{fenced} if (last) {{ __threadfence(); x[3] = x[1] + x[2]; }}", threads=1)


def test_streams_that_race_though_they_run_in_order():
    one, other = new_streams(2)
    x = cupy.zeros(4)
    cupy.cuda.Device().synchronize()
    with one:
        x += 1
    machine.finish_all()  # as if the GPU had been quick
    with other:
        y = x + 1
    assert "(stream" in (found := fault()) and "reads byte 0" in found and "without waiting for cupy_add" in found
    with one:
        x += 1
    assert "which reads the same memory" in fault()
    other.wait_event(one.record())
    with other:
        y += x
    with one:
        x.copy()
    assert not machine.faults()
    with other:
        x[1:2] = 0
    assert "which reads the same memory" in fault()
    with one:
        x[2:] += 1
    assert "byte 16 of an array of 32 bytes" in fault()
    cupy.cuda.Device().synchronize()
    with one:
        x[2:] += 1
    with other:
        x[:2] += 1
    machine.finish_all()
    assert not machine.faults(), "another part of the array"
    cupy.cuda.Device().synchronize()


def test_graphs_that_race():
    one, other = new_streams(2)
    x = cupy.zeros(4)
    cupy.cuda.Device().synchronize()
    with one:
        one.begin_capture()
        x += 1
        graph = one.end_capture()
        graph.launch()
        graph.launch()
        x += 1
    machine.finish_all()
    assert not machine.faults()
    with other:
        x *= 2
    assert "without waiting for cupy_add" in fault()
    one.wait_event(other.record())
    graph.launch(stream=one)
    cupy.cuda.Device().synchronize()
    assert not machine.faults()


def test_memory_that_another_stream_still_uses():
    one, other = new_streams(2)
    with one:
        x = cupy.ones(4)
        done = one.record()
    other.wait_event(done)
    with other:
        y = x + 1
    machine.finish_all()
    del x
    assert fault().startswith("memory is freed while cupy_add")
    with one:
        x = cupy.ones(4)
    other.wait_event(one.record())
    with other:
        y += x
    one.wait_event(other.record())
    del x
    machine.finish_all()
    assert not machine.faults()
    with one:
        x = cupy.ones(4)
        address = x.data.ptr
        del x
        kernel("x[0] = 1;", "double* x")((1,), (1,), (address,))
    assert "memory that was freed" in fault()
    cupy.cuda.Device().synchronize()


def test_memory_that_another_stream_may_have_used():
    one, other = new_streams(2)
    with one:
        cupy.ones(4)
        x = cupy.empty(4)
    with other:
        x.fill(1)
    assert "does not wait for what that was given before" in fault()
    cupy.cuda.Device().synchronize()
    with one:
        cupy.ones(4)
        x = cupy.empty(4)
    other.wait_event(one.record())
    with other:
        x.fill(1)
    cupy.cuda.Device().synchronize()
    assert not machine.faults()


def test_values_that_nothing_has_written():
    x = cupy.empty(4)
    assert "reads what nothing has written" in str([x + 1] and fault())
    body = "__shared__ float s[64]; if (threadIdx.x != 9) s[threadIdx.x] = 1; __syncthreads(); x[t] = s[threadIdx.x];"
    assert "reads what nothing has written: shared memory" in run(body)[0]
    assert "shared memory" in run("__shared__ float s; if (t == 0) s = 1; __syncthreads(); x[t] = s;")[0]


def test_shared_memory_of_the_size_of_the_launch():
    x, body = cupy.ones(64, np.float32), "extern __shared__ float s[]; s[t] = x[t]; __syncthreads(); x[t] = s[63 - t];"
    kernel(body)((1,), (64,), (x, 64), shared_mem=256)
    machine.finish_all()
    assert not machine.faults()
    kernel("extern __shared__ float s[]; x[t] = s[t];")((1,), (64,), (x, 64), shared_mem=256)
    assert "reads what nothing has written: byte 0 of dynamic shared memory" in fault()
    kernel(body)((1,), (64,), (x, 64), shared_mem=128)
    assert "thread 32 of block 0, writes beyond the 128 bytes of its dynamic shared memory" in fault()


def test_variables_of_all_blocks_begin_as_zero():
    code = (
        'extern "C" { __device__ float table[4]; __global__ void k(float* x) { x[threadIdx.x] = table[threadIdx.x]; } }'
    )
    x = cupy.ones(4, np.float32)
    cupy.RawKernel(code, "k")((1,), (4,), (x,))
    assert x.tolist() == [0] * 4 and not machine.faults()


def test_what_is_other_than_on_a_gpu():
    assert "no multiple of 16" in run("float4 v = *(float4*)(x + 1); if (t == 0) x[0] = v.x;")[0]
    assert "shifts by as many bits" in run("if (t == 0) x[0] = 1 << (n / 4);")[0]
    assert "a float that does not fit" in run("if (t == 0) { x[0] = 1e10f; x[1] = (int)x[0]; }")[0]
    beyond = "float own[4]; own[n % 5] = t; if (t == 0) x[0] = own[n % 5];"
    assert "beyond the end of an array" in run(beyond, size=104)[0]


@pytest.mark.multi_gpu
def test_memory_of_another_gpu():
    with cupy.cuda.Device(5):
        x = cupy.zeros(4, np.float32)
        cupy.cuda.Device().synchronize()
    with cupy.cuda.Device(6):
        kernel("if (t < n) x[t] = 1;")((1,), (4,), (x.data.ptr, 4))
        assert "on GPU 6 writes byte 0 of an array of 16 bytes on GPU 5, which it has no access to" in fault()
        cupy.cuda.runtime.deviceEnablePeerAccess(5)
        kernel("if (t < n) x[t] = 1;")((1,), (4,), (x.data.ptr, 4))
        cupy.cuda.Device().synchronize()
        assert not machine.faults()


def test_a_program_that_does_something_wrong_ends_with_an_error(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, cupy\n"
        "stream = cupy.cuda.Stream(non_blocking=True)\n"
        "with stream:\n"
        "    x = cupy.zeros(4)\n"
        "if len(sys.argv) > 1:\n"
        "    cupy.cuda.Device().synchronize()\n"
        "x += 1\n"
        "sys.exit(0)\n"
    )
    for more, status in ((["wait"], 0), ([], 1)):
        command = [sys.executable, "-m", "emulated_gpu", str(program), *more]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        assert ("without waiting for" in done.stderr) == bool(status)


def test_what_is_recorded():
    pinned = np.frombuffer(cupy.cuda.alloc_pinned_memory(16), np.float32, 4)
    with machine.recorded() as found:
        x = cupy.asarray(pinned)
        y = x + 1
        y.get()
        cupy.matmul(cupy.ones((2, 2)), cupy.ones((2, 2)))
    assert [launch.name for launch in found.launches][0].startswith("cupy_add")
    assert found.launches[-1].name.startswith("cublas") and {launch.device for launch in found.launches} == {0}
    assert found.transfers == [(machine.HOST, 0, 16, True), (0, machine.HOST, 16, False)]
    assert found.counts["reads"] == 1 and found.counts["allocations"] == len(found.allocated) == 5
