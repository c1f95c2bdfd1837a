"""The options of a training run: their names on the command line, types, defaults and help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from netbuilder.distributed import ProcessGroup, Rendezvous
from netbuilder.ops.core.precision import PRECISIONS
from netbuilder.ops.core.replication import share_sizes
from netbuilder.ops.updates.rate_policies import POLICIES
from netbuilder.optimizers import OPTIMIZERS
from netbuilder.passes.processes import DEFAULT_BUCKET_BYTES
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime import NET_TYPES
from netbuilder.tools.common_options import size_or_auto, without_option
from netbuilder.tools.options import NOT_NEGATIVE, POSITIVE, SHARE, nested, option, switch, values_of
from netbuilder.tools.parser import device_number, whole_number
from netbuilder.tools.training.input_options import InputOptions
from netbuilder.tools.training.nets import NETS

__all__ = ["BlockOptions", "Options"]

_BATCH = 64
_MOMENTUM = 0.9
_DECAY, _DECOUPLED_DECAY = 1e-4, 0.01
_SECONDS = ("be a positive number of seconds", POSITIVE[1])

_OFFERED = [name for name, kind in OPTIMIZERS.items() if not kind.for_float16]  # the nets have float32 parameters


def _usual_rates() -> str:
    rates: dict[float, list[str]] = {}
    for name in _OFFERED:
        rates.setdefault(OPTIMIZERS[name].usual_rate, []).append(name)
    return "; ".join(f"{rate:g}: {', '.join(names)}" for rate, names in rates.items())


@dataclass(frozen=True)
class BlockOptions:
    """Devices train on their own and are brought together by block-wise updates, see ``Parallelize_BMUF``."""

    steps: int = option(
        "let each device train on its own, and average the parameters after each K steps, instead of exchanging "
        "gradients in each step",
        required=True, metavar="K", group="block-wise updates", must=POSITIVE
    )  # fmt: skip
    learning_rate: float = option("factor of the change of a block", default=1.0, metavar="R", must=POSITIVE)
    momentum: float | None = option(
        "share of the earlier blocks' change that is added (default: 1 - 1 / number of devices)",
        metavar="M",
        must=SHARE,
    )
    nesterov: bool = switch("Nesterov's block momentum")
    warmup_steps: int = option(
        "steps before the first block, after which all devices continue from the first one's parameters (default: 0)",
        default=0,
        must=NOT_NEGATIVE,
    )
    reset_momentum: bool = switch("with sgd: set the momenta to 0 after each block")
    bits: int = option(
        "bits of an element of the changes that several processes exchange; what 8 lose is added to the next block's "
        "change",
        default=32,
        choices=(32, 8),
    )
    overlap: int = option(
        "steps of the next block that run before the update of a block is applied, and while several processes "
        "exchange its changes (default: 0)",
        default=0,
        must=NOT_NEGATIVE,
    )


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a training run.

    Those of SGD and the learning rate, where they are not given, are set to the usual values for the optimizer.
    """

    model: str | None = option(
        f"the net to train (default: resnet20-cifar): {', '.join(NETS)}", metavar="NAME", group="net and data"
    )
    onnx: str | None = option(
        "train the net in an ONNX file: one input, images, with a dynamic batch; one output, scores or probabilities "
        "of the classes",
        metavar="FILE",
    )
    frozen: tuple[str, ...] = option(
        "parameters whose names fit one of these patterns, such as 'comp_0_*' or, with --onnx, 'layer1.*', are not "
        "trained",
        default=(), metavar="PATTERN,PATTERN",
    )  # fmt: skip
    new_head: bool = switch("with --onnx: replace the last layer by a new one for the classes of the data")
    weights: str | None = option(
        "begin with the weights of this net of torchvision or timm: FILE.safetensors; with PyTorch, FILE.pth; with "
        "huggingface_hub, the name of a model there, such as timm/resnet18.a1_in1k",
        metavar="FILE|OWNER/NAME",
    )
    finetune: bool = switch("with --weights: the last layer is a new one if the file has other classes")
    data: str = option(
        "digits (a data set that comes with netbuilder, the default), dummy (random images, to measure "
        "speed), a folder with IDX files such as MNIST's, a folder with one folder of images for each class, "
        "a database, an .npz file, or a CSV list",
        default="digits", metavar="PATH",
    )  # fmt: skip

    cpu: bool = switch("train on the CPU; without this option, on GPUs", group="devices")
    devices: tuple[int, ...] = option(
        "numbers of the devices of each process, from 0 on; each has one replica (default: 0). Several "
        "processes on a host with GPUs have GPUs of their own, which each of them counts from 0 on",
        type=device_number, default=(0,), metavar="ID,ID",
    )  # fmt: skip
    net_type: str = option(
        f"how the net is executed (default: dag): {', '.join(NET_TYPES)}", default="dag", metavar="TYPE"
    )
    device_workers: int = option(
        "use at most N threads to run the net, for each device", type=whole_number(1, 1000), default=4
    )
    dtype: str = option(
        f"type of activations in training: {' or '.join(PRECISIONS)} (default: float32); float16 is for GPUs, "
        "and scales gradients",
        default="float32", metavar="TYPE",
    )  # fmt: skip
    allow_tf32: bool = switch("GPUs may round the factors of float32 products to 10 bits, for speed")
    deterministic: bool = switch(
        "two runs with the same options, devices and threads are equal to the bit; on GPUs some steps are slower"
    )
    memory_budget: str | None = option(
        "memory of a training step, such as 4GiB, or the fraction of what it would take, such as 0.6: activations "
        "are computed again in the backward pass to keep to it, with the same results (default: no limit)",
        metavar="SIZE",
    )
    combine_bn: bool = switch(
        "normalize each batch over all devices together, as one device does, not each device's share"
    )
    measure_speed_up: bool = switch("before training, time steps on all devices and on the first one alone")
    without: frozenset[str] = without_option()

    input: InputOptions = nested(InputOptions)

    batch: int = option(
        "samples in each step, over all devices of all processes; devices may get different numbers of them (default: "
        f"{_BATCH}, or as many as there are to train)",
        must=POSITIVE, group="optimization",
    )  # fmt: skip
    accumulate_steps: int = option(
        "split each batch into K micro-batches and sum their gradients before one update",
        default=1,
        metavar="K",
        must=POSITIVE,
    )
    strategy: str = option(
        "what several processes exchange in a step, such as half:bfloat16, topk:0.01 or zero:1, which also divides the "
        "optimizer's state (default: "
        "plain: all gradients)",
        default="plain", metavar="TEXT",
    )  # fmt: skip
    bucket_bytes: int | str = option(
        "exchange gradients between processes in groups of about this size (default: 12MiB), or auto: the size that "
        "suits the first steps and the link",
        default=DEFAULT_BUCKET_BYTES, type=size_or_auto, metavar="SIZE|auto",
    )  # fmt: skip
    epochs: int = option("passes over the data", default=10, must=POSITIVE)
    optimizer: str = option(f"the optimizer (default: sgd): {', '.join(_OFFERED)}", default="sgd", metavar="NAME")
    optimizer_args: dict[str, Any] = option(
        "set an argument of the optimizer, such as beta2=0.99 (the error for an unknown one lists all); may be "
        "repeated",
        flag="--optimizer-arg", factory=dict, metavar="KEY=VALUE",
    )  # fmt: skip
    learning_rate: float = option(
        f"learning rate, before its policy changes it (default: {_usual_rates()})", metavar="RATE", must=POSITIVE
    )
    find_rate: bool = switch(
        "train up to 100 steps with a growing rate, print their losses and the rate at which they fall most, and end"
    )
    rates: dict[str, Any] = option(
        "multiply the rate of parameters whose names fit a pattern, such as 'conv1*=0.1'; may be repeated",
        factory=dict, metavar="PATTERN=FACTOR",
    )  # fmt: skip
    layer_decay: float | None = option(
        "multiply the rate of each layer before the last one by FACTOR once more than that of the layer after it, "
        "usually 0.7 to 0.95; a layer is a residual block, or what else lies between two values through which all data "
        "pass",
        metavar="FACTOR", must=("be in (0, 1], usually 0.7 to 0.95", lambda value: 0 < value <= 1),
    )  # fmt: skip
    base_batch: int | None = option(
        "--learning-rate is given for batches of N: multiply it by --batch / N", must=POSITIVE
    )
    warmup_epochs: float = option(
        "increase the rate linearly over the first N epochs (default: 0)", default=0.0, metavar="N"
    )
    warmup_start: float = option("share of the rate at which the warm-up begins", default=0.1, metavar="SHARE")
    policy: str = option(
        f"how the rate changes during training (default: fixed): {', '.join(sorted([*POLICIES, 'composite']))}",
        default="fixed", metavar="NAME",
    )  # fmt: skip
    policy_arg: dict[str, Any] = option(
        "set an argument of the policy; times are counted in iterations; may be repeated",
        factory=dict, metavar="KEY=VALUE",
    )  # fmt: skip
    step_epochs: int | None = option("with --policy step: epochs between two changes of the rate")
    gamma: float | None = option("with --policy step: factor of the rate at each change", metavar="FACTOR")
    momentum: float | None = option(f"momentum of sgd (default: {_MOMENTUM})", metavar="M", must=SHARE)
    nesterov: bool | None = option("with sgd: Nesterov's momentum (the default), or classical momentum")
    weight_decay: float = option(
        "weight decay, not applied to biases and normalizations: added to the gradients, or with adamw, lamb and lion "
        f"decoupled from them (default: {_DECAY:g}; with those: {_DECOUPLED_DECAY:g})",
        metavar="SHARE", must=NOT_NEGATIVE,
    )  # fmt: skip
    norm_decay: bool = switch("apply weight decay to the scales of normalization layers, too")
    clip_norm: float | None = option(
        "if the norm of all gradients together is greater than X, scale them down to it", metavar="X", must=POSITIVE
    )
    label_smoothing: float = option(
        "spread SHARE of each label evenly over all classes, usually 0.1 (default: 0)",
        default=0.0,
        metavar="SHARE",
        must=SHARE,
    )
    mixup: float = option(
        "blend pairs of images and their labels, by shares drawn from Beta(ALPHA, ALPHA), usually "
        "0.2 (default: 0, never)",
        default=0.0, metavar="ALPHA", must=("be 0 (never) or greater, usually 0.2 to 1", NOT_NEGATIVE[1])
    )  # fmt: skip
    cutmix: float = option(
        "replace a box of each image by that of another one and mix their labels, usually 1.0; with "
        "--mixup, each batch has one of the two (default: 0, never)",
        default=0.0, metavar="ALPHA", must=("be 0 (never) or greater, usually 0.2 to 1", NOT_NEGATIVE[1])
    )  # fmt: skip
    average_decay: float | None = option(
        "keep exponential moving averages of the parameters, and evaluate and export those; DECAY is usually 0.999 or "
        "0.9999",
        flag="--ema", metavar="DECAY", must=("be in [0, 1), usually 0.999 or more", SHARE[1])
    )  # fmt: skip
    swa: float | None = option(
        "average the parameters after each step of the last EPOCHS epochs, with equal weights (stochastic weight "
        "averaging), estimate the statistics of batch normalization for the average at the end, and evaluate and "
        "export that",
        metavar="EPOCHS", must=("be a positive number of epochs, usually a quarter of all", POSITIVE[1])
    )  # fmt: skip
    patience: int | None = option(
        "stop after N epochs without a better result on held-out images", must=("be 1 epoch or more", POSITIVE[1])
    )
    patience_measure: str = option(
        "the result that --patience compares", default="accuracy", choices=["accuracy", "loss"]
    )
    least_improvement: float = option(
        "--patience counts a result as better if it improves by more than X (default: 0)",
        default=0.0,
        metavar="X",
        must=("be 0 or greater", NOT_NEGATIVE[1]),
    )
    find_nan: bool = switch(
        "look at the result of every operator, also in step nets, and end the run at the first that is NaN or "
        "infinite, naming blob, operator and line; steps take several times as long"
    )
    step_limit: float | None = option(
        "if a step takes longer, print what each thread is doing, and end the run", metavar="SECONDS", must=_SECONDS
    )
    first_step_limit: float | None = option(
        "the same for the first step (default: ten times --step-limit)", metavar="SECONDS", must=_SECONDS
    )
    callback: tuple[str, ...] = option(
        "add callbacks to the run: each function or class is called with the options, and returns a callback; "
        "docs/training.md has an example",
        default=(), metavar="MODULE:FUNCTION",
    )  # fmt: skip
    seed: int = option("seed of initial values and of the order of samples (default: 0)", default=0, must=NOT_NEGATIVE)

    block: BlockOptions | None = nested(BlockOptions, prefix="block-", optional=True)

    export: str | None = option(
        "write a predictor: init_net.pb and predict_net.pb in a folder, or FILE.onnx", metavar="PATH", group="result"
    )
    export_epoch: str = option(
        "which epoch's predictor is written: the last one's, or that of the greatest held-out accuracy, "
        "which is written as soon as an epoch is the best so far",
        default="last", choices=["last", "best"],
    )  # fmt: skip
    check_export: bool = switch("evaluate the exported predictor in a new process")
    out: str | None = option("write options.json, command.txt and metrics.jsonl of the run", metavar="FOLDER")
    metrics: str | None = option("append a line of JSON for each step and epoch", metavar="FILE")
    class_report: str | None = option(
        "write precision, recall, F1, average precision and AUC of each class on held-out samples, and the confusion "
        "matrix, after training",
        metavar="FILE.csv",
    )
    tensorboard: str | None = option("write event files (needs tensorboardX)", metavar="FOLDER")
    trace: str | None = option(
        "write all calls of three steps of all processes, for https://ui.perfetto.dev", metavar="FILE.json"
    )
    plot: str | None = option("plot loss and accuracy after each epoch (needs matplotlib)", metavar="FILE.png")

    checkpoint: str | None = option(
        "write checkpoints, from which training can be resumed", metavar="FOLDER", group="checkpoints"
    )
    checkpoint_every_steps: int | None = option("write a checkpoint every N steps", must=POSITIVE)
    checkpoint_every_epochs: int | None = option(
        "write a checkpoint every N epochs (default: 1, unless --checkpoint-every-steps is given)", must=POSITIVE
    )
    memory_every_steps: int = option(
        "in an elastic job of netbuilder-launch: keep the state in memory every N steps", default=1, must=POSITIVE
    )
    keep: int = option("keep the newest K checkpoints and the best one", default=3, metavar="K", must=POSITIVE)
    resume: str | None = option(
        "resume from a checkpoint, or from the newest one in a folder; auto: from the newest one in --checkpoint, if "
        "there is one",
        metavar="auto|PATH",
    )

    rendezvous: Rendezvous | None = None
    """The processes that train together; None: this one alone."""
    recipe: tuple[str, ...] = ()
    """What --recipe has chosen, and the command line has not changed."""
    batch_may_shrink: bool = False
    """Whether the batch was not given, so that all samples are one if they are fewer."""

    def __post_init__(self) -> None:
        if self.model is None and self.onnx is None:
            object.__setattr__(self, "model", "resnet20-cifar")
        if self.batch is None:
            object.__setattr__(self, "batch", _BATCH)
            object.__setattr__(self, "batch_may_shrink", True)
        if self.learning_rate is None:
            rate = OPTIMIZERS.get(self.optimizer, OPTIMIZERS["sgd"]).usual_rate
            object.__setattr__(self, "learning_rate", rate)
        if self.weight_decay is None:
            object.__setattr__(self, "weight_decay", _DECOUPLED_DECAY if self.decouples_decay else _DECAY)
        if self.optimizer == "sgd":
            object.__setattr__(self, "momentum", _MOMENTUM if self.momentum is None else self.momentum)
            object.__setattr__(self, "nesterov", self.nesterov is not False)

    @property
    def effective(self) -> dict[str, Any]:
        """All options by name, in the form of a file for ``--config``."""
        return values_of(self)

    @property
    def net_name(self) -> str:
        """The name of the net that is trained."""
        return self.model or Path(str(self.onnx)).stem

    @property
    def every_epochs(self) -> int | None:
        """Epochs between checkpoints; None: they are not written by epochs."""
        every = self.checkpoint_every_epochs
        return 1 if every is None and self.checkpoint and not self.checkpoint_every_steps else every

    @property
    def metrics_file(self) -> str | None:
        """The file for a line of JSON of each step and epoch, or None."""
        return self.metrics or (str(Path(self.out) / "metrics.jsonl") if self.out else None)

    @property
    def decouples_decay(self) -> bool:
        """Whether the optimizer has weight decay of its own, decoupled from the gradients."""
        return self.optimizer in OPTIMIZERS and OPTIMIZERS[self.optimizer].own_decay_is_decoupled

    @property
    def policy_args(self) -> dict[str, Any]:
        """The arguments of the policy."""
        return self.policy_arg if self.gamma is None else {**self.policy_arg, "gamma": self.gamma}

    @property
    def scaled_rate(self) -> float:
        """The learning rate before its policy, for the batch of this run."""
        return self.learning_rate * self.batch / (self.base_batch or self.batch)

    @property
    def averages(self) -> bool:
        """Whether averages of the parameters are kept."""
        return self.average_decay is not None or self.swa is not None

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
    def device_batch(self) -> str:
        """The numbers of samples per step, or per micro-batch, that a device has."""
        micro_batches = share_sizes(self.batch, self.accumulate_steps)
        sizes = {size for samples in micro_batches for size in share_sizes(samples, self.replicas)}
        return " or ".join(map(str, sorted(sizes, reverse=True)))

    @property
    def replicas(self) -> int:
        """The number of devices of all processes."""
        return len(self.devices) * (1 if self.rendezvous is None else self.rendezvous.num_shards)

    def group(self) -> ProcessGroup:
        """Return the processes that train together, which exchange values over the devices of the run."""
        return ProcessGroup(self.rendezvous, device=self.devices[0])
