"""Rows in 8, 4 and 2 bits: bytes of a row, NaN, and the search for a better scale."""

import numpy as np
import pytest

from netbuilder.ops.quantized.rowwise_quantization import (
    BITS_2,
    BITS_4,
    BITS_8,
    BITS_8_HALF,
    fused_multiply_add,
    quantize_8,
    quantize_half,
    row_bounds,
)

FORMATS = {"8": BITS_8, "8 half": BITS_8_HALF, "4": BITS_4, "2": BITS_2}


@pytest.mark.parametrize("stored", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("shape", [(8,), (3, 4), (2, 1, 12), (0, 4)])
def test_split_gives_what_was_joined(stored, shape):
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 2**stored.bits, shape, dtype=np.uint8)
    scale, bias = (rng.random((*shape[:-1], 1)).astype(stored.number).astype(np.float32) for _ in range(2))
    table = stored.join(np, codes, scale, bias)
    assert (table.shape, table.dtype) == ((*shape[:-1], stored.packed(shape[-1])), np.uint8)
    for got, want in zip(stored.split(np, table), (codes, scale, bias)):
        np.testing.assert_array_equal(got, want)


def test_the_first_code_is_in_the_lowest_bits():
    codes, numbers = np.uint8([1, 2, 3, 0]), (np.float32([1]), np.float32([-2]))
    assert BITS_2.join(np, codes, *numbers).tolist() == [0b00111001, 0x00, 0x3C, 0x00, 0xC0]
    assert BITS_4.join(np, codes, *numbers).tolist() == [0x21, 0x03, 0x00, 0x3C, 0x00, 0xC0]
    assert BITS_8.join(np, codes, *numbers).tolist() == [1, 2, 3, 0, 0, 0, 0x80, 0x3F, 0, 0, 0, 0xC0]


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_errors_are_at_most_half_a_step(bits):
    x = np.random.default_rng(bits).standard_normal((50, 24)).astype(np.float32)
    codes, scale, bias = quantize_8(np, x) if bits == 8 else quantize_half(np, x, bits)
    slack = 0.5 if bits == 8 else 0.52  # scale and bias are rounded to float16 first
    assert codes.max() == 2**bits - 1
    assert (abs(scale * codes + bias - x) <= slack * scale + 1e-3 * abs(x).max()).all()


@pytest.mark.parametrize("bits", [4, 2])
def test_a_greedy_search_never_loses_more(bits):
    x = np.random.default_rng(1).standard_normal((200, 32)).astype(np.float32)

    def loss(greedy):
        codes, scale, bias = quantize_half(np, x, bits, greedy=greedy)
        return np.square(codes * scale + bias - x).sum(axis=1)

    plain, greedy = loss(False), loss(True)
    assert (greedy <= plain * 1.06).all()
    assert greedy.sum() < 0.96 * plain.sum()


def test_rows_of_one_value_are_kept():
    x = np.float32([[2.5] * 4, [0] * 4])
    for codes, scale, bias in (quantize_8(np, x), quantize_half(np, x, 4), quantize_half(np, x, 4, greedy=True)):
        np.testing.assert_array_equal(scale * codes + bias, x)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("bits", [8, 4])
def test_what_is_not_finite_shows_in_its_row(value, bits):
    x = np.float32([[1, value, 3, 4], [1, 2, 3, 4]])
    codes, scale, bias = quantize_8(np, x) if bits == 8 else quantize_half(np, x, bits)
    back = scale * codes + bias
    assert np.isnan(back[0]).any() or np.isinf(back[0]).any()
    assert np.isfinite(back[1]).all()


def test_bounds_and_sums_rounded_once():
    low, high = row_bounds(np.float32([[3, 1, 2]]))
    assert (low.tolist(), high.tolist()) == ([[1]], [[3]])
    a = np.float32([1 + 2**-12])
    assert fused_multiply_add(a, a, np.float32([-1])).tolist() == [2**-11 + 2**-24]
    assert (a * a - 1).tolist() == [2**-11]
