"""SparseToDenseMask and its gradient, SegmentOneHot."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.features.sparse_mask import SegmentOneHot, SparseToDenseMask, SparseToDenseMaskGradient
from netbuilder.proto import ArgumentError, OperatorError
from suite import OperatorSuite, f32, floats, i32, i64, refusal

MASK = (7, 2, 4)


def draw_sparse(data):
    """Ids, the shape of a row, lengths or none."""
    lengths = np.array(data.draw(st.lists(st.integers(0, 4), max_size=3)), np.int32)
    given = [lengths] if data.draw(st.booleans()) else []
    kind = data.draw(st.sampled_from([np.int32, np.int64]))
    count = int(lengths.sum()) if given else data.draw(st.integers(0, 5))
    ids = np.array(data.draw(st.lists(st.sampled_from([-1, 2, 3, 4, 7, 9]), min_size=count, max_size=count)), kind)
    return ids, data.draw(st.sampled_from([(), (2,)])), given


def placed(ids, lengths):
    """Yield (number of an id, its sample, its place in the mask), later ones after earlier ones."""
    ends = np.cumsum(lengths).tolist()
    for i, key in enumerate(ids.tolist()):
        if key in MASK:
            yield i, sum(end <= i for end in ends), MASK.index(key)


class TestSparseToDenseMask(OperatorSuite):
    operator = SparseToDenseMask
    wrt = (1,)
    refusals = (
        refusal(SparseToDenseMask(), [i64(3), f32(3), f32()], "mask must list the requested ids", ArgumentError),
        refusal(SparseToDenseMask(mask=(1, 1)), [i64(3), f32(3), f32()], "each once", ArgumentError),
        refusal(SparseToDenseMask(mask=(1,)), [i64(3), f32(3), f32()], "go together", ArgumentError, n_out=2),
        refusal(SparseToDenseMask(mask=(1,)), [i64(3), f32(2), f32()], r"values must have shape \(3,\) = \(I, \*S\)"),
        refusal(
            SparseToDenseMask(mask=(1,)),
            [i64(3), f32(3, 2), f32(3)],
            r"default_value must have 2 elements, got shape \(3,\)",
        ),
        refusal(
            SparseToDenseMask(mask=(1,)),
            [f32(3), f32(3), f32()],
            "indices must have elements of type int32 or int64, got float32",
        ),
    )

    def draw(self, data):
        ids, row, lengths = draw_sparse(data)
        present = data.draw(st.booleans())
        op = SparseToDenseMask(mask=MASK, return_presence_mask=present).with_arity(3 + len(lengths), 1 + present)
        return op, [ids, data.draw(floats(len(ids), *row)), data.draw(floats(*row)), *lengths]

    def draw_gradient(self, data):
        _, given = self.draw(data)
        return SparseToDenseMask(mask=MASK).with_arity(len(given), 1), given

    def reference(self, op, ids, values, default, lengths=None):
        samples = 1 if lengths is None else len(lengths)
        y = np.broadcast_to(default, (samples, len(MASK), *default.shape)).copy()
        present = np.zeros((samples, len(MASK)), bool)
        for i, s, k in placed(ids, [] if lengths is None else lengths):
            y[s, k], present[s, k] = values[i], True
        return [y[0], present[0]][: op.n_out] if lengths is None else [y, present][: op.n_out]


class TestSparseToDenseMaskGradient(OperatorSuite):
    operator = SparseToDenseMaskGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(
            SparseToDenseMaskGradient(mask=(1,)),
            [i64(3), f32(2), i32(2)],
            r"dY must have shape \(N, 1, \*S\) = \(N, len\(mask\), \*S\)",
        ),
    )

    def draw(self, data):
        ids, row, lengths = draw_sparse(data)
        lead = (len(lengths[0]), len(MASK)) if lengths else (len(MASK),)
        op = SparseToDenseMaskGradient(mask=MASK).with_arity(2 + len(lengths), 1)
        return op, [ids, data.draw(floats(*lead, *row)), *lengths]

    def reference(self, op, ids, dy, lengths=None):
        dy = dy[None] if lengths is None else dy
        d_values = np.zeros((len(ids), *dy.shape[2:]))
        last = {(s, k): i for i, s, k in placed(ids, [] if lengths is None else lengths)}
        for (s, k), i in last.items():
            d_values[i] = dy[s, k]
        return [d_values]


class TestSegmentOneHot(OperatorSuite):
    operator = SegmentOneHot
    no_gradient = "none passes"
    refuses_nothing = "shapes are seen when it runs; see test_an_index_that_is_too_large"

    def draw(self, data):
        lengths = np.array(data.draw(st.lists(st.integers(0, 3), max_size=3)), np.int32)
        count = int(lengths.sum())
        indices = np.array(data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)), np.int64)
        return SegmentOneHot(), [lengths, indices, np.int64([4])]

    def reference(self, op, lengths, indices, size):
        y = np.zeros((len(lengths), size.item()))
        ends = np.cumsum(lengths).tolist()
        for s, (n, end) in enumerate(zip(lengths.tolist(), ends)):
            y[s, indices[end - n : end]] = 1
        return [y]


def test_an_index_that_is_too_large():
    with pytest.raises(IndexError, match=r"SegmentOneHot: indices must lie in \[0, 2\), got 2"):
        run_plain(SegmentOneHot(), [np.int32([1]), np.int64([2]), np.int64([2])])


def test_too_many_ids_below_0():
    op = SparseToDenseMask(mask=(2,), max_skipped_indices=1)
    with pytest.raises(OperatorError, match="but 2 are, more than max_skipped_indices 1"):
        run_plain(op, [np.int64([-1, -5, 2]), np.zeros(3, np.float32), np.zeros((), np.float32)])
