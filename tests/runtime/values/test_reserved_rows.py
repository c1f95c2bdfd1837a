"""Blobs with memory that is reserved in a row."""

import numpy as np

from netbuilder.engines.buffer_rows import as_row
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.runtime.values.blob import Blob, Generation
from netbuilder.runtime.values.reserved_rows import reserve_row


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
