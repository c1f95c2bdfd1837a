"""What the processes of a run, and a run and the checkpoint that it resumes from, must have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from netbuilder.tools.training.models import policy_of
from netbuilder.tools.training.onnx_net import digest_of
from netbuilder.tools.training.settings import Options

__all__ = ["course_of", "differences", "identity_of"]


def identity_of(options: Options, samples: int) -> dict[str, Any]:
    """Return options that must be the same in a checkpoint and in the run that resumes from it, by name.

    Args:
        options: of the run.
        samples: number of training samples.
    """
    net = {"--model": options.model}
    if options.onnx is not None:
        net = {"contents of --onnx": digest_of(options.onnx), "--frozen": ",".join(options.frozen),
               "--new-head": str(options.new_head)}  # fmt: skip
    found = {**net, "--batch": options.batch, "--seed": options.seed,
             "training samples": samples, "--optimizer": options.optimizer,
             "--ema or --swa (averages)": options.averages,
             "--block-steps": options.block and options.block.steps,
             "--block-overlap": options.block and (options.block.overlap or None)}  # fmt: skip
    return {**found, "number of devices": options.replicas} if options.block else found


def course_of(options: Options, steps: int) -> dict[str, Any]:
    """Return options that decide what training computes, and may change when a run is resumed, by name.

    Args:
        options: of the run.
        steps: of an epoch.
    """
    policy, arguments = policy_of(options, steps)
    return {"--learning-rate": options.scaled_rate, "--policy": policy, "its arguments": arguments,
            "--label-smoothing": options.label_smoothing, "--accumulate-steps": options.accumulate_steps,
            "decay of normalizations": options.norm_decay, "--momentum": options.momentum or 0.0,
            "--nesterov": options.nesterov is not False, "--optimizer-arg": dict(options.optimizer_args),
            "--mixup": options.mixup, "--cutmix": options.cutmix, "--ema": options.average_decay, "--swa": options.swa,
            "--augment": options.input.augment, "--random-erasing": options.input.random_erasing,
            "--clip-norm": options.clip_norm, "--rates": dict(options.rates), "--layer-decay": options.layer_decay,
            "--weight-decay": options.weight_decay, "--dtype": options.dtype, "--allow-tf32": options.allow_tf32,
            "--deterministic": options.deterministic,
            "--combine-bn": options.combine_bn, **_of_blocks(options),
            "number of devices": options.replicas}  # fmt: skip


def _of_blocks(options: Options) -> dict[str, Any]:
    if (block := options.block) is None:
        return {}
    return {"--block-learning-rate": block.learning_rate, "--block-momentum": block.momentum,
            "--block-nesterov": block.nesterov, "--block-reset-momentum": block.reset_momentum,
            "--block-bits": block.bits}  # fmt: skip


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a text for each value that is not what it was."""
    return [
        f"{name} was {before.get(name)!r}, now {value!r}" for name, value in now.items() if before.get(name) != value
    ]
