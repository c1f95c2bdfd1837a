"""netbuilder-train --dtype: the requested type, and that a small residual net learns as well in bfloat16."""

import numpy as np
import pytest

from netbuilder.engines import onednn
from netbuilder.proto.arguments import arguments
from netbuilder.tools.imagenet_trainer import main
from netbuilder.tools.training.images import Images, load_images
from netbuilder.tools.training.options import parse
from netbuilder.tools.training.run import Run

SEEDS = range(6, 13, 3)  # the accuracy of one run has a standard deviation of nearly half a point


def test_the_type_reaches_the_training_net_alone():
    images = Images(np.zeros((4, 1, 8, 8), np.float32), np.int32([0, 1, 2, 1]))
    run = Run(parse(["--cpu", "--model=resnet8-cifar", "--batch=2", "--dtype=bfloat16"]), images, images)
    assert arguments(run.model.train.net.Proto())["activation_dtype"] == b"bfloat16"
    assert "activation_dtype" not in arguments(run.model.test.net.Proto())
    assert parse(["--cpu"]).dtype == "float32"


def test_other_types_end_the_program(capsys):
    with pytest.raises(SystemExit):
        main(["--cpu", "--dtype=int8"])
    assert "--dtype must be one of float32, bfloat16, float16; got 'int8'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--cpu", "--dtype=float16"])
    assert "--dtype: float16 is for GPUs; with --cpu give bfloat16" in capsys.readouterr().err


def held_out_accuracy(dtype, seed, epochs=8):
    arguments = ["--cpu", "--model=resnet8-cifar", "--batch=32", f"--epochs={epochs}", "--learning-rate=0.1"]
    arguments += ["--policy=step", f"--step-epochs={epochs - 2}", "--gamma=0.1", f"--dtype={dtype}", f"--seed={seed}"]
    run = Run(parse(arguments), *load_images("digits"))
    for epoch in range(1, epochs + 1):
        run.train_epoch(epoch)
    return run.evaluation().top1


@pytest.mark.slow
@pytest.mark.skipif(not onednn.available(), reason="needs oneDNN")
def test_a_residual_net_learns_in_bfloat16(monkeypatch):
    """In three epochs of one seed, where accuracies differ by more."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    float32, bfloat16 = (held_out_accuracy(dtype, 0, epochs=3) for dtype in ("float32", "bfloat16"))
    assert float32 > 0.9 and bfloat16 > float32 - 0.02


@pytest.mark.slow
@pytest.mark.skipif(not onednn.available(), reason="needs oneDNN")
def test_a_residual_net_reaches_the_accuracy_of_float32_within_half_a_point(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = {"float32": [], "bfloat16": []}
    for seeds in SEEDS:  # more only where the few leave it open
        for dtype, accuracies in found.items():
            accuracies += [held_out_accuracy(dtype, seed) for seed in range(len(accuracies), seeds)]
        means = {dtype: np.mean(accuracies) for dtype, accuracies in found.items()}
        if means["bfloat16"] > means["float32"] - 0.004:
            break
    assert means["float32"] > 0.97
    assert means["bfloat16"] > means["float32"] - 0.005
