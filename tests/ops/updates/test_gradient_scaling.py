"""AllFinite, DivideBlobs, SaveBlobs, RestoreBlobs and UpdateGradientScale."""

import numpy as np
import pytest
from hypothesis import strategies as st

from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.updates.gradient_scaling import AllFinite, DivideBlobs, RestoreBlobs, SaveBlobs, UpdateGradientScale
from netbuilder.proto import ArgumentError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, i32, refusal

FLAG = TensorSpec((1,), np.dtype(bool))
UPDATE = "it is for updates"


class TestAllFinite(OperatorSuite):
    operator = AllFinite
    no_gradient = UPDATE
    refusals = (refusal(AllFinite(), [f32(2), i32(2)], "the inputs must have one floating type"),)

    def draw(self, data):
        xs = [data.draw(floats((0, 3), (1, 3))) for _ in range(data.draw(st.integers(1, 3)))]
        worst = data.draw(st.sampled_from([None, np.inf, -np.inf, np.nan]))
        if worst is not None and xs[-1].size:
            xs[-1].flat[data.draw(st.integers(0, xs[-1].size - 1))] = worst
        return AllFinite().with_arity(len(xs), 1), xs

    def reference(self, op, *xs):
        return [np.array([all(np.isfinite(x).all() for x in xs)])]


class TestDivideBlobs(OperatorSuite):
    operator = DivideBlobs
    no_gradient = UPDATE
    refusals = (
        refusal(DivideBlobs(), [f32(2), f32(2)], r"scale must have shape \(1,\)"),
        refusal(DivideBlobs(), [f32(1), i32(2)], "the inputs must have one floating type"),
        refusal(DivideBlobs(), [f32(1), f32(2)], "got 2 inputs and 2 outputs", ArgumentError, n_out=2),
    )

    def draw(self, data):
        xs = [data.draw(floats((0, 3), (1, 3))) for _ in range(data.draw(st.integers(1, 3)))]
        scale = np.float32([data.draw(st.sampled_from([0.5, 3.0, 65536.0]))])
        return DivideBlobs().with_arity(len(xs) + 1, len(xs)), [scale, *xs]

    def reference(self, op, scale, *xs):
        return [(x.astype(np.float64) / scale).astype(x.dtype) for x in xs]


class TestSaveBlobs(OperatorSuite):
    operator = SaveBlobs
    no_gradient = UPDATE
    refusals = (
        refusal(SaveBlobs(), [f32(1), f32(2)], "as many outputs as inputs, got 2 inputs and 1 outputs", ArgumentError),
    )

    def draw(self, data):
        xs = [data.draw(floats((0, 3), (1, 3))) for _ in range(data.draw(st.integers(1, 3)))]
        return SaveBlobs().with_arity(len(xs), len(xs)), xs

    def reference(self, op, *xs):
        return list(xs)


class TestRestoreBlobs(OperatorSuite):
    operator = RestoreBlobs
    no_gradient = UPDATE
    refusals = (
        refusal(RestoreBlobs(), [f32(1), f32(2), f32(2)], "condition must have elements of type bool, got float32"),
        refusal(RestoreBlobs(), [FLAG, f32(2), f32(3)], "input 1 and its earlier value, input 2, must have one shape"),
        refusal(RestoreBlobs(), [FLAG, f32(2)], "as many earlier values; got 2 inputs and 1 outputs", ArgumentError),
    )

    def draw(self, data):
        xs = [data.draw(floats((1, 3), (1, 3))) for _ in range(data.draw(st.integers(1, 3)))]
        before = [data.draw(floats(*x.shape)) for x in xs]
        flag = np.array([data.draw(st.booleans())])
        return RestoreBlobs().with_arity(1 + 2 * len(xs), len(xs)), [flag, *xs, *before]

    def reference(self, op, flag, *xs):
        return list(xs[: op.n_out] if flag[0] else xs[op.n_out :])


class TestUpdateGradientScale(OperatorSuite):
    operator = UpdateGradientScale
    no_gradient = UPDATE
    refusals = (
        refusal(UpdateGradientScale(), [f32(2), i32(1), FLAG], r"scale must have shape \(1,\)"),
        refusal(UpdateGradientScale(), [f32(1), f32(1), FLAG], "steps must have elements of type int32"),
        refusal(UpdateGradientScale(), [f32(1), i32(1), i32(1)], "finite must have elements of type bool"),
        refusal(UpdateGradientScale(growth=0.5), [f32(1), i32(1), FLAG], "growth must be at least 1", ArgumentError),
        refusal(UpdateGradientScale(interval=0), [f32(1), i32(1), FLAG], "interval at least 1", ArgumentError),
    )

    def draw(self, data):
        scale = np.float32([data.draw(st.sampled_from([2.0**-14, 1.0, 65536.0, 2.0**100]))])
        steps = np.int32([data.draw(st.integers(0, 3))])
        return UpdateGradientScale(interval=3), [scale, steps, np.array([data.draw(st.booleans())])]

    def reference(self, op, scale, steps, finite):
        if not finite[0]:
            return [np.maximum(scale * np.float32(0.5), np.float32(2**-14)), np.int32([0])]
        if steps[0] + 1 >= 3:
            return [np.minimum(scale * np.float32(2), np.float32(2.0**100)), np.int32([0])]
        return [scale, steps + 1]


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_float16_is_divided_in_float32(dtype):
    workspace = Workspace()
    workspace.feed("scale", np.float32([65536]))
    workspace.feed("x", np.array([1024, 6e4], dtype))
    workspace.run_operator_once(make_op("DivideBlobs", ["scale", "x"], ["x"]))
    want = (np.array([1024, 6e4]).astype(dtype).astype(np.float32) / np.float32(65536)).astype(dtype)
    np.testing.assert_array_equal(workspace.fetch("x"), want)
