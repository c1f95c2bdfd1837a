"""Sums, means and maxima over the first or the last axes, and their gradients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.core.registry import find
from netbuilder.ops.reductions import reduce_ends
from netbuilder.proto import ArgumentError, NetDef, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, i32, refusal


def lines(op, x):
    """Return X as a list of the elements that each result is of, and the shape of the results."""
    n = op.num_reduce_dim
    if op.front:
        return x.reshape(int(np.prod(x.shape[:n])), -1).T, x.shape[n:]
    cut = x.ndim - n
    return x.reshape(int(np.prod(x.shape[:cut])), -1), x.shape[:cut]


def draw_reduction(suite, data):
    op = suite.operator(num_reduce_dim=data.draw(st.integers(0, 3)))
    x = data.draw(floats((1, 3), (1, 3), (1, 3), apart=0.1 if "Max" in op.type else 0.0))
    rows, shape = lines(op, x)
    lengths = []
    if data.draw(st.booleans()):
        counts = st.integers(1 if "Max" in op.type else 0, rows.shape[1])
        lengths = [data.draw(st.lists(counts, min_size=len(rows), max_size=len(rows)))]
    return op, x, [np.int32(v).reshape(shape) for v in lengths]


def counted(op, rows, lengths):
    sizes = lengths[0].ravel() if lengths else [rows.shape[1]] * len(rows)
    return [(row, int(n)) for row, n in zip(rows, sizes)]


class _Forward(OperatorSuite):
    def draw(self, data):
        op, x, lengths = draw_reduction(self, data)
        return op, [x, *lengths]

    def reference(self, op, x, *lengths):
        rows, shape = lines(op, x)
        take = max if "Max" in op.type else sum
        values = [take(row[:n]) for row, n in counted(op, rows, lengths)]
        if "Mean" in op.type:
            values = [v / max(n, 1) for v, (_, n) in zip(values, counted(op, rows, lengths))]
        return [np.array(values).reshape(shape)]


class _Backward(OperatorSuite):
    no_gradient = "a gradient operator"

    def draw(self, data):
        op, x, lengths = draw_reduction(self, data)
        rows, shape = lines(op, x)
        dy = data.draw(floats(*shape))
        extra = []
        if "Max" in op.type:
            extra = [np.float32([max(row[:n]) for row, n in counted(op, rows, lengths)]).reshape(shape)]
        return op, [dy, x, *extra, *lengths]

    def reference(self, op, dy, x, *others):
        if "Max" in op.type:
            _, *others = others
        rows, _ = lines(op, x)
        slopes = np.zeros(rows.shape)
        for slope, d, (row, n) in zip(slopes, dy.ravel(), counted(op, rows, others)):
            if "Max" in op.type:
                slope[np.argmax(row[:n])] = d
            else:
                slope[:n] = d / n if "Mean" in op.type and n else d
        return [(slopes.T if op.front else slopes).reshape(x.shape)]


def _suite(name):
    cls = find(name)
    if not name.endswith("Gradient"):
        refusals = [
            refusal(cls(num_reduce_dim=-1), [f32(2, 3)], "must not be negative", ArgumentError),
            refusal(cls(num_reduce_dim=3), [f32(2, 3)], "must be at most 2"),
            refusal(cls(), [f32(4, 4), f32(4)], "lengths must be integers"),
            refusal(cls(), [f32(4, 4), i32(3)], "one number per element of Y, 4 in all"),
            refusal(cls(), [f32(4, 4).with_dtype(bool)], "cannot reduce elements of type bool"),
        ]
        if "Max" in name:
            refusals.append(refusal(cls(), [f32(0, 0)], "no elements to choose from"))
        return type(f"Test{name}", (_Forward,), {"operator": cls, "refusals": tuple(refusals)})
    if "Max" in name:
        refusals = [
            refusal(cls(), [f32(3), f32(4, 4), f32(4)], r"dY must have shape \(4,\)"),
            refusal(cls(), [f32(4), f32(4, 4), f32(3)], r"Y must have shape \(4,\)"),
        ]
    else:
        refusals = [refusal(cls(), [f32(3), f32(4, 4)], r"dY must have shape \(4,\)")]
    return type(f"Test{name}", (_Backward,), {"operator": cls, "refusals": tuple(refusals)})


for _name in reduce_ends.__all__:
    globals()[f"Test{_name}"] = _suite(_name)


@pytest.mark.parametrize("length", [-1, 4])
def test_lengths_out_of_range_are_refused(length):
    x, lengths = np.ones((3, 3), np.float32), np.int32([1, 2, length])
    for name in reduce_ends.__all__:
        least = 1 if "Max" in name else 0
        given = [x, lengths] if not name.endswith("Gradient") else [x[0], x, *[x[0]] * least, lengths]
        with pytest.raises(ShapeError, match=rf"{name}: lengths must lie in \[{least}, 3\]"):
            run_plain(find(name)(), given)


def test_means_of_whole_numbers_are_truncated():
    (y,) = run_plain(reduce_ends.ReduceBackMean(), [np.int32([[1, 2], [-1, -2]])])
    assert y.dtype == np.int32
    assert y.tolist() == [1, -1]


def test_half_precision_is_summed_in_single():
    (y,) = run_plain(reduce_ends.ReduceFrontSum(), [np.ones((2050, 1), np.float16)])
    assert y.tolist() == [2050]


def test_the_mean_of_nothing_is_zero():
    assert run_plain(reduce_ends.ReduceBackMean(), [np.zeros((2, 0), np.float32)])[0].tolist() == [0, 0]


@pytest.mark.parametrize("lengths", [[], [np.int32([1, 2, 0])]], ids=["whole", "lengths"])
@pytest.mark.parametrize("name", [n for n in reduce_ends.__all__ if n.endswith("Gradient") and "Max" not in n])
def test_a_gradient_takes_the_shape_of_x_for_it(name, lengths):
    """A vector of int64, as in Caffe2; a plan that is static until there runs on."""
    shape = (2, 3) if "Front" in name else (3, 2)
    dy = np.float32([1, -2, 3])
    workspace = Workspace()
    for blob, value in (("x", np.ones(shape, np.float32)), ("dy", dy), *(("n", n) for n in lengths)):
        workspace.feed(blob, value)
    ops = [
        make_op("Shape", ["x"], ["shape"]),
        make_op(name, ["dy", "x", *(["n"] if lengths else [])], ["from_x"]),
        make_op(name, ["dy", "shape", *(["n"] if lengths else [])], ["from_shape"]),
    ]
    workspace.run_net_once(NetDef(name="two", op=ops))
    assert workspace.fetch("from_shape").shape == shape
    assert np.array_equal(workspace.fetch("from_x"), workspace.fetch("from_shape"))
    (alone,) = run_plain(find(name)(), [dy, np.int64(shape), *lengths])
    assert np.array_equal(alone, workspace.fetch("from_x"))
    with pytest.raises(ShapeError, match="dY must have the shape of Y"):
        run_plain(find(name)(), [dy, np.int64([2, 2]), *lengths])
