"""The steps of Parallelize, in order."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from netbuilder.data.gc_paused import collection_paused
from netbuilder.distributed.common_worlds import EXTRA_WORKERS, ProcessRequest, assign_worlds, process_link
from netbuilder.distributed.strategies import PartialSynchronization, Plain, Strategy
from netbuilder.engines.peers import can_access_peer
from netbuilder.graph.blob import BlobReference
from netbuilder.graph.blob_devices import blob_devices
from netbuilder.graph.devices import Devices
from netbuilder.graph.observability import OUTPUTS
from netbuilder.graph.replicas import Replicas, World
from netbuilder.graph.source import definition_of, warn_user
from netbuilder.model import ModelHelper
from netbuilder.model.rollback import restore_on_error
from netbuilder.ops.core.precision import DETERMINISTIC_ARGUMENT
from netbuilder.ops.core.renaming import rename_in_subgraphs
from netbuilder.optimizers.build import chosen_parameters, updates_of_one_replica
from netbuilder.parallel.accumulate import accumulate_gradients
from netbuilder.parallel.backward import (
    add_backward_pass,
    broadcast_computed,
    exchange_gradients,
    gathered_gradients,
    group_gradients,
)
from netbuilder.parallel.batch_means import add_up_divisors, combine_means
from netbuilder.parallel.block_update import BlockRequest, block_nets
from netbuilder.parallel.builders import (
    assign_random_replicas,
    build_replicas,
    call_per_device,
    group_by_name,
    initial_shapes,
)
from netbuilder.parallel.caffe2_attributes import set_caffe2_attributes, set_device_attributes
from netbuilder.parallel.gradient_scaling import (
    fill_scales,
    require_dense_gradients,
    scale_update,
)
from netbuilder.parallel.large_tables import move_tables_outside
from netbuilder.parallel.loss_scale import LossScale, warn_of_scaled_updates
from netbuilder.parallel.memory import share_gradient_memory
from netbuilder.parallel.options import DataParallelOptions
from netbuilder.parallel.process_exchange import (
    add_residuals,
    average_chunks,
    broadcast_computed_over_processes,
    dense_sizes,
    exchange_over_processes,
)
from netbuilder.parallel.shares import SHARE_WEIGHT
from netbuilder.parallel.synchronize import (
    initialized_names,
    initialized_outside,
    known_names,
    require_initialized,
)
from netbuilder.passes.device_check import check_devices
from netbuilder.passes.net_pass import PassContext
from netbuilder.passes.processes import ProcessLink, broadcast_over_processes
from netbuilder.passes.reductions import PeerAccess, allreduce, broadcast
from netbuilder.passes.synchronize_batch_norm import synchronize_batch_norm_pass
from netbuilder.proto import NetDef, NetError
from netbuilder.proto.arguments import arguments, make_op
from netbuilder.proto.depth import deep_nets
from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Request", "build", "keep_only"]


_log = logging.getLogger("netbuilder")

Builder = Callable[[ModelHelper], Any]


@dataclass(frozen=True)
class Request:
    """A checked call of Parallelize or Parallelize_BMUF.

    Args:
        options: with what was chosen where the caller left it open, or where it does not apply.
        strategy: of the exchange between processes.
    """

    devices: Devices
    options: DataParallelOptions
    debug_info: str
    build_input: Builder
    build_forward: Callable[[ModelHelper, float], Any]
    update: Builder | None = None
    optimize: Builder | None = None
    post_sync: Builder | None = None
    before_gradients: Builder | None = None
    transform: Callable[[ModelHelper, int, str, int], Any] | None = None
    world: World = World()
    processes: ProcessRequest | None = None
    block: BlockRequest | None = None
    strategy: Strategy = Plain()

    @property
    def gradient_seed(self) -> float:
        """The gradient of each loss, which is multiplied by 1 / the number of replicas, and by the weight of its share.

        A strategy whose replicas or processes train on their own makes their gradients those of their own means.
        """
        summed = self.world_size
        if self.strategy.blocks:
            summed = 1
        elif not self.strategy.sums_gradients:
            summed = len(self.devices)
        return self.world_size / summed

    @property
    def loss_scale(self) -> float:
        """The number that the forward builder multiplies its losses by."""
        return 1.0 / self.world_size

    @property
    def world_size(self) -> int:
        """The number of replicas of all processes."""
        return self.world.size or len(self.devices)

    @property
    def hands_back(self) -> bool:
        """Whether all devices get the sums of gradients, not only the first one."""
        return not (self.options.shared_model or self.options.reduce_update_broadcast)

    @property
    def peer_access(self) -> PeerAccess:
        """Which GPUs can read each other's memory."""
        return self.options.peer_access or can_access_peer

    @property
    def workers(self) -> int:
        """The maximum number of threads that run the main net."""
        extra = EXTRA_WORKERS if self.processes is not None else 0
        return self.options.num_threads_per_device * len(self.devices) + extra

    @property
    def trains(self) -> bool:
        return self.update is not None or self.optimize is not None


def build(model: ModelHelper, request: Request) -> Replicas:
    """Build the replicas that ``request`` describes in ``model``; return the record, which the main net stores.

    After an exception the model is in its former state.
    """
    with restore_on_error(model), collection_paused():
        net, options = model.net, request.options
        net.set_type(options.net_type, request.workers)
        if options.memory_budget is not None:
            net.set_memory_budget(options.memory_budget)
        if options.dtype is not None:
            net.set_activation_dtype(options.dtype)
        if options.allow_tf32 is not None:
            net.set_allow_tf32(options.allow_tf32)
        if options.deterministic is not None and options.deterministic != _is_deterministic(model):
            net.set_deterministic(options.deterministic)
        return _build(model, request)


def _is_deterministic(model: ModelHelper) -> bool:
    return bool(arguments(model.net.Proto()).get(DETERMINISTIC_ARGUMENT))


def _build(model: ModelHelper, request: Request) -> Replicas:
    if request.processes is not None:
        name = model.net.Name()
        world = request.processes.world(name, request.devices, request.workers, joined=request.trains)
        request = dataclasses.replace(request, world=world)
    before = model.GetAllParams("")
    set_device_attributes(model, request.devices)
    losses = build_replicas(
        model,
        request.devices,
        request.build_input,
        request.build_forward,
        trains=request.trains,
        world_size=request.world_size,
        sums_gradients=request.block is None,
        vector_losses=request.options.vector_losses,
    )
    if request.options.outside_from_bytes is not None:
        before = before + move_tables_outside(model, request.devices, request.options.outside_from_bytes)
    model.Validate()
    record = _group(model, request, before, losses)
    if request.before_gradients is not None:
        request.before_gradients(model)
    optimizer, weights = None, list[BlobReference]()
    record, divisors = combine_means(model, request, record)
    if request.trains:
        if model.init_params:
            require_initialized(model, record)
        with _prefer_device_errors(model, record):
            weights = _share_weights(model, request)
            scales = _gradient_scales(model, request)
            add_backward_pass(
                model, request.devices, losses, seed=request.gradient_seed, weights=weights, scales=scales,
                vector_losses=request.options.vector_losses,
            )  # fmt: skip
        if request.options.params is not None:
            for param in {*model.params}.difference(chosen_parameters(model, request.options.params)):
                model.param_to_grad.pop(param, None)
                model.grad_map.pop(param, None)
    _transform(model, request)
    if request.trains:
        model.Validate()
        with _prefer_device_errors(model, record):
            gradients = group_gradients(record.parameters, model.param_to_grad, record.devices)
        record = dataclasses.replace(record, gradients=tuple(gradients))
        if request.options.gradient_scaling is not None:
            require_dense_gradients(model, record)
    add_up_divisors(model, request, record, divisors, _link(model, request, record))
    if request.options.combine_spatial_bn:
        _combine_batch_norm(model, request, record, weights)
    if record.shared:
        _share_parameters(model, record.parameters, record.devices)
    elif request.block is None:
        for name in record.parameters:
            first, *others = record.blobs(name)
            model.parameter_copies.update(dict.fromkeys(others, first))
    if request.trains:
        if request.options.accumulate_steps > 1:
            record = accumulate_gradients(model, record)
        record = _exchange(model, request, record)
        optimizer = _update(model, request, record)
        _average(model, request, record)
        if request.options.reduce_update_broadcast:
            groups = [record.blobs(group.parameter) for group in record.gradients]
            model.net.Proto().MergeFrom(broadcast(groups, request.devices, debug_info=request.debug_info))
        _synchronize_initial_values(model, request, record)
        add_residuals(model, record)
    else:
        model.param_init_net.protects_all = True
        if model.init_params:
            _warn_of_initializers(model)
        _warn_of_training_mode(model)
    if request.options.optimize_gradient_memory:
        record = share_gradient_memory(model, record)
    if request.options.dynamic_memory_management:
        kept = request.options.blobs_to_keep or ()
        keep_only(model, record.devices, [*kept, *_gradients_to_keep(model, record)])
    if request.block is not None:
        _add_block_nets(model, request, request.block, record)
    if record.world.common:
        assert request.processes is not None
        nets = [model.net, model.param_init_net, *(() if model.block_nets is None else model.block_nets.all())]
        world = assign_worlds(nets, model.param_init_net, record.world, request.processes)
        record = dataclasses.replace(record, world=world)
    _finish(model, record, optimizer, request.processes)
    _log_summary(model, request, record)
    return record


def keep_only(model: ModelHelper, devices: Devices, blobs: Iterable[str]) -> None:
    """Make only outputs observable, and ``blobs``: those of each replica if they are given without its scope.

    Raises:
        NetError: the main net writes no blob of a name.
    """
    written = {name for op in model.net.Proto().op for name in op.output}
    kept: list[str] = []
    for blob in blobs:
        found = [name for name in (blob, *devices.copies(blob)) if name in written]
        if not found:
            raise NetError(
                f"model {model.name!r} makes no blob {blob!r}, so it cannot be among blobs_to_keep; give names that "
                "operators of the main net write, with or without a device scope"
            )
        kept += found
    model.net.set_observable(OUTPUTS, kept)


def _add_block_nets(model: ModelHelper, request: Request, block: BlockRequest, record: Replicas) -> None:
    """Give the model the nets of its block-wise updates."""
    names = tuple(known_names(model, record, block.synchronized))
    model.block_nets = block_nets(
        model.net.Proto(),
        record,
        dataclasses.replace(block, synchronized=names),
        use_nccl=request.options.use_nccl,
        peer_access=request.peer_access,
        debug_info=request.debug_info,
        link=_link(model, request, record),
    )


def _gradients_to_keep(model: ModelHelper, record: Replicas) -> list[str]:
    """Return the gradients that are exchanged between processes, which a model keeps, as in Caffe2."""
    if not record.world.common:
        return []
    outside = [model.param_to_grad.get(BlobReference(name)) for name in record.outside]
    dense = [str(gradient) for gradient in outside if isinstance(gradient, BlobReference)]
    return [*(group.values for group in record.gradients), *dense]


def _link(model: ModelHelper, request: Request, record: Replicas) -> ProcessLink | None:
    """Return how operators exchange values with other processes; None: they do not."""
    return process_link(
        record,
        [model.param_init_net.Proto(), model.net.Proto()],
        deterministic=_is_deterministic(model),
        debug_info=request.debug_info,
        by_nccl=request.processes is not None and request.processes.rendezvous.engine == "NCCL",
    )


def _share_weights(model: ModelHelper, request: Request) -> list[BlobReference]:
    """Let the init net create the weight of each replica's share of a batch; return the blobs, none for even shares."""
    if not request.options.weighted_shares:
        return []
    value = 1.0 / request.options.accumulate_steps
    return call_per_device(
        request.devices,
        lambda replica: model.param_init_net.ConstantFill([], SHARE_WEIGHT, shape=[1], value=value),
    )


def _gradient_scales(model: ModelHelper, request: Request) -> list[BlobReference]:
    """Let the init net create the scale of each replica's gradients; return the blobs, none without scaling."""
    scaling = request.options.gradient_scaling
    return [] if scaling is None else call_per_device(request.devices, lambda replica: fill_scales(model, scaling))


def _combine_batch_norm(
    model: ModelHelper, request: Request, record: Replicas, weights: Sequence[BlobReference]
) -> None:
    """Let batch normalizations exchange their statistics between the replicas."""
    main = model.net.Proto()
    context = PassContext(devices=request.devices, available=model.param_init_net.Proto().external_output)
    result = synchronize_batch_norm_pass(
        main,
        context,
        parts=request.world_size,
        weights=tuple(map(str, weights)),
        debug_info=request.debug_info,
        link=_link(model, request, record),
        use_nccl=request.options.use_nccl,
    )
    model.net.replace_message(result.net)
    _log.info("model %r: %d batch normalizations over %s", model.name, result.extras["count"], request.devices)


def _log_summary(model: ModelHelper, request: Request, record: Replicas) -> None:
    _log.info(
        "model %r over %s: loss scale 1/%d, %d parameters each, %d outside, %d gradients exchanged%s by %s",
        model.name,
        record.devices,
        record.world.size,
        len(record.parameters),
        len(record.outside),
        len(record.gradients) if len(record) > 1 and record.block is None else 0,
        ", parameters averaged after each block" if record.block is not None else "",
        "NCCL" if request.options.use_nccl else "sums and copies",
    )
    if record.world.common:
        _log.info(
            "model %r: rank %d of %d processes, %d common worlds",
            model.name,
            record.world.rank,
            record.world.size // len(record),
            len(record.world.common),
        )
        _log.info("model %r: strategy %s: %s", model.name, request.strategy, _planned(model, request, record))
    having = {group.parameter for group in record.gradients}
    if request.trains and (without := [name for name in record.parameters if name not in having]):
        names = ", ".join(without)
        _log.info("model %r: parameters without gradient, neither summed nor updated: %s", model.name, names)


def _planned(model: ModelHelper, request: Request, record: Replicas) -> str:
    """Return the bytes that each process is to give in each step."""
    sparse = sum(group.is_sparse for group in record.gradients)
    rows = f", and the rows of {counted(sparse, 'sparse gradient')}" if sparse and request.block is None else ""
    sizes = dense_sizes(model, dataclasses.replace(record, block=None))
    if sizes is None:
        return f"the bytes of a step depend on shapes that are not known yet{rows}"
    planned, plain = request.strategy.planned_bytes(sizes), 4 * sum(sizes)
    given = "as many bytes as the data decide" if planned is None else f"{round(planned)} bytes"
    return f"{given} of each process in a step on average (plain: {plain}){rows}"


@contextmanager
def _prefer_device_errors(model: ModelHelper, record: Replicas) -> Iterator[None]:
    """Report an operator that uses another replica's blob rather than the gradient errors that follow from it."""
    try:
        yield
    except NetError:
        _check_devices(model, record)
        raise


def _check_devices(model: ModelHelper, record: Replicas) -> None:
    init_net, main = model.param_init_net.Proto(), model.net.Proto()
    check_devices(main, init_net=init_net, devices=record.devices, shared=record.shared_blobs)
    check_devices(init_net, devices=record.devices, shared=record.shared_blobs)


def _group(
    model: ModelHelper, request: Request, before: list[BlobReference], losses: list[list[BlobReference]]
) -> Replicas:
    """Return the record of what the builders made."""
    devices = request.devices
    shared_by_all = {param for param in before if devices.replica_of(str(param)) is None}
    outside = [param for param in before if param in shared_by_all]
    if not request.trains:  # this model may share the parameters of another; list only those that it uses
        read = {blob for op in model.net.Proto().op for blob in op.input}
        outside = [param for param in outside if str(param) in read]
    shapes = initial_shapes(model.param_init_net.Proto()) if len(devices) > 1 else {}
    inside, computed = (
        group_by_name(what, [param for param in params if param not in shared_by_all], devices, shapes)
        for what, params in (("parameter", model.params), ("computed parameter", model.GetComputedParams("")))
    )
    return Replicas(
        devices=devices,
        parameters=tuple(inside),
        computed=tuple(computed),
        losses=tuple(tuple(map(str, of_replica)) for of_replica in losses),
        outside=tuple(map(str, outside)),
        shared=request.options.shared_model,
        broadcasts_computed=request.options.broadcast_computed_params and request.block is None,
        weighted_shares=request.options.weighted_shares,
        accumulate_steps=request.options.accumulate_steps,
        world=request.world,
        block=None if request.block is None else request.block.rule,
    )


def _share_parameters(model: ModelHelper, parameters: Sequence[str], devices: Devices) -> None:
    """Let all replicas, on the CPU, read the first one's parameters, and remove those of the others.

    Each replica keeps its own computed parameters.
    """
    first, *others = devices.scopes
    renaming = {scope + name: first + name for scope in others for name in parameters}
    main, init_net = model.net.Proto(), model.param_init_net.Proto()
    for op in main.op:
        for slot, blob in enumerate(op.input):
            if blob in renaming:
                op.input[slot] = renaming[blob]
        rename_in_subgraphs(op, renaming)
    main.external_input[:] = [blob for blob in main.external_input if blob not in renaming]
    _remove_initializers(init_net, renaming)
    for params in (model.params, model.weights, model.biases):
        params[:] = [param for param in params if str(param) not in renaming]
    for name in renaming:
        model.param_to_grad.pop(BlobReference(name), None)


def _remove_initializers(net: NetDef, removed: Collection[str]) -> None:
    remaining = [op for op in net.op if not op.output or any(blob not in removed for blob in op.output)]
    if len(remaining) < len(net.op):
        shorter = NetDef()
        shorter.CopyFrom(net)
        del shorter.op[:]
        with deep_nets():
            shorter.op.extend(remaining)
        net.CopyFrom(shorter)


def _transform(model: ModelHelper, request: Request) -> None:
    if request.transform is not None:
        devices = request.devices
        request.transform(model, len(devices), devices.word, devices.device_type)


def _exchange(model: ModelHelper, request: Request, record: Replicas) -> Replicas:
    """Add the broadcast of computed parameters and the reduction of gradients, unless there is only one replica.

    Returns the record with the names of the gradients after the exchange.
    """
    link = _link(model, request, record)
    if link is not None and record.broadcasts_computed:
        broadcast_computed_over_processes(model, record, link)
    if link is not None and not isinstance(request.strategy, PartialSynchronization):
        return exchange_over_processes(
            model,
            record,
            link,
            bucket_bytes=request.options.bucket_bytes,
            peer_access=request.peer_access,
            hand_back=request.hands_back,
            strategy=request.strategy,
        )
    if len(record) < 2 or request.block is not None:
        return record
    main, use_nccl = model.net.Proto(), request.options.use_nccl
    if record.broadcasts_computed and link is None:
        main.MergeFrom(broadcast_computed(record, main, use_nccl=use_nccl, debug_info=request.debug_info))
    for part in exchange_gradients(
        record,
        main,
        use_nccl=use_nccl,
        peer_access=request.peer_access,
        hand_back=request.hands_back,
        debug_info=request.debug_info,
    ):
        main.MergeFrom(part)
    return gathered_gradients(model, record)


def _average(model: ModelHelper, request: Request, record: Replicas) -> None:
    """Append the average of a chunk of the parameters over the processes, if that is the strategy."""
    link, strategy = _link(model, request, record), request.strategy
    if link is None or not isinstance(strategy, PartialSynchronization):
        return
    average_chunks(model, record, link, strategy.chunk)
    if not request.options.reduce_update_broadcast:  # which copies the parameters itself
        groups = [record.blobs(name) for name in record.parameters]
        model.net.Proto().MergeFrom(broadcast(groups, record.devices, debug_info=request.debug_info))


def _update(model: ModelHelper, request: Request, record: Replicas) -> Any:
    """Append the parameter update; return the result of the optimizer builder."""
    start, optimizer, devices = model.net.op_len, None, request.devices
    if request.block is not None:
        call_per_device(devices, lambda replica: _update_replica(model, request, record, replica))
    else:
        if request.options.reduce_update_broadcast:
            devices = Devices(devices.device_type, devices.ids[:1])
        with _only_parameters_of(model, record, range(len(devices))):
            if request.optimize is not None:
                optimizer = request.optimize(model)
            elif request.update is not None:
                update = request.update
                with updates_of_one_replica():
                    call_per_device(devices, lambda replica: update(model))
    if request.options.gradient_scaling is not None:
        scale_update(model, record, start, request.options.gradient_scaling)
    written = {blob for op in model.net.Proto().op[start:] for blob in op.output}
    parameters = {blob for name in record.parameters for blob in record.blobs(name)}
    if parameters and written.isdisjoint(parameters):
        _warn_of_no_update(model, request)
    elif record.outside:
        _warn_of_missing_updates(model, record, written)
    if record.world.size > 1 and record.block is None:
        blobs = [blob for group in record.gradients for blob in record.devices.copies(group.values)]
        scale = LossScale(1.0 / record.world.size)
        warn_of_scaled_updates(model.net.Proto().op[start:], blobs, scale, record.world.size)
    return optimizer


def _update_replica(model: ModelHelper, request: Request, record: Replicas, replica: int) -> None:
    """Append the update of a replica that trains on its own; the builder sees only this replica's parameters.

    The first replica's builder also sees those outside the replicas, so that they are updated once.
    """
    assert request.update is not None
    with _only_parameters_of(model, record, [replica], hidden=record.outside if replica else ()):
        request.update(model)


def _warn_of_no_update(model: ModelHelper, request: Request) -> None:
    """Warn that the builder of the update has added none, as one does that forgets to call build_sgd."""
    name, builder = "optimizer_builder_fun", request.optimize
    if builder is None:
        name, builder = "param_update_builder_fun", request.update
    where = definition_of(builder)
    warn_user(
        f"model {model.name!r}: {name}{f' ({where})' if where else ''} has added no operator that writes a parameter, "
        "so that training changes nothing; build an optimizer in it, such as build_sgd(model, 0.1)"
    )


def _warn_of_missing_updates(model: ModelHelper, record: Replicas, written: set[str]) -> None:
    """Warn about parameters outside the replicas that have a dense gradient but that the update does not write.

    Tables with sparse gradients are often updated by the caller after ``Parallelize``, so there is no warning for them.
    """
    not_updated = [
        name
        for name in record.outside
        if name not in written and isinstance(model.param_to_grad.get(BlobReference(name)), BlobReference)
    ]
    if not_updated:
        warn_user(
            f"model {model.name!r}: the parameters {not_updated}, which were created before Parallelize and so are "
            "outside the replicas, have dense gradients, but the update builder does not update them, so that they "
            "keep their initial values; use optimizer_builder_fun, which updates model.GetOptimizationParamInfo() "
            "once for all devices, or put StopGradient after parameters that are constant"
        )


@contextmanager
def _only_parameters_of(
    model: ModelHelper, record: Replicas, replicas: Collection[int], hidden: Sequence[str] = ()
) -> Iterator[None]:
    """Hide, in the block, parameters of other replicas than ``replicas``, and ``hidden``, from the model's lists."""
    blobs = [record.blobs(name) for name in record.parameters]
    shown = {copies[replica] for copies in blobs for replica in replicas}
    concealed = {blob for copies in blobs for blob in copies}.difference(shown).union(hidden)
    lists = [(params, list(params)) for params in (model.params, model.weights, model.biases)]
    for params, _ in lists:
        params[:] = [param for param in params if str(param) not in concealed]
    without = {
        param: model.param_to_grad.pop(param)
        for param in map(BlobReference, sorted(concealed))
        if param in model.param_to_grad
    }
    try:
        yield
    finally:
        for params, before in lists:
            known = set(map(str, before))
            params[:] = [*before, *(param for param in params if str(param) not in known)]
        model.param_to_grad.update(without)


def _synchronize_initial_values(model: ModelHelper, request: Request, record: Replicas) -> None:
    """Append copies of the first replica's blobs to the init net, and the operators of ``post_sync``."""
    init_net = model.param_init_net.Proto()
    link = _link(model, request, record)
    names = initialized_names(init_net, record.devices) if len(record) > 1 or link is not None else []
    groups = [record.devices.copies(name) for name in names]
    if request.options.average_initial_parameters and request.world_size > 1:
        _average_initial_parameters(model, request, record, link)
    if link is None:
        init_net.MergeFrom(broadcast(groups, record.devices, debug_info=request.debug_info))
    else:
        groups += [(blob,) for blob in initialized_outside(init_net, record.devices)]
        init_net.MergeFrom(broadcast_over_processes(groups, link))
    if request.post_sync is not None:
        post_sync = request.post_sync
        call_per_device(record.devices, lambda replica: post_sync(model))


def _average_initial_parameters(
    model: ModelHelper, request: Request, record: Replicas, link: ProcessLink | None
) -> None:
    """Append to the init net what makes each parameter of the first replica the mean over all replicas."""
    init_net, devices = model.param_init_net.Proto(), record.devices
    groups = [] if record.shared else [record.blobs(name) for name in record.parameters]
    filled = initialized_outside(init_net, devices) if link is not None else []
    alone = [name for name in record.outside if name in filled]
    if link is not None and link.over_gpus:
        init_net.op.extend(link.allreduce_over_gpus(groups))
        summed = alone
    else:
        options: dict[str, Any] = {"peer_access": request.peer_access, "debug_info": request.debug_info}
        init_net.MergeFrom(allreduce(groups, devices, hand_back=False, **options))
        summed = [*(group[0] for group in groups), *alone]
    if link is not None and summed:
        init_net.op.extend(link.allreduce(summed))
    terms = dict.fromkeys((group[0] for group in groups), record.world.size)
    terms |= dict.fromkeys(alone, record.world.size // len(record))
    places = blob_devices([init_net])
    for blob, count in terms.items():
        op = make_op("Scale", [blob], [blob], device_option=places[blob], scale=1.0 / count)
        op.debug_info = request.debug_info
        init_net.op.append(op)


def _warn_of_initializers(model: ModelHelper) -> None:
    if model.params and model.param_init_net.op_len:
        warn_user(
            f"model {model.name!r} has no update, so it is for evaluation, but its init net initializes parameters; "
            "give ModelHelper(init_params=False) to evaluate those of a trained model"
        )


def _warn_of_training_mode(model: ModelHelper) -> None:
    """Warn about the first operator of each type that behaves otherwise in training, in a model for evaluation."""
    found: dict[str, str] = {}
    for op in model.net.Proto().op:
        given = arguments(op)
        if given.get("is_test", 0):
            continue
        if op.type == "SpatialBN" and set(op.input[3:5]).intersection(op.output[1:3]):
            what = f"each run changes its running statistics, {op.output[1]!r} and {op.output[2]!r}"
        elif op.type == "Dropout" and given.get("ratio", 0.5):
            what = "each run sets activations to 0 at random"
        else:
            continue
        found.setdefault(op.type, f"{op.type} {op.output[0]!r} is in training mode: {what}")
    for text in found.values():
        warn_user(
            f"model {model.name!r} has no update, so it is for evaluation, but {text}; build it with is_test=1, as by "
            "brew.spatial_bn(..., is_test=True) and brew.dropout(..., is_test=True)"
        )


def _finish(model: ModelHelper, record: Replicas, optimizer: Any, processes: ProcessRequest | None) -> None:
    _check_devices(model, record)
    for net in (model.net.Proto(), model.param_init_net.Proto()):
        assign_random_replicas(net, record)
        record.store(net)
    set_caffe2_attributes(model, record, optimizer, None if processes is None else processes.rendezvous)
