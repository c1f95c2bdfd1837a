"""The two models of a training run: one that trains, and one in test mode over the same parameters."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from netbuilder.graph import BlobReference
from netbuilder.graph.observability import OUTPUTS
from netbuilder.model import ModelHelper, brew
from netbuilder.ops.core.renaming import rename_blobs
from netbuilder.optimizers import (
    add_moving_averages,
    add_weight_decay,
    build_optimizer,
    layer_rates,
    optimizer_by_name,
)
from netbuilder.parallel import DataParallelOptions, Parallelize, Parallelize_BMUF
from netbuilder.proto import NetError
from netbuilder.tools.training.fed_images import FedImages
from netbuilder.tools.training.nets import NETS, Builder
from netbuilder.tools.training.onnx_net import OnnxNet
from netbuilder.tools.training.settings import Options
from netbuilder.tools.training.step_timing import Boundaries

__all__ = ["TARGET", "WHOLE_RUN", "evaluation_model", "policy_of", "training_model"]

TARGET = "target"
"""Input for soft labels: the probability of each class, (N, classes)."""

_NORMS = frozenset({"SpatialBN", "GroupNorm", "LayerNorm", "InstanceNorm", "RMSNorm"})
Shape = tuple[int, ...]


def training_model(
    options: Options, images: FedImages, classes: int, steps: int, boundaries: Boundaries
) -> ModelHelper:
    """Return the training model, over all devices of all processes.

    Args:
        options: of the run.
        images: that it is fed.
        classes: number of classes.
        steps: per epoch.
        boundaries: its fields are set to the ends of the phases.
    """

    def forward(model: ModelHelper, loss_scale: float) -> list[BlobReference]:
        images.add(model)
        if options.soft_labels:
            softmax, loss = _with_soft_labels(model, options, images.shape, classes)
        else:
            softmax, loss = _builder(options)(model, images.shape, classes, is_test=False, label="label")
        brew.accuracy(model, [softmax, "label"], "accuracy")
        scaled = model.net.Scale(loss, "scaled_loss", scale=1.0 if options.block else loss_scale)
        boundaries.forward = model.net.op_len
        return [scaled]

    def end_of_backward(model: ModelHelper, *about: Any) -> None:
        boundaries.backward = model.net.op_len

    def update(model: ModelHelper) -> object:
        boundaries.exchange = boundaries.exchange or model.net.op_len
        boundaries.backward = boundaries.backward or model.net.op_len
        spared = set() if options.norm_decay else _norm_parameters(model)
        layers = {} if options.layer_decay is None else layer_rates(model, options.layer_decay)
        trained = _trained(model, options)
        if options.weight_decay and not options.decouples_decay:
            add_weight_decay(model, options.weight_decay, skip=spared)
        policy, arguments = policy_of(options, steps)
        optimizer = optimizer_by_name(
            options.optimizer, options.scaled_rate, policy=policy, policy_arguments=arguments,
            **options.optimizer_settings,
        )  # fmt: skip
        build_optimizer(
            model,
            optimizer,
            params=trained,
            max_gradient_norm=options.clip_norm,
            decoupled_decay=options.weight_decay if options.decouples_decay else None,
            no_decay=spared,
            rates={**layers, **options.rates},
        )
        if options.averages:
            first = 0 if options.swa is None else max(round((options.epochs - options.swa) * steps), 0)
            add_moving_averages(model, options.average_decay, first_step=first)
        return optimizer

    model = ModelHelper(name=f"{options.net_name}_train", arg_scope={"order": "NCHW"})
    common: dict[str, Any] = {
        "input_builder_fun": lambda model: None,
        "forward_pass_builder_fun": forward,
        "devices": list(options.devices),
        "rendezvous": options.rendezvous,
        "cpu_device": options.cpu,
        "options": DataParallelOptions(
            net_type=options.net_type,
            num_threads_per_device=options.device_workers,
            dtype=options.dtype,
            allow_tf32=options.allow_tf32,
            deterministic=options.deterministic,
            memory_budget=options.memory_budget,
            weighted_shares=True,
            accumulate_steps=options.accumulate_steps,
        ),
    }
    if (block := options.block) is None:
        Parallelize(
            model,
            optimizer_builder_fun=update,
            net_transformer_fun=end_of_backward,
            combine_spatial_bn=options.combine_bn,
            strategy=options.strategy,
            bucket_bytes=options.bucket_bytes,
            **common,
        )
    else:
        Parallelize_BMUF(
            model,
            param_update_builder_fun=update,
            block_learning_rate=block.learning_rate,
            block_momentum=block.momentum,
            nesterov=block.nesterov,
            reset_momentum_sgd=block.reset_momentum,
            warmup_iterations=block.warmup_steps or None,
            block_iterations=block.steps,
            block_bits=block.bits,
            block_overlap=block.overlap,
            **common,
        )
    model.net.set_observable(OUTPUTS)
    return model


def _builder(options: Options) -> Builder:
    """Return what adds the net, which reads ``data``: (softmax, loss) if it is given a label, else the softmax."""
    if options.onnx is None:
        return NETS[str(options.model)]
    return OnnxNet(options.onnx, options.frozen, options.new_head)


def _with_soft_labels(model: ModelHelper, options: Options, shape: Shape, classes: int) -> Any:
    scores = _builder(options)(model, shape, classes, is_test=False, no_loss=True)
    return model.net.SoftmaxWithLoss([scores, TARGET], ["softmax", "loss"], label_prob=1)


def _trained(model: ModelHelper, options: Options) -> list[BlobReference] | None:
    """Return the parameters that --frozen leaves; None: all, or with --onnx what its net says.

    Raises:
        NetError: a pattern fits no parameter, or nothing is left.
    """
    if not options.frozen or options.onnx is not None:
        return None
    short = {param: str(param).rpartition("/")[2] for param in model.params}
    for pattern in options.frozen:
        if not any(fnmatchcase(name, pattern) for name in short.values()):
            names = sorted(set(short.values()))
            raise NetError(f"--frozen: {pattern!r} fits no parameter of {options.net_name}: {', '.join(names)}")
    found = [param for param, name in short.items() if not any(fnmatchcase(name, p) for p in options.frozen)]
    if not found:
        raise NetError(f"--frozen: {','.join(options.frozen)} leaves no parameter to train")
    return found


def _norm_parameters(model: ModelHelper) -> set[str]:
    return {str(blob) for op in model.net.Proto().op if op.type in _NORMS for blob in op.input[1:3]}


WHOLE_RUN = {"cosine": "period", "poly": "max_iter"}
"""Policies that last as long as the run, and the argument that gives their length in iterations."""


def policy_of(options: Options, steps: int) -> tuple[str, dict[str, Any]]:
    """Return the policy of the learning rate with its arguments, in iterations; with a warm-up it is ``composite``.

    Cosines and polynomials end with the run unless another length is given.

    Args:
        options: of the run.
        steps: per epoch.
    """
    arguments = dict(options.policy_args)
    if options.step_epochs:
        arguments["stepsize"] = options.step_epochs * steps
    if options.policy in WHOLE_RUN:
        arguments.setdefault(WHOLE_RUN[options.policy], options.epochs * steps)
    length = round(options.warmup_epochs * steps)
    if not length:
        return options.policy, arguments
    found = {
        "sub_policy_num_iters": [length, max(options.epochs * steps - length, 1)],
        "sub_policy_0_policy": "linearWarmup",
        "sub_policy_0_start_multiplier": options.warmup_start,
        "sub_policy_0_num_iter": length,
        "sub_policy_1_policy": options.policy,
    }
    return "composite", {**found, **{f"sub_policy_1_{name}": value for name, value in arguments.items()}}


def evaluation_model(
    options: Options, images: FedImages, classes: int, averages: Mapping[str, str], kind: str = "test"
) -> ModelHelper:
    """Return the model in test mode, over the devices of this process: it reads the replicas' parameters or averages.

    Args:
        options: of the run.
        images: that it is fed.
        classes: number of classes.
        averages: parameter -> blob that is read instead.
        kind: a word for the name of its net.
    """

    def forward(model: ModelHelper, loss_scale: float) -> list[BlobReference]:
        images.add(model)
        _builder(options)(model, images.shape, classes, is_test=True)
        return []

    model = ModelHelper(name=f"{options.net_name}_{kind}", arg_scope={"order": "NCHW"}, init_params=False)
    Parallelize(
        model,
        input_builder_fun=lambda model: None,
        forward_pass_builder_fun=forward,
        devices=list(options.devices),
        cpu_device=options.cpu,
        weighted_shares=True,
    )
    rename_blobs(model.net.Proto(), averages)
    model.net.set_observable(OUTPUTS)
    return model
