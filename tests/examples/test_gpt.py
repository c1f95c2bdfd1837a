"""The example of a language model, in small form."""

import importlib.util
import sys
from pathlib import Path

import pytest

from house import ROOT


@pytest.fixture(scope="module")
def gpt():
    path = Path(ROOT) / "examples" / "gpt.py"
    spec = importlib.util.spec_from_file_location("gpt_example", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.slow
def test_it_learns_to_continue_sequences(gpt):
    workspace, loss = gpt.train(devices=2)
    assert gpt.correct(workspace) > 0.95 and loss < 0.3


def test_two_devices_give_the_same_loss(gpt):
    _, one = gpt.train(steps=5, batch=8)
    _, two = gpt.train(steps=5, batch=8, devices=2)
    assert two == pytest.approx(one, rel=1e-4)


def test_as_a_script(gpt, capsys):
    assert gpt.main(["--steps", "2", "--batch", "4"]) == 1  # too few to learn
    assert "of the tokens after the first four are right" in capsys.readouterr().out
