"""A test of learning rates: the loss while the rate grows from step to step, and where it falls most."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from netbuilder.optimizers import OPTIMIZERS
from netbuilder.tools.training.callbacks import Callback
from netbuilder.tools.training.decoded import DecodedImages
from netbuilder.tools.training.images import Images
from netbuilder.tools.training.run import Run
from netbuilder.tools.training.settings import Options

__all__ = ["RateTest", "find_rate", "steepest"]

_STEPS = 100
_RANGE = (1e-4, 100.0)  # the first and last rate, over the usual one of the optimizer
_DIVERGED = 4.0  # losses above this many times the least one end the test
_MEMORY = 0.9  # of the running mean of losses
_LEAST_STEPS = 10  # before the loss may end the test, and left out of the steepest fall


class RateTest(NamedTuple):
    """A test of learning rates.

    Args:
        rates: of the steps.
        losses: running means of the steps' losses.
        rate: where the loss falls most; None: nowhere.
    """

    rates: list[float]
    losses: list[float]
    rate: float | None


def find_rate(options: Options, train: Images | DecodedImages, test: Images | DecodedImages) -> RateTest:
    """Train for up to 100 steps, in which the rate grows geometrically, from the run's initial parameters.

    Args:
        options: of the run, whose rate, policy and warm-up are replaced.
        train, test: the data.

    Source: Smith, "Cyclical learning rates for training neural networks", 2015, arXiv:1506.01186, section 3.3.
    """
    first, last = (share * OPTIMIZERS[options.optimizer].usual_rate for share in _RANGE)
    growth = (last / first) ** (1 / (_STEPS - 1))
    curve = _Curve()
    trial = dataclasses.replace(
        options, learning_rate=first, base_batch=None, policy="exp", policy_arg={"gamma": growth}, gamma=None,
        step_epochs=None, warmup_epochs=0.0,
    )  # fmt: skip
    run = Run(trial, train, test, [curve])
    try:
        for epoch in itertools.count(1):
            if run.train_epoch(epoch) is None:
                break
    except FloatingPointError:
        pass  # the loss is infinite: the rate before was too large already
    rates = [first * growth**step for step in range(len(curve.losses))]
    return RateTest(rates, curve.losses, steepest(rates, curve.losses))


def steepest(rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """Return the rate at which losses fall most for each factor of the rate; None: they do not fall.

    >>> steepest([0.1**k for k in range(20, 0, -1)], [*[4.0] * 14, 3.9, 3.0, 2.5, 2.4, 2.6, 9.0])
    1e-05
    """
    if len(losses) <= _LEAST_STEPS + 1:
        return None
    slopes = np.gradient(np.asarray(losses), np.log(rates))[_LEAST_STEPS:-1]
    place = int(np.argmin(slopes))
    return float(f"{rates[_LEAST_STEPS + place]:.3g}") if slopes[place] < 0 else None


class _Curve(Callback):
    """Notes the losses of the steps, and ends the run when they have grown."""

    name = "find_rate"

    def __init__(self) -> None:
        self.losses: list[float] = []  # running means
        self._sum = 0.0

    def after_results(self, run: Run, step: int, results: Mapping[str, float]) -> None:
        self._sum = _MEMORY * self._sum + (1 - _MEMORY) * results["loss"]
        self.losses.append(self._sum / (1 - _MEMORY ** (len(self.losses) + 1)))

    def stops(self, run: Run) -> bool:
        seen = len(self.losses)
        diverged = seen > _LEAST_STEPS and self.losses[-1] > _DIVERGED * min(self.losses)
        return diverged or seen + 1 >= _STEPS or run.steps_done >= _STEPS
