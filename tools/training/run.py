"""One training run: a parallel model, its test model over the same parameters, epochs, export."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.exchange import save_predictor
from netbuilder.graph import BlobReference
from netbuilder.model import ModelHelper, brew
from netbuilder.optimizers import add_weight_decay, build_sgd
from netbuilder.parallel import CreateNet, ExtractPredictorNet, Parallelize, RunInitNet, RunNet
from netbuilder.runtime import Workspace
from netbuilder.tools.training.images import Images
from netbuilder.tools.training.nets import add_net
from netbuilder.tools.training.options import Options
from netbuilder.tools.training.progress import Progress

__all__ = ["Epoch", "Run"]


@dataclass(frozen=True)
class Epoch:
    """What an epoch gave: mean loss, share of training samples right, images per second."""

    loss: float
    accuracy: float
    rate: float


class Run:
    """A net in training.

    Args:
        options: see there.
        train, test: the data.

    Raises:
        NetError: the net cannot be built for these images and devices.
        DeviceError: a GPU is missing.
    """

    def __init__(self, options: Options, train: Images, test: Images) -> None:
        self.options = options
        self._train_images, self._test_images = train, test
        self._rng = np.random.default_rng(options.seed)
        self._workspace = Workspace(seed=options.seed)
        self._classes = int(max(train.labels.max(), test.labels.max())) + 1
        word = "cpu" if options.cpu else "gpu"
        self._scopes = [f"{word}_{device}/" for device in options.devices]
        self.steps = len(train) // options.batch
        self._model = self._training_model()
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

    def _mean_of(self, name: str) -> float:
        return float(np.mean([self._workspace.fetch(scope + name) for scope in self._scopes]))

    def train_epoch(self, number: int) -> Epoch:
        """Train on all samples once, in an order of their own.

        Args:
            number: of the epoch, from 1.
        """
        losses, right = [], []
        with Progress(f"epoch {number}/{self.options.epochs}", self.steps) as progress:
            for images, labels in self._train_images.batches(self.options.batch, self._rng):
                self._feed(images, labels)
                RunNet(self._model, 1, workspace=self._workspace)
                losses.append(self._mean_of("loss"))
                right.append(self._mean_of("accuracy"))
                progress.step(len(labels), losses[-1])
                if not np.isfinite(losses[-1]):
                    raise FloatingPointError(
                        f"epoch {number}, step {len(losses)}: the loss is {losses[-1]}; try a smaller --learning-rate"
                    )
            return Epoch(float(np.mean(losses)), float(np.mean(right)), progress.rate)

    def evaluate(self) -> float:
        """Return the share of held-out samples that the net gets right, in test mode, each counted once."""
        right = 0
        for images, labels in self._test_images.batches(self.options.batch):
            self._workspace.feed(f"{self._scopes[0]}data", images)
            RunNet(self._test_model, 1, workspace=self._workspace)
            scores = self._workspace.fetch(f"{self._scopes[0]}softmax")
            right += int((scores.argmax(axis=1) == labels).sum())
        return right / len(self._test_images)

    def export(self, folder: str | Path) -> None:
        """Write the predictor: images in (``data``), probabilities of the classes out (``softmax``)."""
        net, parameters = ExtractPredictorNet(self._test_model, ["data"], ["softmax"], None)
        shape = (1, *self._test_images.shape)
        save_predictor(folder, net, parameters, inputs=["data"], shapes={"data": shape}, workspace=self._workspace)
