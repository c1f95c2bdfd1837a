"""The steps of Parallelize, in order."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from netbuilder.data.gc_paused import collection_paused
from netbuilder.distributed.common_worlds import ProcessRequest, assign_worlds
from netbuilder.distributed.strategies import PartialSynchronization
from netbuilder.graph.blob import BlobReference
from netbuilder.graph.devices import Devices
from netbuilder.graph.observability import OUTPUTS
from netbuilder.graph.replicas import Replicas
from netbuilder.graph.source import warn_user
from netbuilder.model import ModelHelper
from netbuilder.model.rollback import restore_on_error
from netbuilder.optimizers.build import chosen_parameters
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
from netbuilder.parallel.bucket_choice import add_bucket_size
from netbuilder.parallel.builders import (
    assign_random_replicas,
    build_replicas,
    call_per_device,
    group_by_name,
    initial_shapes,
)
from netbuilder.parallel.caffe2_attributes import set_caffe2_attributes, set_device_attributes
from netbuilder.parallel.gradient_scaling import fill_scales, require_dense_gradients
from netbuilder.parallel.large_tables import move_tables_outside
from netbuilder.parallel.memory import share_gradient_memory
from netbuilder.parallel.owned_updates import Owners, divide_update, initialize_owned_last
from netbuilder.parallel.parameter_copies import share_parameters, synchronize_initial_values
from netbuilder.parallel.process_exchange import (
    add_residuals,
    average_chunks,
    broadcast_computed_over_processes,
    dense_owners,
    dense_shapes,
    exchange_over_processes,
)
from netbuilder.parallel.request import Request, is_deterministic, link_of
from netbuilder.parallel.sharded_tables import divide_table_updates, divide_tables, look_up_in_shards
from netbuilder.parallel.shares import SHARE_WEIGHT
from netbuilder.parallel.synchronize import known_names, require_initialized
from netbuilder.parallel.updates import append_update
from netbuilder.passes.device_check import check_devices
from netbuilder.passes.net_pass import PassContext
from netbuilder.passes.processes import AUTO, DEFAULT_BUCKET_BYTES
from netbuilder.passes.reductions import broadcast
from netbuilder.passes.synchronize_batch_norm import synchronize_batch_norm_pass
from netbuilder.proto import NetError
from netbuilder.proto.arguments import arguments
from netbuilder.proto.errors import counted

__all__ = ["build", "keep_only"]


_log = logging.getLogger("netbuilder")


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
        if options.deterministic is not None and options.deterministic != is_deterministic(model):
            net.set_deterministic(options.deterministic)
        return _build(model, request)


def _build(model: ModelHelper, request: Request) -> Replicas:
    if request.processes is not None:
        name = model.net.Name()
        joined = request.trains or request.options.shard_tables
        world = request.processes.world(name, request.devices, request.workers, joined=joined)
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
    sharding = request.options.shard_tables and request.processes is not None
    tables = divide_tables(model, record, record.processes) if sharding else {}
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
    link = link_of(model, request, record)
    if tables and link is not None:
        look_up_in_shards(model, tables, link)
    if request.trains:
        model.Validate()
        with _prefer_device_errors(model, record):
            gradients = group_gradients(record.parameters, model.param_to_grad, record.devices)
        record = dataclasses.replace(record, gradients=tuple(gradients))
        if request.options.gradient_scaling is not None:
            require_dense_gradients(model, record)
    add_up_divisors(model, request, record, divisors, link_of(model, request, record))
    if request.options.combine_spatial_bn:
        _combine_batch_norm(model, request, record, weights)
    if record.shared:
        share_parameters(model, record.parameters, record.devices)
    elif request.block is None:
        for name in record.parameters:
            first, *others = record.blobs(name)
            model.parameter_copies.update(dict.fromkeys(others, first))
    if request.trains:
        if request.options.accumulate_steps > 1:
            record = accumulate_gradients(model, record)
        owners = dense_owners(model, record, link) if link is not None and request.strategy.has_owners else None
        if request.block is None and request.options.bucket_bytes == AUTO:
            record = dataclasses.replace(
                record,
                bucket_size=add_bucket_size(model),
                bucket_bytes=DEFAULT_BUCKET_BYTES,
                strategy=str(request.strategy),
            )
        record = _exchange(model, request, record, owners, tables)
        before_update = model.net.op_len, model.param_init_net.op_len
        optimizer = append_update(model, request, record)
        if owners is not None and link is not None:
            divide_update(model, owners, link, before_update)
        if tables and link is not None:
            record = divide_table_updates(model, record, tables, link, before_update[0])
        _average(model, request, record)
        if request.options.reduce_update_broadcast:
            groups = [record.blobs(group.parameter) for group in record.gradients]
            model.net.Proto().MergeFrom(broadcast(groups, request.devices, debug_info=request.debug_info))
        synchronize_initial_values(model, request, record)
        initialize_owned_last(model.param_init_net)
        add_residuals(model, record, request.strategy)
    else:
        record = dataclasses.replace(record, sharded=tuple(f"{rows}:{name}" for name, rows in tables.items()))
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
        link=link_of(model, request, record),
    )


def _gradients_to_keep(model: ModelHelper, record: Replicas) -> list[str]:
    """Return the gradients that are exchanged between processes, which a model keeps, as in Caffe2."""
    if not record.world.common:
        return []
    outside = [model.param_to_grad.get(BlobReference(name)) for name in record.outside]
    dense = [str(gradient) for gradient in outside if isinstance(gradient, BlobReference)]
    return [*(group.values for group in record.gradients), *dense]


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
        link=link_of(model, request, record),
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
    shapes = dense_shapes(model, dataclasses.replace(record, block=None))
    if shapes is None:
        return f"the bytes of a step depend on shapes that are not known yet{rows}"
    planned = request.strategy.planned_bytes(shapes, record.world.size // len(record))
    plain = 4 * sum(map(math.prod, shapes))
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


def _transform(model: ModelHelper, request: Request) -> None:
    if request.transform is not None:
        devices = request.devices
        request.transform(model, len(devices), devices.word, devices.device_type)


def _exchange(
    model: ModelHelper, request: Request, record: Replicas, owners: Owners | None, tables: Mapping[str, int]
) -> Replicas:
    """Add the broadcast of computed parameters and the reduction of gradients, unless there is only one replica.

    Returns the record with the names of the gradients after the exchange.
    """
    link = link_of(model, request, record)
    if link is not None and record.broadcasts_computed:
        broadcast_computed_over_processes(model, record, link)
    if link is not None and not isinstance(request.strategy, PartialSynchronization):
        return exchange_over_processes(
            model,
            record,
            link,
            bucket_bytes=record.bucket_bytes if record.bucket_size else int(request.options.bucket_bytes),
            peer_access=request.peer_access,
            hand_back=request.hands_back,
            strategy=request.strategy,
            owners=owners,
            tables=tables,
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
    link, strategy = link_of(model, request, record), request.strategy
    if link is None or not isinstance(strategy, PartialSynchronization):
        return
    average_chunks(model, record, link, strategy.chunk)
    if not request.options.reduce_update_broadcast:  # which copies the parameters itself
        groups = [record.blobs(name) for name in record.parameters]
        model.net.Proto().MergeFrom(broadcast(groups, record.devices, debug_info=request.debug_info))


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
