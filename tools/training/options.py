"""Options of the trainer, from its command line and a file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from netbuilder.distributed import Rendezvous
from netbuilder.ops.core.precision import PRECISIONS
from netbuilder.ops.updates.rate_policies import POLICIES
from netbuilder.optimizers import OPTIMIZERS
from netbuilder.proto import NetError
from netbuilder.proto.os_errors import error_text
from netbuilder.proto.suggestions import did_you_mean
from netbuilder.runtime import NET_TYPES
from netbuilder.tools.common_options import add_without
from netbuilder.tools.parser import Parser, add_list, real_number, whole_number
from netbuilder.tools.training.checks import AUTO, problem_of
from netbuilder.tools.training.config import config_arguments, plain_arguments, read_config
from netbuilder.tools.training.input_options import add_input_arguments, input_options
from netbuilder.tools.training.nets import NETS
from netbuilder.tools.training.settings import BlockOptions, Options

__all__ = ["AUTO", "Options", "parse"]

_MOMENTUM = 0.9

_DEMO = [
    "--model=resnet8-cifar", "--data=digits", "--cpu", "--devices=0,1", "--batch=32", "--epochs=8",
    "--learning-rate=0.1", "--policy=step", "--step-epochs=6", "--gamma=0.1", "--export=out/digits", "--check-export",
]  # fmt: skip


_OFFERED = [name for name, about in OPTIMIZERS.items() if not about.half]  # the nets have float32 parameters


def _device(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be numbers of devices, such as 0,1,2; got {text!r}")
    return int(text)


def _usual_rates() -> str:
    rates: dict[float, list[str]] = {}
    for name in _OFFERED:
        rates.setdefault(OPTIMIZERS[name].usual_rate, []).append(name)
    return "; ".join(f"{rate:g}: {', '.join(names)}" for rate, names in rates.items())


def _parser(prog: str = "netbuilder-train", usage: str | None = None) -> Parser:
    parser = Parser(
        prog=prog,
        usage=usage,
        description="Train an image classifier on one or several devices, evaluate it on held-out images after each "
        "epoch, and export a predictor.",
    )
    parser.add_argument(
        "--demo", action="store_true", help=f"the same as {' '.join(_DEMO)}; other options override these"
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="read options from a .toml, .yaml or .json file; the command line overrides them",
    )
    net = parser.add_argument_group("net and data")
    net.add_argument(
        "--model",
        default="resnet20-cifar",
        metavar="NAME",
        help=f"the net to train (default: resnet20-cifar): {', '.join(NETS)}",
    )
    net.add_argument(
        "--data",
        default="digits",
        metavar="PATH",
        help="digits (a data set that comes with netbuilder, the default), dummy (random images, to measure "
        "speed), a folder with IDX files such as MNIST's, a folder with one folder of images for each class, "
        "a database, an .npz file, or a CSV list",
    )
    where = parser.add_argument_group("devices")
    where.add_argument("--cpu", action="store_true", help="train on the CPU; without this option, on GPUs")
    add_list(
        where,
        "--devices",
        type=_device,
        default=[0],
        metavar="ID,ID",
        help="numbers of the devices of each process, from 0 on; each has one replica (default: 0). Several "
        "processes on a host with GPUs have GPUs of their own, which each of them counts from 0 on",
    )
    where.add_argument(
        "--net-type",
        default="dag",
        metavar="TYPE",
        help=f"how the net is executed (default: dag): {', '.join(NET_TYPES)}",
    )
    where.add_argument(
        "--device-workers",
        type=whole_number(1, 1000),
        default=4,
        metavar="N",
        help="use at most N threads to run the net, for each device (default: 4)",
    )
    where.add_argument(
        "--dtype",
        default="float32",
        metavar="TYPE",
        help=f"type of activations in training: {' or '.join(PRECISIONS)} (default: float32); float16 is for GPUs, "
        "and scales gradients",
    )
    where.add_argument(
        "--allow-tf32",
        action="store_true",
        help="GPUs may round the factors of float32 products to 10 bits, for speed",
    )
    where.add_argument(
        "--deterministic",
        action="store_true",
        help="two runs with the same options, devices and threads are equal to the bit; on GPUs some steps are slower",
    )
    where.add_argument(
        "--memory-budget",
        metavar="SIZE",
        help="memory of a training step, such as 4GiB, or the fraction of what it would take, such as 0.6: activations "
        "are computed again in the backward pass to keep to it, with the same results (default: no limit)",
    )
    where.add_argument(
        "--combine-bn",
        action="store_true",
        help="normalize each batch over all devices together, as one device does, not each device's share",
    )
    where.add_argument(
        "--measure-speed-up",
        action="store_true",
        help="before training, time steps on all devices and on the first one alone",
    )
    add_without(where)
    add_input_arguments(parser)
    step = parser.add_argument_group("optimization")
    step.add_argument(
        "--batch",
        type=int,
        default=64,
        metavar="N",
        help="samples in each step, over all devices of all processes (default: 64)",
    )
    step.add_argument(
        "--accumulate-steps",
        type=int,
        default=1,
        metavar="K",
        help="split each batch into K micro-batches and sum their gradients before one update (default: 1)",
    )
    step.add_argument(
        "--strategy",
        default="plain",
        metavar="TEXT",
        help="what several processes exchange in a step, such as half:bfloat16, topk:0.01 or threshold:0.001 (default: "
        "plain: all gradients)",
    )
    step.add_argument("--epochs", type=int, default=10, metavar="N", help="passes over the data (default: 10)")
    step.add_argument(
        "--optimizer", default="sgd", metavar="NAME", help=f"the optimizer (default: sgd): {', '.join(_OFFERED)}"
    )
    step.add_argument(
        "--optimizer-arg",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set an argument of the optimizer, such as beta2=0.99 (the error for an unknown one lists "
        "all); may be repeated",
    )
    step.add_argument(
        "--learning-rate",
        type=real_number(),
        metavar="RATE",
        help=f"learning rate, before its policy changes it (default: {_usual_rates()})",
    )
    step.add_argument(
        "--base-batch",
        type=int,
        metavar="N",
        help="--learning-rate is given for batches of N: multiply it by --batch / N",
    )
    step.add_argument(
        "--warmup-epochs",
        type=real_number(),
        default=0.0,
        metavar="N",
        help="increase the rate linearly over the first N epochs (default: 0)",
    )
    step.add_argument(
        "--warmup-start",
        type=real_number(),
        default=0.1,
        metavar="SHARE",
        help="share of the rate at which the warm-up begins (default: 0.1)",
    )
    step.add_argument("--policy", default="fixed", metavar="NAME",
                      help="how the rate changes during training (default: fixed): "
                      f"{', '.join(sorted([*POLICIES, 'composite']))}")  # fmt: skip
    step.add_argument(
        "--policy-arg",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set an argument of the policy; times are counted in iterations; may be repeated",
    )
    step.add_argument(
        "--step-epochs", type=int, metavar="N", help="with --policy step: epochs between two changes of the rate"
    )
    step.add_argument(
        "--gamma",
        type=real_number(),
        metavar="FACTOR",
        help="with --policy step: factor of the rate at each change",
    )
    step.add_argument("--momentum", type=real_number(), metavar="M", help="momentum of sgd (default: 0.9)")
    step.add_argument(
        "--nesterov",
        action=argparse.BooleanOptionalAction,
        help="with sgd: Nesterov's momentum (the default), or classical momentum",
    )
    step.add_argument(
        "--weight-decay",
        type=real_number(),
        default=1e-4,
        metavar="SHARE",
        help="weight decay, not applied to biases (default: 1e-4)",
    )
    step.add_argument(
        "--no-norm-decay",
        action="store_true",
        help="do not apply weight decay to the scales of normalization layers either",
    )
    step.add_argument(
        "--label-smoothing",
        type=real_number(),
        default=0.0,
        metavar="SHARE",
        help="spread SHARE of each label evenly over all classes, usually 0.1 (default: 0)",
    )
    step.add_argument(
        "--mixup",
        type=real_number(),
        default=0.0,
        metavar="ALPHA",
        help="blend pairs of images and their labels, by shares drawn from Beta(ALPHA, ALPHA), usually "
        "0.2 (default: 0, never)",
    )
    step.add_argument(
        "--cutmix",
        type=real_number(),
        default=0.0,
        metavar="ALPHA",
        help="replace a box of each image by that of another one and mix their labels, usually 1.0; with "
        "--mixup, each batch has one of the two (default: 0, never)",
    )
    step.add_argument(
        "--ema",
        type=real_number(),
        metavar="DECAY",
        help="keep exponential moving averages of the parameters, and evaluate and export those; DECAY is "
        "usually 0.999 or 0.9999",
    )
    step.add_argument(
        "--patience", type=int, metavar="N", help="stop after N epochs without a better result on held-out images"
    )
    step.add_argument(
        "--patience-measure",
        default="accuracy",
        choices=["accuracy", "loss"],
        help="the result that --patience compares (default: accuracy)",
    )
    step.add_argument(
        "--least-improvement",
        type=real_number(),
        default=0.0,
        metavar="X",
        help="--patience counts a result as better if it improves by more than X (default: 0)",
    )
    step.add_argument(
        "--find-nan",
        action="store_true",
        help="look at the result of every operator, also in step nets, and end the run at the first that is NaN or "
        "infinite, naming blob, operator and line; steps take several times as long",
    )
    step.add_argument(
        "--step-limit",
        type=real_number(),
        metavar="SECONDS",
        help="if a step takes longer, print what each thread is doing, and end the run",
    )
    step.add_argument(
        "--first-step-limit",
        type=real_number(),
        metavar="SECONDS",
        help="the same for the first step (default: ten times --step-limit)",
    )
    step.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of initial values and of the order of samples (default: 0)",
    )
    block = parser.add_argument_group("block-wise updates")
    block.add_argument(
        "--block-steps",
        type=int,
        metavar="K",
        help="let each device train on its own, and average the parameters after each K steps, instead of exchanging "
        "gradients in each step",
    )
    block.add_argument(
        "--block-learning-rate", type=real_number(), metavar="R", help="factor of the change of a block (default: 1)"
    )
    block.add_argument(
        "--block-momentum",
        type=real_number(),
        metavar="M",
        help="share of the earlier blocks' change that is added (default: 1 - 1 / number of devices)",
    )
    block.add_argument("--block-nesterov", action="store_true", help="Nesterov's block momentum")
    block.add_argument(
        "--block-warmup-steps",
        type=int,
        metavar="N",
        help="steps before the first block, after which all devices continue from the first one's parameters "
        "(default: 0)",
    )
    block.add_argument(
        "--block-reset-momentum", action="store_true", help="with sgd: set the momenta to 0 after each block"
    )
    out = parser.add_argument_group("result")
    out.add_argument("--export", metavar="FOLDER", help="write a predictor (init_net.pb and predict_net.pb)")
    out.add_argument(
        "--export-epoch",
        choices=["last", "best"],
        default="last",
        help="which epoch's predictor is written: the last one's, or that of the greatest held-out accuracy, "
        "which is written as soon as an epoch is the best so far (default: last)",
    )
    out.add_argument("--check-export", action="store_true", help="evaluate the exported predictor in a new process")
    out.add_argument("--out", metavar="FOLDER", help="write options.json, command.txt and metrics.jsonl of the run")
    out.add_argument("--metrics", metavar="FILE", help="append a line of JSON for each step and epoch")
    out.add_argument("--tensorboard", metavar="FOLDER", help="write event files (needs tensorboardX)")
    out.add_argument("--plot", metavar="FILE.png", help="plot loss and accuracy after each epoch (needs matplotlib)")
    kept = parser.add_argument_group("checkpoints")
    kept.add_argument("--checkpoint", metavar="FOLDER", help="write checkpoints, from which training can be resumed")
    kept.add_argument("--checkpoint-every-steps", type=int, metavar="N", help="write a checkpoint every N steps")
    kept.add_argument(
        "--checkpoint-every-epochs",
        type=int,
        metavar="N",
        help="write a checkpoint every N epochs (default: 1, unless --checkpoint-every-steps is given)",
    )
    kept.add_argument(
        "--keep", type=int, default=3, metavar="K", help="keep the newest K checkpoints and the best one (default: 3)"
    )
    kept.add_argument(
        "--resume",
        metavar="auto|PATH",
        help="resume from a checkpoint, or from the newest one in a folder; auto: from the newest one in "
        "--checkpoint, if there is one",
    )
    return parser


def parse(
    arguments: Sequence[str] | None = None,
    *,
    prog: str = "netbuilder-train",
    usage: str | None = None,
    rendezvous: Rendezvous | None = None,
) -> Options:
    """Parse a command line; an invalid option ends the program with a message.

    Args:
        arguments: the options; None: those of the process.
        prog: the command that the message names.
        usage: how to call it; None: all options.
        rendezvous: the processes that train together; None, or one process: this one alone.
    """
    import sys

    given = list(sys.argv[1:] if arguments is None else arguments)
    if "--demo" in given:
        given.remove("--demo")
        given = _DEMO + given
    parser = _parser(prog, usage)
    given = _with_config(parser, plain_arguments(given))
    found = parser.parse_args(given)
    if not found.cpu and rendezvous is not None and rendezvous.local_size > 1:
        try:
            rendezvous.see_own_gpus(max(found.devices) + 1)
        except NetError as error:
            parser.error(f"--devices: {error}")
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
            parser.error(
                f"--{name}: applies only to --optimizer sgd; set that of {found.optimizer}, if it has one, "
                "by --optimizer-arg"
            )
    options = Options(
        model=found.model, data=found.data, cpu=found.cpu, devices=tuple(found.devices), batch=found.batch,
        epochs=found.epochs, learning_rate=found.learning_rate, policy=found.policy, policy_args=policy_args,
        momentum=found.momentum or 0.0, nesterov=found.nesterov is not False, optimizer=found.optimizer,
        optimizer_args=dict(_pair(parser, "--optimizer-arg", text) for text in found.optimizer_arg),
        mixup=found.mixup, cutmix=found.cutmix, average_decay=found.ema, patience=found.patience,
        patience_measure=found.patience_measure, least_improvement=found.least_improvement,
        weight_decay=found.weight_decay, seed=found.seed, net_type=found.net_type,
        device_workers=found.device_workers, dtype=found.dtype, allow_tf32=found.allow_tf32,
        deterministic=found.deterministic,
        memory_budget=found.memory_budget,
        export=found.export, check_export=found.check_export, export_epoch=found.export_epoch,
        step_epochs=found.step_epochs, checkpoint=found.checkpoint, every_steps=found.checkpoint_every_steps,
        every_epochs=_every_epochs(found), keep=found.keep, resume=found.resume, without=found.without,
        find_nan=found.find_nan,
        input=images, accumulate_steps=found.accumulate_steps, combine_bn=found.combine_bn, base_batch=found.base_batch,
        strategy=found.strategy,
        measure_speed_up=found.measure_speed_up, step_limit=found.step_limit,
        first_step_limit=found.first_step_limit,
        warmup_epochs=found.warmup_epochs, warmup_start=found.warmup_start, norm_decay=not found.no_norm_decay,
        label_smoothing=found.label_smoothing, out=found.out, tensorboard=found.tensorboard, plot=found.plot,
        metrics=found.metrics or (str(Path(found.out) / "metrics.jsonl") if found.out else None),
        block=_block_options(parser, found), effective=_effective(found),
        rendezvous=rendezvous if rendezvous is not None and rendezvous.num_shards > 1 else None,
    )  # fmt: skip
    problem = problem_of(options)
    if problem:
        parser.error(problem)
    return options


def _block_options(parser: Parser, found: argparse.Namespace) -> BlockOptions | None:
    """Return the options of block-wise updates, or None; the others need ``--block-steps``."""
    if found.block_steps is not None:
        return BlockOptions(
            found.block_steps,
            1.0 if found.block_learning_rate is None else found.block_learning_rate,
            found.block_momentum,
            found.block_nesterov,
            found.block_warmup_steps or 0,
            found.block_reset_momentum,
        )
    given = {name: value for name, value in vars(found).items() if name.startswith("block_")}
    for name, value in given.items():
        if value is not None and value is not False:
            parser.error(f"--{name.replace('_', '-')}: needs --block-steps")
    return None


def _with_config(parser: Parser, given: list[str]) -> list[str]:
    """Return the options of the file that ``--config`` names, and those of the command line after them."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config")
    first.error = parser.error  # type: ignore[method-assign]
    found, rest = first.parse_known_args(given)
    if found.config is None:
        return rest
    try:
        values = config_arguments(read_config(Path(found.config)))
    except NetError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"--config: {error_text(error)}")
    known = {flag for action in parser._actions for flag in action.option_strings}
    for text in values:
        name = text.partition("=")[0]
        if text.startswith("--") and name not in known:
            near = did_you_mean(name[2:], [flag[2:] for flag in known])
            parser.error(f"--config: {found.config!r} has the unknown option {name[2:]!r}{near}")
    return [*values, *rest]


def _effective(found: argparse.Namespace) -> dict[str, Any]:
    """Return all options in the form of a file for ``--config``."""
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
