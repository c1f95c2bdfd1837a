"""RowWiseCounter."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.updates.row_counter import RowWiseCounter
from suite import OperatorSuite, f32, i32, i64, refusal

COUNTS = TensorSpec((4,), np.dtype(np.float64))


class TestRowWiseCounter(OperatorSuite):
    operator = RowWiseCounter
    no_gradient = "an update"
    refusals = (
        refusal(RowWiseCounter(), [i32(4), COUNTS, i32(2), i64(1)], "prev_iter must have"),
        refusal(RowWiseCounter(), [i64(2, 2), COUNTS, i32(2), i64(1)], "prev_iter must have"),
        refusal(
            RowWiseCounter(),
            [i64(4), f32(4), i32(2), i64(1)],
            "update_counter must have elements of type float64, got float32",
        ),
        refusal(
            RowWiseCounter(),
            [i64(4), COUNTS, f32(2), i64(1)],
            "indices must have elements of type int32 or int64, got float32",
        ),
        refusal(RowWiseCounter(), [i64(4), COUNTS, i32(2), i64(2)], r"iter must have one element, got shape \(2,\)"),
    )

    def draw(self, data):
        indices = np.array(data.draw(st.lists(st.integers(0, 3), max_size=6)), np.int64)
        op = RowWiseCounter(counter_halflife=data.draw(st.sampled_from([-1, 1, 3])))
        shapes = st.sampled_from([(4,), (4, 1)])
        state = [np.int64([0, 1, 4, 7]), np.float64([0, 1.5, 2, 3])]
        state = [values.reshape(data.draw(shapes)) for values in state]
        return op, [*state, indices, np.int64([5])]

    def reference(self, op, before, counts, indices, iteration):
        shapes, before, counts = (before.shape, counts.shape), before.flatten(), counts.flatten()
        for i in indices if op.counter_halflife > 0 else []:
            passed = max(iteration.item() - before[i], 0)
            counts[i] = 1 + counts[i] * 0.5 ** (passed / op.counter_halflife)
            before[i] += passed
        return [before.reshape(shapes[0]), counts.reshape(shapes[1])]
