"""netbuilder-train --memory-budget: the time of computing again, predicted and measured; batches that are split."""

import re

import numpy as np
import pytest

from netbuilder.proto import NetError
from netbuilder.tools import imagenet_trainer
from netbuilder.tools.training.budget import run_within_budget
from netbuilder.tools.training.images import Images
from netbuilder.tools.training.options import parse
from netbuilder.tools.training.run import Run


def test_the_predicted_time_is_printed_and_the_measured_one_after_the_first_epoch(monkeypatch, capsys):
    rng = np.random.default_rng(0)
    images = Images(rng.normal(size=(96, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, 96).astype(np.int32))
    monkeypatch.setattr(imagenet_trainer, "load_images", lambda *_: (images, images))
    arguments = ["--cpu", "--model=resnet8-cifar", "--batch=32", "--epochs=2"]
    assert imagenet_trainer.main([*arguments, "--memory-budget=0.8"]) == 0
    out = capsys.readouterr().out
    lines = re.findall(r"some values are computed a second time in each step, to save memory: (.*)", out)
    assert re.fullmatch(r"\d+ % more time predicted", lines[0])
    assert re.fullmatch(r"\d+ % more time predicted, \d+ % measured", lines[1])
    assert len(lines) == 2
    assert imagenet_trainer.main([*arguments, "--without=memory"]) == 0
    assert "computed a second time" not in capsys.readouterr().out


def digits(count, size=16):
    rng = np.random.default_rng(0)
    return Images(
        rng.normal(size=(count, 1, size, size)).astype(np.float32), rng.integers(0, 10, count).astype(np.int32)
    )


def needed(options, images):
    """Return the least bytes of a step."""
    run = Run(parse([*options, "--memory-budget=1000"]), images, images)
    with pytest.raises(NetError) as raised:
        run.model.plan(run.group)
    return int(str(raised.value).split("at least ")[1].split()[0].replace(",", ""))


def trained(run):
    run.train_epoch(1)
    return {str(p): run.model.workspace.fetch(str(p)) for p in run.model.train.GetParams()}


def test_a_batch_is_split_where_computing_again_is_not_enough():
    images = digits(256)
    options = ["--cpu", "--model=lenet", "--batch=128", "--learning-rate=0.01"]
    least = needed(options, images)
    want = trained(Run(parse(options), images, images))
    run = run_within_budget(parse([*options, f"--memory-budget={least}"]), images, images)
    assert run.options.accumulate_steps == 1
    run = run_within_budget(parse([*options, f"--memory-budget={int(0.8 * least)}"]), images, images)
    assert run.options.accumulate_steps in (2, 4, 8)
    assert run.model.planned.total <= int(0.8 * least)
    for name, value in trained(run).items():
        np.testing.assert_allclose(value, want[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "more, reason",
    [
        (["--model=resnet8-cifar"], r"SpatialBN '.*' normalizes with statistics of the whole batch"),
        (["--model=lenet", "--mixup=0.2"], "--mixup and --cutmix mix the samples of a batch"),
        (["--model=lenet", "--batch=3"], "it has too few samples for that"),
        (["--model=lenet"], "2 or 4 or 8 micro-batches are not enough either"),
    ],
)
def test_why_a_batch_is_not_split(more, reason, capsys, monkeypatch):
    images = digits(32)
    monkeypatch.setattr(imagenet_trainer, "load_images", lambda *_: (images, images))
    assert imagenet_trainer.main(["--cpu", "--batch=32", "--memory-budget=1000", *more]) == 1
    found = capsys.readouterr().err
    assert "memory_budget=1,000 bytes is too small: a run needs at least" in found
    assert re.search(reason, found)
