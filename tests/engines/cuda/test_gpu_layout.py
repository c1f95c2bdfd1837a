"""The layout of values on GPUs, and copies between layouts."""

import numpy as np
import pytest

from netbuilder.engines.cuda.gpu_layout import ChannelsLast, elements_of, image_spec, row_major_spec
from netbuilder.engines.gpu import gpu
from netbuilder.engines.layouts import new_buffer, prepare_reorder
from netbuilder.ops.core.extensions import Capturable
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import PROTO_CUDA, DeviceError

THERE = (PROTO_CUDA, 0)
IMAGES = TensorSpec((2, 3, 4, 5), np.dtype(np.float32))


def test_channels_last():
    spec = image_spec(IMAGES, "NCHW", "bfloat16")
    assert spec.layout == ChannelsLast(2, 3, 20, "bfloat16")
    assert (spec.nbytes, spec.rounds, elements_of(spec), spec.plain) == (240, True, "bfloat16", IMAGES)
    assert str(spec.layout) == "<cuDNN layout channels last of 2x3x20 in bfloat16>"


@pytest.mark.parametrize(
    "shape, order", [((4, 1, 5, 5), "NCHW"), ((4, 8, 1, 1), "NCHW"), ((4, 8), "NCHW"), ((2, 4, 5, 3), "NHWC")]
)
def test_orders_that_are_the_same_have_one_layout(shape, order):
    """Plain order in the value's own type is no layout at all: nothing is converted."""
    spec = TensorSpec(shape, np.dtype(np.float32))
    assert image_spec(spec, order, "float32") == spec
    assert image_spec(spec, order, "bfloat16") == row_major_spec(spec, "bfloat16")
    assert str(row_major_spec(spec, "bfloat16").layout).startswith("<cuDNN layout plain order")


def layouts_of(spec):
    yield spec
    for elements in ("float32", "bfloat16", "float16"):
        yield row_major_spec(spec, elements)
        yield image_spec(spec, "NCHW", elements)
    yield spec.with_layout(ChannelsLast(6, 4, 5, "float32"))
    yield spec.with_layout(ChannelsLast(6, 4, 5, "bfloat16"))


@pytest.mark.emulated
@pytest.mark.parametrize("source", dict.fromkeys(layouts_of(IMAGES)))
@pytest.mark.parametrize("target", dict.fromkeys(layouts_of(IMAGES)))
def test_reorder(source, target):
    """Each way from layout to layout and back to plain order keeps numbers that all types have."""
    values = np.arange(120, dtype=np.float32).reshape(IMAGES.shape)
    with gpu(0) as there:
        buffer = there.xp.asarray(values)
        for before, after in ((IMAGES, source), (source, target), (target, IMAGES)):
            if before == after:
                continue
            made = prepare_reorder(None, before, after, THERE)
            assert made.get(Capturable)
            out = new_buffer(after, THERE)
            scratch = there.xp.empty(made.scratch, np.uint8)
            made.bind([buffer], [out], scratch)()
            buffer = out
        assert buffer.get().tolist() == values.tolist()


def test_layouts_are_for_gpus():
    with pytest.raises(DeviceError, match="not in the host's"):
        new_buffer(image_spec(IMAGES, "NCHW", "bfloat16"))
