"""NonZero."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.arrange.non_zero import NonZero
from suite import OperatorSuite, floats


class TestNonZero(OperatorSuite):
    operator = NonZero
    no_gradient = "the result is whole numbers"
    refuses_nothing = "it takes any numbers"

    def draw(self, data):
        x = data.draw(floats((1, 3), (1, 3)))
        return NonZero(), [np.where(x > 0, x, np.float32(0)).astype(data.draw(st.sampled_from(["f4", "i8", "?"])))]

    def reference(self, op, x):
        return [np.argwhere(x).T]


@pytest.mark.parametrize(("x", "count"), [(0.0, 0), (2.0, 1)])
def test_a_scalar_has_no_axes(x, count):
    (y,) = run_plain(NonZero(), [np.array(x, np.float32)])
    assert y.shape == (0, count)
