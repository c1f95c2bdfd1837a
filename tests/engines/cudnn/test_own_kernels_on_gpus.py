"""The kernels of pooling, compiled by CuPy, on a GPU or an emulated one, against the array kernels."""

from types import SimpleNamespace

import numpy as np
import pytest

from kernel_cases import POOLS
from netbuilder.engines.cuda.gpu_layout import image_spec
from netbuilder.engines.cuda.kernel import known_kernels
from netbuilder.engines.cudnn import kernels_pool
from netbuilder.engines.gpu import gpu
from netbuilder.ops.core.operator import TensorSpec, decode
from netbuilder.ops.core.registry import CPU, find, plain_kernel
from netbuilder.proto.arguments import make_op
from prepared import FakePlan

ON_HOST = SimpleNamespace(xp=np)


def stored(array, elements):
    """The bytes of small integers as images with channels last."""
    last = np.ascontiguousarray(np.moveaxis(array, 1, -1))
    if elements == "bfloat16":
        last = (last.view(np.uint32) >> 16).astype(np.uint16)
    return last.astype(last.dtype if elements == "bfloat16" else elements).reshape(-1).view(np.uint8)


def loaded(data, elements, shape):
    values = data.view(np.uint16 if elements == "bfloat16" else elements)
    if elements == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return np.moveaxis(values.reshape(shape[0], *shape[2:], shape[1]), -1, 1)


def run(make, op, dtype, elements, inputs, shape, begin=0):
    """What a kernel computes from arrays that begin some elements after an aligned address.

    Arrays that it does not read are not given.
    """
    specs = [image_spec(TensorSpec(array.shape, np.dtype(dtype)), "NCHW", elements) for array in inputs]
    ctx = FakePlan(precision=elements if dtype == "float32" else "float32")
    made = make(op, ctx, *specs)
    with gpu(0) as there:
        before = begin * np.dtype("uint16" if elements == "bfloat16" else elements).itemsize
        given = [
            None if spec is None else there.xp.asarray(np.append(np.zeros(before, np.uint8), stored(array, elements)))
            for spec, array in zip(made.inputs, inputs)
        ]
        given = [None if array is None else array[before:] for array in given]
        out = there.xp.empty(before + made.outputs[0].nbytes, np.uint8)[before:]
        made.bind(given, [out], None)()
        return loaded(out.get(), elements, shape)


CASES = [  # of 1, 2, 4 and 8 channels that are read at once
    ("float16", "float16", 5),
    ("float32", "float16", 6),
    ("float32", "float32", 4),
    ("float32", "bfloat16", 16),
]


def compare(kind, args, dtype, elements, channels, begin=0):
    """Compare a kernel and that of its gradient with the array kernels, over integers, of which many are equal."""
    name, rng = f"{kind.title()}Pool", np.random.default_rng(0)
    x = np.round(4 * rng.uniform(-1, 1, (2, channels, 7, 8))).astype(np.float32)
    op = decode(find(name), make_op(name, ["x"], ["y"], **args))
    tolerance = 1e-6 if elements == "float32" else 1e-2
    (y,) = plain_kernel(name, CPU)(op, ON_HOST, x)
    got = run(getattr(kernels_pool, f"{kind}_pool"), op, dtype, elements, [x], y.shape, begin)
    np.testing.assert_allclose(got, y, rtol=tolerance, atol=tolerance)

    y, dy = np.round(y), np.round(4 * rng.uniform(-1, 1, y.shape)).astype(np.float32)
    op = decode(find(name + "Gradient"), make_op(name + "Gradient", ["x", "y", "dy"], ["dx"], **args))
    (dx,) = plain_kernel(name + "Gradient", CPU)(op, ON_HOST, x, y, dy)
    got = run(getattr(kernels_pool, f"{kind}_pool_gradient"), op, dtype, elements, [x, y, dy], x.shape, begin)
    np.testing.assert_allclose(got, dx, rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype, elements, channels", CASES)
@pytest.mark.parametrize("args", [*POOLS, {"kernel": 3, "stride": 2, "pad": 1, "count_include_pad": 1}])
@pytest.mark.parametrize("kind", ["max", "average"])
def test_pool(kind, args, dtype, elements, channels):
    """Each maximum of a window gets the gradient."""
    if kind == "max" and "count_include_pad" in args:
        return
    compare(kind, args, dtype, elements, channels)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["max", "average"])
def test_arrays_that_begin_anywhere(kind):
    """Images in the middle of another array are read element by element."""
    compare(kind, POOLS[0], "float32", "bfloat16", 16, begin=1)


@pytest.mark.parametrize("elements, channels, width", [("bfloat16", 64, 8), ("float16", 12, 4), ("float32", 64, 4)])
def test_16_bytes_are_read_at_once(elements, channels, width):
    op = decode(find("MaxPool"), make_op("MaxPool", ["x"], ["y"], kernel=2, stride=2))
    spec = image_spec(TensorSpec((2, channels, 4, 4), np.dtype("float32")), "NCHW", elements)
    made = kernels_pool.max_pool(op, FakePlan(precision=elements), spec)
    source = known_kernels()[made.name].source
    assert f"alignas({width} * sizeof(" in source and f"const int C = {channels // width};" in source
