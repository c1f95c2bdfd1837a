"""Parallelize_BMUF: replicas that train on their own, brought together by block-wise model updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from netbuilder.distributed.rendezvous import Rendezvous
from netbuilder.distributed.strategies import Plain
from netbuilder.graph.blob import blob_name
from netbuilder.graph.block_updates import BlockRule
from netbuilder.graph.replicas import Replicas
from netbuilder.graph.source import user_source
from netbuilder.model import ModelHelper
from netbuilder.parallel import settings
from netbuilder.parallel.block_update import BlockRequest
from netbuilder.parallel.build import build
from netbuilder.parallel.options import DataParallelOptions, check_flags, takes_options
from netbuilder.parallel.request import Request
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, NetError
from netbuilder.proto.call_checks import is_number, is_whole
from netbuilder.proto.numbers import listed
from netbuilder.proto.suggestions import arguments_of, suggests_arguments

__all__ = ["Parallelize_BMUF", "Parallelize_CPU_BMUF", "Parallelize_GPU_BMUF"]

Builder = Callable[[ModelHelper], Any]


@suggests_arguments
@takes_options
def Parallelize_BMUF(
    model_helper_obj: ModelHelper,
    input_builder_fun: Builder,
    forward_pass_builder_fun: Callable[[ModelHelper, float], Any],
    param_update_builder_fun: Builder,
    block_learning_rate: float = 1.0,
    block_momentum: float | None = None,
    devices: Iterable[int] | None = None,
    rendezvous: Rendezvous | Mapping[str, Any] | None = None,
    net_type: str = "dag",
    master_device: int | None = None,
    use_nccl: bool = False,
    nesterov: bool = False,
    optimize_gradient_memory: bool = False,
    reset_momentum_sgd: bool = False,
    warmup_iterations: int | None = None,
    max_concurrent_distributed_ops: int = 4,
    add_blobs_to_sync: Iterable[Any] | None = None,
    num_threads_per_device: int = 4,
    cpu_device: bool = False,
    barrier_net_timeout_sec: float | None = None,
    *,
    block_iterations: int | None = None,
    lookahead: float | None = None,
    block_bits: int = 32,
    block_overlap: int = 0,
    options: DataParallelOptions | None = None,
    **fields: Any,
) -> Replicas:
    """Build a model on several devices that train on their own and are brought together after each block of iterations.

    Replicas start a block from the same parameters and update them from their own gradients, without exchange. At the
    end of the block their parameters are averaged, and the average moves the global parameters, with momentum over the
    blocks (see ``BlockRule``). With ``block_momentum=0`` and ``block_learning_rate=1`` this is local SGD. Computed
    parameters, such as running means, are averaged; what the replicas' own updates keep, such as momenta, is not
    exchanged. Parameters that the model has before the call exist once: they follow no rule, and are updated in each
    iteration, with the sum of all replicas' gradients.

    ``RunInitNet`` initializes, ``RunWarmup`` runs the warm-up, and each ``RunNet(model, n)`` is a block of n
    iterations.

    Args:
        model_helper_obj: a model without backward pass; its nets are extended.
        input_builder_fun: as for ``Parallelize``.
        forward_pass_builder_fun: as for ``Parallelize``. Gradients are not summed over the replicas, so a loss that is
            multiplied by the loss scale makes the steps of each replica so much smaller; a builder may ignore it.
        param_update_builder_fun: appends the update of one replica's parameters; called once per replica, in its
            scopes, and sees only this replica's parameters, so that it may build an optimizer. Parameters outside the
            replicas are among those of the first call.
        block_learning_rate: factor of the change of a block, positive.
        block_momentum: share of the previous blocks' change that is added, in [0, 1); None: 1 - 1 / number of replicas
            of all processes.
        devices: as for ``Parallelize``.
        rendezvous: as for ``Parallelize``; the average is that of the devices of all processes. What differs between
            replicas is in a process's own checkpoint.
        master_device: the device that has the global parameters; None: the first one.
        nesterov: Nesterov's block momentum: replicas start a block from the global parameters plus ``block_momentum``
            times the last change, the look-ahead.
        reset_momentum_sgd: set the momenta of the replicas' own updates (SGD with momentum) to 0 after each block.
        warmup_iterations: number of updates before the first block, see ``RunWarmup``; None: none.
        add_blobs_to_sync: further blobs, with or without a replica's scope, that the master's values overwrite on the
            other devices at the end of each block.
        cpu_device: replicas on the CPU instead of on GPUs.
        block_iterations: length of a block in updates of the replicas, counted over calls of ``RunNet``, the warm-up
            first; checkpoints hold the count. None: each call of ``RunNet`` is a block.
        lookahead: the look-ahead as a multiple of ``block_momentum``; None: 1 with ``nesterov``, else 0. Caffe2's
            ``nesterov=True`` has the opposite sign, -1.
        block_bits: of an element of the changes that several processes exchange: 32, or 8, with what rounding loses
            added to the next block's change.
        block_overlap: iterations of the next block that run while processes exchange what a block has changed, and
            before its update is applied (see ``BlockRule``); fewer than ``block_iterations``. 0: the next block waits.
            Running means then become the mean of those at the end of the block.
        options: as for ``Parallelize``; it has no options that are for exchanged gradients.

    Returns:
        The record of the replicas, which the net stores in its arguments; ``record.block`` is the rule.

    Raises:
        NetError: an argument is out of range, the model is data-parallel or has a backward pass already, the builders
            do not return a list of losses, an operator uses a blob of another device, a blob has the name of a state
            of the rule (``fc_w_g``, ``fc_w_v``), or there is no momentum for ``reset_momentum_sgd``.
        BlobError: the replicas have no blob of a name in ``add_blobs_to_sync``.
        TypeError: an argument is of the wrong type.
        NotImplementedError: an argument requests something that this version does not support.
        DeviceError: ``devices`` is None and there is no GPU.

    After an exception, raised by a builder too, the model is in its former state.

    Source: Chen and Huo, "Scalable training of deep learning machines by incremental block training with intra-block
    parallel optimization and blockwise model-update filtering", ICASSP 2016.
    """
    assert options is not None
    settings.check_call(
        model_helper_obj,
        input_builder_fun=input_builder_fun,
        forward_pass_builder_fun=forward_pass_builder_fun,
        param_update_builder_fun=param_update_builder_fun,
    )
    check_flags(nesterov=nesterov, reset_momentum_sgd=reset_momentum_sgd, cpu_device=cpu_device)
    if param_update_builder_fun is None:
        raise TypeError("param_update_builder_fun must be a function, got None: replicas train on their own")
    processes = settings.choose_processes(rendezvous, options)
    chosen = settings.choose_devices(devices, PROTO_CPU if cpu_device else PROTO_CUDA)
    count = len(chosen) * (1 if processes is None else processes.rendezvous.num_shards)
    momentum, rate = _block_rates(count, block_momentum, block_learning_rate)
    multiple = float(nesterov) if lookahead is None else _number("lookahead", lookahead)
    rule = BlockRule(
        momentum=momentum,
        learning_rate=rate,
        lookahead=multiple * momentum,
        iterations=_count("block_iterations", block_iterations, least=1) or 0,
        warmup_iterations=_count("warmup_iterations", warmup_iterations, least=0),
        master=_master(master_device, chosen.ids),
        bits=_bits(block_bits),
        overlap=_overlap(block_overlap, block_iterations, add_blobs_to_sync),
    )
    if settings.chosen_precision(options.dtype, model_helper_obj) == "float16":
        raise NetError("Parallelize_BMUF does not scale gradients, as dtype='float16' needs; let it be 'bfloat16'")
    request = Request(
        devices=chosen,
        options=settings.settled(options, model_helper_obj, chosen, processes, Plain(), trains=True),
        debug_info=user_source(),
        build_input=input_builder_fun,
        build_forward=forward_pass_builder_fun,
        update=param_update_builder_fun,
        block=BlockRequest(rule, _synchronized(add_blobs_to_sync), reset_momentum_sgd),
        processes=settings.with_gpus(processes, chosen),
    )
    return build(model_helper_obj, request)


@arguments_of(Parallelize_BMUF, "cpu_device")
def Parallelize_CPU_BMUF(*args: Any, **kwargs: Any) -> Replicas:
    """``Parallelize_BMUF`` on the CPU: ``devices`` are the numbers of the replicas, by default one per core.

    >>> from netbuilder import ModelHelper, brew
    >>> from netbuilder.optimizers import build_sgd
    >>> def forward(model, loss_scale):
    ...     pred = brew.fc(model, "data", "pred", 4, 3)
    ...     softmax, loss = model.net.SoftmaxWithLoss([pred, "label"], ["softmax", "loss"])
    ...     return [loss]
    >>> model = ModelHelper("two_replicas")
    >>> record = Parallelize_CPU_BMUF(
    ...     model, lambda model: None, forward, lambda model: build_sgd(model, 0.1), devices=[0, 1], block_momentum=0.5
    ... )
    >>> record.block.momentum, record.block_state[:2]
    (0.5, ('cpu_0/pred_w_g', 'cpu_0/pred_w_v'))
    """
    return Parallelize_BMUF(*args, **{**kwargs, "cpu_device": True})


@arguments_of(Parallelize_BMUF, "cpu_device")
def Parallelize_GPU_BMUF(*args: Any, **kwargs: Any) -> Replicas:
    """``Parallelize_BMUF`` on NVIDIA GPUs. The nets can be built on a machine without GPUs."""
    return Parallelize_BMUF(*args, **{**kwargs, "cpu_device": False})


def _synchronized(add_blobs_to_sync: Any) -> tuple[str, ...]:
    if isinstance(add_blobs_to_sync, (str, bytes)):
        raise TypeError(f"add_blobs_to_sync must be a list, got the single string {add_blobs_to_sync!r}")
    return tuple(
        map(blob_name, () if add_blobs_to_sync is None else listed("add_blobs_to_sync", "blobs", add_blobs_to_sync))
    )


def _block_rates(count: int, block_momentum: Any, block_learning_rate: Any) -> tuple[float, float]:
    """Return momentum and learning rate of the blocks, for a number of replicas."""
    momentum = 1.0 - 1.0 / count if block_momentum is None else _number("block_momentum", block_momentum)
    if not 0 <= momentum < 1:
        raise NetError(f"block_momentum must be in [0, 1), got {block_momentum!r}")
    rate = _number("block_learning_rate", block_learning_rate)
    if rate <= 0:
        raise NetError(f"block_learning_rate must be positive, got {block_learning_rate!r}")
    return momentum, rate


def _number(name: str, value: Any) -> float:
    if not is_number(value):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not math.isfinite(value):
        raise NetError(f"{name} must be finite, got {value!r}")
    return float(value)


def _count(name: str, value: Any, *, least: int) -> int | None:
    if value is None:
        return None
    if not is_whole(value):
        raise TypeError(f"{name} must be an integer or None, got {value!r}")
    if value < least:
        raise NetError(f"{name} must be at least {least}, got {value!r}")
    return int(value)


def _bits(bits: Any) -> int:
    if not is_whole(bits):
        raise TypeError(f"block_bits must be an integer, got {bits!r}")
    if bits not in (8, 32):
        raise NetError(f"block_bits must be 32 or 8, got {bits!r}")
    return int(bits)


def _overlap(steps: Any, iterations: int | None, synchronized: Any) -> int:
    if not is_whole(steps):
        raise TypeError(f"block_overlap must be an integer, got {steps!r}")
    if steps < 0:
        raise NetError(f"block_overlap must not be negative, got {steps!r}")
    if steps and iterations is None:
        raise NetError(f"block_overlap={steps} needs block_iterations, which must be more; got None")
    if steps and steps >= (iterations or 0):
        raise NetError(f"block_overlap must be less than block_iterations={iterations}, got {steps!r}")
    if steps and synchronized:
        raise NetError(
            f"block_overlap={steps} cannot be combined with add_blobs_to_sync: only parameters and computed parameters "
            "are exchanged while the next block runs; omit one of them"
        )
    return int(steps)


def _master(device: Any, ids: tuple[int, ...]) -> int:
    if device is None:
        return 0
    if not is_whole(device) or device not in ids:
        raise NetError(f"master_device must be one of the devices {list(ids)}, got {device!r}")
    return ids.index(device)
