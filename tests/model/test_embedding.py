"""brew.embedding: rows of tables, single ones and those of samples summed; the same on any number of devices."""

import numpy as np
import pytest

from netbuilder.graph import GradientSlice
from netbuilder.model import ModelHelper, brew
from netbuilder.optimizers import build_adagrad
from netbuilder.parallel import Parallelize_CPU, RunInitNet, RunNet
from netbuilder.proto import ArgumentError, OperatorError
from netbuilder.runtime import Workspace
from parallel_models import distance, no_input
from toy_models import scaled_loss

INDICES, LENGTHS, WEIGHTS = np.int32([4, 0, 4, 1]), np.int32([3, 0, 1]), np.float32([1, -2, 0.5, 3])


def bags(table, pool):
    ends = np.cumsum(LENGTHS)
    return [
        pool(table[INDICES[end - n : end]], WEIGHTS[end - n : end]) if n else 0 * table[0]
        for n, end in zip(LENGTHS, ends)
    ]


@pytest.mark.parametrize(
    "options, operator, want",
    [
        ({}, "Gather", lambda table: table[INDICES]),
        ({"lengths": "l"}, "SparseLengthsSum", lambda table: bags(table, lambda rows, w: rows.sum(axis=0))),
        (
            {"lengths": "l", "pooling": "mean"},
            "SparseLengthsMean",
            lambda table: bags(table, lambda rows, w: rows.mean(axis=0)),
        ),
        (
            {"lengths": "l", "weights": "w"},
            "SparseLengthsWeightedSum",
            lambda table: bags(table, lambda rows, w: w @ rows),
        ),
    ],
    ids=["rows", "sums", "means", "weighted"],
)
def test_values_and_gradients(options, operator, want):
    model = ModelHelper("m")
    rows = brew.embedding(model, "i", "y", 5, 3, **options)
    model.AddGradientOperators([model.net.SumElements(rows)])
    assert model.net.Proto().op[0].type == operator and [str(p) for p in model.GetParams()] == ["y_w"]
    assert isinstance(model.param_to_grad[model.params[0]], GradientSlice)
    workspace = Workspace(threads=1)
    for name, value in (("i", INDICES), ("l", LENGTHS), ("w", WEIGHTS)):
        workspace.feed(name, value)
    workspace.run_net_once(model.param_init_net)
    workspace.run_net_once(model.net)
    np.testing.assert_allclose(workspace.fetch("y"), want(workspace.fetch("y_w")), rtol=1e-5, atol=1e-6)


def test_equal_over_devices():
    def forward(model, loss_scale):
        one = brew.embedding(model, "i", "one", 5, 3)
        other = brew.embedding(model, "i", "other", table="one_w")
        scores = brew.fc(model, brew.concat(model, [one, other], "x"), "scores", 6, 4)
        return scaled_loss(model, scores, loss_scale)

    found = []
    for count in (1, 2, 4):
        model = ModelHelper("m")
        record = Parallelize_CPU(
            model, no_input, forward, devices=list(range(count)),
            optimizer_builder_fun=lambda m: build_adagrad(m, 0.1, sparse_dedup_aggregator="sum"),
        )  # fmt: skip
        workspace = Workspace(threads=1, seed=1)
        for name, value in (("i", INDICES), ("label", np.int32([0, 1, 2, 3]))):
            for blob, part in zip(record.devices.copies(name), np.split(value, count)):
                workspace.feed(blob, part)
        RunInitNet(model, workspace=workspace)
        RunNet(model, 2, workspace=workspace)
        found.append([workspace.fetch(record.blobs(name)[-1]) for name in record.parameters])
    assert all(distance(other, found[0]) < 1e-5 for other in found[1:]) and len(found[0]) == 3


@pytest.mark.parametrize(
    "options, match",
    [
        ({"num_rows": 5}, "give num_rows and dim_out, or an existing table"),
        ({"num_rows": 0, "dim_out": 3}, "num_rows"),
        ({"table": "t", "weights": "w"}, "weights require lengths"),
        (
            {"table": "t", "weights": "w", "lengths": "l", "pooling": "mean"},
            "lengths and pooling",
        ),
        ({"table": "t", "lengths": "l", "pooling": "max"}, "pooling must be one of sum, mean, got 'max'"),
    ],
)
def test_refusals(options, match):
    with pytest.raises(ArgumentError, match=match):
        brew.embedding(ModelHelper("m"), "i", "y", **options)


def test_a_negative_index_is_a_mistake():
    model, workspace = ModelHelper("looked_up"), Workspace()
    brew.embedding(model, "tokens", "vectors", 5, 2)
    workspace.run_net_once(model.param_init_net)
    workspace.feed("tokens", np.int32([0, -1]))
    with pytest.raises(OperatorError, match=r"Gather: indices must lie in \[0, 5\), got -1"):
        workspace.run_net_once(model.net)
