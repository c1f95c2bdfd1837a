"""SparseLengthsSumSparseLookup."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.segments.sparse_lookup import SparseLengthsSumSparseLookup
from netbuilder.proto import NetError, ShapeError
from suite import OperatorSuite, i32, refusal

LOOKUP = SparseLengthsSumSparseLookup().with_arity(3, 2)


class TestSparseLengthsSumSparseLookup(OperatorSuite):
    operator = SparseLengthsSumSparseLookup
    no_gradient = "none passes, as in Caffe2"
    refusals = (refusal(SparseLengthsSumSparseLookup(), [i32(2)] * 3, "got 3 for 3 inputs", NetError, n_out=3),)

    def draw(self, data):
        lengths = np.array(data.draw(st.lists(st.integers(0, 3), max_size=4)), np.int32)
        count = int(lengths.sum())
        mapping = np.array(data.draw(st.lists(st.integers(-1, 9), min_size=1, max_size=5)), np.int32)
        chosen = data.draw(st.lists(st.integers(0, mapping.size - 1), min_size=count, max_size=count))
        inputs = [np.array(chosen, data.draw(st.sampled_from([np.int32, np.int64]))), lengths, mapping]
        if data.draw(st.booleans()):
            inputs.append(np.arange(count, dtype=np.float32) + 0.5)
        return SparseLengthsSumSparseLookup().with_arity(len(inputs), len(inputs) - 1), inputs

    def reference(self, op, indices, lengths, mapping, weights=None):
        left, counts, kept, rest = [], [], [], iter(range(indices.size))
        for n in lengths.tolist():
            places = [next(rest) for _ in range(n)]
            there = [i for i in places if mapping[indices[i]] != -1]
            counts.append(len(there))
            kept += there
            left += [int(mapping[indices[i]]) for i in there]
        made = [np.array(left, int), np.array(counts, int)]
        return made if weights is None else [*made, weights[np.array(kept, int)]]


def test_the_numbers_of_caffe2_and_the_types():
    inputs = [np.int64([0, 1, 2, 3, 1]), np.int32([3, 0, 2]), np.int32([2, -1, 0, 5])]
    indices, lengths = run_plain(LOOKUP, inputs)
    assert (indices.tolist(), indices.dtype) == ([2, 0, 5], np.int64)
    assert (lengths.tolist(), lengths.dtype) == ([2, 0, 1], np.int32)
    inputs[1] = inputs[1].astype(np.int64)
    assert run_plain(LOOKUP, inputs)[1].dtype == np.int64


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([np.float32([0]), np.int32([1]), np.int32([0])], "INDICES must be a vector of int32 or int64"),
        ([np.int32([0]), np.int32([1]), np.int64([0])], "COMPRESSED_INDICES_MAPPING must be int32, got int64"),
        ([np.int32([0]), np.int32([2]), np.int32([0])], "must be the number of rows, 1, got 2"),
        ([np.int32([3]), np.int32([1]), np.int32([0])], r"INDICES must lie in \[0, 1\), the size of the mapping"),
        ([np.int32([0]), np.int32([1]), np.int32([0]), np.float32([1, 2])], r"weights must have shape \(1,\)"),
    ],
)
def test_what_does_not_fit(inputs, message):
    with pytest.raises(ShapeError, match=message):
        run_plain(SparseLengthsSumSparseLookup().with_arity(len(inputs), len(inputs) - 1), inputs)
