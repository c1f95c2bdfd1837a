"""16-bit floating types and sums in the order of ranks, against NumPy."""

import numpy as np
import pytest

from kernel_checks import needs_bfloat16
from netbuilder.data.tensor_records import proto_to_tensor, tensor_to_proto
from netbuilder.distributed.transport import reductions
from netbuilder.distributed.transport.reductions import narrow, split_evenly, sum_rows, widen
from netbuilder.engines import onednn
from netbuilder.engines.onednn import conversions
from netbuilder.engines.onednn.conversions import converted

PIECE = 1 << 16
needs_onednn = pytest.mark.skipif(not onednn.available(), reason="needs oneDNN")
SIZES = [0, 1, 1000, PIECE, PIECE + 7]


def values(size, seed=0):
    x = np.random.default_rng(seed).normal(size=size).astype(np.float32)
    x[::7] *= 1e-3
    return x


def stored_bfloat16(x):
    """float32 rounded to bfloat16, by the code that writes files."""
    return proto_to_tensor(tensor_to_proto(x, bfloat16=True))


@pytest.mark.parametrize("size", SIZES)
def test_bfloat16_is_rounded_as_in_files(size):
    x = values(size)
    bits, back = np.empty(size, np.uint16), np.empty(size, np.float32)
    narrow(x, bits)
    widen(bits, back)
    np.testing.assert_array_equal(back, stored_bfloat16(x))


def test_nan_infinity_and_ties():
    x = np.float32([np.nan, np.inf, -np.inf, 1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, -0.0])
    bits, back = np.empty(x.size, np.uint16), np.empty(x.size, np.float32)
    narrow(x, bits)
    widen(bits, back)
    np.testing.assert_array_equal(back, np.float32([np.nan, np.inf, -np.inf, 1, 1 + 2**-6, np.inf, -0.0]))
    assert np.signbit(back[-1])
    half = np.empty(x.size, np.float16)
    with np.errstate(over="ignore"):  # as plans and the lane run
        narrow(x, half)
        np.testing.assert_array_equal(half, x.astype(np.float16))


@pytest.mark.parametrize("size", SIZES[1:])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.int64])
def test_sums(dtype, size):
    rows = [(values(size, seed) * 10).astype(dtype) for seed in range(3)]
    out = np.empty(size, dtype)
    sum_rows(rows, out)
    wide = np.float32 if dtype == np.float16 else dtype
    expected = ((rows[0].astype(wide) + rows[1].astype(wide)) + rows[2].astype(wide)).astype(dtype)
    np.testing.assert_array_equal(out, expected)
    first = rows[0]
    sum_rows(rows, first)  # into the first row
    np.testing.assert_array_equal(first, expected)


def test_bfloat16_is_summed_in_float32():
    rows = [np.float32([256, 1]), np.float32([1, 1]), np.float32([1, 1])]
    bits = []
    for row in rows:
        bits.append(np.empty(2, np.uint16))
        narrow(row, bits[-1])
    total, out = np.empty(2, np.uint16), np.empty(2, np.float32)
    sum_rows(bits, total, bfloat16=True)
    widen(total, out)
    assert out.tolist() == [258, 3]  # 256 + 1 is 256 in bfloat16


@needs_onednn
@pytest.mark.parametrize("dtype", [np.float16, np.uint16])
def test_onednn_rounds_as_numpy_does(dtype, monkeypatch):
    x = values(3 * PIECE + 5) * 10.0 ** np.random.default_rng(1).integers(-7, 5, 3 * PIECE + 5).astype(np.float32)
    special = [np.nan, np.inf, -np.inf, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, 65519, 65520, 3.4e38, 2**-24, 2**-25, 3e-25]
    x[: len(special)] = special

    def results():
        stored, back = np.empty(x.size, dtype), np.empty(x.size, np.float32)
        with np.errstate(all="ignore"):
            narrow(x, stored)
            widen(stored, back)
            total = np.empty(x.size, dtype)
            sum_rows([stored, stored[::-1].copy(), stored], total, bfloat16=dtype == np.uint16)
            summed = np.empty(x.size, np.float32)
            widen(total, summed)
        return back, summed

    got = results()
    monkeypatch.setattr(reductions, "_converted", lambda *arguments, **options: False)
    for one, other in zip(got, results()):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(np.signbit(one), np.signbit(other))


@needs_bfloat16
def test_what_onednn_does_not_convert():
    x, out = values(20000), np.zeros(20000, np.uint16)
    assert converted(x, out) and not converted(x[:100], out[:100])
    assert not converted(x[::2], out[:10000]) and not converted(x[:10000], out[::2])
    total = np.ones(20000, np.float32)
    assert converted(out, total, add=True)
    np.testing.assert_array_equal(total, 1 + stored_bfloat16(x))


@needs_onednn
@pytest.mark.parametrize("dtype", [np.float16, np.uint16])
def test_onednn_converts_only_by_compiled_code(dtype, monkeypatch):
    x, out = values(20000), np.zeros(20000, dtype)
    made, before = [], conversions._step
    monkeypatch.setattr(conversions, "_step", lambda primitive: made.append(primitive.name) or before(primitive))
    assert converted(x, out) == bool(made) and not any("simple" in name for name in made)


@pytest.mark.parametrize(("size", "parts"), [(0, 3), (2, 3), (9, 3), (10, 4)])
def test_parts_of_almost_the_same_size(size, parts):
    found = split_evenly(size, parts)
    assert sum(found) == size and len(found) == parts and max(found) - min(found) <= 1
