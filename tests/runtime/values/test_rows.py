"""Blobs in rows: moved there, or with memory reserved there."""

import numpy as np

from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.arrays import as_flat
from netbuilder.ops.engines.rows import as_row
from netbuilder.runtime.values.blob import Blob, Generation
from netbuilder.runtime.values.rows import make_row_of, reserve_row


def made(*values):
    generation = Generation()
    blobs = [Blob(str(i), generation) for i in range(len(values))]
    for blob, value in zip(blobs, values):
        blob.store(np.asarray(value, np.float32))
    return blobs


def test_blobs_are_moved_once():
    a, b, c = made([[1, 2]], [3], [4, 5])
    make_row_of([a, b])
    number = a._generation.number
    assert as_row([a.buffer, b.buffer]) is not None
    np.testing.assert_array_equal(a.fetch(), [[1, 2]])
    np.testing.assert_array_equal(b.fetch(), [3])
    make_row_of([a, b])
    make_row_of([b, c])
    assert number == a._generation.number and as_row([b.buffer, c.buffer]) is None
    a.store(np.float32([[6, 7]]))
    buffer = a.buffer_for(TensorSpec((1, 2), np.dtype(np.float32)))
    assert a.buffer is buffer and as_row([a.buffer, b.buffer]) is not None
    np.testing.assert_array_equal(a.fetch(), [[6, 7]])


def test_memory_that_is_reserved_in_a_row():
    spec, other = TensorSpec((3,), np.dtype(np.float32)), TensorSpec((2, 2), np.dtype(np.float32))
    a, b, c = (Blob(name, Generation()) for name in "abc")
    reserve_row([(a, spec), (b, other)])
    parts = [a.buffer_for(spec), b.buffer_for(other)]
    assert as_row(parts) is not None and [part.shape for part in parts] == [(3,), (2, 2)]
    assert as_row([a.buffer_for(other), b.buffer_for(other)]) is None
    own = c.buffer_for(spec)
    reserve_row([(b, spec), (c, spec)])  # one of them has a buffer
    assert c.buffer_for(spec) is own and not b.has_buffer_for(spec)
    reserve_row([(b, spec), (b, spec)])
    assert not b.has_buffer_for(spec)


def test_what_cannot_be_moved():
    a, b, c, d = made([1], [2], [3], [4])
    make_row_of([a, a])
    assert a.may_move
    b.share(as_flat(np.zeros(1, np.float32), np.float32), b.location)
    c.lazy = lambda: np.ones(1, np.float32)
    text = Blob("text", Generation())
    text.store("text")
    for blob in (b, c, text, Blob("empty", Generation())):
        assert not blob.may_move
        make_row_of([d, blob])
    assert d.may_move
    d.ring_for(d.spec)
    assert not d.may_move
