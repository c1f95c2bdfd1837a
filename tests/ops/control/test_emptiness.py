"""HasElements and IsEmpty."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.control.emptiness import HasElements, IsEmpty
from suite import OperatorSuite

SHAPES = st.sampled_from([(), (0,), (2,), (2, 0, 1), (2, 1)])


class TestHasElements(OperatorSuite):
    operator = HasElements
    wrt = ()
    no_gradient = "its output is a bool"
    refuses_nothing = "takes tensors of all shapes and types"

    def draw(self, data):
        shapes = data.draw(st.lists(SHAPES, min_size=1, max_size=3))
        return HasElements(), [np.zeros(shape, data.draw(st.sampled_from([np.float32, np.int64]))) for shape in shapes]

    def reference(self, op, *xs):
        return [np.array(sum(x.size for x in xs) > 0)]


class TestIsEmpty(OperatorSuite):
    operator = IsEmpty
    wrt = ()
    no_gradient = "its output is a bool"
    refuses_nothing = "takes tensors of all shapes and types"

    def draw(self, data):
        return IsEmpty(), [np.zeros(data.draw(SHAPES), np.float32)]

    def reference(self, op, x):
        return [np.array(0 in x.shape)]
