"""Recipes of netbuilder-train: every net has valid options, the command line overrides them, and a net learns."""

import numpy as np
import pytest

from netbuilder.tools.imagenet_trainer import main
from netbuilder.tools.training.images import Images
from netbuilder.tools.training.nets import NETS
from netbuilder.tools.training.options import parse
from netbuilder.tools.training.recipes import recipe_for
from netbuilder.tools.training.run import Run


@pytest.mark.parametrize("weights", [False, True], ids=["", "weights"])
def test_every_net_has_a_recipe(weights):
    for net in NETS:
        options = parse(["--cpu", f"--model={net}", *recipe_for(net, photos=True, weights=weights)])
        assert options.policy == "cosine" and options.input.area_crop and options.input.crop == 224
        plain = net.startswith(("mlp", "lenet", "alexnet", "overfeat", "squeezenet", "vgg")) or net == "inception-v1"
        assert (options.optimizer == "adamw") == options.decouples_decay == (not plain or net.endswith("-bn"))


def test_the_command_line_overrides(tmp_path):
    config = tmp_path / "options.json"
    config.write_text('{"batch": 7, "model": "vit-b16"}')
    options = parse(["--cpu", "--epochs=3", "--recipe", f"--config={config}"])
    assert (options.epochs, options.batch, options.optimizer, options.weight_decay) == (3, 7, "adamw", 0.05)
    assert not options.input.crop  # the data are arrays
    given = ["--cpu", "--recipe", f"--data={tmp_path}"]
    assert parse(given).input.mirror and not parse([*given, "--no-mirror"]).input.mirror
    assert parse([*given, "--area-crop=0.1"]).input.area_crop == 0.1


def test_weights_make_steps_smaller(tmp_path):
    (tmp_path / "w.safetensors").touch()
    given = ["--cpu", "--recipe", "--model=resnet18", f"--data={tmp_path}"]
    whole, tuned = parse(given), parse([*given, f"--weights={tmp_path / 'w.safetensors'}"])
    assert tuned.learning_rate < whole.learning_rate and tuned.epochs < whole.epochs and whole.input.mirror


def test_the_warm_up_fits_a_short_run():
    assert [parse(["--cpu", "--recipe", *more]).warmup_epochs for more in ([], ["--epochs=1"])] == [2, 0.2]


def test_the_run_says_what_the_recipe_chose(capsys):
    given = ["--cpu", "--model=mlp", "--recipe", "--epochs=1", "--batch=256", "--learning-rate=5e-3", "--swa=0.5"]
    assert parse(given).recipe == (
        "--warmup-epochs=0.2", "--policy=cosine", "--label-smoothing=0.1", "--optimizer=sgd", "--learning-rate=0.005",
        "--weight-decay=5e-4", "--clip-norm=5",
    )  # fmt: skip
    assert main([*given, "--policy=fixed"]) == 0
    said = capsys.readouterr().out
    assert "held out; 10 classes (0, 1, 2, 3, 4, ...); images of 1 x 8 x 8\nrecipe: --warmup-epochs=0.2 " in said
    assert "learning rate 0.005 (fixed; 0.005 in the last step; warm-up of 0.2 epochs from 0.0005)" in said
    assert "average of the last 0.5 epochs: held-out loss" in said and "accuracy of the average of the last 0.5" in said


def test_an_unknown_net_is_refused(capsys):
    with pytest.raises(SystemExit):
        parse(["--cpu", "--recipe", "--model=resnet19"])
    assert "--model: unknown net 'resnet19'" in capsys.readouterr().err


@pytest.mark.parametrize("net", ["resnet8-cifar", "lenet"])
def test_a_small_set_is_learned(net):
    rng = np.random.default_rng(0)
    labels = np.arange(400, dtype=np.int32) % 4
    centers = rng.standard_normal((4, 1, 16, 16))
    data = (centers[labels] + rng.standard_normal((400, 1, 16, 16))).astype(np.float32)
    run = Run(parse(["--cpu", "--recipe", f"--model={net}", "--epochs=4"]), *[Images(data, labels)] * 2)
    assert run.train().top1 > 0.9
