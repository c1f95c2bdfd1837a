"""The test of learning rates: its curve on known functions, in runs, on several devices, and in the command."""

import re

import numpy as np
import pytest

from netbuilder.tools.imagenet_trainer import main
from netbuilder.tools.training.find_rate import find_rate, steepest
from netbuilder.tools.training.options import parse
from netbuilder.tools.training.run import Run
from small_training import BASE, images


def test_the_steepest_fall_of_known_curves():
    rates = np.geomspace(1e-6, 1, 100)
    for middle in (1e-4, 3e-3):
        losses = 2 - np.tanh(2 * np.log10(rates / middle))
        assert steepest(rates, losses) == pytest.approx(middle, rel=0.15)
        assert steepest(rates, np.where(rates > 10 * middle, 50.0, losses)) == pytest.approx(middle, rel=0.15)
    assert steepest(rates, np.linspace(1, 2, 100)) is None
    assert steepest(rates[:5], [5, 4, 3, 2, 1]) is None


def found_for(*arguments):
    return find_rate(parse([*BASE, *arguments]), images(), images(13))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_rate_that_is_found_trains(optimizer):
    given = [f"--optimizer={optimizer}", "--policy=step", "--step-epochs=1", "--gamma=0.5", "--warmup-epochs=1"]
    found = found_for(*given)
    usual = {"sgd": 0.1, "adamw": 0.001}[optimizer]
    assert found.rates[0] == usual * 1e-4 and found.rates == sorted(found.rates)
    assert len(found.losses) == len(found.rates) > 30 and min(found.losses) < found.losses[0]
    assert found.rate is not None

    def loss_with(rate):
        options = parse([*BASE, f"--optimizer={optimizer}", f"--learning-rate={rate}", "--epochs=6"])
        run = Run(options, images(), images(13))
        return [run.train_epoch(number).loss for number in range(1, 7)][-1]

    assert loss_with(found.rate) < 0.7 * loss_with(found.rate / 300)


def test_the_test_ends_when_the_loss_has_grown():
    losses = found_for("--optimizer=sgd").losses
    least = int(np.argmin(losses))
    assert len(losses) < 100 and losses[-1] > 4 * losses[least] >= max(losses[least:-2])


def test_devices_find_alike():
    one, two = found_for(), found_for("--devices=0,1")
    both = min(len(one.losses), len(two.losses)) - 5  # the last ones grow fast
    np.testing.assert_allclose(one.losses[:both], two.losses[:both], 1e-2)
    assert one.rate == pytest.approx(two.rate, rel=0.2)


def test_command(tmp_path, capsys):
    given = ["--cpu", "--model=mlp", "--find-rate", f"--checkpoint={tmp_path / 'c'}", f"--export={tmp_path / 'p'}"]
    assert main(given) == 0
    said = capsys.readouterr().out
    assert len(re.findall(r"learning rate \S+ +loss \S+", said)) >= 8
    assert float(re.search(r"falls most at --learning-rate (\S+)", said)[1]) > 0
    assert not list(tmp_path.iterdir())


def test_a_fixed_rate_is_refused(capsys):
    with pytest.raises(SystemExit):
        parse([*BASE, "--find-rate", "--optimizer=ftrl"])
    assert "--find-rate: the learning rate of ftrl is fixed" in capsys.readouterr().err
