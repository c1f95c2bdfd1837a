"""What the trainer can be told, and the checks before anything is built."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from netbuilder.ops.engines.arrays import gpu_count
from netbuilder.ops.precision import PRECISIONS
from netbuilder.ops.rate_policies import POLICIES
from netbuilder.optimizers import check_policy
from netbuilder.proto import ArgumentError, NetError
from netbuilder.runtime import NET_TYPES
from netbuilder.tools.switches import add_without
from netbuilder.tools.training.config import config_arguments, plain_arguments, read_config
from netbuilder.tools.training.input_options import InputOptions, add_input_arguments, input_options
from netbuilder.tools.training.nets import NETS

__all__ = ["AUTO", "Options", "parse"]

AUTO = "auto"
"""Of ``resume``: the newest checkpoint of the run's own folder, if there is one."""

_DEMO = [
    "--model=resnet8-cifar", "--data=digits", "--cpu", "--devices=0,1", "--batch=32", "--epochs=8",
    "--learning-rate=0.1", "--policy=step", "--step-epochs=6", "--gamma=0.1", "--export=out/digits", "--check-export",
]  # fmt: skip


@dataclass(frozen=True)
class Options:
    """A training run.

    Args:
        model: name of the net.
        data: see ``load_images``.
        cpu: replicas on the CPU instead of on GPUs.
        devices: their ids.
        batch: samples a step over all devices.
        epochs: passes over the data.
        learning_rate: before its policy.
        policy, policy_args: how the rate changes over the iterations.
        momentum, weight_decay: of SGD.
        seed: of initial values and of the order of samples.
        net_type: how the net is executed.
        device_workers: upper bound of the threads that run the net, for each device.
        dtype: how activations are kept in memory while training.
        export: folder for the predictor, or None.
        check_export: evaluate it again in a new process.
        checkpoint: folder for checkpoints, or None.
        every_steps, every_epochs: how often one is written; None: not by steps, or not by epochs.
        keep: how many of the last are kept, besides the best.
        resume: a checkpoint, a folder of them, or "auto"; None: begin anew.
        without: optimisations of plans that are switched off.
        step_limit, first_step_limit: seconds that a step may take; None: no limit, ten times the former.
        input: of images that are decoded as they are needed.
        accumulate_steps: micro-batches that a batch is dealt out over.
        measure_speed_up: time steps on one device and on all before.
        base_batch: the batch that the learning rate is meant for; None: that of this run.
        warmup_epochs, warmup_start: how long the rate rises to its policy's, and the share of it at the beginning.
        norm_decay: the scales of normalisations decay, as weights do.
        label_smoothing: the share of a label that all classes have.
        out: folder of the run, or None.
        metrics, tensorboard, plot: what is written of its course, or None.
        effective: all options by name, as a file for ``--config`` has them.
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
    export: str | None
    check_export: bool
    step_epochs: int | None = None
    checkpoint: str | None = None
    every_steps: int | None = None
    every_epochs: int | None = None
    keep: int = 3
    resume: str | None = None
    without: frozenset[str] = frozenset()
    step_limit: float | None = None
    first_step_limit: float | None = None
    input: InputOptions = InputOptions()
    accumulate_steps: int = 1
    base_batch: int | None = None
    measure_speed_up: bool = False
    warmup_epochs: float = 0.0
    warmup_start: float = 0.1
    norm_decay: bool = True
    label_smoothing: float = 0.0
    out: str | None = None
    metrics: str | None = None
    tensorboard: str | None = None
    plot: str | None = None
    effective: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def scaled_rate(self) -> float:
        """The learning rate before its policy, for the batch of this run."""
        return self.learning_rate * self.batch / (self.base_batch or self.batch)

    @property
    def device_batch(self) -> int:
        """Samples a step, or a micro-batch of it, on each device."""
        return self.batch // (len(self.devices) * self.accumulate_steps)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="netbuilder-train",
        description="Train a classifier data-parallel, evaluate it in test mode after each epoch, export a predictor.",
    )
    parser.add_argument("--demo", action="store_true", help=f"the same as {' '.join(_DEMO)}; later options change it")
    parser.add_argument("--config", metavar="FILE",
                        help="options from a .toml, .yaml or .json file; the command line goes first")  # fmt: skip
    net = parser.add_argument_group("net and data")
    net.add_argument("--model", default="resnet20-cifar", metavar="NAME", help=f"one of {', '.join(NETS)}")
    net.add_argument(
        "--data",
        default="digits",
        help="digits (bundled), dummy (random images, to time nets), a folder of IDX files as MNIST's, one of class "
        "folders with images, a database, an .npz file, or a CSV list",
    )
    where = parser.add_argument_group("devices")
    where.add_argument("--cpu", action="store_true", help="replicas on the CPU; without it on GPUs")
    where.add_argument("--devices", default="0", metavar="IDS", help="ids, with commas between them (0)")
    where.add_argument("--net-type", default="dag", metavar="TYPE", help=f"one of {', '.join(NET_TYPES)}")
    where.add_argument("--device-workers", type=int, default=4, metavar="N",
                       help="upper bound of the threads that run the net, for each device (4)")  # fmt: skip
    where.add_argument("--dtype", default="float32", metavar="TYPE",
                       help=f"of activations while training: {' or '.join(PRECISIONS)} (float32)")  # fmt: skip
    where.add_argument("--measure-speed-up", action="store_true",
                       help="before training, time steps on all devices and on the first alone")  # fmt: skip
    add_without(where)
    add_input_arguments(parser)
    step = parser.add_argument_group("optimization")
    step.add_argument("--batch", type=int, default=64, help="samples a step, over all devices (64)")
    step.add_argument("--accumulate-steps", type=int, default=1, metavar="K",
                      help="micro-batches of a batch, with one exchange and update (1)")  # fmt: skip
    step.add_argument("--epochs", type=int, default=10, help="passes over the data (10)")
    step.add_argument("--learning-rate", type=float, default=0.1, help="before its policy (0.1)")
    step.add_argument("--base-batch", type=int, metavar="N",
                      help="the rate is meant for batches of N: it is multiplied by --batch / N")  # fmt: skip
    step.add_argument("--warmup-epochs", type=float, default=0.0, metavar="N",
                      help="the rate first rises in a straight line for so long (0)")  # fmt: skip
    step.add_argument("--warmup-start", type=float, default=0.1, help="share of the rate that it begins with (0.1)")
    step.add_argument(
        "--policy", default="fixed", metavar="NAME", help=f"one of {', '.join(sorted([*POLICIES, 'composite']))}"
    )
    step.add_argument("--policy-arg", action="append", default=[], metavar="KEY=VALUE",
                      help="an argument of the policy, counted in iterations")  # fmt: skip
    step.add_argument("--step-epochs", type=int, help="policy step: epochs between steps")
    step.add_argument("--gamma", type=float, help="policy step: factor at each step")
    step.add_argument("--momentum", type=float, default=0.9)
    step.add_argument("--weight-decay", type=float, default=1e-4, help="for weights, not for biases (1e-4)")
    step.add_argument("--no-norm-decay", action="store_true", help="no decay of the scales of normalisations either")
    step.add_argument("--label-smoothing", type=float, default=0.0, metavar="SHARE",
                      help="share of a label that all classes have, usually 0.1 (0)")  # fmt: skip
    step.add_argument("--step-limit", type=float, metavar="SECONDS",
                      help="a run that takes longer over a step tells what its threads do, and ends")  # fmt: skip
    step.add_argument(
        "--first-step-limit", type=float, metavar="SECONDS", help="for the first step (ten times as long)"
    )
    step.add_argument("--seed", type=int, default=0, help="of initial values and order of samples (0)")
    out = parser.add_argument_group("result")
    out.add_argument("--export", metavar="FOLDER", help="write a predictor (init_net.pb, predict_net.pb)")
    out.add_argument("--check-export", action="store_true", help="evaluate the predictor in a new process")
    out.add_argument("--out", metavar="FOLDER", help="folder of the run: options.json, command.txt, metrics.jsonl")
    out.add_argument("--metrics", metavar="FILE", help="add a line of JSON for each step and epoch")
    out.add_argument("--tensorboard", metavar="FOLDER", help="write event files (needs tensorboardX)")
    out.add_argument("--plot", metavar="FILE.png", help="draw loss and accuracy after each epoch (needs matplotlib)")
    kept = parser.add_argument_group("checkpoints")
    kept.add_argument("--checkpoint", metavar="FOLDER", help="write checkpoints, from which training can go on")
    kept.add_argument("--checkpoint-every-steps", type=int, metavar="N", help="one after so many steps")
    kept.add_argument("--checkpoint-every-epochs", type=int, metavar="N",
                      help="one after so many epochs (1, unless --checkpoint-every-steps is given)")  # fmt: skip
    kept.add_argument("--keep", type=int, default=3, metavar="K",
                      help="how many of the last are kept, besides the best (3)")  # fmt: skip
    kept.add_argument("--resume", metavar="auto|PATH",
                      help="go on from a checkpoint; auto: from the newest in --checkpoint, if any")  # fmt: skip
    return parser


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Return the options of a command line; bad ones end the program with a message."""
    import sys

    given = list(sys.argv[1:] if arguments is None else arguments)
    if "--demo" in given:
        given.remove("--demo")
        given = _DEMO + given
    parser = _parser()
    given = _with_config(parser, plain_arguments(given))
    found = parser.parse_args(given)
    try:
        devices = tuple(int(text) for text in found.devices.split(","))
    except ValueError:
        parser.error(f"--devices: ids with commas between them, as 0,1,2; got {found.devices!r}")
    policy_args = dict(_pair(parser, text) for text in found.policy_arg)
    if found.gamma is not None:
        policy_args["gamma"] = found.gamma
    try:
        images = input_options(found)
    except NetError as error:
        parser.error(str(error))
    options = Options(
        model=found.model, data=found.data, cpu=found.cpu, devices=devices, batch=found.batch, epochs=found.epochs,
        learning_rate=found.learning_rate, policy=found.policy, policy_args=policy_args, momentum=found.momentum,
        weight_decay=found.weight_decay, seed=found.seed, net_type=found.net_type,
        device_workers=found.device_workers, dtype=found.dtype, export=found.export, check_export=found.check_export,
        step_epochs=found.step_epochs, checkpoint=found.checkpoint, every_steps=found.checkpoint_every_steps,
        every_epochs=_every_epochs(found), keep=found.keep, resume=found.resume, without=found.without,
        input=images, accumulate_steps=found.accumulate_steps, base_batch=found.base_batch,
        measure_speed_up=found.measure_speed_up, step_limit=found.step_limit,
        first_step_limit=found.first_step_limit,
        warmup_epochs=found.warmup_epochs, warmup_start=found.warmup_start, norm_decay=not found.no_norm_decay,
        label_smoothing=found.label_smoothing, out=found.out, tensorboard=found.tensorboard, plot=found.plot,
        metrics=found.metrics or (str(Path(found.out) / "metrics.jsonl") if found.out else None),
        effective=_effective(found),
    )  # fmt: skip
    problem = _problem(options)
    if problem:
        parser.error(problem)
    return options


def _with_config(parser: argparse.ArgumentParser, given: list[str]) -> list[str]:
    """Return the options of the file that ``--config`` names, and those of the command line behind them."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config")
    found, rest = first.parse_known_args(given)
    if found.config is None:
        return rest
    try:
        values = config_arguments(read_config(Path(found.config)))
    except NetError as error:
        parser.error(str(error))
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"--config: {found.config!r} cannot be read: {getattr(error, 'strerror', None) or error}")
    known = {flag for action in parser._actions for flag in action.option_strings}
    for text in values:
        name = text.partition("=")[0]
        if text.startswith("--") and name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            parser.error(f"--config: {found.config!r} has the unknown option {name[2:]!r}"
                         + (f"; did you mean {', '.join(text[2:] for text in near)}?" if near else ""))  # fmt: skip
    return [*values, *rest]


def _effective(found: argparse.Namespace) -> dict[str, Any]:
    """Return all options as a file for ``--config`` has them."""
    values = {name.replace("_", "-"): value for name, value in vars(found).items() if name not in ("demo", "config")}
    values["policy-arg"] = dict(text.partition("=")[::2] for text in found.policy_arg)
    values["without"] = ",".join(sorted(found.without)) or None
    return {name: value for name, value in values.items() if value not in (None, {})}


def _every_epochs(found: argparse.Namespace) -> int | None:
    every: int | None = found.checkpoint_every_epochs
    return 1 if every is None and found.checkpoint and not found.checkpoint_every_steps else every


def _pair(parser: argparse.ArgumentParser, text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        parser.error(f"--policy-arg: wanted KEY=VALUE, got {text!r}")
    for kind in (int, float):
        try:
            return key, kind(value)
        except ValueError:
            continue
    return key, value


def _problem(options: Options) -> str | None:
    """Return what is wrong with a run's options, or None."""
    if options.model not in NETS:
        return f"--model: unknown net {options.model!r}; there are {', '.join(NETS)}"
    if len(set(options.devices)) < len(options.devices) or min(options.devices) < 0:
        return f"--devices: ids from 0 on, each once; got {list(options.devices)}"
    if options.accumulate_steps < 1:
        return f"--accumulate-steps: must be greater than 0, got {options.accumulate_steps}"
    parts = len(options.devices) * options.accumulate_steps
    if options.batch < 1 or options.batch % parts:
        who = f"{len(options.devices)} devices"
        who += f" in {options.accumulate_steps} micro-batches" if options.accumulate_steps > 1 else ""
        return (
            f"--batch: {options.batch} samples cannot be shared evenly by {who}; "
            f"{options.batch // parts * parts or parts} can"
        )
    for name in ("step_limit", "first_step_limit"):
        if (value := getattr(options, name)) is not None and not value > 0:
            return f"--{name.replace('_', '-')}: must be greater than 0 seconds, got {value:g}"
    if options.first_step_limit is not None and options.step_limit is None:
        return "--first-step-limit: give --step-limit, too"
    if options.base_batch is not None and options.base_batch < 1:
        return f"--base-batch: must be greater than 0, got {options.base_batch}"
    if not 0 <= options.label_smoothing < 1:
        return f"--label-smoothing: must lie in [0, 1), got {options.label_smoothing:g}"
    if options.warmup_epochs < 0 or not 0 <= options.warmup_start <= 1:
        return (
            f"--warmup-epochs must not be negative, and --warmup-start lie in [0, 1]; got {options.warmup_epochs:g} "
            f"and {options.warmup_start:g}"
        )
    if options.warmup_epochs and options.policy == "composite":
        return "--warmup-epochs: not with --policy composite, which can begin with a warm-up of its own"
    if options.out and Path(options.out).is_file():
        return f"--out: {options.out!r} is a file; name a folder"
    if options.net_type not in NET_TYPES:
        return f"--net-type: unknown type {options.net_type!r}; the types are {', '.join(NET_TYPES)}"
    if options.dtype not in PRECISIONS:
        return f"--dtype: one of {', '.join(PRECISIONS)}; got {options.dtype!r}"
    for name in ("epochs", "learning_rate", "device_workers"):
        if getattr(options, name) <= 0:
            return f"--{name.replace('_', '-')}: must be greater than 0, got {getattr(options, name)}"
    if options.seed < 0:
        return f"--seed: must not be negative, got {options.seed}"
    if not 0 <= options.momentum < 1:
        return f"--momentum: must lie in [0, 1), got {options.momentum:g}"
    if not options.weight_decay >= 0:
        return f"--weight-decay: must not be negative, got {options.weight_decay:g}"
    if problem := options.input.problem():
        return problem
    if options.export and Path(options.export).is_file():
        return f"--export: {options.export!r} is a file; name a folder"
    if not options.cpu and gpu_count() <= max(options.devices):
        return (
            f"--devices: GPU {max(options.devices)} is not there ({gpu_count()} found); give --cpu to train on the CPU"
        )
    if options.check_export and not options.export:
        return "--check-export: give --export FOLDER, too"
    if problem := _checkpoint_problem(options):
        return problem
    if options.policy == "step" and not options.step_epochs and "stepsize" not in options.policy_args:
        return "--policy step: give --step-epochs, or --policy-arg stepsize=ITERATIONS"
    try:
        trial = dict(options.policy_args)
        if options.step_epochs:
            trial["stepsize"] = options.step_epochs
        check_policy(options.learning_rate, options.policy, trial)
    except ArgumentError as error:
        return f"--policy: {error}"
    return None


def _checkpoint_problem(options: Options) -> str | None:
    """Return what is wrong with the options for checkpoints, or None."""
    for name in ("every_steps", "every_epochs"):
        value = getattr(options, name)
        if value is not None and value < 1:
            return f"--checkpoint-{name.replace('_', '-')}: must be greater than 0, got {value}"
        if value is not None and not options.checkpoint:
            return f"--checkpoint-{name.replace('_', '-')}: give --checkpoint FOLDER, too"
    if options.keep < 1:
        return f"--keep: must be greater than 0, got {options.keep}"
    if options.resume == AUTO and not options.checkpoint:
        return "--resume auto: give --checkpoint FOLDER, too, or the path of a checkpoint"
    if options.checkpoint and Path(options.checkpoint).is_file():
        return f"--checkpoint: {options.checkpoint!r} is a file; name a folder"
    return None
