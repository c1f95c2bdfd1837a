"""Parallelize: build one net with a replica of the model on each device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from netbuilder.distributed.optimizer import DistributedOptimizer
from netbuilder.distributed.rendezvous import Rendezvous
from netbuilder.distributed.strategies import Strategy
from netbuilder.graph.replicas import Replicas
from netbuilder.graph.source import user_source
from netbuilder.model import ModelHelper
from netbuilder.parallel import settings
from netbuilder.parallel.block_update import BlockRequest
from netbuilder.parallel.build import build
from netbuilder.parallel.options import DataParallelOptions, check_flags, takes_options
from netbuilder.parallel.request import Request
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, NetError
from netbuilder.proto.suggestions import arguments_of, suggests_arguments

__all__ = ["Parallelize", "Parallelize_CPU", "Parallelize_GPU", "Parallelize_iDeep"]

Builder = Callable[[ModelHelper], Any]


@suggests_arguments
@takes_options
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
    barrier_net_timeout_sec: float | None = None,
    *,
    options: DataParallelOptions | None = None,
    **fields: Any,
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
        cpu_device: replicas on the CPU instead of on GPUs.
        ideep: not supported: plans choose oneDNN for operators on the CPU automatically.
        options: how the replicas are built, see ``DataParallelOptions``. Its fields are arguments, too, which replace
            those of the object: those that Caffe2 has at Caffe2's places, all by keyword.

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
    assert options is not None
    settings.check_call(
        model_helper_obj,
        input_builder_fun=input_builder_fun,
        forward_pass_builder_fun=forward_pass_builder_fun,
        param_update_builder_fun=param_update_builder_fun,
        optimizer_builder_fun=optimizer_builder_fun,
        post_sync_builder_fun=post_sync_builder_fun,
        pre_grad_net_transformer_fun=pre_grad_net_transformer_fun,
        net_transformer_fun=net_transformer_fun,
    )
    _check_kind(cpu_device, ideep, options)
    trains = param_update_builder_fun is not None or optimizer_builder_fun is not None
    for name in () if trains else _NEED_AN_UPDATE:
        if getattr(options, name):
            raise NetError(
                f"{name}=True is for training: without param_update_builder_fun or optimizer_builder_fun "
                f"{_NEED_AN_UPDATE[name]}"
            )
    processes = settings.choose_processes(rendezvous, options)
    chosen = settings.choose_devices(devices, PROTO_CPU if cpu_device else PROTO_CUDA)
    strategy = _strategy_of(options.strategy, optimizer_builder_fun)
    rule = strategy.rule(len(chosen) * (1 if processes is None else processes.rendezvous.num_shards))
    request = Request(
        devices=chosen,
        options=settings.settled(options, model_helper_obj, chosen, processes, strategy, trains=trains),
        debug_info=user_source(),
        build_input=input_builder_fun,
        build_forward=forward_pass_builder_fun,
        update=param_update_builder_fun or (None if rule is None else optimizer_builder_fun),
        optimize=optimizer_builder_fun if rule is None else None,
        post_sync=post_sync_builder_fun,
        before_gradients=pre_grad_net_transformer_fun,
        transform=net_transformer_fun,
        processes=settings.with_gpus(processes, chosen),
        block=None if rule is None else BlockRequest(rule),
        strategy=strategy,
    )
    return build(model_helper_obj, request)


_NEED_AN_UPDATE = {
    "combine_spatial_bn": "the net has only the forward pass, in which batch normalization must use the running "
    "statistics (is_test=1)",
    "average_initial_parameters": "the init net fills no parameters; omit it",
}
"""Options that are refused for evaluation, and why."""


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


def _check_kind(cpu_device: Any, ideep: Any, options: DataParallelOptions) -> None:
    check_flags(cpu_device=cpu_device, ideep=ideep)
    if ideep:
        raise NetError(
            "ideep=True is not supported: iDeep is not a device here; call Parallelize_CPU, whose plans use oneDNN"
        )
    if options.shared_model and not cpu_device:
        raise NetError("shared_model=True needs replicas on the CPU, which share memory; call Parallelize_CPU")
