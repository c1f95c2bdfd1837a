"""A net in training and the net in test mode over its parameters, in a workspace: steps, evaluation, export."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.distributed import ProcessGroup
from netbuilder.exchange import ImagePreparation, save_predictor
from netbuilder.exchange.image_preparation import describe_images
from netbuilder.exchange.onnx import export_onnx
from netbuilder.graph.memory_budget import MemoryBudgetError
from netbuilder.graph.replicas import Replicas
from netbuilder.metrics import Classification
from netbuilder.ops.core.renaming import rename_blobs
from netbuilder.optimizers import OPTIMIZERS, moving_averages
from netbuilder.parallel import (
    CreateNet,
    ExtractPredictorNet,
    GetLearningRateBlobNames,
    RunInitNet,
    RunNet,
    estimate_statistics,
    feed_shares,
    finish_block,
    gather_shares,
    loss_reader,
    planned_step,
    prefetch,
)
from netbuilder.parallel.accumulate import net_names
from netbuilder.proto import NetDef
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime import Prefetch, Workspace
from netbuilder.runtime.execute.net import RuntimeNet
from netbuilder.runtime.profile.memory import Memory
from netbuilder.tools.stored_nets import is_onnx
from netbuilder.tools.training.fed_images import DATA, FedImages
from netbuilder.tools.training.models import evaluation_model, training_model
from netbuilder.tools.training.settings import Options
from netbuilder.tools.training.step_timing import Boundaries

__all__ = ["Evaluation", "TrainedModel"]

_TOP = 5  # number of classes of top-5 accuracy


@dataclass(frozen=True)
class Evaluation:
    """Results on held-out samples.

    Args:
        top1: share of samples with the correct class first.
        top5: share of those with the correct class among the first five; None with five classes or fewer.
        samples: number of samples.
        loss: mean over the samples of -log of the correct class's probability.
        metrics: of each class; with --class-report also the confusion matrix, average precision and AUC.
    """

    top1: float
    top5: float | None
    samples: int
    loss: float
    metrics: Classification | None = field(default=None, compare=False, repr=False)


class TrainedModel:
    """The models of a run; with several processes, the part of one of them, and all call the same methods.

    Args:
        options: of the run.
        train_images, test_images: that the models are fed.
        classes: number of classes.
        steps: per epoch.

    Attributes:
        workspace: has the nets and their blobs.
        train, test: the models.
        train_images, test_images: that they are fed.
        record: the replicas of the training model.
        reader: of its loss and accuracy.
        boundaries: ends of the phases of its net.
        planned: what a step is planned to take; None: it has not been planned.

    Raises:
        NetError: the net cannot be built for these images and devices.
        DeviceError: a GPU is missing.
    """

    def __init__(
        self, options: Options, train_images: FedImages, test_images: FedImages, classes: int, steps: int
    ) -> None:
        self._options, self._classes = options, classes
        self.workspace = Workspace(seed=options.seed, without=options.without)
        self._scope = f"{'cpu' if options.cpu else 'gpu'}_{options.devices[0]}/"
        self.boundaries = Boundaries()
        self.train = training_model(options, train_images, classes, steps, self.boundaries)
        self.record = Replicas.load(self.train.net.Proto())
        self.reader = loss_reader(self.train, ["loss", "accuracy"], workspace=self.workspace)
        self._averages = moving_averages(self.train)
        self.test = evaluation_model(options, test_images, classes, self._averages)
        self.train_images, self.test_images = train_images, test_images
        self.planned: Memory | None = None

    def begin(self, batch: Mapping[str, Any]) -> None:
        """Fill the parameters, and create the nets for batches such as this one."""
        next(feed_shares(self.train, batch, workspace=self.workspace))
        RunInitNet(self.train, workspace=self.workspace)
        CreateNet(self.test, workspace=self.workspace)

    @property
    def net(self) -> NetDef:
        """The net that trains."""
        return self.train.net.Proto()

    @property
    def nets(self) -> list[RuntimeNet]:
        """The created nets of a training step: one, or with micro-batches several."""
        return [self.workspace.net(name) for name in net_names(self.train.net.Name(), self.record)]

    @property
    def parameter_count(self) -> int:
        """Number of elements of all parameters of one replica."""
        names = {str(p) for p in self.train.GetParams() if str(p).startswith(self._scope)}
        return sum(self.workspace.fetch(name).size for name in names)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the last step."""
        if not OPTIMIZERS[self._options.optimizer].has_policy():
            return self._options.scaled_rate  # the optimizer has its rate as an argument
        blob = GetLearningRateBlobNames(self.train)[0]
        return abs(float(np.asarray(self.workspace.fetch(blob)).reshape(())))

    def plan(self, group: ProcessGroup) -> Memory:
        """Plan a step for the batch that has been fed; return the memory that it will take.

        Raises:
            NetError: the step cannot be planned.
            MemoryBudgetError: it cannot keep to its budget, in one of the processes.
        """
        problem: MemoryBudgetError | None = None
        try:
            self.planned = planned_step(self.train, self.workspace)
        except MemoryBudgetError as error:
            problem = error
        problems = [each for each in group.gather(problem and (str(problem), problem.budget)) if each]
        if problems:
            raise problem or MemoryBudgetError(*problems[0])
        assert self.planned is not None
        return self.planned

    def fed(self, batches: Iterable[Mapping[str, Any]], blobs: Sequence[str], *, test: bool = False) -> Prefetch:
        """Return a context and iterator in which the next batch is made and fed while the net runs."""
        # SanityWarnings checks batches, so prefetch need not.
        model = self.test if test else self.train
        return prefetch(model, batches, blobs=blobs, workspace=self.workspace, look=False)

    def run(self) -> None:
        """Begin to run a micro-batch, and the update if it is due."""
        RunNet(self.train, 1, wait=False, workspace=self.workspace)

    def run_finding_nan(self) -> None:
        """Run a micro-batch, looking at each value.

        Raises:
            NotFiniteError: one is NaN or infinite; the message names the operator.
        """
        RunNet(self.train, 1, workspace=self.workspace, find_nan=True)

    def run_shares(self, batch: Mapping[str, Any]) -> Iterator[Callable[[], object]]:
        """Feed a batch; yield for each of its micro-batches, once it is fed, a function that runs it."""
        for _ in feed_shares(self.train, batch, workspace=self.workspace):
            yield lambda: RunNet(self.train, 1, workspace=self.workspace)

    def finish_block(self) -> None:
        """Bring the replicas together, if they train on their own: evaluation is of one model."""
        if self._options.block is not None:
            finish_block(self.train, workspace=self.workspace)

    def evaluated(
        self, batches: Iterable[Mapping[str, Any]], group: ProcessGroup, after_batch: Callable[[int], bool]
    ) -> Evaluation | None:
        """Evaluate the net in test mode, over all processes.

        Args:
            batches: this process's samples.
            group: the processes.
            after_batch: called with the number of samples of each batch; returns whether to stop.

        Returns:
            None: one of the processes has stopped.
        """
        whole, stopped = self._options.class_report is not None, False
        metrics = Classification(self._classes, top=(1, _TOP), confusion=whole, rankings=whole)
        with self.fed(batches, [self.test_images.blob], test=True) as input:
            for batch in input:
                RunNet(self.test, 1, workspace=self.workspace)
                labels = np.asarray(batch["label"])
                scores = gather_shares(self.test, "softmax", len(labels), workspace=self.workspace)
                metrics.add(scores, labels)
                if stopped := after_batch(len(labels)):
                    break
        if group.sum(stopped)[0]:
            return None
        metrics = metrics.over(group)
        top5 = metrics.accuracy(_TOP) if self._classes > _TOP and metrics.count else None
        return Evaluation(metrics.accuracy(), top5, metrics.count, metrics.loss, metrics)

    def estimate_statistics(self, batches: Iterable[Mapping[str, Any]], group: ProcessGroup) -> int:
        """Set the running statistics of the averages to those of batches; return the number of samples, or 0.

        0: the net has no batch normalization.
        """
        given = self.train_images
        model = evaluation_model(self._options, given, self._classes, self._averages, "statistics")
        return estimate_statistics(model, batches, blobs=[given.blob], group=group, workspace=self.workspace)

    def export(self, path: str | Path, images: ImagePreparation | None, names: Sequence[str]) -> None:
        """Write the predictor: images in (``data``), probabilities of the classes out (``softmax``).

        Args:
            path: a folder for its two files, or an ONNX file.
            images: the preprocessing that it stores.
            names: of the classes; (): none.
        """
        net, parameters = ExtractPredictorNet(self.test, [DATA], ["softmax"], None)
        scope = self._scope
        plain = {average.removeprefix(scope): name.removeprefix(scope) for name, average in self._averages.items()}
        values = {plain.get(name, name): self.workspace.fetch(scope + name) for name in map(str, parameters)}
        rename_blobs(net.Proto(), plain)  # in the predictor, averages are named like the parameters
        shapes = {DATA: (1, *self.test_images.shape)}
        if is_onnx(path):
            describe_images(net.Proto(), images, names or None)
            export_onnx(path, net, values, shapes=shapes, workspace=self.workspace)
            return
        save_predictor(
            path, net, values, inputs=[DATA], shapes=shapes, workspace=self.workspace, images=images,
            classes=names or None,
        )  # fmt: skip
