"""Dummy batches: shapes, labels, the end."""

import numpy as np
import pytest

from netbuilder.data import dummy_batches
from netbuilder.proto import NetError


def test_batches():
    first, second = dummy_batches({"data": (5, 2), "more": (1,)}, labels={"label": 2}, count=2)
    assert (first["data"].shape, first["data"].dtype, first["label"].dtype) == ((5, 2), np.float32, np.int32)
    assert first["label"].tolist() == [0, 1, 0, 1, 0]
    assert second["data"] is first["data"] and first["data"].std() > 0
    np.testing.assert_array_equal(next(dummy_batches({"data": (5, 2)}))["data"], first["data"])
    assert not np.array_equal(next(dummy_batches({"data": (5, 2)}, seed=1))["data"], first["data"])


@pytest.mark.parametrize("options", [{"shapes": {}}, {"shapes": {"x": (0, 2)}}, {"shapes": {"x": ()}}])
def test_wrong_shapes(options):
    with pytest.raises(NetError, match="all extents of shapes must be 1 or greater"):
        dummy_batches(**options)
    with pytest.raises(NetError, match="count must not be negative, got -1"):
        dummy_batches({"x": (1,)}, count=-1)
    with pytest.raises(NetError, match="at least one class"):
        dummy_batches({"x": (1,)}, labels={"label": 0})
