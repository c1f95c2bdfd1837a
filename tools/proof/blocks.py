"""The reference of training with block-wise updates: one model per replica, and the rule in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from netbuilder.graph.block_updates import BlockRule
from netbuilder.graph.net_names import reset_names
from netbuilder.model import ModelHelper
from netbuilder.runtime import Workspace
from netbuilder.tools.proof.measure import METHODS, Method, Values
from netbuilder.tools.proof.models import ProofModel

__all__ = ["trained_apart"]


def trained_apart(
    model: ProofModel,
    optimizer: Callable[[ModelHelper], Any],
    devices: int,
    rule: BlockRule,
    *,
    steps: int = 10,
) -> Values:
    """Train one model per replica, each alone, and apply the rule to their parameters in float64.

    Args:
        model: what to train, without parameters outside of the replicas.
        optimizer: adds the updates.
        devices: number of replicas, a divisor of ``SAMPLES``.
        rule: the rule, with a length of its blocks.
        steps: number of batches.

    Returns:
        The parameters at the end of a block, or within one the first replica's.
    """
    alone = [_Alone(model, optimizer) for _ in range(devices)]
    common: Values = {}
    speed: Values = {}
    for step, batch in enumerate(model.batches(steps)):
        shares = {name: np.split(whole, devices, model.axes.get(name, 0)) for name, whole in batch.items()}
        for replica, one in enumerate(alone):
            one.feed({name: parts[replica] for name, parts in shares.items()})
        if step == 0:
            common = {name: value.astype(np.float64) for name, value in alone[0].parameters().items()}
            speed = dict.fromkeys(common, 0.0)
        for one in alone:
            one.train(common if step % rule.iterations == 0 else {})
        if (step + 1) % rule.iterations == 0:
            for name, before in common.items():
                mean = np.mean([one.parameters()[name].astype(np.float64) for one in alone], axis=0)
                old, speed[name] = speed[name], rule.momentum * speed[name] + rule.learning_rate * (mean - before)
                common[name] = before + speed[name] + rule.lookahead * (speed[name] - old)
    return common if steps % rule.iterations == 0 else alone[0].parameters()


class _Alone:
    """A model on one device; all have the same initial values."""

    def __init__(self, model: ProofModel, optimizer: Callable[[ModelHelper], Any]) -> None:
        reset_names()
        self._made: Method = METHODS["Parallelize"](model, optimizer, 1)
        self._workspace = Workspace(threads=1, seed=1)
        self._initialized = False

    def feed(self, share: Values) -> None:
        self._made.feed(self._workspace, share)
        if not self._initialized:
            self._made.initialize(self._workspace)
            self._initialized = True

    def train(self, start: Values) -> None:
        """Train a step from these parameters; those that are missing are the current ones."""
        for name, value in start.items():
            self._workspace.feed(self._made.parameters[name], value.astype(np.float32))
        self._made.run(self._workspace)

    def parameters(self) -> Values:
        return {name: self._workspace.fetch(blob) for name, blob in sorted(self._made.parameters.items())}
