"""RemoveDataBlocks."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.core.operator import STRING
from netbuilder.ops.features.remove_blocks import RemoveDataBlocks
from netbuilder.proto import ShapeError
from suite import OperatorSuite, floats

STRINGS = np.array([b"a", b"b", b"c", b"d"], STRING)


class TestRemoveDataBlocks(OperatorSuite):
    operator = RemoveDataBlocks
    no_gradient = "Caffe2 has none"
    refuses_nothing = "what the indices are is seen when it runs; see test_what_does_not_fit"

    def draw(self, data):
        rows = data.draw(st.integers(0, 5))
        x = data.draw(floats(rows, 2)) if data.draw(st.booleans()) else np.arange(rows)
        gone = data.draw(st.lists(st.integers(0, rows - 1), max_size=4)) if rows else []
        return RemoveDataBlocks(), [x, np.array(gone, data.draw(st.sampled_from([np.int32, np.int64])))]

    def reference(self, op, x, gone):
        return [x[[i for i in range(len(x)) if i not in gone.tolist()]]]

    def test_strings(self):
        assert run_plain(RemoveDataBlocks(), [STRINGS, np.int32([1, 1])])[0].tolist() == [b"a", b"c", b"d"]

    @pytest.mark.parametrize(
        ("x", "gone", "message"),
        [
            (np.ones(2), np.int32([2]), r"indices must lie in \[0, 2\), the rows of data, got values from 2 to 2"),
            (np.ones(2), np.int32([-1]), "got values from -1 to -1"),
            (np.ones(2), np.float32([1]), "indices must be a vector of int32 or int64"),
            (np.float32(1), np.int32([1]), "data must have rows"),
        ],
    )
    def test_what_does_not_fit(self, x, gone, message):
        with pytest.raises(ShapeError, match=message):
            run_plain(RemoveDataBlocks(), [x, gone])
