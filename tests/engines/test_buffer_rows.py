"""Rows: buffers next to each other in memory."""

import numpy as np

from netbuilder.engines.buffer_rows import as_row, new_row, order_in_row, row_starts


def test_parts_begin_at_multiples_of_64_bytes():
    assert row_starts([4, 64, 65, 8]) == [0, 64, 128, 256, 264]
    row, parts = new_row([4, 8])
    assert row.nbytes == 72 and not row.any() and row.ctypes.data % 64 == 0
    assert [part.ctypes.data - row.ctypes.data for part in parts] == [0, 64]


def test_only_parts_of_one_row_in_order_are_a_row():
    row, (a, b, c) = new_row([4, 8, 64])
    found = as_row([a, b, c])
    assert found.ctypes.data == row.ctypes.data and found.nbytes == row.nbytes
    assert as_row([b, c]).nbytes == 128 and as_row([a]).nbytes == 4
    assert as_row([b, a]) is None and as_row([a, c]) is None and as_row([a, a]) is None
    assert as_row([a, np.zeros(8, np.uint8)]) is None


def test_the_order_of_buffers_in_a_row():
    _, (a, b, c) = new_row([4, 8, 64])
    assert order_in_row([b, c, a]) == [2, 0, 1] and order_in_row([c]) == [0]
    assert order_in_row([c, a]) is None and order_in_row([a, b, np.zeros(8, np.uint8)]) is None
