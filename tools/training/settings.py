"""The options of a training run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from netbuilder.distributed import ProcessGroup, Rendezvous
from netbuilder.tools.training.input_options import InputOptions

__all__ = ["BlockOptions", "Options"]


@dataclass(frozen=True)
class BlockOptions:
    """Devices train on their own and are brought together by block-wise updates, see ``Parallelize_BMUF``.

    Args:
        steps: length of a block.
        learning_rate, momentum, nesterov: of the rule; a momentum of None is 1 - 1 / number of devices.
        warmup_steps: before the first block.
        resets_momentum: set the momenta of the devices' own updates to 0 after each block.
    """

    steps: int
    learning_rate: float = 1.0
    momentum: float | None = None
    nesterov: bool = False
    warmup_steps: int = 0
    resets_momentum: bool = False


@dataclass(frozen=True)
class Options:
    """The options of a training run.

    Args:
        model: name of the net.
        data: see ``load_images``.
        cpu: replicas on the CPU instead of on GPUs.
        devices: their ids, on each process.
        batch: samples per step, over all devices of all processes.
        epochs: passes over the data.
        learning_rate: before its policy changes it.
        policy, policy_args: how the rate changes over the iterations.
        optimizer, optimizer_args: one of ``netbuilder.optimizers.OPTIMIZERS``, and its arguments by name.
        momentum, nesterov: of SGD.
        weight_decay: factor of each weight that is added to its gradient.
        seed: of initial values and of the order of samples.
        net_type: how the net is executed.
        device_workers: upper bound of the threads that run the net, for each device.
        dtype: type of activations in training.
        allow_tf32: GPUs may use TF32.
        deterministic: two runs are equal to the bit.
        memory_budget: of a training step; None: no limit.
        combine_bn: batch normalization over all devices.
        strategy: the text of what processes exchange, see ``Strategy.of``.
        export: folder for the predictor, or None.
        check_export: evaluate the predictor in a new process.
        export_epoch: "last", or "best": the epoch with the greatest accuracy on held-out samples.
        checkpoint: folder for checkpoints, or None.
        every_steps, every_epochs: steps and epochs between checkpoints; None: not by steps, or not by epochs.
        keep: how many of the latest checkpoints are kept, in addition to the best.
        resume: a checkpoint, a folder of them, or "auto"; None: start from the beginning.
        without: groups of optimizations of plans that are switched off.
        find_nan: raise an error at the first operator whose result is NaN or infinite.
        step_limit, first_step_limit: longest time of a step in seconds; None: no limit, ten times the former.
        input: options for images that are decoded on demand.
        accumulate_steps: micro-batches that a batch is split into.
        measure_speed_up: before training, time steps on one device and on all.
        base_batch: the batch for which the learning rate is given; None: that of this run.
        warmup_epochs, warmup_start: length of the warm-up, and the share of the rate at its beginning.
        norm_decay: whether scales of normalization layers have weight decay.
        label_smoothing: share of each label that is spread evenly over all classes.
        mixup, cutmix: alpha of each (see ``netbuilder.data.BatchMixer``); 0: never.
        average_decay: of the moving averages of parameters, which are evaluated and exported; None: there are none.
        patience: epochs without a better result on held-out samples after which training ends; None: no limit.
        patience_measure: "accuracy" or "loss".
        least_improvement: by how much a result must be better to count.
        out: folder of the run, or None.
        metrics, tensorboard, plot: files for metrics, or None.
        block: block-wise updates; None: gradients are exchanged in each step.
        effective: all options by name, in the form of a file for ``--config``.
        rendezvous: the processes that train together; None: this one alone.
    """

    model: str
    data: str
    cpu: bool
    devices: tuple[int, ...]
    batch: int
    epochs: int
    learning_rate: float
    policy: str
    policy_args: dict[str, Any]
    momentum: float
    weight_decay: float
    seed: int
    net_type: str
    device_workers: int
    dtype: str
    allow_tf32: bool
    deterministic: bool
    memory_budget: str | None
    export: str | None
    check_export: bool
    export_epoch: str = "last"
    step_epochs: int | None = None
    checkpoint: str | None = None
    every_steps: int | None = None
    every_epochs: int | None = None
    keep: int = 3
    resume: str | None = None
    without: frozenset[str] = frozenset()
    find_nan: bool = False
    step_limit: float | None = None
    first_step_limit: float | None = None
    input: InputOptions = InputOptions()
    accumulate_steps: int = 1
    combine_bn: bool = False
    strategy: str = "plain"
    base_batch: int | None = None
    measure_speed_up: bool = False
    warmup_epochs: float = 0.0
    warmup_start: float = 0.1
    norm_decay: bool = True
    label_smoothing: float = 0.0
    optimizer: str = "sgd"
    optimizer_args: dict[str, Any] = field(default_factory=dict)
    nesterov: bool = True
    mixup: float = 0.0
    cutmix: float = 0.0
    average_decay: float | None = None
    patience: int | None = None
    patience_measure: str = "accuracy"
    least_improvement: float = 0.0
    out: str | None = None
    metrics: str | None = None
    tensorboard: str | None = None
    plot: str | None = None
    block: BlockOptions | None = None
    effective: Mapping[str, Any] = field(default_factory=dict, compare=False)
    rendezvous: Rendezvous | None = None

    @property
    def scaled_rate(self) -> float:
        """The learning rate before its policy, for the batch of this run."""
        return self.learning_rate * self.batch / (self.base_batch or self.batch)

    @property
    def soft_labels(self) -> bool:
        """Whether a label is a probability of each class."""
        return bool(self.label_smoothing or self.mixup or self.cutmix)

    @property
    def optimizer_settings(self) -> dict[str, Any]:
        """The arguments of the optimizer."""
        own = {"momentum": self.momentum, "nesterov": self.nesterov} if self.optimizer == "sgd" else {}
        return {**own, **self.optimizer_args}

    @property
    def device_batch(self) -> int:
        """Samples per step, or per micro-batch, on each device."""
        return self.batch // (self.replicas * self.accumulate_steps)

    @property
    def replicas(self) -> int:
        """The number of devices of all processes."""
        return len(self.devices) * (1 if self.rendezvous is None else self.rendezvous.num_shards)

    def group(self) -> ProcessGroup:
        """Return the processes that train together, which exchange values over the devices of the run."""
        return ProcessGroup(self.rendezvous, device=self.devices[0])
