"""netbuilder-train --memory-budget: what is computed again is predicted, and measured in the epoch's timed steps."""

import re

import numpy as np

from netbuilder.tools import imagenet_trainer
from netbuilder.tools.training.images import Images


def test_the_predicted_time_is_printed_and_the_measured_one_after_the_first_epoch(monkeypatch, capsys):
    rng = np.random.default_rng(0)
    images = Images(rng.normal(size=(96, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, 96).astype(np.int32))
    monkeypatch.setattr(imagenet_trainer, "load_images", lambda *_: (images, images))
    arguments = ["--cpu", "--model=resnet8-cifar", "--batch=32", "--epochs=2"]
    assert imagenet_trainer.main([*arguments, "--memory-budget=0.8"]) == 0
    out = capsys.readouterr().out
    lines = re.findall(r"computed again to keep to the budget: (.*)", out)
    assert re.fullmatch(r"predicted \+\d+ % time", lines[0])
    assert re.fullmatch(r"predicted \+\d+ % time, measured \+\d+ %", lines[1])
    assert len(lines) == 2
    assert imagenet_trainer.main(arguments) == 0
    assert "computed again" not in capsys.readouterr().out
