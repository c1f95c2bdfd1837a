"""Tables of quantized rows for tests, put together bit by bit."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.core.operator import TensorSpec

__all__ = ["draw_rows", "f16", "packed", "u8"]


def f16(*shape):
    return TensorSpec(shape, np.dtype(np.float16))


def u8(*shape):
    return TensorSpec(shape, np.dtype(np.uint8))


def packed(codes, bits, numbers, kind):
    """The bytes of one row, put together bit by bit."""
    text = "".join(f"{code:0{bits}b}" for code in codes[::-1])
    whole = int(text, 2).to_bytes(-(-len(text) // 8), "little")
    return np.frombuffer(whole + np.array(numbers, kind).tobytes(), np.uint8)


def draw_rows(data, bits, kind, rows=None):
    """A random quantized table, and the values that it represents, in float64."""
    columns = 8 // bits * data.draw(st.integers(1, 4))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    count = data.draw(st.integers(0, 4)) if rows is None else rows
    codes = rng.integers(0, 2**bits, (count, columns))
    numbers = rng.standard_normal((count, 2)).astype(kind)
    table = [packed(row.tolist(), bits, pair, kind) for row, pair in zip(codes, numbers)]
    width = columns * bits // 8 + 2 * np.dtype(kind).itemsize
    wide = numbers.astype(np.float64)
    return np.array(table, np.uint8).reshape(count, width), codes * wide[:, :1] + wide[:, 1:]
