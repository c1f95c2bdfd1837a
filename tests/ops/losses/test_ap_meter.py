"""APMeter."""

import numpy as np
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.graph import Net
from netbuilder.ops.losses.ap_meter import APMeter
from netbuilder.proto import ArgumentError
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, i32, refusal


def average_precision(scores, labels):
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    hits = [sum(labels[j] for j in order[: rank + 1]) / (rank + 1) for rank, i in enumerate(order) if labels[i]]
    return np.mean(hits) if hits else 0.0


class TestAPMeter(OperatorSuite):
    operator = APMeter
    no_gradient = "it has none"
    refusals = (
        refusal(APMeter(), [f32(3), i32(3)], r"predictions must have shape \(N, C\)"),
        refusal(APMeter(), [f32(3, 2), i32(3)], "labels must have the shape of predictions"),
        refusal(APMeter(), [f32(3, 2), f32(3, 2)], "labels must have elements of type int32"),
        refusal(APMeter(buffer_size=0), [f32(3, 2), i32(3, 2)], "at least 1, got 0", ArgumentError),
    )

    def draw(self, data):
        scores = data.draw(floats((0, 6), (1, 3), apart=0.1))
        labels = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 2, scores.shape, np.int32)
        return APMeter(buffer_size=data.draw(st.sampled_from([3, 1000]))), [scores, labels]

    def reference(self, op, scores, labels):
        latest = slice(-op.buffer_size, None)
        return [np.array([average_precision(*column) for column in zip(scores[latest].T, labels[latest].T)])]


def test_samples_of_earlier_runs_count():
    """Each net that is created counts for itself."""
    rng, net, seen = np.random.default_rng(0), Net("meter"), [[], []]
    net.APMeter(["scores", "labels"], ["ap"], buffer_size=4)
    workspace = Workspace()
    for count in (1, 2, 1, 3):
        for blob, kept, values in zip(("scores", "labels"), seen, (rng.random(count), rng.integers(0, 2, count))):
            kept.extend(values)
            workspace.feed(blob, values[:, None].astype(np.float32 if blob == "scores" else np.int32))
        if len(seen[0]) == count:
            workspace.create_net(net)
        workspace.run_net("meter")
        np.testing.assert_allclose(workspace.fetch("ap"), [average_precision(seen[0][-4:], seen[1][-4:])], rtol=1e-6)
    workspace.run_net_once(net)
    np.testing.assert_allclose(workspace.fetch("ap"), [average_precision(seen[0][-3:], seen[1][-3:])], rtol=1e-6)


def test_samples_without_a_score_are_not_found():
    scores, labels = np.float32([[np.nan], [np.nan], [0.1]]), np.int32([[1], [1], [0]])
    assert run_plain(APMeter(), [scores, labels])[0].tolist() == [0]
    assert run_plain(APMeter(), [np.float32([[0.5], [np.nan]]), np.int32([[1], [1]])])[0].tolist() == [0.5]
