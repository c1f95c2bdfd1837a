"""Layouts: compared by meaning, plain where they are, and undone by a reorder."""

import numpy as np
import pytest

from netbuilder.engines import onednn
from netbuilder.ops.core.operator import TensorSpec
from prepared import FakePlan, Value

if not onednn.available():
    pytest.skip("needs oneDNN", allow_module_level=True)

from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.blocked_layout import (
    channel_block,
    channel_blocked,
    desc_in,
    desc_of,
    elements,
    grouped,
    image_view,
    layout_of,
    plain_desc,
    rounded,
    row_major,
)

F32 = np.dtype(np.float32)


def blocked(shape, block=16, last=False, dtype=np.float32, code=c.F32):
    return TensorSpec(shape, np.dtype(dtype), channel_blocked(image_view(shape, last), code, block))


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 17, 3, 3), (1, 48, 2), (2, 5, 2, 3, 2)])
@pytest.mark.parametrize("block", [8, 16])
def test_blocked_and_back(shape, block):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    spec = blocked(shape, block)
    moved = Value.of(x).to(spec)
    padded = -(-shape[1] // block) * block
    assert spec.nbytes == moved.buffer.nbytes == 4 * x.size // shape[1] * padded
    raw = moved.buffer.view(np.float32).reshape(shape[0], padded // block, *shape[2:], block)
    want = np.zeros((shape[0], padded, *shape[2:]), np.float32)
    want[:, : shape[1]] = x
    np.testing.assert_array_equal(np.moveaxis(raw, -1, 2).reshape(want.shape), want)  # padding is zero
    np.testing.assert_array_equal(moved.plain(), x)


@pytest.mark.parametrize("dtype, code", [(np.float32, c.F32), (np.int32, c.S32), (np.uint8, c.U8), (np.int8, c.S8)])
def test_element_types(dtype, code):
    x = (np.arange(2 * 19 * 3 * 3).reshape(2, 19, 3, 3) % 100).astype(dtype)
    moved = Value.of(x).to(blocked(x.shape, 16, dtype=dtype, code=code))
    np.testing.assert_array_equal(moved.plain(), x)


def test_channels_last_images_are_blocked_too():
    x = np.random.default_rng(1).standard_normal((2, 4, 5, 20)).astype(np.float32)
    moved = Value.of(x).to(blocked(x.shape, 16, last=True))
    raw = moved.buffer.view(np.float32).reshape(2, 2, 4, 5, 16)
    np.testing.assert_array_equal(raw[:, 1, :, :, :4], x[..., 16:])
    np.testing.assert_array_equal(moved.plain(), x)


def test_equal_orders_are_one_layout():
    view = image_view((2, 16, 3, 3))
    strided = plain_desc(view, F32)
    by_strides = layout_of(plain_desc(image_view((2, 3, 3, 16), True), F32).handle, view)
    assert by_strides is channel_blocked(view, c.F32, 16), "16 channels in one block are stored as channels last are"
    assert layout_of(strided.handle, view) is None


def test_a_blocked_order_that_is_plain_is_none():
    assert channel_blocked(image_view((4, 32, 1, 1)), c.F32, 16) is None
    assert channel_blocked(image_view((4, 32, 2, 1)), c.F32, 16) is not None
    assert channel_blocked(image_view((4, 20, 1, 1)), c.F32, 16) is not None, "padded"


def test_layouts_are_distinguished():
    shape = (2, 32, 3, 3)
    found = {blocked(shape, 16), blocked(shape, 8), TensorSpec(shape, F32), blocked(shape, 16)}
    assert len(found) == 3
    assert blocked(shape, 16) == blocked(shape, 16)
    assert blocked(shape, 16).layout.engine == "ONEDNN"
    assert channel_block(blocked(shape, 8).layout) == 8
    assert "aBcd16b of 2x32x3x3" in repr(blocked(shape, 16).layout)


def test_grouped_weights_are_seen_with_a_dimension_for_the_group():
    view = grouped(image_view((6, 2, 3, 3)), 3)
    assert view.dims == (3, 2, 2, 3, 3)
    assert view.strides == (36, 18, 9, 3, 1)


def test_reorder_between_two_views_of_a_value():
    x = np.random.default_rng(2).standard_normal((4, 16, 2, 2)).astype(np.float32)
    first = blocked(x.shape, 16)
    flat = row_major((4, 64))
    second = TensorSpec(
        x.shape, F32, layout_of(plain_desc(type(flat)(flat.dims, (1, 4)), F32).handle, flat)
    )  # stored transposed
    moved = Value.of(x).to(first).to(second)
    np.testing.assert_array_equal(moved.buffer.view(np.float32).reshape(64, 4).T, x.reshape(4, 64))
    np.testing.assert_array_equal(moved.plain(), x)


def rounded_to_bfloat16(x):
    """The nearest numbers with 8 bits before the exponent's, ties to even, in NumPy."""
    bits = x.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("shape", [(2, 19, 3, 3), (1, 32, 2), (5, 7), (300,), ()])
@pytest.mark.parametrize("block", [0, 8, 16])
def test_float32_rounded_to_bfloat16_and_back(shape, block):
    x = (np.random.default_rng(0).standard_normal(shape) * 1e3).astype(np.float32)
    layout = rounded(x.size)
    if block and len(shape) > 2:
        layout = channel_blocked(image_view(shape), c.BF16, block)
    spec = TensorSpec(shape, F32, layout)
    moved = Value.of(x).to(spec)
    assert spec.rounds and spec.dtype == F32 and not spec.plain.rounds
    assert spec.nbytes == 2 * elements(spec) and elements(spec) >= x.size
    np.testing.assert_array_equal(moved.plain(), rounded_to_bfloat16(np.atleast_1d(x)).reshape(shape))
    raw = moved.buffer.view(np.uint16).astype(np.uint32) << 16
    assert np.count_nonzero(raw) == np.count_nonzero(x), "padding is zero"


def test_orders_in_bfloat16_are_distinguished_from_those_in_float32():
    shape = (2, 32, 3, 3)
    wide, narrow = blocked(shape), blocked(shape, code=c.BF16)
    assert wide.layout is not narrow.layout and 2 * narrow.nbytes == wide.nbytes
    assert "bfloat16" in repr(narrow.layout)
    assert desc_in(narrow, image_view(shape), c.F32).order is wide.layout
    assert desc_in(wide, image_view(shape), c.BF16).order is narrow.layout


def test_the_plain_order_in_bfloat16_is_one_layout_for_all_views():
    shape = (2, 20, 3, 3)
    spec = TensorSpec(shape, F32, rounded(360))
    for view in (image_view(shape), image_view(shape, True), row_major((40, 9))):
        assert layout_of(desc_of(spec, view).handle, view) is rounded(360)
    assert channel_blocked(image_view((4, 32, 1, 1)), c.BF16, 16) is rounded(128)


@pytest.mark.parametrize("narrow", [False, True])
def test_reorders_between_types_and_orders(narrow):
    x = np.random.default_rng(3).integers(-99, 99, (2, 24, 3, 5)).astype(np.float32)  # no bit is lost
    code = c.BF16 if narrow else c.F32
    specs = [
        blocked(x.shape, 16, code=code),
        blocked(x.shape, 8, code=c.BF16),
        TensorSpec(x.shape, F32, rounded(x.size)),
    ]
    for source in specs:
        for target in [*specs, TensorSpec(x.shape, F32)]:
            np.testing.assert_array_equal(Value.of(x).to(source).to(target).plain(), x)


def test_reorder_within_one_layout_is_a_copy():
    value = Value.of(np.arange(6.0, dtype=np.float32))
    change = onednn.reorder(FakePlan(), value.spec, value.spec)
    target = np.zeros(6, np.float32)
    change.bind([value.buffer], [target], None)()
    np.testing.assert_array_equal(target, np.arange(6))


def test_reorder_refuses_another_shape():
    with pytest.raises(ValueError, match="neither shape nor dtype"):
        onednn.reorder(FakePlan(), TensorSpec((2, 3), F32), TensorSpec((3, 2), F32))
