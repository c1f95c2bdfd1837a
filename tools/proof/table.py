"""The entries of netbuilder-prove: which models are trained how, and the reference of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from netbuilder.tools.proof.blocks import trained_apart
from netbuilder.tools.proof.images import IMAGES
from netbuilder.tools.proof.measure import BLOCK, Values, block_rule, supports, trained
from netbuilder.tools.proof.models import OPTIMIZERS, TABLES, ProofModel
from netbuilder.tools.proof.sequences import SEQUENCES

__all__ = ["MODELS", "References", "Run", "runs_of"]

MODELS: dict[str, ProofModel] = {**TABLES, **SEQUENCES, **IMAGES}
"""Name -> model to train."""


class Run(NamedTuple):
    """A training: a model with an optimizer, how it is distributed, over how many devices of how many processes.

    Each process has ``devices / processes`` of them.
    """

    model: str
    optimizer: str
    method: str
    devices: int
    processes: int = 1

    def trained(self, steps: int, options: Mapping[str, Any]) -> Values:
        """Train in this process; return the parameters by name.

        Args:
            steps: number of batches.
            options: further arguments of Parallelize; with several processes ``rendezvous`` among them.

        Raises:
            MemoryBudgetError: the memory budget among the options is too small for the model.
        """
        model = MODELS[self.model].with_options(options)
        devices = self.devices // self.processes
        return trained(model, OPTIMIZERS[self.optimizer], devices, steps=steps, method=self.method)

    def ends_within_block(self, steps: int) -> bool:
        """Whether the replicas have different parameters after so many steps."""
        return self.method == "BMUF" and steps % BLOCK > 0


def runs_of(
    models: Sequence[str],
    optimizers: Sequence[str],
    methods: Sequence[str],
    places: Sequence[tuple[int, int]],
    options: Mapping[str, Any],
) -> Iterator[Run]:
    """Yield the runs of a table, row by row.

    Methods have none for models and options that they do not support. Local SGD has none but for plain SGD, of which
    alone the mean of the replicas' steps is a step on the whole batch. One process has none for models whose results
    depend on the number of devices. Several processes have none of several devices that share parameters.

    Args:
        places: numbers of processes and of devices of all processes.
        options: of Parallelize, for all models.
    """
    for name in models:
        for optimizer in optimizers:
            for method in methods:
                if method == "local SGD" and optimizer != "SGD":
                    continue
                for processes, devices in places:
                    if processes > 1 and options.get("shared_model") and devices != processes:
                        continue
                    several = {"rendezvous": None} if processes > 1 else {}
                    model = MODELS[name].with_options({**options, **several})
                    if supports(method, model) and (processes > 1 or not model.by_devices):
                        yield Run(name, optimizer, method, devices, processes)


class References:
    """What runs are compared with: mostly one device, see ``of``.

    Args:
        steps: number of batches.
        options: of Parallelize; the references have the same kind of devices and types, and none of the others.
    """

    def __init__(self, steps: int, options: Mapping[str, Any]) -> None:
        self._steps = steps
        self._options = {key: options[key] for key in ("cpu_device", "dtype", "gradient_scaling") if key in options}
        self._found: dict[Run, Values] = {}

    def of(self, run: Run) -> Values:
        """Return the parameters by name to compare a run with.

        BMUF gives other parameters than one device, and is compared with ``trained_apart``; a model whose results
        depend on the number of devices with one process of as many devices.
        """
        model = MODELS[run.model]
        blocks = run.method == "BMUF"
        devices = run.devices if blocks or model.by_devices else 1
        key = Run(run.model, run.optimizer, "BMUF" if blocks else "Parallelize", devices)
        if key not in self._found:
            self._found[key] = self._blocks(key) if blocks else key.trained(self._steps, self._options)
        return self._found[key]

    def _blocks(self, run: Run) -> Values:
        model, rule = MODELS[run.model].with_options(self._options), block_rule(run.devices)
        return trained_apart(model, OPTIMIZERS[run.optimizer], run.devices, rule, steps=self._steps)
