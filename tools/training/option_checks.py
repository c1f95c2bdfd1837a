"""Checks of the options of a training run, before anything is built."""

from __future__ import annotations

import os
from pathlib import Path

from netbuilder.distributed import Plain, Strategy
from netbuilder.distributed.transport.launchers import GPUS
from netbuilder.engines.arrays import gpu_count
from netbuilder.exchange.hub import is_hub_name
from netbuilder.exchange.weights import OF_OUR_OWN
from netbuilder.graph.memory_budget import parse_budget
from netbuilder.ops.core.precision import PRECISIONS
from netbuilder.optimizers import OPTIMIZERS, check_policy, optimizer_by_name
from netbuilder.passes.processes import DEFAULT_BUCKET_BYTES
from netbuilder.proto import ArgumentError, NetError
from netbuilder.proto.extras import how_to_install
from netbuilder.proto.numbers import check_numbers
from netbuilder.proto.os_errors import NO_FILE, no_such_file, said_of
from netbuilder.proto.suggestions import near_or_known, similar
from netbuilder.runtime import NET_TYPES
from netbuilder.tools.stored_nets import is_onnx
from netbuilder.tools.training.models import WHOLE_RUN
from netbuilder.tools.training.nets import NETS, instead_of_net
from netbuilder.tools.training.settings import Options

__all__ = ["AUTO", "check_machine", "problem_of"]

_OTHER_FILES = (".h5", ".keras", ".pb", ".pt", ".pth", ".safetensors")
"""Suffixes of what other libraries export into one file."""

AUTO = "auto"
"""Value of ``resume``: the newest checkpoint in the run's folder, if there is one."""


def problem_of(options: Options) -> str | None:
    """Return the first problem of a run's options themselves, or None; ``check_machine`` looks at what they name."""
    for name in ("momentum", "nesterov"):
        if options.optimizer != "sgd" and getattr(options, name) is not None:
            return (
                f"--{name}: applies only to --optimizer sgd; set that of {options.optimizer}, if it has one, by "
                "--optimizer-arg"
            )
    if options.onnx is not None and options.model is not None:
        return f"--onnx is the net to train; leave --model {options.net_name} out"
    if options.onnx is None and options.new_head:
        return "--new-head needs --onnx FILE; with --weights FILE give --finetune"
    if options.onnx is not None and options.weights is not None:
        return "--weights is for nets of --model; --onnx FILE has weights"
    if options.finetune and options.weights is None:
        return "--finetune needs --weights FILE"
    if options.model is not None and options.model not in NETS:
        return f"--model: unknown net {options.model!r}{instead_of_net(options.model)}"
    if len(set(options.devices)) < len(options.devices) or min(options.devices) < 0:
        return f"--devices must be numbers of devices, 0 or greater, without repetition; got {list(options.devices)}"
    if options.first_step_limit is not None and options.step_limit is None:
        return "--first-step-limit needs --step-limit"
    if options.patience is None and options.least_improvement:
        return "--least-improvement needs --patience"
    if options.patience is None and options.patience_measure != "accuracy":
        return "--patience-measure needs --patience"
    if options.warmup_epochs < 0 or not 0 <= options.warmup_start <= 1:
        return (
            f"--warmup-epochs must not be negative, and --warmup-start must be in [0, 1]; got "
            f"{options.warmup_epochs:g} and {options.warmup_start:g}"
        )
    if options.warmup_epochs > options.epochs:
        return (
            f"--warmup-epochs must be at most --epochs ({options.epochs}), got {options.warmup_epochs:g}; the rate "
            "would not reach its value"
        )
    if options.warmup_epochs and options.policy == "composite":
        return "--warmup-epochs cannot be combined with --policy composite, which can include a warm-up"
    if options.net_type not in NET_TYPES:
        return f"--net-type: unknown type {options.net_type!r}{near_or_known(options.net_type, NET_TYPES, 'types')}"
    if options.dtype not in PRECISIONS:
        return f"--dtype must be one of {', '.join(PRECISIONS)}; got {options.dtype!r}"
    if options.cpu and options.rendezvous is not None and options.rendezvous.engine == "NCCL":
        return (
            f"--cpu: NCCL exchanges values of GPUs; {how_to_install('mpi')}, and start the processes with "
            "netbuilder-launch --engine MPI, mpiexec or srun"
        )
    if options.cpu and options.dtype == "float16":
        return "--dtype: float16 is for GPUs; with --cpu give bfloat16"
    if options.memory_budget is not None:
        try:
            parse_budget(options.memory_budget, "--memory-budget")
        except NetError as error:
            return str(error)
    if problem := options.input.problem():
        return problem
    if options.export_epoch == "best" and not options.export:
        return "--export-epoch needs --export FOLDER"
    if options.swa is not None and options.average_decay is not None:
        return "--swa cannot be combined with --ema; give one of the two averages"
    if options.swa is not None and options.swa > options.epochs:
        return f"--swa must be at most --epochs ({options.epochs}), got {options.swa:g}"
    if options.swa is not None and options.export_epoch == "best":
        return "--swa cannot be combined with --export-epoch best, since the average is complete after the last epoch"
    if options.check_export and not options.export:
        return "--check-export needs --export FOLDER"
    if problem := _checkpoint_problem(options):
        return problem
    if options.policy == "step" and not options.step_epochs and "stepsize" not in options.policy_args:
        return "--policy step: give --step-epochs, or --policy-arg stepsize=ITERATIONS"
    return _block_problem(options) or _strategy_problem(options) or _update_problem(options)


def check_machine(options: Options) -> None:
    """Check that this machine has what a run's options name.

    Raises:
        NetError: a file or GPU is missing, or a folder is a file.
    """
    _ = options.input.names  # the file is read
    if problem := _file_problem(options):
        raise NetError(problem)
    if not options.cpu and gpu_count() <= max(options.devices):
        given = "" if options.devices == (0,) else "--devices: "
        raise NetError(
            f"{given}there is no GPU {max(options.devices)} ({gpu_count()} found{_visible(options)}); give --cpu to "
            "train on the CPU"
        )


def _file_problem(options: Options) -> str | None:
    """Return the first problem of the files and folders that the options name, or None."""
    if (weights := options.weights) is not None and not Path(weights).is_file() and not is_hub_name(weights):
        if Path(weights).is_dir():
            return f"--weights: {said_of(weights, NO_FILE)}; {OF_OUR_OWN}"
        return f"--weights: {said_of(weights, no_such_file(Path(weights)))}"
    for name in ("out", "checkpoint"):
        if (folder := getattr(options, name)) and Path(folder).is_file():
            return f"--{name}: {folder!r} is a file; give a folder"
    if options.export and is_onnx(options.export) and Path(options.export).is_dir():
        return f"--export: {options.export!r} is a folder; give a file for an ONNX model, or a folder of another name"
    if options.export and not is_onnx(options.export) and Path(options.export).is_file():
        return f"--export: {options.export!r} is a file; give a folder, or FILE.onnx"
    suffix = Path(options.export or "").suffix.lower()
    if suffix != ".onnx" and (suffix in _OTHER_FILES or similar(suffix, [".onnx"])):
        return f"--export: {options.export!r} would be a folder; give FILE.onnx for an ONNX model, or another folder"
    return None


def _visible(options: Options) -> str:
    """Return which GPUs this one of several processes of a host may use."""
    place = options.rendezvous
    if place is None or place.local_size == 1:
        return ""
    return f" for process {place.local_rank} of {place.local_size} of this host, {GPUS}={os.environ.get(GPUS)}"


def _strategy_problem(options: Options) -> str | None:
    """Return the problem of the strategy of the exchange, or None."""
    try:
        strategy = Strategy.of(options.strategy)
    except (NetError, TypeError) as error:
        return f"--strategy: {error}"
    if not strategy.sums_gradients:
        instead = "--block-steps" if strategy.blocks else "Parallelize(strategy=)"
        return f"--strategy: {strategy} lets processes train on their own; use {instead} for that"
    if options.block is not None and strategy != Plain():
        return f"--strategy: {strategy} cannot be combined with --block-steps, which exchanges no gradients"
    if options.block is not None and options.bucket_bytes != DEFAULT_BUCKET_BYTES:
        return "--bucket-bytes: with --block-steps no gradients are exchanged; omit one of them"
    return None


def _block_problem(options: Options) -> str | None:
    """Return the first problem of block-wise updates, or None."""
    block = options.block
    if block is None:
        return None
    if block.overlap >= block.steps:
        return f"--block-overlap must be less than --block-steps {block.steps}, got {block.overlap}"
    if block.reset_momentum and (options.optimizer != "sgd" or not options.momentum):
        return "--block-reset-momentum needs --optimizer sgd with a --momentum"
    if options.combine_bn:
        return "--combine-bn cannot be combined with --block-steps, whose devices do not exchange anything in a step"
    if options.clip_norm is not None:
        return "--clip-norm cannot be combined with --block-steps, whose devices do not exchange gradients"
    if options.averages:
        name = "--swa" if options.average_decay is None else "--ema"
        return f"{name} cannot be combined with --block-steps, because each device would average its own parameters"
    return None


def _update_problem(options: Options) -> str | None:
    """Return the first problem of the optimizer and its learning rate, or None."""
    trial = dict(options.policy_args)
    if options.step_epochs:
        trial["stepsize"] = options.step_epochs
    if options.policy in WHOLE_RUN:
        trial.setdefault(WHOLE_RUN[options.policy], options.epochs)
    kind = OPTIMIZERS.get(options.optimizer)
    if kind is not None and kind.for_float16:
        return f"--optimizer: {options.optimizer} is for nets with float16 parameters, but these have float32; give sgd"
    fixed = kind is not None and not kind.has_policy()
    if options.warmup_epochs and fixed:
        return f"--warmup-epochs: the learning rate of {options.optimizer} is fixed"
    if options.find_rate and fixed:
        return f"--find-rate: the learning rate of {options.optimizer} is fixed; use another optimizer"
    try:
        optimizer_by_name(options.optimizer, options.learning_rate, **options.optimizer_settings)
    except (ArgumentError, TypeError) as error:
        return f"--optimizer: {error}"
    try:
        check_policy(options.learning_rate, options.policy, trial)
        optimizer_by_name(options.optimizer, policy=options.policy, policy_arguments=trial)
    except ArgumentError as error:
        return f"--policy: {error}"
    return _rates_problem(options)


def _rates_problem(options: Options) -> str | None:
    """Return the first problem of the factors of rates, or None."""
    for pattern, factor in options.rates.items():
        try:
            check_numbers("--rates", "positive", **{f"the factor of {pattern!r}": factor})
        except ArgumentError as error:
            return str(error)
    if (options.rates or options.layer_decay) and OPTIMIZERS[options.optimizer].tunes_rate:
        given = "--rates" if options.rates else "--layer-decay"
        return f"{given}: {options.optimizer} tunes the rate of each parameter itself; use another optimizer"
    return None


def _checkpoint_problem(options: Options) -> str | None:
    """Return the first problem of the options for checkpoints, or None."""
    for name in ("checkpoint_every_steps", "checkpoint_every_epochs"):
        value = getattr(options, name)
        if value is not None and not options.checkpoint:
            return f"--{name.replace('_', '-')} needs --checkpoint FOLDER"
    if options.resume == AUTO and not options.checkpoint:
        return "--resume auto needs --checkpoint FOLDER; or give a checkpoint"
    return None
