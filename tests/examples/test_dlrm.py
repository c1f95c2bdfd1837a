"""The example of recommendation, in small form: it finds the probabilities that the clicks were drawn from."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from house import ROOT


@pytest.fixture(scope="module")
def dlrm():
    path = Path(ROOT) / "examples" / "dlrm.py"
    spec = importlib.util.spec_from_file_location("dlrm_example", path)
    module = importlib.util.module_from_spec(spec)

    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.slow
def test_it_finds_the_truth(dlrm):
    outcome = dlrm.train(dlrm.Clicks(users=12, items=10, categories=4), steps=80, batch=384, devices=2)
    assert outcome.best < 0.65 and outcome.log_loss < outcome.best + 0.02
    assert outcome.correlation > 0.9 and outcome.tables_outside == ()


def test_tables_outside_change_nothing(dlrm):
    clicks = dlrm.Clicks(users=20, items=15, categories=6)
    inside = dlrm.train(clicks, steps=5, batch=96)
    outside = dlrm.train(clicks, steps=5, batch=96, devices=3, outside_from_bytes=20 * 8 * 4)
    assert outside.tables_outside == ("user_table",)
    assert outside.log_loss == pytest.approx(inside.log_loss, rel=1e-4)


def test_categories_go_with_their_samples(dlrm):
    clicks = dlrm.Clicks()
    batch = clicks.draw(np.random.default_rng(0), 7)
    parts = dlrm.shares(batch, 3)
    assert [len(part["user"]) for part in parts] == [3, 2, 2]
    for part in parts:
        assert part["category"].tolist() == np.concatenate([clicks.categories[i] for i in part["item"]]).tolist()


def test_as_a_script(dlrm, capsys):
    assert dlrm.main(["--steps", "2", "--batch", "32", "--outside-from-bytes", "0"]) == 1  # too few to learn
    said = capsys.readouterr().out
    assert "tables outside the replicas: user_table, item_table, category_table" in said and "log loss" in said
