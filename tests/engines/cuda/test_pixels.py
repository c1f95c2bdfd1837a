"""NormalizeImages on a GPU: one kernel, in the layout that convolutions read, against the formula in float64."""

import numpy as np
import pytest

from checks import interpret
from cudnn_double import cudnn_double
from netbuilder.data import image_record, write_minidb
from netbuilder.engines.cuda.gpu_layout import elements_of
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from on_gpu import ON_GPU, graphs, launched, run_net

pytestmark = pytest.mark.gpu

RNG = np.random.default_rng(5)
MEANS, STDS = (103.53, 116.28, 123.675, 100.0, 90.0), (57.375, 57.12, 58.395, 50.0, 40.0)


def pixels(*shape):
    return RNG.integers(0, 256, shape, np.uint8)


def normalization(channels, order="NCHW"):
    return make_op("NormalizeImages", ["x"], ["data"], mean=MEANS[:channels], std=STDS[:channels], order=order)


def in_float64(x, order):
    channels = x.shape[-1]
    y = (x.astype(np.float64) - MEANS[:channels]) / STDS[:channels]
    return y.transpose(0, 3, 1, 2) if order == "NCHW" else y


def bfloat16(x):
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((2, 8, 6, 3), "uint8"), ((3, 5, 7, 3), "uint8"), ((2, 3, 4, 1), "uint8"), ((1, 4, 4, 4), "float32"),
     ((2, 3, 3, 3), "float32"), ((2, 3, 3, 5), "uint8")],
)  # fmt: skip
def test_the_formula_and_the_bits_of_the_plain_kernel(shape, dtype, order):
    x = pixels(*shape).astype(dtype)
    op = normalization(shape[-1], order)
    with launched() as launches:
        found = run_net([op], {"x": x}, ["data"])["data"]
    assert launches.count("pixels") == (shape[-1] <= 4)
    np.testing.assert_allclose(found, in_float64(x, order), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found, interpret([op], {"x": x})["data"])


@pytest.mark.emulated
@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(2, 8, 6, 3), (3, 5, 7, 1)])
def test_images_are_written_as_a_convolution_reads_them(shape, dtype, order):
    """The pixels are read and the images written once, without a copy, and rounded once, to nearest."""
    x, channels = pixels(*shape), shape[-1]
    w = RNG.standard_normal((2, channels, 3, 3) if order == "NCHW" else (2, 3, 3, channels)).astype(np.float32)
    ops = [normalization(channels, order), make_op("Conv", ["data", "w"], ["y"], kernel=3, order=order)]
    workspace = Workspace()
    for name, value in {"x": x, "w": w}.items():
        workspace.feed(name, value, ON_GPU)
    with cudnn_double():
        workspace.create_net(NetDef(name="net", device_option=ON_GPU, op=ops), dtype=dtype)
        workspace.run_net("net", 4)
        (plan,) = workspace.net("net").plan_ahead()
        (step,) = [step for step in plan.steps if step.prepared.name == "cuda nb_pixels"]
        (read,), (written,) = step.inputs, step.outputs
        assert (read.spec.nbytes, written.spec.nbytes) == (x.size, x.size * (4 if dtype == "float32" else 2))
        assert elements_of(written.spec) == dtype
        assert [s.node.first.op_def.type for s in plan.steps if written in s.inputs] == ["Conv"]
        assert set(graphs(workspace)) == {0}
        data, y = workspace.fetch("data"), workspace.fetch("y")
    exact = in_float64(x, order)
    plain = interpret([ops[0]], {"x": x})["data"]
    rounded = {"float32": plain, "bfloat16": bfloat16(plain), "float16": plain.astype(np.float16)}[dtype]
    np.testing.assert_array_equal(data, rounded)  # those of the host, rounded once
    want = interpret([ops[1]], {"data": exact, "w": w.astype(np.float64)})["y"]
    rounding = 1e-5 if dtype == "float32" else 4e-2
    np.testing.assert_allclose(y, want, rtol=rounding, atol=rounding * np.abs(want).max())


@pytest.mark.emulated
def test_readers_other_than_convolutions_get_float32():
    x = pixels(2, 4, 4, 3)
    ops = [normalization(3), make_op("Scale", ["data"], ["y"], scale=2.0)]
    workspace = Workspace()
    workspace.feed("x", x, ON_GPU)
    with cudnn_double():
        workspace.create_net(NetDef(name="net", device_option=ON_GPU, op=ops), dtype="bfloat16")
        workspace.run_net("net", 4)
        assert graphs(workspace) == [0, 0]
        np.testing.assert_allclose(workspace.fetch("y"), 2 * in_float64(x, "NCHW"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["float", "float16"])
def test_image_input_normalizes_with_the_same_kernel(tmp_path, kind):
    images = pixels(4, 6, 6, 3)
    path = tmp_path / "images.minidb"
    write_minidb(path, [(f"{k}", image_record(image, k)) for k, image in enumerate(images)])
    op = make_op(
        "ImageInput", [], ["data", "label"], db=str(path), db_type="minidb", batch_size=4, crop=6, is_test=1,
        use_gpu_transform=1, output_type=kind, mean_per_channel=MEANS[:3], std_per_channel=STDS[:3],
    )  # fmt: skip
    with launched() as launches:
        found = run_net([op], {}, ["data", "label"])
    assert launches.count("pixels") == 1
    want = in_float64(images, "NCHW")
    assert found["data"].dtype == {"float": np.float32, "float16": np.float16}[kind]
    np.testing.assert_allclose(found["data"], want, rtol=1e-5 if kind == "float" else 1e-3, atol=1e-3)
