"""A training run: the loop over epochs and steps, which calls callbacks at its events."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.exchange import Checkpoint, LoadReport, load_checkpoint, load_weights
from netbuilder.exchange.checkpoint_manifest import check_fields, mapping, real, whole
from netbuilder.exchange.checkpoints import checkpoint_to_write
from netbuilder.proto import NetError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.tools.progress import EpochProgress, Progress
from netbuilder.tools.training.batches import Batches, images_to_feed
from netbuilder.tools.training.best_epoch import BestEpoch
from netbuilder.tools.training.callbacks import Callback, Callbacks
from netbuilder.tools.training.decoded import DecodedImages
from netbuilder.tools.training.early_end import EarlyEnd
from netbuilder.tools.training.find_nan import FindNan
from netbuilder.tools.training.identity import course_of, differences, identity_of
from netbuilder.tools.training.images import Images
from netbuilder.tools.training.measures import Measures
from netbuilder.tools.training.sanity_warnings import SanityWarnings, first_not_finite
from netbuilder.tools.training.settings import Options
from netbuilder.tools.training.step_timing import StepTiming
from netbuilder.tools.training.trace import Trace
from netbuilder.tools.training.trained_model import Evaluation, TrainedModel

__all__ = ["Epoch", "EpochResults", "Evaluation", "Run", "usual_callbacks"]

_NAMED = 5  # classes in a line

_STATE: Mapping[str, Any] = {
    "must_be": mapping(), "options": mapping(), "epochs_done": whole(0, 2**31), "losses": real, "right": real,
    "seen": real, "rate": real, "callbacks": mapping(mapping()),
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
class EpochResults:
    """Results of an epoch: its number, from 1, of its training, and on held-out samples after it."""

    number: int
    training: Epoch
    held_out: Evaluation


def usual_callbacks(options: Options) -> list[Callback]:
    """Return the callbacks of every run: what the options ask for that neither prints results nor writes files."""
    return [
        *([FindNan()] if options.find_nan else []),
        *([Trace(options.trace)] if options.trace else []),
        StepTiming(),
        SanityWarnings(),
        BestEpoch(options),
        *([EarlyEnd(options)] if options.patience is not None else []),
    ]


class Run:
    """A net in training; with several processes, the part of one of them, and all call the same methods.

    Args:
        options: of the run.
        train, test: the data.
        callbacks: called in this order at the events of the run; None: the usual ones.

    Attributes:
        group: the processes that train together.
        model: the models and their workspace.
        steps: of an epoch.
        epochs_done: number of epochs that have ended.
        loaded: what was loaded from the file of --weights, or None.
        step: number of steps of the current epoch that have ended.
        stopped: whether one of the processes has wanted to stop, by the last step.

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
        callbacks: Sequence[Callback] | None = None,
    ) -> None:
        self.options, self.group = options, options.group()
        self.callbacks = Callbacks(usual_callbacks(options) if callbacks is None else callbacks)
        train, test = images_to_feed(options, train, trains=True), images_to_feed(options, test, trains=False)
        self._train_images, self._test_images = train, test
        self.classes = options.input.classes or max(train.class_count, test.class_count)
        self._names = options.input.names or test.classes
        if self.classes < 2:
            raise NetError(
                f"--data: a classifier needs two classes or more, and {options.data!r} has one"
                f"{f', {self._names[0]!r}' if self._names else ''}; give a folder with a folder of images for each "
                "class (CLASS/IMAGE.jpg), neither the folder above it nor a class"
            )
        if self._names and len(self._names) < self.classes:
            raise NetError(f"--class-names: {len(self._names)} names for {self.classes} classes")
        self.steps = -(-len(train) // options.batch)
        self.epochs_done = self.step = 0
        self.stopped = False
        self._began = False
        self._resumed = 0, options.scaled_rate  # steps that were done then, and the rate of the last one
        self.group.require_equal(self._facts())
        self.model = TrainedModel(options, train.fed, test.fed, self.classes, self.steps)
        alone = self.group.size == 1
        self._batches = Batches(options, train, test, self.classes, self.model.record, alone)
        self._measures = Measures(self.model.reader, self.group, options.accumulate_steps)
        self.model.begin(self._first_batch())
        self.loaded = self._load_weights()

    def _load_weights(self) -> LoadReport | None:
        """Load what --weights says into all replicas; return what was loaded."""
        if self.options.weights is None:
            return None
        return load_weights(
            self.model.train, self.options.weights, workspace=self.model.workspace, new_head=self.options.finetune
        )

    def _first_batch(self) -> dict[str, np.ndarray]:
        return next(self._batches.of_epoch(0))

    def _facts(self) -> dict[str, Any]:
        """Return what must be equal on all processes, by name."""
        return {**self._identity(), **course_of(self.options, self.steps), "held-out samples": len(self._test_images),
                "classes": self.classes, "shape of an image": list(self._train_images.shape),
                "--epochs": self.options.epochs, "--without": sorted(self.options.without),
                "--find-nan": self.options.find_nan,
                "--class-report": self.options.class_report is not None,
                "--memory-budget": self.options.memory_budget}  # fmt: skip

    def _identity(self) -> dict[str, Any]:
        return identity_of(self.options, len(self._train_images))

    @property
    def decodes(self) -> bool:
        """Whether images are decoded on demand, such as photos."""
        return isinstance(self._train_images, DecodedImages)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Channels, height and width of an image in training."""
        return tuple(self._train_images.shape)

    @property
    def image_text(self) -> str:
        """The sizes of images, in training and held out, as C x H x W."""
        train, test = (" x ".join(map(str, images.shape)) for images in (self._train_images, self._test_images))
        return f"images of {train}{'' if test == train else f' (held out: {test})'}"

    @property
    def steps_done(self) -> int:
        """Number of steps of all epochs so far."""
        return self.epochs_done * self.steps + self.step

    @property
    def learning_rate(self) -> float:
        """The learning rate of the last step, also right after this run was resumed."""
        steps, rate = self._resumed
        return rate if self.steps_done == steps else self.model.learning_rate

    @property
    def whole_batches(self) -> int:
        """Number of batches of an epoch with as many samples as the options say."""
        return len(self._train_images) // self.options.batch

    @property
    def ends(self) -> bool:
        """Whether training is complete before all epochs are done."""
        return bool(self.callbacks.found("ends", self))

    def train(self) -> Evaluation | None:
        """Train the epochs that are left; return the results on held-out samples at the end.

        Returns:
            None: it was stopped during an epoch.
        """
        with ExitStack() as contexts:
            for each in self.callbacks:
                contexts.enter_context(each)
            self.callbacks.call("before_training", self)
            found = self._train_epochs()
            if found is not None and self.options.swa is not None and not self.stopped:
                found = self._finish_average(found)
            self.callbacks.call("after_training", self)
        return found

    def _train_epochs(self) -> Evaluation | None:
        found: Evaluation | None = None
        for number in range(self.epochs_done + 1, self.options.epochs + 1):
            if self.ends:
                break
            epoch = self.train_epoch(number)
            if epoch is None:
                return None
            found = self.evaluation()
            if found is None:
                self._reopen_epoch()
                return None
            self.callbacks.call("after_epoch", self, EpochResults(number, epoch, found))
            if self._must_stop():
                break
        return self.evaluation() if found is None else found

    def _finish_average(self, found: Evaluation) -> Evaluation | None:
        """Estimate the statistics of batch normalization for the averaged parameters; return their results."""
        if samples := self.model.estimate_statistics(self._batches.for_statistics(), self.group):
            print(f"statistics of batch normalization estimated for the averages, from {samples} samples", flush=True)
            whole = self.evaluation()
            if whole is None:
                return None
            found = whole
        self.callbacks.call("after_average", self, found)
        return found

    def train_epoch(self, number: int) -> Epoch | None:
        """Train on all samples once, in an order that depends only on the seed and the epoch.

        Args:
            number: of the epoch, from 1; after an interruption, only the rest of it is trained.

        Returns:
            None: training was stopped. Sums and rates are over all processes, and times those of this one.
        """
        began, each = time.perf_counter(), self.options.accumulate_steps
        self.callbacks.call("before_epoch", self)
        batches = self._batches.of_epoch(number, self.step, reuse=True)  # what feeds them copies
        title, steps = f"epoch {number}/{self.options.epochs}", self.steps - self.step
        with (
            EpochProgress(title, steps, shown=self.group.is_first) as progress,
            self.model.fed(batches, self._batches.inputs) as input,
        ):
            for place, batch in enumerate(input, start=1):
                self._run(batch)
                if place % each == 0 and self._end_step(progress):
                    return None
            self._note(self._measures.flush())
            self.model.finish_block()
        seconds, wait = time.perf_counter() - began, input.state().wait
        loss, accuracy = self._measures.end_epoch()
        timing = self.callbacks.get(StepTiming) or StepTiming()
        found = Epoch(
            loss, accuracy, progress.rate, wait, seconds, dict(timing.shares), self.learning_rate, timing.again
        )
        self.epochs_done, self.step = number, 0
        return found

    def _run(self, batch: Mapping[str, Any]) -> None:
        """Run a micro-batch."""
        self.callbacks.call("before_batch", self, batch)
        if not self._began:
            self._began = True
            self.callbacks.call("after_plan", self, self.model.plan(self.group))
        (self.callbacks.found("runs_batch", self) or self.model.run)()
        self._measures.ran(len(batch["label"]))

    def _end_step(self, progress: EpochProgress) -> bool:
        """Count a step whose micro-batches all run; return whether to stop after it."""
        self.step += 1
        stopping, results = self._measures.join(self._wants_to_stop())
        self.stopped = self.stopped or stopping
        self._note(results)
        progress.step(self._batches.size_of(self.step - 1), self._measures.loss, self._measures.accuracy)
        self.callbacks.call("after_step", self)
        return self._must_stop()

    def _wants_to_stop(self) -> bool:
        return bool(self.callbacks.found("stops", self))

    def _must_stop(self) -> bool:
        """Return whether to stop now: of several processes, all stop after the same step."""
        if self.group.size == 1:
            self.stopped = self.stopped or self._wants_to_stop()
        return self.stopped

    def _note(self, results: Mapping[str, float] | None) -> None:
        """Check the results of a step, if there are new ones, and give them to the callbacks."""
        if results is None:
            return
        step = self._measures.steps + self._resumed[0]
        if not np.isfinite(results["loss"]):
            raise FloatingPointError(self._not_finite(step - self.epochs_done * self.steps, results["loss"]))
        self.callbacks.call("after_results", self, step, results)

    def _not_finite(self, step: int, loss: float) -> str:
        found = self.group.gather(first_not_finite(self.model.train.net, self.model.workspace))
        rank, blob = next(((rank, blob) for rank, blob in enumerate(found) if blob), (0, None))
        where = f" on rank {rank}" if len(found) > 1 else ""
        seen = f"; the first blob of the net that is not finite is {blob}{where}" if blob else ""
        place = f"epoch {self.epochs_done + 1}, step {step}"
        advice = "try a smaller --learning-rate, or --find-nan, which names the operator"
        return f"{place}: the loss is {loss:.4g}{seen}; {advice}"

    def evaluation(self) -> Evaluation | None:
        """Evaluate the net in test mode on all held-out samples, each counted once, over all processes.

        Returns:
            None: it was stopped.
        """
        with Progress("evaluation", len(self._test_images), shown=self.group.is_first) as progress:

            def after_batch(samples: int) -> bool:
                self.callbacks.call("after_evaluated_batch", self)
                progress.advance(samples * self.group.size)
                return self._wants_to_stop()

            found = self.model.evaluated(self._batches.held_out(), self.group, after_batch)
        self.stopped = self.stopped or found is None
        return found

    def _reopen_epoch(self) -> None:
        """Go back to before the evaluation of the last epoch, which a resumed run then does."""
        self.epochs_done, self.step = self.epochs_done - 1, self.steps
        self._measures.reopen_epoch()

    @property
    def class_names(self) -> list[str]:
        """A name for each class: as the options or the data say, or its number."""
        return list(self._names[: self.classes]) or [str(number) for number in range(self.classes)]

    @property
    def class_text(self) -> str:
        """The number of classes, with the first names, if they have names."""
        shown = [*self.class_names[:_NAMED], *(["..."] if self.classes > _NAMED else [])] if self._names else []
        return f"{self.classes} classes" + (f" ({', '.join(shown)})" if shown else "")

    def export(self, path: str | Path) -> None:
        """Write the predictor of the parameters as they are: images in, probabilities of the classes out."""
        self.model.export(path, self._test_images.preparation, self._names)

    def step_seconds(self, steps: int = 4) -> float:
        """Return the shortest time of a step on the first batch; the parameters change.

        Args:
            steps: number of timed steps, after two warm-up steps.
        """
        batch, least = self._first_batch(), float("inf")
        for number in range(steps + 2):
            seconds = 0.0
            for run in self.model.run_shares(batch):
                began = time.perf_counter()
                run()
                seconds += time.perf_counter() - began
            least = min(least, seconds) if number >= 2 else least
        return least

    def first_steps(self, count: int) -> Iterator[Callable[[], None]]:
        """Yield, for each of the first steps of training, a function that runs it."""

        def run(batch: Mapping[str, Any]) -> None:
            for each in self.model.run_shares(batch):
                each()

        for batch in itertools.islice(self._batches.of_epoch(1, reuse=True), count):
            yield functools.partial(run, batch)

    def checkpoint(self, metric: float | None = None) -> Checkpoint:
        """Return a checkpoint from which training can be resumed; all processes call it.

        Args:
            metric: the accuracy on held-out samples, if known.
        """
        self._note(self._measures.flush())
        state = {
            "epochs_done": self.epochs_done, "step": self.step, **self._measures.state(), "rate": self.learning_rate,
            "must_be": self._identity(), "options": course_of(self.options, self.steps),
            "callbacks": self.callbacks.state_dict(),
        }  # fmt: skip
        return checkpoint_to_write(
            self.model.train, workspace=self.model.workspace, step=self.steps_done, metric=metric, state=state
        )

    def resume(self, checkpoint: Checkpoint, source: str) -> list[str]:
        """Resume from a checkpoint; return a text for each option that has changed since.

        Raises:
            NetError: it is of another net, or other data, and this run is unchanged; or a callback cannot continue.
        """
        state = checkpoint.state
        if "must_be" not in state:
            raise NetError(f"{source!r} is not a checkpoint of netbuilder-train; use load_checkpoint")
        check_fields(state, {**_STATE, "step": whole(0, self.steps)}, f"{source!r}, its state")
        problems = differences(state["must_be"], self._identity())
        if problems:
            raise NetError(f"{source!r} is a checkpoint of another run: " + "; ".join(problems))
        load_checkpoint(checkpoint, self.model.train, workspace=self.model.workspace)
        self.epochs_done, self.step = state["epochs_done"], state["step"]
        self._measures.restore(state)
        self._resumed = self.steps_done, state["rate"]
        self.callbacks.load_state_dict(state["callbacks"], source)
        return differences(state["options"], course_of(self.options, self.steps))
