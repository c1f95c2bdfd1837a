"""AccumulateHistogram, SelfBinningHistogram."""

import numpy as np
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.graph import Net
from netbuilder.ops.reductions.histograms import AccumulateHistogram, SelfBinningHistogram
from netbuilder.proto import ArgumentError
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, i32, refusal


class TestAccumulateHistogram(OperatorSuite):
    operator = AccumulateHistogram
    no_gradient = "it has none"
    refusals = (
        refusal(AccumulateHistogram(), [i32(3)], "one floating type"),
        refusal(AccumulateHistogram(num_buckets=0), [f32(3)], "num_buckets must be at least 1", ArgumentError),
        refusal(AccumulateHistogram(lower_bound=2), [f32(3)], "lower_bound below upper_bound", ArgumentError),
    )

    def draw(self, data):
        op = AccumulateHistogram(lower_bound=-1.0, upper_bound=1.5, num_buckets=data.draw(st.integers(1, 5)))
        return op, [data.draw(floats((0, 4), (1, 5)))]

    def reference(self, op, x):
        counts = np.zeros(op.num_buckets + 2, int)
        for value in x.ravel():
            inside = int((value + 1) / (2.5 / op.num_buckets)) + 1
            counts[0 if value < -1 else inside if value < 1.5 else -1] += 1
        return [counts, counts]


def test_counts_of_all_runs():
    net, workspace = Net("counts"), Workspace()
    net.AccumulateHistogram(["x"], ["now", "all"], lower_bound=0.0, upper_bound=1.0, num_buckets=2)
    workspace.feed("x", np.float32([0.1, 0.6, 0.7, np.nan]))
    workspace.create_net(net)
    for runs in (1, 2, 3):
        workspace.run_net("counts")
        assert workspace.fetch("now").tolist() == [0, 1, 2, 1]
        assert workspace.fetch("all").tolist() == [0, runs, 2 * runs, runs]


class TestSelfBinningHistogram(OperatorSuite):
    operator = SelfBinningHistogram
    no_gradient = "it has none"
    refusals = (
        refusal(SelfBinningHistogram(num_bins=2), [f32(3), i32(3)], "one floating type"),
        refusal(SelfBinningHistogram(), [f32(3)], "Number of bins must be greater than or equal to 1", ArgumentError),
        refusal(SelfBinningHistogram(num_bins=2, bin_spacing="even"), [f32(3)], "linear or log", ArgumentError),
        refusal(
            SelfBinningHistogram(num_bins=2, bin_spacing="logarithmic", logspace_start=0), [f32(3)], "must be positive",
            ArgumentError,
        ),
    )  # fmt: skip

    def draw(self, data):
        op = SelfBinningHistogram(
            num_bins=data.draw(st.integers(1, 4)), abs=data.draw(st.booleans()), logspace_start=0.1,
            bin_spacing=data.draw(st.sampled_from(["linear", "logarithmic"])),
        )  # fmt: skip
        xs = [data.draw(floats((1, 3), (1, 4), apart=0.05, low=-1)) for _ in range(data.draw(st.integers(1, 2)))]
        return op.with_arity(len(xs), 2), xs

    def reference(self, op, *xs):
        values = np.concatenate([x.ravel() for x in xs])
        values = abs(values) if op.abs else values
        if op.bin_spacing == "logarithmic":
            values = np.maximum(values, 0.1)
        low, high = values.min(), values.min() + np.ptp(values) * 1.0001
        space = np.linspace if op.bin_spacing == "linear" else np.geomspace
        edges = space(low, high, op.num_bins + 1)
        # In single precision, a value at an edge may fall on either side of it; a second set of edges finds such cases.
        counts = [sum(edges[i] <= v < edges[i + 1] for v in values) for i in range(op.num_bins)]
        close = np.abs(values[:, None] - edges[1:-1]).min(initial=1) < 1e-5
        alone = np.ptp(values) == 0
        return [edges, None if close or alone else np.array([*counts, 0])]


def test_one_value_and_none():
    edges, counts = run_plain(SelfBinningHistogram(num_bins=3).with_arity(1, 2), [np.full(5, 2, np.float32)])
    assert (edges.tolist(), counts.tolist()) == ([2, 2, 2, 2], [5, 0, 0, 0])
    edges, counts = run_plain(SelfBinningHistogram(num_bins=1).with_arity(1, 2), [np.zeros(0, np.float32)])
    assert (edges.tolist(), counts.tolist()) == ([0, 0], [0, 0])


def test_logarithmic_edges_of_float16():
    edges, counts = run_plain(
        SelfBinningHistogram(num_bins=3, bin_spacing="logarithmic").with_arity(1, 2), [np.float16([0, 1, 100])]
    )
    assert np.isfinite(edges).all() and counts.sum() == 3 and counts[2] + counts[1] == 2
