"""SequenceMask."""

import numpy as np
import pytest
from hypothesis import strategies as st

from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.segments.sequence_mask import SequenceMask
from netbuilder.proto import ArgumentError
from netbuilder.proto.arguments import arguments, make_op
from suite import OperatorSuite, f32, floats, i32, refusal


class TestSequenceMask(OperatorSuite):
    operator = SequenceMask
    refusals = (
        refusal(SequenceMask(mode="left"), [f32(2, 3)], "mode must be one of sequence", ArgumentError),
        refusal(SequenceMask(mode="upper", batch=1), [f32(2, 3)], "batch must be an axis before axis 1, got 1"),
        refusal(SequenceMask(mode="upper", batch=3), [f32(2, 3)], r"batch must lie in \[-2, 2\), got 3"),
        refusal(SequenceMask("sequence", 1, 2, batch=0), [f32(2, 3), i32(2)], "not both", ArgumentError),
        refusal(SequenceMask(mode="upper", repeat_from_axis=1), [f32(2, 3)], "for the mode sequence", ArgumentError),
        refusal(SequenceMask(mode="upper"), [f32(2, 3), i32(2)], "a second input is for", ArgumentError),
        refusal(SequenceMask(mode="upper", axis=2), [f32(2, 3)], r"axis must lie in \[-2, 2\), got 2"),
        refusal(
            SequenceMask(mode="sequence", repeat_from_axis=1),
            [f32(2, 3), i32(2)],
            "repeat_from_axis must be an axis after",
        ),
        refusal(SequenceMask(mode="window"), [f32(2, 3), i32(3)], "must hold 2 integers"),
        refusal(SequenceMask(mode="upper"), [i32(2, 3)], "the inputs must have one floating type, got X int32"),
    )

    def draw(self, data):
        mode = data.draw(st.sampled_from(["sequence", "window", "upper", "lower", "upperdiag", "lowerdiag"]))
        axis = data.draw(st.sampled_from([0, 1, 2, -1]))
        repeat = data.draw(st.sampled_from([0, 2, -1])) if mode == "sequence" and axis in (0, 1) else 0
        batch = data.draw(st.sampled_from([None, 0, -3] + [1] * (axis % 3 == 2))) if axis and not repeat else None
        op = SequenceMask(mode, axis, repeat, radius=1, fill_val=-7.5, grad=data.draw(st.booleans()), batch=batch)
        x = data.draw(floats(2, 3, 4))
        rows = int(np.prod(x.shape[0 if batch is None else batch % 3 + 1 : axis % 3]))
        numbers = data.draw(st.lists(st.integers(0, 5), min_size=rows, max_size=rows))
        return op, [x, np.array(numbers, np.int32)] if mode in ("sequence", "window") else [x]

    def reference(self, op, x, numbers=None):
        y = x.copy()
        for place in np.ndindex(x.shape):
            first = 0 if op.batch is None else op.batch % 3 + 1
            axis, end = op.axis % 3, op.repeat_from_axis % 3 or 3
            i, j = (
                np.ravel_multi_index(place[a:b], x.shape[a:b]) if a < b else 0 for a, b in ((first, axis), (axis, end))
            )
            keep = {
                "sequence": lambda i=i, j=j: j < numbers[i],
                "window": lambda i=i, j=j: abs(j - int(numbers[i])) <= op.radius,
                "upper": lambda i=i, j=j: j <= i,
                "lower": lambda i=i, j=j: j >= i,
                "upperdiag": lambda i=i, j=j: j < i,
                "lowerdiag": lambda i=i, j=j: j > i,
            }[op.mode]()
            if not keep:
                y[place] = 0 if op.grad else op.fill_val
        return [y]


def test_the_gradient_is_a_mask_that_fills_with_zeros():
    made, _ = operator_gradient(make_op("SequenceMask", ["x", "n"], ["y"], mode="sequence"), {0: "dy"})
    assert [(op.type, list(op.input), list(op.output)) for op in made] == [("SequenceMask", ["dy", "n"], ["x_grad"])]
    assert arguments(made[0])["grad"] == 1


@pytest.mark.parametrize("mode", ["upper", "lower", "upperdiag", "lowerdiag"])
def test_several_matrices_without_batch_are_warned_of(mode):
    op = SequenceMask(mode=mode, axis=2)
    with pytest.warns(UserWarning, match=r"takes X of shape \(4, 3, 3\) for one matrix.*give axis=2, batch=0"):
        op.infer(f32(4, 3, 3))
    SequenceMask(mode=mode, axis=2, batch=0).infer(f32(4, 3, 3))
    SequenceMask(mode=mode, axis=1).infer(f32(3, 3))
