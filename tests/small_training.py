"""What tests of netbuilder-train share: quick options, a few images drawn by chance, a run on them."""

import numpy as np

from netbuilder.tools.training.callbacks import Callback, Callbacks
from netbuilder.tools.training.images import Images
from netbuilder.tools.training.options import parse
from netbuilder.tools.training.run import Run

__all__ = ["BASE", "images", "run_of", "train_until"]

BASE = ["--cpu", "--model=mlp", "--batch=12", "--epochs=2", "--learning-rate=0.02"]


def images(count=41, classes=7):
    """Return images of 4 x 4 pixels, each near the center of its class."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, classes, count).astype(np.int32)
    centers = rng.standard_normal((classes, 1, 4, 4))
    return Images((centers[labels] + rng.standard_normal((count, 1, 4, 4))).astype(np.float32), labels)


def run_of(*arguments):
    """Return a training run with these options, before its first step."""
    return Run(parse([*BASE, *arguments]), images(), images(13))


class _Stop(Callback):
    def __init__(self, step):
        self._step = step

    def stops(self, run):
        return run.step == self._step


def train_until(run, number, step):
    """Train an epoch until one of its steps has ended."""
    callbacks = run.callbacks
    run.callbacks = Callbacks([*callbacks, _Stop(step)])
    assert run.train_epoch(number) is None
    run.callbacks, run.stopped = callbacks, False
