"""ScatterWeightedSum and ScatterAssign."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import interpret
from netbuilder.ops.arrange.scatter import ScatterAssign, ScatterWeightedSum
from netbuilder.proto import NetError, OperatorError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, i32, refusal


def draw_table(data):
    table = data.draw(floats(4, *data.draw(st.sampled_from([(), (1,), (2, 2)]))))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    dtype = data.draw(st.sampled_from([np.int32, np.int64]))
    return table, rng, dtype


class TestScatterWeightedSum(OperatorSuite):
    operator = ScatterWeightedSum
    no_gradient = "it is an update"
    refusals = (
        refusal(ScatterWeightedSum(), [f32(4, 2), f32(1), i32(3), f32(3, 2), f32(1), f32(3, 2)], "pairs of rows"),
        refusal(ScatterWeightedSum(), [f32(4, 2), f32(1), i32(3), f32(2, 2), f32(1)], r"X1 must have shape \(3, 2\)"),
        refusal(ScatterWeightedSum(), [f32(4, 2), f32(2), i32(3), f32(3, 2), f32(1)], "w0 must have one element"),
        refusal(ScatterWeightedSum(), [f32(4, 2), f32(1), i32(3), f32(3, 2), f32(3)], "w1 must have one element"),
        refusal(ScatterWeightedSum(), [f32(4, 2), f32(1), f32(3), f32(3, 2), f32(1)], "int32 or int64"),
        refusal(ScatterWeightedSum(), [f32(), f32(1), i32(3), f32(3), f32(1)], r"X must have shape \(R, \*S\)"),
        refusal(
            ScatterWeightedSum(),
            [i32(4), f32(1), i32(3), i32(3), f32(1)],
            "the inputs must have one floating type, got X int32, X1 int32",
        ),
    )

    def draw(self, data):
        table, rng, dtype = draw_table(data)
        indices = rng.integers(0, 4, data.draw(st.integers(0, 5))).astype(dtype)
        inputs = [table, np.float32(data.draw(st.sampled_from([1.0, 0.5, 0.0]))).reshape(1), indices]
        for _ in range(data.draw(st.integers(1, 2))):
            inputs += [data.draw(floats(indices.size, *table.shape[1:])), data.draw(floats(1))]
        return ScatterWeightedSum(), inputs

    def reference(self, op, table, w0, indices, *pairs):
        table = table.copy()
        for i in indices:
            table[i] *= w0.item()
        for rows, weight in zip(pairs[::2], pairs[1::2]):
            for k, i in enumerate(indices):
                table[i] += weight.item() * rows[k]
        return [table]


class TestScatterAssign(OperatorSuite):
    operator = ScatterAssign
    no_gradient = "it is an update"
    refusals = (
        refusal(ScatterAssign(), [f32(4, 2), i32(3), f32(3, 3)], r"rows must have shape \(3, 2\)"),
        refusal(ScatterAssign(), [f32(4, 2), i32(3), i32(3, 2)], "rows must have the type of X, float32, got int32"),
    )

    def draw(self, data):
        table, rng, dtype = draw_table(data)
        axis = data.draw(st.integers(-table.ndim, table.ndim - 1))
        before, extent, *after = table.shape[: axis % table.ndim], *table.shape[axis % table.ndim :]
        indices = rng.permutation(extent)[: data.draw(st.integers(0, extent))].astype(dtype)
        return ScatterAssign(axis=axis), [table, indices, data.draw(floats(*before, indices.size, *after))]

    def reference(self, op, table, indices, rows):
        table = table.copy()
        for k, i in enumerate(indices):
            np.moveaxis(table, op.axis, 0)[i] = np.moveaxis(rows, op.axis, 0)[k]
        return [table]


def test_another_output_is_refused():
    workspace = Workspace()
    with pytest.raises(NetError, match=r"must overwrite input 0 \('x'\), got 'y'"):
        workspace.run_operator_once(make_op("ScatterAssign", ["x", "i", "rows"], ["y"]))


@pytest.mark.parametrize("bad", [-1, 2])
@pytest.mark.parametrize("inputs", [["x", "i", "rows"], ["x", "w", "i", "rows", "w"]], ids=["assign", "sum"])
def test_index_out_of_range_leaves_the_table_alone(inputs, bad):
    workspace = Workspace()
    for name, value in (("x", np.ones(2)), ("w", [0.5]), ("rows", [5, 6])):
        workspace.feed(name, np.float32(value))
    workspace.feed("i", np.int32([0, bad]))
    op = make_op("ScatterAssign" if len(inputs) == 3 else "ScatterWeightedSum", inputs, ["x"])
    with pytest.raises(OperatorError, match=rf"indices must lie in \[0, 2\), got {bad}"):
        workspace.run_operator_once(op)
    assert workspace.fetch("x").tolist() == [1, 1]


def test_the_plain_kernel_leaves_its_input_alone():
    x = np.ones((2, 2), np.float32)
    ops = [make_op("ScatterAssign", ["x", "i", "rows"], ["x"])]
    found = interpret(ops, {"x": x, "i": np.int32([1]), "rows": np.float32([[5, 6]])})
    assert found["x"].tolist() == [[1, 1], [5, 6]]
    assert x.tolist() == [[1, 1], [1, 1]]
