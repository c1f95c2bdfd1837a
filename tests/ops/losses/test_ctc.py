"""CTCGreedyDecoder and CTCBeamSearchDecoder, the latter against the chances of all alignments."""

import itertools
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.losses.ctc import CTCBeamSearchDecoder, CTCGreedyDecoder
from netbuilder.proto import ArgumentError, ShapeError
from suite import OperatorSuite, f32, floats, refusal


def merged(classes, merge=True):
    """Return classes without blanks, and without repetitions."""
    kept = [c for i, c in enumerate(classes) if not (merge and i and classes[i - 1] == c)]
    return tuple(c for c in kept if c)


def draw_chances(data, steps, samples, classes):
    x = data.draw(floats(steps, samples, classes, low=0.01, high=1.0))
    return (x / x.sum(axis=2, keepdims=True)).astype(np.float32)


def draw_lengths(data, x):
    lengths = st.lists(st.integers(0, x.shape[0]), min_size=x.shape[1], max_size=x.shape[1])
    return [np.array(data.draw(lengths), np.int32)] if data.draw(st.booleans()) else []


class TestCTCGreedyDecoder(OperatorSuite):
    operator = CTCGreedyDecoder
    no_gradient = "gives classes"
    refuses_nothing = "shapes are seen when it runs; see test_what_does_not_fit"

    def draw(self, data):
        x = draw_chances(data, data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)))
        return CTCGreedyDecoder(merge_repeated=data.draw(st.booleans())), [x, *draw_lengths(data, x)]

    def reference(self, op, x, lengths=None):
        counts = [len(x)] * x.shape[1] if lengths is None else lengths
        found = [merged(x[:n, i].argmax(axis=1).tolist(), op.merge_repeated) for i, n in enumerate(counts)]
        return [np.array([len(part) for part in found]), np.array([c for part in found for c in part])]


class TestCTCBeamSearchDecoder(OperatorSuite):
    operator = CTCBeamSearchDecoder
    no_gradient = "gives classes"
    refusals = (refusal(CTCBeamSearchDecoder(beam_width=0), [f32(1, 1, 2)], "beam_width must be at", ArgumentError, 3),)

    def draw(self, data):
        """An unbounded beam, which drops only what is below the threshold."""
        x = draw_chances(data, data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3)))
        op = CTCBeamSearchDecoder(beam_width=100, prune_threshold=0.0, num_candidates=data.draw(st.integers(0, 3)))
        return op.with_arity(1, 3), [x, *draw_lengths(data, x)]

    def reference(self, op, x, lengths=None):
        counts = [len(x)] * x.shape[1] if lengths is None else lengths
        best = []
        for i, n in enumerate(counts):
            chances = defaultdict(float)
            for path in itertools.product(range(x.shape[2]), repeat=n):
                chances[merged(path)] += float(np.prod(x[range(n), i, list(path)]))
            found = sorted(chances.items(), key=lambda pair: -pair[1]) if n else []
            best += [*found, *[((), 0.0)] * op.num_candidates][: op.num_candidates]
        return [
            np.array([len(part) for part, _ in best]),
            np.array([c for part, p in best for c in part]) if all(p for _, p in best) else None,
            np.array([p for _, p in best]),
        ][: op.n_out]


CHANCES = np.float32(
    [
        [[0.1, 0.9, 0], [0.8, 0.1, 0.1]],
        [[0.1, 0.9, 0], [0.1, 0.1, 0.8]],
        [[0.9, 0.1, 0], [0.1, 0.1, 0.8]],
        [[0.1, 0.2, 0.9], [0.1, 0.8, 0.1]],
        [[0.1, 0.2, 0.9], [0.1, 0.8, 0.1]],
    ]
)


def test_what_caffe2_reads():
    assert [y.tolist() for y in run_plain(CTCGreedyDecoder(), [CHANCES])] == [[2, 2], [1, 2, 2, 1]]
    sizes, values = run_plain(CTCGreedyDecoder(merge_repeated=False), [CHANCES, np.int32([2, 3])])
    assert (sizes.tolist(), values.tolist()) == ([2, 2], [1, 1, 2, 2])
    op = CTCBeamSearchDecoder(beam_width=3, num_candidates=5).with_arity(1, 3)
    sizes, values, chances = run_plain(op, [CHANCES])
    assert sizes.tolist() == [2, 3, 3, 2, 1, 2, 3, 3, 1, 4]
    assert values.tolist() == [1, 2, 1, 2, 1, 1, 1, 2, 1, 1, 1, 2, 1, 1, 2, 1, 2, 1, 2, 2, 1, 2, 1, 2]
    want = [0.99018, 0.17676, 0.17091, 0.07373, 0.01582, 0.67563, 0.10944, 0.06521, 0.01993, 0.01216]
    np.testing.assert_allclose(chances, want, atol=2e-6)


def test_a_prefix_that_comes_back():
    """What was not among the best two of the first step, [1], is made of [] and of what it was itself."""
    x = np.float32([[[0.3, 0.3, 0.4]], [[0.2, 0.5, 0.3]]])
    op = CTCBeamSearchDecoder(beam_width=2, prune_threshold=0.0, num_candidates=4).with_arity(1, 3)
    sizes, values, chances = run_plain(op, [x])
    assert (sizes.tolist(), values.tolist()) == ([1, 1, 2, 0], [1, 2, 2, 1])
    np.testing.assert_allclose(chances, [0.36, 0.29, 0.2, 0.06], rtol=1e-6)


def test_the_threshold():
    x = np.float32([[[0.2, 0.5, 0.3]], [[0.2, 0.3, 0.5]]])
    op = CTCBeamSearchDecoder(prune_threshold=0.35, num_candidates=2).with_arity(1, 3)
    sizes, values, chances = run_plain(op, [x])
    assert (sizes.tolist(), values.tolist(), chances.tolist()) == ([2, 0], [1, 2], [0.25, 0])
    few = CTCBeamSearchDecoder(prune_threshold=0.9, num_candidates=1).with_arity(1, 3)
    assert run_plain(few, [x[:1]])[1].tolist() == [1]  # no class reaches it


@pytest.mark.parametrize("op", [CTCGreedyDecoder(), CTCBeamSearchDecoder()], ids=["greedy", "beam"])
@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([np.zeros((3, 4), np.float32)], r"must have the shape \(steps, samples, classes\)"),
        ([np.zeros((3, 2, 4), np.int32)], "hold floating-point numbers"),
        ([CHANCES, np.int32([2])], "lengths must have one number per sample, 2 in all"),
        ([CHANCES, np.int32([2, 9])], r"must lie in \[0, 5\], the steps of X, got \[9\]"),
    ],
    ids=range(4),
)
def test_what_does_not_fit(op, inputs, message):
    with pytest.raises(ShapeError, match=message):
        run_plain(op, inputs)
