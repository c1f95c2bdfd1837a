"""Parallelize: build one net with a replica of the model on each device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from netbuilder.distributed.optimizer import DistributedOptimizer
from netbuilder.distributed.rendezvous import Rendezvous
from netbuilder.distributed.strategies import Plain, Strategy
from netbuilder.engines.peers import can_access_peer
from netbuilder.graph.blob import blob_name
from netbuilder.graph.replicas import Replicas
from netbuilder.graph.source import user_source
from netbuilder.model import ModelHelper
from netbuilder.parallel import settings
from netbuilder.parallel.block_update import BlockRequest
from netbuilder.parallel.build import Request, build
from netbuilder.parallel.gradient_scaling import GradientScaling
from netbuilder.passes.processes import DEFAULT_BUCKET_BYTES
from netbuilder.passes.reductions import PeerAccess
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, NetError
from netbuilder.proto.suggestions import arguments_of, suggests_arguments

__all__ = ["Parallelize", "Parallelize_CPU", "Parallelize_GPU", "Parallelize_iDeep"]

Builder = Callable[[ModelHelper], Any]


@suggests_arguments
def Parallelize(
    model_helper_obj: ModelHelper,
    input_builder_fun: Builder,
    forward_pass_builder_fun: Callable[[ModelHelper, float], Any],
    param_update_builder_fun: Builder | None = None,
    optimizer_builder_fun: Builder | None = None,
    post_sync_builder_fun: Builder | None = None,
    pre_grad_net_transformer_fun: Builder | None = None,
    net_transformer_fun: Callable[[ModelHelper, int, str, int], Any] | None = None,
    devices: Iterable[int] | None = None,
    rendezvous: Rendezvous | Mapping[str, Any] | None = None,
    net_type: str = "dag",
    broadcast_computed_params: bool = True,
    optimize_gradient_memory: bool = False,
    dynamic_memory_management: bool = False,
    blobs_to_keep: Iterable[str] | None = None,
    use_nccl: bool = False,
    max_concurrent_distributed_ops: int = 16,
    cpu_device: bool = False,
    ideep: bool = False,
    num_threads_per_device: int = 4,
    shared_model: bool = False,
    combine_spatial_bn: bool = False,
    barrier_net_timeout_sec: float = 300,
    *,
    peer_access: PeerAccess | None = None,
    dtype: str | None = None,
    weighted_shares: bool = False,
    accumulate_steps: int = 1,
    outside_from_bytes: int | None = None,
    reduce_update_broadcast: bool = False,
    memory_budget: Any = None,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    deterministic: bool = False,
    vector_losses: bool = False,
    strategy: Strategy | str | None = None,
    allow_tf32: bool | None = None,
    gradient_scaling: GradientScaling | None = None,
    average_initial_parameters: bool = False,
    combine_means: bool = True,
) -> Replicas:
    """Build a model on several devices, with the exchange of gradients between them.

    With a ``rendezvous``, each process calls it with the same arguments, except for its number, and as many devices.
    Together the processes train one model, and get the parameters that one process with all devices would get.

    Each device gets a replica: the blobs that the builders make for it, under its own name scope (``gpu_0/``,
    ``cpu_0/``). Parameters that the model has before the call are outside the replicas: they exist once, and all
    replicas use them. Without an update builder the net has only the forward pass (evaluation).

    Args:
        model_helper_obj: a model without backward pass; its nets are extended.
        input_builder_fun: appends the input of one replica; called with the model once per device, in its scopes.
        forward_pass_builder_fun: appends the forward pass of one replica; called with the model and the loss scale,
            1 / number of devices of all processes, after ``input_builder_fun``; returns the list of losses, each
            multiplied by the scale.
        param_update_builder_fun: appends the update of one replica's parameters, operator by operator; called once per
            device. Optimizers, such as ``build_sgd``, are for ``optimizer_builder_fun``.
        optimizer_builder_fun: appends the update of all parameters; called once, outside of scopes.
        post_sync_builder_fun: called with the model once per device, after the copies that give all replicas the same
            initial values.
        pre_grad_net_transformer_fun: called with the model once, before the gradients are added.
        net_transformer_fun: called with (model, number of devices, "cpu" or "gpu", device type) once, after the
            gradients are added and before they are exchanged.
        devices: device ids; None: all GPUs, or as many replicas as the CPU has cores.
        rendezvous: the processes that train the model together: ``Rendezvous.from_environment()`` under a launcher,
            another ``Rendezvous``, or a dict with Caffe2's keys. None, or one process: no operators are added for it.
        net_type: the executor of the net.
        broadcast_computed_params: copy the first replica's running means and variances to the others in each step.
        optimize_gradient_memory: let gradients of activations share blobs if they are not needed at the same time,
            and keep only outputs and gradients of parameters after a step; the results are the same.
        dynamic_memory_management: keep only what is read after a step (``Net.set_observable("outputs")``).
        blobs_to_keep: with ``dynamic_memory_management``: other blobs that can be fetched after a step, of each replica
            if they are given without its scope.
        use_nccl: GPUs: exchange gradients by NCCL, one NCCLAllreduce per gradient, which plans start in groups, instead
            of by sums and copies; with ``combine_spatial_bn`` its sums, too, which go through the host otherwise.
        max_concurrent_distributed_ops: with ``rendezvous``: maximum number of common worlds, which the operators
            between processes use in turn, and so of such operators at the same time; at most one fewer than the net
            has threads.
        cpu_device: replicas on the CPU instead of on GPUs.
        ideep: not supported: plans choose oneDNN for operators on the CPU automatically.
        num_threads_per_device: maximum number of threads per device that run the net.
        shared_model: CPU: one copy of each parameter for all replicas instead of one each. A process with one device
            has one copy anyway; with ``rendezvous``, several devices are refused.
        combine_spatial_bn: batch normalization in training mode uses the statistics of the whole batch instead of each
            device's share, forward and backward: the devices exchange sums per channel, and their operators are
            interleaved. Shares must be equal, unless ``weighted_shares`` is given.
        barrier_net_timeout_sec: with ``rendezvous``: how long the processes may wait for one another before each
            ``RunNet`` and in ``Synchronize``, in seconds.
        peer_access: GPUs: ``peer_access(a, b)`` returns whether GPU a can read the memory of GPU b; None: ask the
            driver, or assume it if there is no GPU.
        dtype: type in which plans store activations, "float32", "bfloat16" or, on GPUs, "float16" (see
            ``Net.set_activation_dtype``); None: the setting of the model.
        weighted_shares: allow shares of a batch of different sizes, weighted so that the gradient is that of the mean
            over the batch: see ``feed_shares`` and ``prefetch``. Implied by ``accumulate_steps``.
        accumulate_steps: number of micro-batches per step: their gradients are summed, and exchanged and applied only
            after the last one. Each is one iteration of ``RunNet``. Rows of sparse gradients are concatenated.
        outside_from_bytes: tables of at least this many bytes that are used only for lookups are stored once, on the
            CPU, outside the replicas, under their name without a scope, and the lookups run there; the log lists
            them. None: each replica has its own tables, except for those created before the call.
        reduce_update_broadcast: sum gradients only on the first device, update its parameters there, and copy them to
            the others, instead of summing and updating on each device: the same parameters, with one copy of the
            optimizer's state. ``param_update_builder_fun`` is called only for the first device.
        memory_budget: the memory that a step may take, in bytes, as text such as "4GiB", or as a fraction of what it
            would take: activations are computed again in the backward pass to keep to it (see
            ``Net.set_memory_budget``). The numbers are the same to the bit.
        bucket_bytes: with ``rendezvous``: gradients are exchanged between processes together until they have this size,
            in the order in which they are ready; 0: each alone.
        deterministic: two runs on as many devices and processes are equal to the bit (see ``Net.set_deterministic``):
            sums over devices and processes, too, have a fixed order.
        vector_losses: losses may have several numbers, each of which gets the gradient 1, as in Caffe2. Without this, a
            loss must be one number, because the gradient of a sum over samples depends on the number of devices, if
            the builder multiplies it by the loss scale only.
        strategy: with ``rendezvous``: what the processes exchange, and when; None: ``Plain()``. A text such as
            "topk:0.01" is one, too. Builders, optimizers and loops are the same for all strategies.
        allow_tf32: GPUs: whether products of float32 values may use TF32 (see ``Net.set_allow_tf32``); None: the
            setting of the model.
        gradient_scaling: multiply losses by a scale, and divide gradients by it before the update, so that float16
            gradients do not underflow; steps whose gradients overflow are skipped. None: ``GradientScaling()`` if
            activations are stored in float16; otherwise gradients are not scaled.
        average_initial_parameters: begin with the mean over all replicas, of all processes, of what the init net fills
            a parameter with, in place of the values of the first replica of rank 0.
        combine_means: a mean whose divisor the data determine (the weights of SoftmaxWithLoss, ignored labels, rows
            that BooleanMask chooses) is that over the samples of all devices, processes and micro-batches: they add up
            their divisors. Nets without such means are not changed. There is a warning for a loss that a script's own
            arithmetic makes of means or sums over samples otherwise. False: each share of a batch divides by its own,
            as in Caffe2, so that the results depend on the number of shares.

    Returns:
        The record of the replicas, which the net stores in its arguments.

    Raises:
        NetError: an argument is out of range, the model is data-parallel or has a backward pass already, the builders
            do not return a list of losses, an optimizer is built in ``param_update_builder_fun``, or an operator uses
            a blob of another device. The builders must make the same net on each device; only the number of losses
            and the parameters and gradients, with their shapes, are compared, not each operator.
        ShapeError: a loss is not one number, as far as shapes are known already; otherwise the first run raises it.
        TypeError: an argument is of the wrong type.
        NotImplementedError: an argument requests something that this version does not support.
        DeviceError: ``devices`` is None and there is no GPU, or ``use_nccl=True`` and there are GPUs but no NCCL.

    After an exception, raised by a builder too, the model is in its former state.
    """
    settings.check_call(
        model_helper_obj,
        builders={
            "input_builder_fun": input_builder_fun,
            "forward_pass_builder_fun": forward_pass_builder_fun,
            "param_update_builder_fun": param_update_builder_fun,
            "optimizer_builder_fun": optimizer_builder_fun,
            "post_sync_builder_fun": post_sync_builder_fun,
            "pre_grad_net_transformer_fun": pre_grad_net_transformer_fun,
            "net_transformer_fun": net_transformer_fun,
        },
        flags={
            "broadcast_computed_params": broadcast_computed_params,
            "optimize_gradient_memory": optimize_gradient_memory,
            "dynamic_memory_management": dynamic_memory_management,
            "use_nccl": use_nccl,
            "cpu_device": cpu_device,
            "ideep": ideep,
            "shared_model": shared_model,
            "combine_spatial_bn": combine_spatial_bn,
            "weighted_shares": weighted_shares,
            "reduce_update_broadcast": reduce_update_broadcast,
            "deterministic": deterministic,
            "vector_losses": vector_losses,
            "average_initial_parameters": average_initial_parameters,
            "combine_means": combine_means,
        },
        net_type=net_type,
        num_threads_per_device=num_threads_per_device,
        peer_access=peer_access,
    )
    if optimize_gradient_memory and dynamic_memory_management:
        raise NetError("give optimize_gradient_memory or dynamic_memory_management, not both: they exclude each other")
    if blobs_to_keep is not None and not dynamic_memory_management:
        raise NetError("blobs_to_keep has no effect without dynamic_memory_management=True; give both, or neither")
    if isinstance(blobs_to_keep, (str, bytes)):
        raise NetError(f"blobs_to_keep must be a list, got the single string {blobs_to_keep!r}")
    _check_kind(cpu_device, ideep, shared_model)
    processes = settings.choose_processes(
        rendezvous,
        max_concurrent_distributed_ops=max_concurrent_distributed_ops,
        barrier_net_timeout_sec=barrier_net_timeout_sec,
        bucket_bytes=bucket_bytes,
        use_nccl=use_nccl,
    )
    chosen = settings.choose_devices(devices, PROTO_CPU if cpu_device else PROTO_CUDA)
    shared_model = settings.choose_sharing(shared_model, chosen, processes)
    if reduce_update_broadcast and (shared_model or use_nccl):
        other = (
            "shared_model=True, whose replicas have one copy"
            if shared_model
            else "use_nccl=True, which sums on all devices"
        )
        raise NetError(f"reduce_update_broadcast=True cannot be combined with {other}; give one of them")
    settings.check_accumulation(accumulate_steps)
    settings.check_outside_from_bytes(outside_from_bytes)
    if combine_spatial_bn and param_update_builder_fun is None and optimizer_builder_fun is None:
        raise NetError(
            "combine_spatial_bn=True is for training: without param_update_builder_fun or optimizer_builder_fun the "
            "net has only the forward pass, in which batch normalization must use the running statistics (is_test=1)"
        )
    if average_initial_parameters and param_update_builder_fun is None and optimizer_builder_fun is None:
        raise NetError(
            "average_initial_parameters=True is for training: without param_update_builder_fun or "
            "optimizer_builder_fun the init net fills no parameters; omit it"
        )
    given = _strategy_of(strategy, optimizer_builder_fun)
    rule = given.rule(len(chosen) * (1 if processes is None else processes.rendezvous.num_shards))
    settings.check_strategy(
        given,
        trains=param_update_builder_fun is not None or optimizer_builder_fun is not None,
        shared_model=shared_model,
        combine_spatial_bn=combine_spatial_bn,
        outside_from_bytes=outside_from_bytes is not None,
        reduce_update_broadcast=reduce_update_broadcast,
    )
    request = Request(
        devices=chosen,
        use_nccl=settings.choose_nccl(use_nccl, chosen),
        peer_access=peer_access or can_access_peer,
        debug_info=user_source(),
        net_type=net_type,
        num_threads_per_device=num_threads_per_device,
        dtype=dtype,
        allow_tf32=allow_tf32,
        deterministic=deterministic,
        gradient_scaling=settings.check_gradient_scaling(
            gradient_scaling,
            precision=settings.chosen_precision(dtype, model_helper_obj),
            trains=param_update_builder_fun is not None or optimizer_builder_fun is not None,
            shared_model=shared_model,
            reduce_update_broadcast=reduce_update_broadcast,
            strategy=not isinstance(given, Plain),
        ),
        memory_budget=memory_budget,
        build_input=input_builder_fun,
        build_forward=forward_pass_builder_fun,
        update=param_update_builder_fun or (None if rule is None else optimizer_builder_fun),
        optimize=optimizer_builder_fun if rule is None else None,
        post_sync=post_sync_builder_fun,
        before_gradients=pre_grad_net_transformer_fun,
        transform=net_transformer_fun,
        broadcasts_computed=broadcast_computed_params,
        shared_model=shared_model,
        weighted_shares=weighted_shares or accumulate_steps > 1,
        accumulate_steps=accumulate_steps,
        outside_from_bytes=outside_from_bytes,
        shares_memory=optimize_gradient_memory,
        kept=tuple(map(blob_name, blobs_to_keep or ())) if dynamic_memory_management else None,
        reduce_update_broadcast=reduce_update_broadcast,
        combines_batch_norm=combine_spatial_bn,
        processes=settings.with_gpus(processes, chosen),
        vector_losses=vector_losses,
        block=None if rule is None else BlockRequest(rule),
        strategy=given,
        average_initial_parameters=average_initial_parameters,
        combines_means=combine_means,
    )
    return build(model_helper_obj, request)


def _strategy_of(given: Any, optimizer_builder: Any) -> Strategy:
    if not isinstance(optimizer_builder, DistributedOptimizer):
        return Strategy.of(given)
    if given is not None:
        raise NetError(
            f"give strategy={given!r} to Parallelize, or {optimizer_builder.strategy!r} to the DistributedOptimizer, "
            "not both"
        )
    return optimizer_builder.strategy


@arguments_of(Parallelize, "cpu_device")
def Parallelize_CPU(*args: Any, **kwargs: Any) -> Replicas:
    """``Parallelize`` on the CPU: ``devices`` are the numbers of the replicas, by default one per core.

    >>> from netbuilder import ModelHelper, brew
    >>> def forward(model, loss_scale):
    ...     pred = brew.fc(model, "data", "pred", 4, 3)
    ...     softmax, loss = model.net.SoftmaxWithLoss([pred, "label"], ["softmax", "loss"])
    ...     return [model.Scale(loss, scale=loss_scale)]
    >>> def update(model):
    ...     rate = model.param_init_net.ConstantFill([], "rate", shape=[1], value=-0.1)
    ...     one = model.param_init_net.ConstantFill([], "one", shape=[1], value=1.0)
    ...     for param, grad in model.get_param_to_grad(model.GetParams()).items():
    ...         model.WeightedSum([param, one, grad, rate], param)
    >>> model = ModelHelper("two_replicas")
    >>> record = Parallelize_CPU(model, lambda model: None, forward, update, devices=[0, 1])
    >>> record.blobs("pred_w")
    ('cpu_0/pred_w', 'cpu_1/pred_w')
    """
    return Parallelize(*args, **{**kwargs, "cpu_device": True})


@arguments_of(Parallelize, "cpu_device")
def Parallelize_GPU(*args: Any, **kwargs: Any) -> Replicas:
    """``Parallelize`` on NVIDIA GPUs. The net can be built on a machine without GPUs."""
    return Parallelize(*args, **{**kwargs, "cpu_device": False})


@arguments_of(Parallelize, "ideep")
def Parallelize_iDeep(*args: Any, **kwargs: Any) -> Replicas:
    """Raise NetError: iDeep is not supported; call ``Parallelize_CPU``, whose plans choose oneDNN automatically."""
    return Parallelize(*args, **{**kwargs, "ideep": True})


def _check_kind(cpu_device: bool, ideep: bool, shared_model: bool) -> None:
    if ideep:
        raise NetError(
            "ideep=True is not supported: iDeep is not a device here; call Parallelize_CPU, whose plans use oneDNN"
        )
    if shared_model and not cpu_device:
        raise NetError("shared_model=True needs replicas on the CPU, which share memory; call Parallelize_CPU")
