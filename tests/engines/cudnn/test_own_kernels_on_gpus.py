"""The kernels of pooling, compiled by CuPy, on a GPU or an emulated one, against the array kernels."""

from types import SimpleNamespace

import numpy as np
import pytest

from kernel_cases import POOLS
from netbuilder.engines.cuda.gpu_layout import image_spec
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


def run(make, op, dtype, elements, inputs, shape):
    """What a kernel computes from arrays; those that it does not read are not given."""
    specs = [image_spec(TensorSpec(array.shape, np.dtype(dtype)), "NCHW", elements) for array in inputs]
    ctx = FakePlan(precision=elements if dtype == "float32" else "float32")
    made = make(op, ctx, *specs)
    with gpu(0) as there:
        given = [
            None if spec is None else there.xp.asarray(stored(array, elements))
            for spec, array in zip(made.inputs, inputs)
        ]
        out = there.xp.empty(made.outputs[0].nbytes, np.uint8)
        made.bind(given, [out], None)()
        return loaded(out.get(), elements, shape)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "dtype, elements",
    [("float32", "float32"), ("float32", "bfloat16"), ("float32", "float16"), ("float16", "float16")],
)
@pytest.mark.parametrize("args", [*POOLS, {"kernel": 3, "stride": 2, "pad": 1, "count_include_pad": 1}])
@pytest.mark.parametrize("kind", ["max", "average"])
def test_pool(kind, args, dtype, elements):
    """Integers, of which many are equal: each maximum of a window gets the gradient."""
    if kind == "max" and "count_include_pad" in args:
        return
    name, rng = f"{kind.title()}Pool", np.random.default_rng(0)
    x = np.round(4 * rng.uniform(-1, 1, (2, 5, 7, 8))).astype(np.float32)
    op = decode(find(name), make_op(name, ["x"], ["y"], **args))
    tolerance = 1e-6 if elements == "float32" else 1e-2
    (y,) = plain_kernel(name, CPU)(op, ON_HOST, x)
    got = run(getattr(kernels_pool, f"{kind}_pool"), op, dtype, elements, [x], y.shape)
    np.testing.assert_allclose(got, y, rtol=tolerance, atol=tolerance)

    y, dy = np.round(y), np.round(4 * rng.uniform(-1, 1, y.shape)).astype(np.float32)
    op = decode(find(name + "Gradient"), make_op(name + "Gradient", ["x", "y", "dy"], ["dx"], **args))
    (dx,) = plain_kernel(name + "Gradient", CPU)(op, ON_HOST, x, y, dy)
    got = run(getattr(kernels_pool, f"{kind}_pool_gradient"), op, dtype, elements, [x, y, dy], x.shape)
    np.testing.assert_allclose(got, dx, rtol=tolerance, atol=tolerance)
