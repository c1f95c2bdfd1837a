"""Rows of one index in the compatibility layer: they update a table one after another, with one warning."""

import logging

import numpy as np
import pytest

from netbuilder.caffe2 import lenient
from netbuilder.caffe2.python import core, model_helper, optimizer, workspace
from netbuilder.model import Initializer


def updates(**options):
    workspace.ResetWorkspace()
    model = model_helper.ModelHelper(name="rows")
    table = model.create_param("table", [3, 2], Initializer("ConstantFill", value=1.0))
    rows = model.net.Gather([table, "i"], "rows")
    model.AddGradientOperators([model.net.SumElements(rows, "loss")])
    optimizer.build_adagrad(model, 0.5, **options)
    workspace.FeedBlob("i", np.int32([2, 2, 0]))
    workspace.RunNetOnce(model.param_init_net)
    workspace.RunNetOnce(model.net)
    return [op.type for op in model.net.Proto().op], workspace.FetchBlob("table_squared_sum")[:, 0]


def test_they_stay_apart_as_in_caffe2_with_one_warning(caplog, monkeypatch):
    monkeypatch.setattr(lenient, "logged_repeated_rows", [])
    with caplog.at_level(logging.WARNING, "netbuilder"):
        for _ in range(2):
            operators, sums = updates()
            assert "SumRepeatedRows" not in operators
            np.testing.assert_array_equal(sums, [1, 0, 2])
    (said,) = [record.getMessage() for record in caplog.records if "one after another" in record.getMessage()]
    assert "sparse_dedup_aggregator='sum'" in said


@pytest.mark.parametrize(("how", "want"), [("sum", [1, 0, 4]), ("mean", [1, 0, 1]), ("none", [1, 0, 2])])
def test_an_argument_says_what_is_done_and_nothing_is_logged(how, want, caplog, monkeypatch):
    monkeypatch.setattr(lenient, "logged_repeated_rows", [])
    np.testing.assert_array_equal(updates(sparse_dedup_aggregator=how)[1], want)
    assert not caplog.records
    assert core.IsOperator("SumRepeatedRows")
