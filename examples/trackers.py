"""Callbacks that send the results of netbuilder-train to Weights & Biases, MLflow or TensorBoard.

    netbuilder-train --model mlp --cpu --callback examples.trackers:WandB

In the folder that has ``examples``; each needs its package: wandb, mlflow, or tensorboardX. Of several processes the
first one sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from netbuilder.tools.training.callbacks import Callback

__all__ = ["MLflow", "TensorBoard", "Tracker", "WandB"]


class Tracker(Callback):
    """Sends loss and accuracy of each step, and of the held-out samples of each epoch.

    Args:
        options: of the run.
    """

    def __init__(self, options: Any) -> None:
        self.options = options
        self.on = options.rendezvous is None or options.rendezvous.shard_id == 0

    def begin(self) -> None:
        """Open the record of the run."""

    def send(self, values: Mapping[str, float], step: int) -> None:
        """Send metrics by name."""
        raise NotImplementedError

    def end(self) -> None:
        """Close it."""

    def before_training(self, run: Any) -> None:
        if self.on:
            self.begin()

    def after_results(self, run: Any, step: int, results: Mapping[str, float]) -> None:
        if self.on:
            self.send({f"train/{name}": float(value) for name, value in results.items()}, step)

    def after_epoch(self, run: Any, results: Any) -> None:
        if self.on:
            found = results.held_out
            self.send({"held_out/loss": found.loss, "held_out/accuracy": found.top1}, run.steps_done)

    def __exit__(self, *about: object) -> None:
        if self.on:
            self.end()


class WandB(Tracker):
    """Weights & Biases; its environment variables say where."""

    def begin(self) -> None:
        import wandb

        self._run = wandb.init(config=self.options.effective)

    def send(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def end(self) -> None:
        self._run.finish()


class MLflow(Tracker):
    """MLflow; MLFLOW_TRACKING_URI says where."""

    def begin(self) -> None:
        import mlflow

        self._mlflow = mlflow
        mlflow.start_run()
        mlflow.log_params({"model": self.options.net_name, "optimizer": self.options.optimizer})

    def send(self, values: Mapping[str, float], step: int) -> None:
        self._mlflow.log_metrics(dict(values), step=step)

    def end(self) -> None:
        self._mlflow.end_run()


class TensorBoard(Tracker):
    """TensorBoard, in the folder ``runs``; ``--tensorboard FOLDER`` of netbuilder-train writes more."""

    def begin(self) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter()

    def send(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def end(self) -> None:
        self._writer.close()
