"""StumpFunc and StumpFuncIndex."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.features.stump import StumpFunc, StumpFuncIndex
from netbuilder.proto import ShapeError
from suite import OperatorSuite, floats, i32, refusal


class TestStumpFunc(OperatorSuite):
    operator = StumpFunc
    no_gradient = "as in Caffe2"
    refusals = (refusal(StumpFunc(), [i32(3)], "the inputs must have one floating type"),)

    def draw(self, data):
        threshold = data.draw(st.sampled_from([-0.5, 0.0, 1.25]))
        return StumpFunc(threshold=threshold, low_value=-1.5, high_value=2), [data.draw(floats((0, 3), (0, 4)))]

    def reference(self, op, x):
        return [np.array([-1.5 if v <= op.threshold else 2 for v in x.flat]).reshape(x.shape)]


class TestStumpFuncIndex(OperatorSuite):
    operator = StumpFuncIndex
    no_gradient = "gives places"
    refuses_nothing = "what is wrong shows when it runs; see below"

    def draw(self, data):
        return StumpFuncIndex(threshold=0.25), [data.draw(floats((0, 3), (0, 4)))]

    def reference(self, op, x):
        places = list(enumerate(x.flat))
        return [
            np.array([i for i, v in places if v <= 0.25], np.int64),
            np.array([i for i, v in places if not v <= 0.25], np.int64),
        ]


def test_nan_is_on_the_high_side_and_whole_numbers_are_refused():
    low, high = run_plain(StumpFuncIndex(), [np.float32([np.nan, 0, 1])])
    assert (low.tolist(), high.tolist(), low.dtype) == ([1], [0, 2], np.int64)
    with pytest.raises(ShapeError, match="floating-point numbers, got int64"):
        run_plain(StumpFuncIndex(), [np.array([1])])
