"""A training run: a data-parallel model, its test model over the same parameters, epochs, export."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.data import BatchMixer
from netbuilder.exchange import Checkpoint, load_checkpoint, save_predictor, take_checkpoint
from netbuilder.exchange.checkpoint_manifest import check_fields, mapping, optional, real, whole
from netbuilder.graph.memory_budget import MemoryBudgetError
from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.ops.core.renaming import rename_blobs
from netbuilder.ops.losses.accuracy import classes_before_label
from netbuilder.optimizers import EarlyStopping, moving_averages
from netbuilder.parallel import (
    CreateNet,
    ExtractPredictorNet,
    GetLearningRateBlobNames,
    RunInitNet,
    RunNet,
    feed_shares,
    finish_block,
    gather_shares,
    loss_reader,
    planned_step,
    prefetch,
)
from netbuilder.parallel.accumulate import net_names
from netbuilder.parallel.shares import ProcessBatch, local_shares, own_samples
from netbuilder.proto import NetDef, NetError
from netbuilder.runtime import Prefetch, Workspace
from netbuilder.runtime.execute.net import RuntimeNet
from netbuilder.runtime.execute.not_finite import NotFiniteError
from netbuilder.runtime.profile.memory import Memory
from netbuilder.tools.progress import EpochProgress, Progress
from netbuilder.tools.training.best_epoch import BestEpoch
from netbuilder.tools.training.decoded import DecodedImages
from netbuilder.tools.training.images import Images
from netbuilder.tools.training.metrics import Metrics
from netbuilder.tools.training.models import TARGET, evaluation_model, policy_of, training_model
from netbuilder.tools.training.sanity_warnings import SanityWarnings, first_not_finite
from netbuilder.tools.training.settings import Options
from netbuilder.tools.training.step_timing import Boundaries, StepTiming

__all__ = ["Epoch", "Evaluation", "Run"]

_TOP = 5  # number of classes of top-5 accuracy
_TINY = 1e-20  # probabilities are clamped to this before log, as in SoftmaxWithLoss

_STATE: Mapping[str, Any] = {
    "must_be": mapping(), "options": mapping(), "epochs_done": whole(0, 2**31), "losses": real, "right": real,
    "seen": real, "rate": real, "early_stopping": optional(mapping()), "best_epoch": mapping(),
}  # fmt: skip
"""Fields of the state in a checkpoint, with their checks."""


@dataclass(frozen=True)
class Epoch:
    """Results of an epoch of training.

    Args:
        loss: mean over its samples.
        accuracy: share of training samples classified correctly.
        rate: images per second.
        wait: seconds that training waited for input.
        seconds: duration of the epoch.
        shares: phase -> share of the steps' time, measured in a step that was timed call by call.
        learning_rate: of the last step.
        again: the time to compute values again, to save memory, as a fraction of that of all else, measured there.
    """

    loss: float
    accuracy: float
    rate: float
    wait: float
    seconds: float
    shares: dict[str, float]
    learning_rate: float
    again: float = 0.0


@dataclass(frozen=True)
class Evaluation:
    """Results on held-out samples.

    Args:
        top1: share of samples with the correct class first.
        top5: share of those with the correct class among the first five; None with five classes or fewer.
        samples: number of samples.
        loss: mean over the samples of -log of the correct class's probability.
    """

    top1: float
    top5: float | None
    samples: int
    loss: float


class Run:
    """A net in training; with several processes, the part of one of them, and all call the same methods.

    Args:
        options: of the run.
        train, test: the data.
        metrics: gets the values of each step and epoch.

    Attributes:
        group: the processes that train together.
        stops: asked after each step: whether this process wants to stop.
        stopped: whether one of the processes has wanted to, by the last step.

    Raises:
        NetError: the net cannot be built for these images and devices.
        DeviceError: a GPU is missing.
        DistributedError: the processes have different options or data.
    """

    def __init__(
        self,
        options: Options,
        train: Images | DecodedImages,
        test: Images | DecodedImages,
        metrics: Metrics | None = None,
    ) -> None:
        self.options, self.metrics = options, metrics
        self.group = options.group()
        self.stops: Callable[[], bool] = lambda: False
        self.stopped = False
        self._train_images, self._test_images = train, test
        self._workspace = Workspace(seed=options.seed, without=options.without)
        self._classes = options.input.classes or max(train.class_count, test.class_count)
        self._names = options.input.names or test.classes
        if self._names and len(self._names) < self._classes:
            raise NetError(f"--class-names: {len(self._names)} names for {self._classes} classes")
        word = "cpu" if options.cpu else "gpu"
        self._scopes = [f"{word}_{device}/" for device in options.devices]
        self.steps = -(-len(train) // options.batch)
        self.epochs_done = 0
        self.step = 0  # of the current epoch
        self._losses, self._right, self._seen = 0.0, 0.0, 0  # sums over its samples
        self._ended = (0.0, 0.0, 0)  # those of the last epoch that was trained to its end
        self._of_step, self._step_seen, self._measured = {"loss": 0.0, "accuracy": 0.0}, 0, 0
        self._of_process = (0.0, 0.0, 0)  # loss, correct answers and samples of the last step that was read, here
        self.best = BestEpoch()
        self._first_step = 0  # steps that the run had done when it was resumed
        self._rate = options.scaled_rate  # of the last step of that run
        self._counts: deque[int] = deque()  # numbers of samples of micro-batches whose results have not been read yet
        self.tick: Callable[[], object] = lambda: None  # called after each step of training or evaluation
        self.planned: Memory | None = None  # what a step is planned to take, once that is known
        self.before_first_step: Callable[[Memory], object] = lambda memory: None  # gets the memory that is planned
        self._planned = False
        self._loss: float | None = None  # of the last step whose results were read
        self._top1: float | None = None
        self._warnings = SanityWarnings(self._classes)
        self._mixer = BatchMixer(
            self._classes, mixup=options.mixup, cutmix=options.cutmix, smoothing=options.label_smoothing,
            seed=options.seed,
        )  # fmt: skip
        self.early = early_stopping(options)
        boundaries = Boundaries()
        self._averages: dict[str, str] = {}
        self.group.require_equal(self._facts())
        self._model = training_model(options, train.shape, self._classes, self.steps, boundaries)
        self.record = Replicas.load(self._model.net.Proto())  # of the replicas of the training model
        self._reader = loss_reader(self._model, ["loss", "accuracy"], workspace=self._workspace)
        self._averages = moving_averages(self._model)
        self._test_model = evaluation_model(options, test.shape, self._classes, self._averages)
        self.timing = StepTiming(self._model, self._workspace, boundaries)
        next(feed_shares(self._model, self._first_batch(), workspace=self._workspace))
        RunInitNet(self._model, workspace=self._workspace)
        CreateNet(self._test_model, workspace=self._workspace)

    def _first_batch(self) -> dict[str, np.ndarray]:
        return next(self._inputs_of_epoch(0, 0))

    def _facts(self) -> dict[str, Any]:
        """Return what must be equal on all processes, by name."""
        return {**self._identity(), **self._rates(), "held-out samples": len(self._test_images),
                "classes": self._classes, "shape of an image": list(self._train_images.shape),
                "--epochs": self.options.epochs, "--without": sorted(self.options.without),
                "--find-nan": self.options.find_nan, "--memory-budget": self.options.memory_budget}  # fmt: skip

    @property
    def training_net(self) -> NetDef:
        """The net that trains."""
        return self._model.net.Proto()

    def check_accuracy(self, training: float, held_out: float) -> None:
        """Warn about accuracies that look wrong."""
        if self.group.is_first:
            self._warnings.epoch(training, held_out)

    @property
    def parameter_count(self) -> int:
        """Number of elements of all parameters of one replica."""
        names = {str(p) for p in self._model.GetParams() if str(p).startswith(self._scopes[0])}
        return sum(self._workspace.fetch(name).size for name in names)

    def train_epoch(self, number: int, stop: Callable[[], object] = lambda: False) -> Epoch | None:
        """Train on all samples once, in an order that depends only on the seed and the epoch.

        Args:
            number: of the epoch, from 1; after an interruption, only the rest of it is trained.
            stop: called after each step; returns whether to stop.

        Returns:
            None: training was stopped. Sums and rates are over all processes, and times those of this one.
        """
        began, each = time.perf_counter(), self.options.accumulate_steps
        self.timing.begin()
        with (
            EpochProgress(
                f"epoch {number}/{self.options.epochs}", self.steps - self.step, shown=self.group.is_first
            ) as progress,
            self._prefetch(self._model, self._batches(number), self._inputs) as input,
        ):
            for place, batch in enumerate(input, start=1):
                if place == 1 and self.group.is_first:
                    self._warnings.batch(batch["data"], batch["label"])
                self._run(batch, timed=self.step in self._timed_steps and place % each == 0)
                if place % each:
                    continue
                self._join_measures(self.stops())
                self.step += 1
                self.tick()
                progress.step(self._size_of(self.step - 1), self._loss, self._top1)
                if stop():
                    return None
            self._flush_measures()
            if self.options.block is not None:
                finish_block(self._model, workspace=self._workspace)  # evaluation is of one model
        seconds, wait = time.perf_counter() - began, input.state().wait
        epoch = Epoch(
            self._losses / max(self._seen, 1), self._right / max(self._seen, 1), progress.rate, wait, seconds,
            dict(self.timing.shares), self.learning_rate, self.timing.again,
        )  # fmt: skip
        self._ended = self._losses, self._right, self._seen
        self.epochs_done, self.step, self._losses, self._right, self._seen = number, 0, 0.0, 0.0, 0
        return epoch

    def reopen_epoch(self) -> None:
        """Go back to before the evaluation of the last epoch, which a resumed run then does."""
        self.epochs_done, self.step = self.epochs_done - 1, self.steps
        self._losses, self._right, self._seen = self._ended

    @property
    def _timed_steps(self) -> set[int]:
        """Steps of an epoch that are timed call by call; the fastest is used, since the machine may be shared.

        They have a whole batch, unless no step has one: a last batch of fewer samples would always be the fastest.
        """
        whole = max(len(self._train_images) // self.options.batch, 1)
        return {min(2, whole - 1), whole // 3, whole * 2 // 3}

    def _run(self, batch: Mapping[str, Any], *, timed: bool) -> None:
        """Run a micro-batch."""
        if not self._planned:
            self._planned = True
            self.before_first_step(self.plan())
        if self.options.find_nan:
            self._find_nan()
        elif timed:
            self.timing.run()
        else:
            RunNet(self._model, 1, wait=False, workspace=self._workspace)
        self._counts.append(len(batch["label"]))
        self._add(self._reader.read())

    def _find_nan(self) -> None:
        """Run a micro-batch with the finder of NaN."""
        try:
            RunNet(self._model, 1, workspace=self._workspace, find_nan=True)
        except NotFiniteError as error:
            raise FloatingPointError(f"epoch {self.epochs_done + 1}, step {self.step + 1}: {error}") from error

    def plan(self) -> Memory:
        """Plan a step for the batch that has been fed; return the memory that it will take.

        Raises:
            NetError: the step cannot be planned.
            MemoryBudgetError: it cannot keep to its budget, in one of the processes.
        """
        problem: MemoryBudgetError | None = None
        try:
            self.planned = planned_step(self._model, self._workspace)
        except MemoryBudgetError as error:
            problem = error
        problems = [each for each in self.group.gather(problem and (str(problem), problem.budget)) if each]
        if problems:
            raise problem or MemoryBudgetError(*problems[0])
        assert self.planned is not None
        return self.planned

    @property
    def _inputs(self) -> list[str]:
        return ["data", "label", TARGET] if self.options.soft_labels else ["data", "label"]

    def step_seconds(self, steps: int = 4) -> float:
        """Return the shortest time of a step on the first batch; the parameters change.

        Args:
            steps: number of timed steps, after two warm-up steps.
        """
        batch, least = self._first_batch(), float("inf")
        for number in range(steps + 2):
            seconds = 0.0
            for _ in feed_shares(self._model, batch, workspace=self._workspace):
                began = time.perf_counter()
                RunNet(self._model, 1, workspace=self._workspace)
                seconds += time.perf_counter() - began
            least = min(least, seconds) if number >= 2 else least
        return least

    @property
    def nets(self) -> list[RuntimeNet]:
        """The created nets of a training step: one, or with micro-batches several."""
        return [self._workspace.net(name) for name in net_names(self._model.net.Name(), self.record)]

    def first_steps(self, count: int) -> Iterator[Callable[[], None]]:
        """Yield, for each of the first steps of training, a function that runs it."""
        batches = itertools.islice(self._batches(1), count)
        for batch in batches:
            yield functools.partial(self._run_shares, batch)

    def _run_shares(self, batch: Mapping[str, Any]) -> None:
        for _ in feed_shares(self._model, batch, workspace=self._workspace):
            RunNet(self._model, 1, workspace=self._workspace)

    def _prefetch(self, model: ModelHelper, batches: Iterable[Mapping[str, Any]], blobs: Sequence[str]) -> Prefetch:
        # SanityWarnings checks batches, so prefetch need not.
        return prefetch(model, batches, blobs=blobs, workspace=self._workspace, look=False)

    def _inputs_of_epoch(self, epoch: int, first: int, *, reuse: bool = False) -> Iterator[dict[str, np.ndarray]]:
        """Yield the input blobs of each batch of an epoch, from number ``first`` on: this process's samples.

        Images that are mixed are followed by those with which they are mixed.
        """
        rng = np.random.default_rng([self.options.seed, epoch])
        alone = self.group.size == 1

        def part(number: int, count: int) -> np.ndarray:
            own = own_samples(count, self.record)
            own = own if len(own) else np.arange(1)  # stands for the sample that there is not
            others = self._mixer.others(count, epoch=epoch, number=number) if self._mixer.mixes else np.arange(0)
            return np.concatenate([own, others[own]]) if self._mixer.mixes else own

        batches = self._train_images.batches(self.options.batch, rng, first, reuse=reuse, part=None if alone else part)
        for number, (images, labels) in enumerate(batches, first):
            count = self._size_of(number)
            inputs = {"data": images, "label": labels}
            if self.options.soft_labels:
                given = None if alone else count
                images, labels, targets = self._mixer(images, labels, epoch=epoch, number=number, count=given)
                inputs = {"data": images, "label": labels, TARGET: targets}
            empty = not (alone or len(own_samples(count, self.record)))
            yield inputs if alone else ProcessBatch(inputs, count, empty=empty)

    def _size_of(self, number: int) -> int:
        """Return the number of samples of a batch of all processes, by its number in the epoch."""
        return min(self.options.batch, len(self._train_images) - number * self.options.batch)

    def _add(self, measures: dict[str, float] | None) -> None:
        """Add the results of a micro-batch to the sums of its step, and note those of a step that is complete."""
        if measures is None:
            return
        count = self._counts.popleft()
        if count:
            for name in self._of_step:
                self._of_step[name] += measures[name] * count
        self._step_seen += count
        self._measured += 1
        if self._measured % self.options.accumulate_steps == 0:
            self._of_process = self._of_step["loss"], self._of_step["accuracy"], self._step_seen
            self._of_step, self._step_seen = {"loss": 0.0, "accuracy": 0.0}, 0

    @property
    def must_stop(self) -> bool:
        """Whether to stop now: of several processes, all stop after the same step."""
        if self.group.size == 1:
            self.stopped = self.stopped or self.stops()
        return self.stopped

    def _flush_measures(self) -> None:
        """Read the results of the last step, and add them to the sums of the epoch."""
        self._add(self._reader.last())
        self._join_measures(False)

    def _join_measures(self, stop: bool) -> None:
        """Add the results of the last step that was read, over all processes, to the sums of the epoch."""
        stopping, loss, right, seen = self.group.sum(stop, *self._of_process)
        self._of_process, self.stopped = (0.0, 0.0, 0), self.stopped or stopping > 0
        if not seen:
            return
        self._loss, self._top1 = loss / seen, right / seen
        if not np.isfinite(loss):
            raise FloatingPointError(self._not_finite(self._loss))
        self._losses, self._right, self._seen = self._losses + loss, self._right + right, self._seen + int(seen)
        if self.metrics is not None:
            done = self._measured // self.options.accumulate_steps + self._first_step
            self.metrics.step(done, {"loss": self._loss, "training_accuracy": self._top1, "samples": int(seen)})

    def _not_finite(self, loss: float) -> str:
        found = self.group.gather(first_not_finite(self._model.net, self._workspace))
        rank, blob = next(((rank, blob) for rank, blob in enumerate(found) if blob), (0, None))
        where = f" on rank {rank}" if len(found) > 1 else ""
        seen = f"; the first blob of the net that is not finite is {blob}{where}" if blob else ""
        place = f"epoch {self.epochs_done + 1}, step {self.step}"
        advice = "try a smaller --learning-rate, or --find-nan, which names the operator"
        return f"{place}: the loss is {loss:.4g}{seen}; {advice}"

    def _batches(self, epoch: int) -> Iterator[dict[str, np.ndarray]]:
        return self._inputs_of_epoch(epoch, self.step, reuse=True)  # Prefetch copies

    @property
    def learning_rate(self) -> float:
        """The learning rate of the last step, also right after this run was resumed."""
        if self.steps_done == self._first_step:
            return self._rate
        if not any(op.type == "LearningRate" for op in self._model.net.Proto().op):
            return self.options.scaled_rate  # the optimizer has its rate as an argument
        blob = GetLearningRateBlobNames(self._model)[0]
        return abs(float(np.asarray(self._workspace.fetch(blob)).reshape(())))

    @property
    def steps_done(self) -> int:
        """Number of steps of all epochs so far."""
        return self.epochs_done * self.steps + self.step

    def checkpoint(self, metric: float | None = None) -> Checkpoint:
        """Return a checkpoint from which training can be resumed; all processes call it.

        Args:
            metric: the accuracy on held-out samples, if known.
        """
        self._flush_measures()
        state = {
            "epochs_done": self.epochs_done, "step": self.step, "losses": self._losses, "right": self._right,
            "seen": self._seen, "rate": self.learning_rate,
            "must_be": self._identity(), "options": self._rates(),
            "early_stopping": self.early.state() if self.early is not None else None,
            "best_epoch": self.best.state(),
        }  # fmt: skip
        return take_checkpoint(self._model, workspace=self._workspace, step=self.steps_done, metric=metric, state=state)

    def resume(self, checkpoint: Checkpoint, source: str) -> list[str]:
        """Resume from a checkpoint; return a text for each option that has changed since.

        Raises:
            NetError: it is of another net, or other data; this run is unchanged.
        """
        state = checkpoint.state
        if "must_be" not in state:
            raise NetError(f"{source!r}: is not a checkpoint of netbuilder-train; use load_checkpoint")
        check_fields(state, {**_STATE, "step": whole(0, self.steps)}, f"{source!r}, its state")
        problems = _differences(state["must_be"], self._identity())
        if problems:
            raise NetError(f"{source!r}: is a checkpoint of another run: " + "; ".join(problems))
        load_checkpoint(checkpoint, self._model, workspace=self._workspace)
        self._reader.last()  # results of an earlier step do not count
        self._counts.clear()
        self._of_process = (0.0, 0.0, 0)
        self.epochs_done, self.step = state["epochs_done"], state["step"]
        self._losses, self._right, self._seen = state["losses"], state["right"], state["seen"]
        self._first_step, self._rate = self.steps_done, state["rate"]
        if self.early is not None and state["early_stopping"]:
            self.early.restore(state["early_stopping"])
        self.best.restore(state["best_epoch"])
        return _differences(state["options"], self._rates())

    def _identity(self) -> dict[str, Any]:
        """Options that must be the same in a checkpoint and in the run that resumes from it."""
        options = self.options
        found = {"--model": options.model, "--batch": options.batch, "--seed": options.seed,
                 "training samples": len(self._train_images), "--optimizer": options.optimizer,
                 "--ema (moving averages)": bool(self._averages),
                 "--block-steps": options.block and options.block.steps}  # fmt: skip
        return {**found, "number of devices": options.replicas} if options.block else found

    def _rates(self) -> dict[str, Any]:
        options = self.options
        policy, arguments = policy_of(options, self.steps)
        return {"--learning-rate": options.scaled_rate, "--policy": policy, "its arguments": arguments,
                "--label-smoothing": options.label_smoothing, "--accumulate-steps": options.accumulate_steps,
                "decay of normalizations": options.norm_decay, "--momentum": options.momentum or 0.0,
                "--nesterov": options.nesterov is not False, "--optimizer-arg": dict(options.optimizer_args),
                "--mixup": options.mixup, "--cutmix": options.cutmix, "--ema": options.average_decay,
                "--rand-augment": list(options.input.rand_augment or ()),
                "--weight-decay": options.weight_decay, "--dtype": options.dtype, "--allow-tf32": options.allow_tf32,
                "--deterministic": options.deterministic,
                "--combine-bn": options.combine_bn, **self._block_rates(),
                "number of devices": options.replicas}  # fmt: skip

    def _block_rates(self) -> dict[str, Any]:
        if (block := self.options.block) is None:
            return {}
        return {"--block-learning-rate": block.learning_rate, "--block-momentum": block.momentum,
                "--block-nesterov": block.nesterov, "--block-reset-momentum": block.reset_momentum}  # fmt: skip

    def evaluate(self) -> float:
        """Return the accuracy in test mode on all held-out samples, each counted once; 0 if evaluation was stopped."""
        found = self.evaluation()
        return 0.0 if found is None else found.top1

    def evaluation(self) -> Evaluation | None:
        """Evaluate the net in test mode on all held-out samples, each counted once, over all processes.

        Returns:
            None: it was stopped.
        """
        first = top = count = 0
        loss, stopped = 0.0, False
        with (
            Progress("evaluation", len(self._test_images), shown=self.group.is_first) as progress,
            self._prefetch(self._test_model, self._test_batches(), ["data"]) as input,
        ):
            for batch in input:
                RunNet(self._test_model, 1, workspace=self._workspace)
                labels = np.asarray(batch["label"])
                scores = gather_shares(self._test_model, "softmax", len(labels), workspace=self._workspace)
                correct = scores[np.arange(len(labels)), labels]
                before = classes_before_label(np, scores, labels)
                first += int((before == 0).sum())
                top += int((before < _TOP).sum())
                loss -= float(np.log(np.maximum(correct, _TINY), dtype=np.float64).sum())
                self.tick()
                progress.advance(len(labels) * self.group.size)
                count += len(labels)  # damaged images may have been skipped
                if stopped := self.stops():
                    break
        stopping, *sums, loss = self.group.sum(stopped, first, top, count, loss)
        if stopping:
            self.stopped = True
            return None
        first, top, count = map(int, sums)
        if not count:
            return Evaluation(math.nan, None, 0, math.nan)
        return Evaluation(first / count, top / count if self._classes > _TOP else None, count, loss / count)

    def _test_batches(self) -> Iterator[dict[str, np.ndarray]]:
        """Yield this process's part of each batch of held-out samples."""

        def part(number: int, count: int) -> np.ndarray:
            first, sizes = local_shares(count, self.record)
            return np.arange(first, first + sum(sizes))

        alone = self.group.size == 1
        pairs = self._test_images.batches(self.options.batch, reuse=True, part=None if alone else part)
        return ({"data": images, "label": labels} for images, labels in pairs)

    def export(self, folder: str | Path) -> None:
        """Write the predictor: images in (``data``), probabilities of the classes out (``softmax``)."""
        net, parameters = ExtractPredictorNet(self._test_model, ["data"], ["softmax"], None)
        shape, scope = (1, *self._test_images.shape), self._scopes[0]
        plain = {average.removeprefix(scope): name.removeprefix(scope) for name, average in self._averages.items()}
        values = {plain.get(name, name): self._workspace.fetch(scope + name) for name in map(str, parameters)}
        rename_blobs(net.Proto(), plain)  # in the predictor, averages are named like the parameters
        save_predictor(
            folder, net, values, inputs=["data"], shapes={"data": shape}, workspace=self._workspace,
            images=self._test_images.preparation, classes=self._names or None,
        )  # fmt: skip


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} was {before.get(name)!r}, now {value!r}" for name, value in now.items() if before.get(name) != value
    ]


def early_stopping(options: Options) -> EarlyStopping | None:
    """Return the early stopping that the options request, or None."""
    if options.patience is None:
        return None
    return EarlyStopping(
        options.patience, least=options.least_improvement, larger_is_better=options.patience_measure == "accuracy"
    )
