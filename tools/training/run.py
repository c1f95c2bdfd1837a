"""One training run: a parallel model, its test model over the same parameters, epochs, export."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.exchange import Checkpoint, load_checkpoint, save_predictor, take_checkpoint
from netbuilder.graph import BlobReference
from netbuilder.model import ModelHelper, brew
from netbuilder.optimizers import add_weight_decay, build_sgd
from netbuilder.parallel import (
    CreateNet,
    ExtractPredictorNet,
    Parallelize,
    RunInitNet,
    RunNet,
    loss_reader,
    prefetch,
)
from netbuilder.proto import NetError
from netbuilder.runtime import Prefetch, Workspace
from netbuilder.tools.training.decoded import DecodedImages
from netbuilder.tools.training.images import Images
from netbuilder.tools.training.nets import add_net
from netbuilder.tools.training.options import Options
from netbuilder.tools.training.progress import Progress

__all__ = ["Epoch", "Run"]


@dataclass(frozen=True)
class Epoch:
    """What an epoch gave.

    Args:
        loss: mean over its steps.
        accuracy: share of training samples right.
        rate: images per second.
        wait: seconds in which training waited for its input.
    """

    loss: float
    accuracy: float
    rate: float
    wait: float


class Run:
    """A net in training.

    Args:
        options: see there.
        train, test: the data.

    Raises:
        NetError: the net cannot be built for these images and devices.
        DeviceError: a GPU is missing.
    """

    def __init__(self, options: Options, train: Images | DecodedImages, test: Images | DecodedImages) -> None:
        self.options = options
        self._train_images, self._test_images = train, test
        self._workspace = Workspace(seed=options.seed, without=options.without)
        self._classes = options.input.classes or max(train.class_count, test.class_count)
        word = "cpu" if options.cpu else "gpu"
        self._scopes = [f"{word}_{device}/" for device in options.devices]
        self.steps = len(train) // options.batch
        self.epochs_done = 0
        self.step = 0  # of the epoch that runs
        self._losses, self._right = 0.0, 0.0  # sums over its steps
        self._loss: float | None = None  # of the last step that was read
        self._model = self._training_model()
        self._reader = loss_reader(self._model, ["loss", "accuracy"], workspace=self._workspace)
        self._test_model = self._evaluation_model()
        self._feed(*next(train.batches(options.batch)))
        RunInitNet(self._model, workspace=self._workspace)
        CreateNet(self._test_model, workspace=self._workspace)

    @property
    def parameter_count(self) -> int:
        """Elements of all parameters of one replica."""
        names = {str(p) for p in self._model.GetParams() if str(p).startswith(self._scopes[0])}
        return sum(self._workspace.fetch(name).size for name in names)

    def _training_model(self) -> ModelHelper:
        options = self.options

        def forward(model: ModelHelper, loss_scale: float) -> list[BlobReference]:
            softmax, loss = add_net(
                model, options.model, self._train_images.shape, self._classes, is_test=False, label="label"
            )
            brew.accuracy(model, [softmax, "label"], "accuracy")
            return [model.net.Scale(loss, "scaled_loss", scale=loss_scale)]

        def update(model: ModelHelper) -> object:
            if options.weight_decay:
                add_weight_decay(model, options.weight_decay)
            return build_sgd(
                model, options.learning_rate, momentum=options.momentum, nesterov=1,
                policy=options.policy, **self._policy_args(),
            )  # fmt: skip

        model = ModelHelper(name=f"{options.model}_train", arg_scope={"order": "NCHW"})
        Parallelize(
            model,
            input_builder_fun=lambda model: None,
            forward_pass_builder_fun=forward,
            optimizer_builder_fun=update,
            devices=list(options.devices),
            net_type=options.net_type,
            num_threads_per_device=options.device_workers,
            cpu_device=options.cpu,
            dtype=options.dtype,
        )
        return model

    def _policy_args(self) -> dict[str, Any]:
        found = dict(self.options.policy_args)
        if self.options.step_epochs:
            found["stepsize"] = self.options.step_epochs * self.steps
        return found

    def _evaluation_model(self) -> ModelHelper:
        """A model in test mode on the first device: it reads the parameters of the first replica."""

        def forward(model: ModelHelper, loss_scale: float) -> list[BlobReference]:
            add_net(model, self.options.model, self._test_images.shape, self._classes, is_test=True)
            return []

        model = ModelHelper(name=f"{self.options.model}_test", arg_scope={"order": "NCHW"}, init_params=False)
        Parallelize(
            model,
            input_builder_fun=lambda model: None,
            forward_pass_builder_fun=forward,
            devices=[self.options.devices[0]],
            cpu_device=self.options.cpu,
        )
        return model

    def _feed(self, images: np.ndarray, labels: np.ndarray) -> None:
        size = self.options.device_batch
        for k, scope in enumerate(self._scopes):
            part = slice(k * size, (k + 1) * size)
            self._workspace.feed(f"{scope}data", images[part])
            self._workspace.feed(f"{scope}label", labels[part])

    def train_epoch(self, number: int, stop: Callable[[], object] = lambda: False) -> Epoch | None:
        """Train on all samples once, in an order that follows from the seed and the epoch alone.

        Args:
            number: of the epoch, from 1; of one that was broken off, the rest is trained.
            stop: called after each step; whether to break off.

        Returns:
            None: broken off.
        """
        batches = self._batches(number)
        with (
            Progress(f"epoch {number}/{self.options.epochs}", self.steps - self.step) as progress,
            self._prefetch(self._model, batches, ["data", "label"]) as input,
        ):
            for batch in input:
                RunNet(self._model, 1, wait=False, workspace=self._workspace)
                self._add(self._reader.read())
                self.step += 1
                progress.step(len(batch["label"]), self._loss)
                if stop():
                    return None
            self._add(self._reader.last())
        epoch = Epoch(self._losses / self.steps, self._right / self.steps, progress.rate, input.state().wait)
        self.epochs_done, self.step, self._losses, self._right = number, 0, 0.0, 0.0
        return epoch

    def _prefetch(
        self, model: ModelHelper, batches: Iterable[tuple[np.ndarray, np.ndarray]], blobs: Sequence[str]
    ) -> Prefetch:
        source = ({"data": images, "label": labels} for images, labels in batches)
        return prefetch(model, source, blobs=blobs, workspace=self._workspace)

    def _add(self, measures: dict[str, float] | None) -> None:
        """Add what a step gave to the sums of the epoch; ``step`` counts the steps before the one just begun."""
        if measures is None:
            return
        self._loss = measures["loss"]
        self._losses += self._loss
        self._right += measures["accuracy"]
        if not np.isfinite(self._loss):
            raise FloatingPointError(
                f"epoch {self.epochs_done + 1}, step {self.step}: the loss is {self._loss}; "
                "try a smaller --learning-rate"
            )

    def _batches(self, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        rng = np.random.default_rng([self.options.seed, epoch])
        return self._train_images.batches(self.options.batch, rng, self.step)

    @property
    def steps_done(self) -> int:
        """Steps of all epochs."""
        return self.epochs_done * self.steps + self.step

    def checkpoint(self, metric: float | None = None) -> Checkpoint:
        """Return all that is needed to go on from here.

        Args:
            metric: the accuracy on held-out samples, if it is known.
        """
        self._add(self._reader.last())
        state = {
            "epochs_done": self.epochs_done, "step": self.step, "losses": self._losses, "right": self._right,
            "must_be": self._identity(), "options": self._rates(),
        }  # fmt: skip
        return take_checkpoint(self._model, workspace=self._workspace, step=self.steps_done, metric=metric, state=state)

    def resume(self, checkpoint: Checkpoint, source: str) -> list[str]:
        """Go on from a checkpoint; return what is otherwise now than it was then.

        Raises:
            NetError: it is of another net, or of other data; the run is as it was.
        """
        state = checkpoint.state
        if "must_be" not in state:
            raise NetError(f"{source!r}: holds no training of netbuilder-train; load it by load_checkpoint")
        problems = _differences(state["must_be"], self._identity())
        if problems:
            raise NetError(f"{source!r}: was written by a run with " + "; ".join(problems))
        load_checkpoint(checkpoint, self._model, workspace=self._workspace)
        self._reader.last()  # of a step before, which does not count
        self.epochs_done, self.step = state["epochs_done"], state["step"]
        self._losses, self._right = state["losses"], state["right"]
        return _differences(state["options"], self._rates())

    def _identity(self) -> dict[str, Any]:
        """What a checkpoint and the run that goes on from it must have in common."""
        options = self.options
        return {"--model": options.model, "--batch": options.batch, "--seed": options.seed,
                "training samples": len(self._train_images)}  # fmt: skip

    def _rates(self) -> dict[str, Any]:
        options = self.options
        return {"--learning-rate": options.learning_rate, "--policy": options.policy,
                "its arguments": self._policy_args(), "--momentum": options.momentum,
                "--weight-decay": options.weight_decay, "--dtype": options.dtype,
                "number of devices": len(options.devices)}  # fmt: skip

    def evaluate(self) -> float:
        """Return the share of held-out samples that the net gets right, in test mode, each counted once."""
        right = count = 0
        batches = self._test_images.batches(self.options.batch)
        with self._prefetch(self._test_model, batches, ["data"]) as input:
            for batch in input:
                RunNet(self._test_model, 1, workspace=self._workspace)
                scores = self._workspace.fetch(f"{self._scopes[0]}softmax")
                right += int((scores.argmax(axis=1) == batch["label"]).sum())
                count += len(batch["label"])  # damaged images may have been left out
        return right / max(count, 1)

    def export(self, folder: str | Path) -> None:
        """Write the predictor: images in (``data``), probabilities of the classes out (``softmax``)."""
        net, parameters = ExtractPredictorNet(self._test_model, ["data"], ["softmax"], None)
        shape = (1, *self._test_images.shape)
        save_predictor(folder, net, parameters, inputs=["data"], shapes={"data": shape}, workspace=self._workspace)


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [f"{name} {before.get(name)!r}, now {value!r}" for name, value in now.items() if before.get(name) != value]
