"""What the trainer can be told on its command line and in a file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from netbuilder.ops.precision import PRECISIONS
from netbuilder.ops.rate_policies import POLICIES
from netbuilder.optimizers import OPTIMIZERS
from netbuilder.proto import NetError
from netbuilder.runtime import NET_TYPES
from netbuilder.tools.parser import Parser, did_you_mean
from netbuilder.tools.switches import add_without
from netbuilder.tools.training.checks import AUTO, problem_of
from netbuilder.tools.training.config import config_arguments, plain_arguments, read_config
from netbuilder.tools.training.input_options import add_input_arguments, input_options
from netbuilder.tools.training.nets import NETS
from netbuilder.tools.training.settings import Options

__all__ = ["AUTO", "Options", "parse"]

_MOMENTUM = 0.9

_DEMO = [
    "--model=resnet8-cifar", "--data=digits", "--cpu", "--devices=0,1", "--batch=32", "--epochs=8",
    "--learning-rate=0.1", "--policy=step", "--step-epochs=6", "--gamma=0.1", "--export=out/digits", "--check-export",
]  # fmt: skip


_OFFERED = [name for name, about in OPTIMIZERS.items() if not about.half]  # the nets have float32 parameters


def _usual_rates() -> str:
    rates: dict[float, list[str]] = {}
    for name in _OFFERED:
        rates.setdefault(OPTIMIZERS[name].usual_rate, []).append(name)
    return "; ".join(f"{rate:g}: {', '.join(names)}" for rate, names in rates.items())


def _parser() -> Parser:
    parser = Parser(
        prog="netbuilder-train",
        description="Train a classifier data-parallel, evaluate it in test mode after each epoch, export a predictor.",
    )
    parser.add_argument("--demo", action="store_true", help=f"the same as {' '.join(_DEMO)}; later options change it")
    parser.add_argument("--config", metavar="FILE",
                        help="options from a .toml, .yaml or .json file; the command line overrides them")  # fmt: skip
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
    where.add_argument("--devices", default="0", metavar="IDS", help="ids, separated by commas (0)")
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
    step.add_argument("--optimizer", default="sgd", metavar="NAME", help=f"one of {', '.join(_OFFERED)} (sgd)")
    step.add_argument("--optimizer-arg", action="append", default=[], metavar="KEY=VALUE",
                      help="an argument of the optimizer, such as beta2=0.99; a wrong one lists all")  # fmt: skip
    step.add_argument(
        "--learning-rate", type=float, help=f"learning rate, before its policy changes it ({_usual_rates()})"
    )
    step.add_argument("--base-batch", type=int, metavar="N",
                      help="the rate is meant for batches of N: it is multiplied by --batch / N")  # fmt: skip
    step.add_argument("--warmup-epochs", type=float, default=0.0, metavar="N",
                      help="epochs over which the rate first rises linearly (0)")  # fmt: skip
    step.add_argument(
        "--warmup-start", type=float, default=0.1, help="share of the rate that the warm-up begins with (0.1)"
    )
    step.add_argument(
        "--policy", default="fixed", metavar="NAME", help=f"one of {', '.join(sorted([*POLICIES, 'composite']))}"
    )
    step.add_argument("--policy-arg", action="append", default=[], metavar="KEY=VALUE",
                      help="an argument of the policy, counted in iterations")  # fmt: skip
    step.add_argument("--step-epochs", type=int, help="policy step: epochs between steps")
    step.add_argument("--gamma", type=float, help="policy step: factor at each step")
    step.add_argument("--momentum", type=float, help="momentum of sgd (0.9)")
    step.add_argument("--nesterov", action=argparse.BooleanOptionalAction,
                      help="of sgd: Nesterov's momentum (on); without it the classical one")  # fmt: skip
    step.add_argument("--weight-decay", type=float, default=1e-4, help="weight decay; biases never decay (1e-4)")
    step.add_argument("--no-norm-decay", action="store_true", help="no decay of the scales of normalisations either")
    step.add_argument("--label-smoothing", type=float, default=0.0, metavar="SHARE",
                      help="share of a label that all classes have, usually 0.1 (0)")  # fmt: skip
    step.add_argument("--mixup", type=float, default=0.0, metavar="ALPHA",
                      help="mix images of a batch, by shares from Beta(ALPHA, ALPHA), usually 0.2 (0)")  # fmt: skip
    step.add_argument("--cutmix", type=float, default=0.0, metavar="ALPHA",
                      help="put boxes of other images in, usually 1.0; with --mixup one or the other (0)")  # fmt: skip
    step.add_argument("--ema", type=float, metavar="DECAY", help="keep moving averages of the parameters, usually with "
                      "0.999 or 0.9999, and evaluate and export those")  # fmt: skip
    step.add_argument("--patience", type=int, metavar="N",
                      help="end after N epochs without a better result on held-out samples")  # fmt: skip
    step.add_argument("--patience-measure", default="accuracy", choices=["accuracy", "loss"],
                      help="by which --patience judges (accuracy)")  # fmt: skip
    step.add_argument("--least-improvement", type=float, default=0.0, metavar="X",
                      help="by how much it has to be better (0)")  # fmt: skip
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
        parser.error(f"--devices: must be ids separated by commas, such as 0,1,2; got {found.devices!r}")
    policy_args = dict(_pair(parser, "--policy-arg", text) for text in found.policy_arg)
    if found.gamma is not None:
        policy_args["gamma"] = found.gamma
    try:
        images = input_options(found)
    except NetError as error:
        parser.error(str(error))
    if found.learning_rate is None:
        found.learning_rate = OPTIMIZERS.get(found.optimizer, OPTIMIZERS["sgd"]).usual_rate
    if found.optimizer == "sgd":
        found.momentum = _MOMENTUM if found.momentum is None else found.momentum
        found.nesterov = found.nesterov is not False
    for name in ("momentum", "nesterov"):
        if found.optimizer != "sgd" and getattr(found, name) is not None:
            parser.error(f"--{name}: applies to --optimizer sgd alone; set that of {found.optimizer}, if it has one, "
                         "by --optimizer-arg")  # fmt: skip
    options = Options(
        model=found.model, data=found.data, cpu=found.cpu, devices=devices, batch=found.batch, epochs=found.epochs,
        learning_rate=found.learning_rate, policy=found.policy, policy_args=policy_args,
        momentum=found.momentum or 0.0, nesterov=found.nesterov is not False, optimizer=found.optimizer,
        optimizer_args=dict(_pair(parser, "--optimizer-arg", text) for text in found.optimizer_arg),
        mixup=found.mixup, cutmix=found.cutmix, average_decay=found.ema, patience=found.patience,
        patience_measure=found.patience_measure, least_improvement=found.least_improvement,
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
    problem = problem_of(options)
    if problem:
        parser.error(problem)
    return options


def _with_config(parser: Parser, given: list[str]) -> list[str]:
    """Return the options of the file that ``--config`` names, and those of the command line after them."""
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
            near = did_you_mean(name[2:], [flag[2:] for flag in known])
            parser.error(f"--config: {found.config!r} has the unknown option {name[2:]!r}{near}")
    return [*values, *rest]


def _effective(found: argparse.Namespace) -> dict[str, Any]:
    """Return all options as a file for ``--config`` has them."""
    values = {name.replace("_", "-"): value for name, value in vars(found).items() if name not in ("demo", "config")}
    for name in ("policy-arg", "optimizer-arg"):
        values[name] = dict(text.partition("=")[::2] for text in values[name])
    values["without"] = ",".join(sorted(found.without)) or None
    return {name: value for name, value in values.items() if value not in (None, {})}


def _every_epochs(found: argparse.Namespace) -> int | None:
    every: int | None = found.checkpoint_every_epochs
    return 1 if every is None and found.checkpoint and not found.checkpoint_every_steps else every


def _pair(parser: Parser, option: str, text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        parser.error(f"{option}: must be KEY=VALUE, such as gamma=0.1; got {text!r}")
    if value.lower() in ("true", "false"):
        return key, value.lower() == "true"
    for kind in (int, float):
        try:
            return key, kind(value)
        except ValueError:
            continue
    return key, value
