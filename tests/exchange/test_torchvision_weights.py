"""Weights by torchvision's names in nets of the zoo: the scores are torchvision's, and the names come back."""

import json

import numpy as np
import pytest

from house import ROOT
from netbuilder.exchange import load_weights, save_weights
from netbuilder.exchange.safetensors import read_safetensors, write_safetensors
from netbuilder.graph.net_names import reset_names
from netbuilder.model import ModelHelper
from netbuilder.runtime import Workspace
from torchvision_cases import CASES, data, drawn

GOLDEN = json.loads((ROOT / "tests" / "golden" / "torchvision_scores.json").read_text())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", GOLDEN)
def test_the_scores_are_those_of_torchvision(name, tmp_path):
    reset_names()
    case, path, arrays = CASES[name], tmp_path / "weights.safetensors", drawn(GOLDEN[name]["shapes"])
    write_safetensors(path, arrays)
    model, workspace = ModelHelper("case"), Workspace(threads=1)
    scores = case.add(model)
    workspace.run_net_once(model.param_init_net)
    report = load_weights(model, path, workspace=workspace)
    auxiliary = {each for each in arrays if each.startswith("AuxLogits.")}
    assert set(report.skipped) == auxiliary and not report.reinitialized
    workspace.feed("data", data(case.side))
    workspace.run_net_once(model.net)
    want = np.array(GOLDEN[name]["scores"])
    np.testing.assert_allclose(workspace.fetch(scores), want, rtol=0, atol=1e-5 * np.abs(want).max())
    save_weights(model, tmp_path / "again.safetensors", like=path, workspace=workspace)
    back = read_safetensors(tmp_path / "again.safetensors")
    assert back.keys() == arrays.keys() - auxiliary
    assert all(np.array_equal(value, arrays[each]) for each, value in back.items())
