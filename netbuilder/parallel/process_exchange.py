"""The exchange of gradients and computed parameters between the processes that train one model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from netbuilder.distributed.strategies import Plain, Strategy
from netbuilder.graph.batch_norm_exchange import combined_statistics
from netbuilder.graph.blob import BlobReference, GradientSlice, gathered_name
from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.parallel.backward import gathered_gradients
from netbuilder.parallel.builders import initial_shapes
from netbuilder.parallel.owned_updates import Owners, owners_of
from netbuilder.parallel.sharded_tables import rows_to_owners
from netbuilder.passes.net_pass import PassContext
from netbuilder.passes.processes import ProcessLink, allreduce_over_processes_pass, broadcast_over_processes
from netbuilder.passes.reductions import PeerAccess, gather_sparse
from netbuilder.proto import PROTO_CPU, NetError, OperatorDef, TensorProto
from netbuilder.proto.arguments import make_device_option, make_op

__all__ = [
    "add_residuals",
    "average_chunks",
    "broadcast_computed_over_processes",
    "dense_owners",
    "dense_shapes",
    "exchange_over_processes",
    "gradient_bytes",
]

_HOST = make_device_option(PROTO_CPU, 0)


def exchange_over_processes(
    model: ModelHelper,
    record: Replicas,
    link: ProcessLink,
    *,
    bucket_bytes: int,
    peer_access: PeerAccess | None,
    hand_back: bool,
    strategy: Strategy,
    owners: Owners | None = None,
    tables: Mapping[str, int] | None = None,
) -> Replicas:
    """Add the exchange of gradients over all devices of all processes to a model.

    Dense gradients are summed in buckets as soon as they are ready, as the strategy says; sparse ones are concatenated
    whole after the backward pass. Replicas that train on their own (block-wise updates) exchange only the gradients of
    parameters outside of them.

    Args:
        owners: with a strategy that needs them; the buckets are added to it.
        tables: those whose rows are divided over the processes -> number of all rows.

    Returns:
        The record with the names of the gradients after the exchange, which the model gets, too, and with those of the
        residuals, which ``add_residuals`` initializes.
    """
    main, devices = model.net.Proto(), record.devices
    alone = record.block is not None
    dense = dict(_dense_gradients(model, record))
    residuals: dict[str, str] = {}

    def exchange(blobs: Sequence[str]) -> list[OperatorDef]:
        op_type, arguments = strategy.operator()
        if owners is not None:
            owners.buckets.append(list(blobs))
            return link.exchange(op_type, blobs, owners=owners.of_gradients, **arguments)
        kept = [residual_name(blob) for blob in blobs] if strategy.has_residuals else []
        residuals.update(zip(kept, blobs))
        return link.exchange(op_type, blobs, kept, **arguments)

    made = allreduce_over_processes_pass(
        main,
        PassContext(devices=devices, available=[*link.worlds, *model.param_init_net.Proto().external_output]),
        groups=list(dense),
        link=link,
        sizes=gradient_bytes(model, record),
        bucket_bytes=bucket_bytes,
        peer_access=peer_access,
        hand_back=hand_back,
        exchange=exchange,
        whole=strategy.operator() == Plain().operator(),
    )
    model.net.replace_message(made.net)
    main = model.net.Proto()
    joined: set[str] = set()
    for group in reversed(() if alone else record.gradients):
        if group.is_sparse:
            pair = devices.copies(group.indices), devices.copies(group.values)
            made_rows = gather_sparse(
                [pair],
                devices,
                hand_back=hand_back,
                debug_info=link.debug_info,
                joined=joined,
                across=link.allgather,
            )
            main.MergeFrom(made_rows)
    _gather_outside(model, record, link, joined, tables or {})
    rows_to_owners(model, tables or {}, link)
    record = dataclasses.replace(record, residuals=tuple(residuals))
    return record if alone else gathered_gradients(model, record)


def broadcast_computed_over_processes(model: ModelHelper, record: Replicas, link: ProcessLink) -> None:
    """Append copies of the computed parameters of the first replica of rank 0 to all replicas.

    With NCCL without those that all replicas compute from the same sums, see ``broadcast_computed``.
    """
    equal = combined_statistics(model.net.Proto()) if link.by_nccl else ()
    outside = [(str(param),) for param in model.GetComputedParams("") if str(param) in record.outside]
    groups = [*(group for group in map(record.devices.copies, record.computed) if group[0] not in equal), *outside]
    model.net.Proto().MergeFrom(broadcast_over_processes(groups, link))


def add_residuals(model: ModelHelper, record: Replicas, strategy: Strategy) -> None:
    """Let the init net fill the residuals of the exchange with zeros; each process has its own.

    Raises:
        NetError: the strategy needs the shape of a gradient, and the init net does not say that of its parameter.
    """
    parameters = {residual_name(group[0]): param for group, param in _dense_gradients(model, record)}
    shapes = initial_shapes(model.param_init_net.Proto())
    for residual in record.residuals:
        param = parameters[residual]
        if param not in shapes and strategy.residual_shape(()) is not None:
            raise NetError(
                f"model {model.name!r}: strategy {strategy} needs the shapes of gradients, and the init net does not "
                f"give that of parameter {param!r}; fill it by an initializer with a shape"
            )
        shape = strategy.residual_shape(shapes.get(param, ()))
        like: dict[str, Any] = {} if shape is None else {"shape": shape}
        inputs = [param] if shape is None else []
        fill = make_op("ConstantFill", inputs, [residual], device_option=_HOST, value=0.0, **like)
        model.param_init_net.extend_ops([fill])


def average_chunks(model: ModelHelper, record: Replicas, link: ProcessLink, chunk: int) -> None:
    """Append the average over the processes of one chunk of the parameters in each step, and copies to all devices."""
    counter = f"{model.net.Name()}_chunk"
    fill = make_op("ConstantFill", [], [counter], device_option=_HOST, shape=[1], value=0, dtype=TensorProto.INT64)
    model.param_init_net.extend_ops([fill])
    first = [record.devices.scopes[0] + name for name in record.parameters]
    model.net.extend_ops(link.average_chunk(counter, [*first, *_trained_outside(model, record)], chunk))


def _trained_outside(model: ModelHelper, record: Replicas) -> list[str]:
    return [name for name in record.outside if BlobReference(name) in model.param_to_grad]


def dense_owners(model: ModelHelper, record: Replicas, link: ProcessLink) -> Owners:
    """Return the owners of the parameters with dense gradients."""
    return owners_of(model, [group[0] for group, _ in _dense_gradients(model, record)], link)


def dense_shapes(model: ModelHelper, record: Replicas) -> list[tuple[int, ...]] | None:
    """Return the shapes of the dense gradients; None if one is not known."""
    shapes = initial_shapes(model.param_init_net.Proto())
    params = [param for _, param in _dense_gradients(model, record)]
    return [tuple(shapes[param]) for param in params] if all(param in shapes for param in params) else None


def gradient_bytes(model: ModelHelper, record: Replicas) -> dict[str, int]:
    """Return the bytes of the dense gradients that are exchanged between processes, by the first device's blob."""
    shapes = initial_shapes(model.param_init_net.Proto())
    return {
        group[0]: 4 * math.prod(shapes[param]) for group, param in _dense_gradients(model, record) if param in shapes
    }


def residual_name(gradient: str) -> str:
    """Return the blob that keeps what a process has not given of a gradient."""
    return f"{gradient}_residual"


def _dense_gradients(model: ModelHelper, record: Replicas) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the blobs of each dense gradient, and its parameter; those of the last parameters come first."""
    for group in reversed(record.gradients if record.block is None else ()):
        if not group.is_sparse:
            yield record.devices.copies(group.values), record.blobs(group.parameter)[0]
    for param in reversed(record.outside):
        gradient = model.param_to_grad.get(BlobReference(param))
        if isinstance(gradient, BlobReference):
            yield (str(gradient),), param


def _gather_outside(
    model: ModelHelper, record: Replicas, link: ProcessLink, joined: set[str], divided: Collection[str]
) -> None:
    """Append the concatenation of the sparse gradients of tables outside the replicas over all processes."""
    for param in map(BlobReference, record.outside):
        gradient = model.param_to_grad.get(param)
        if not isinstance(gradient, GradientSlice) or str(param) in divided:
            continue
        whole = []
        for blob in map(str, gradient):
            whole.append(BlobReference(gathered_name(blob)))
            if blob not in joined:
                model.net.extend_ops(link.allgather(blob, str(whole[-1])))
                joined.add(blob)
        model.param_to_grad[param] = GradientSlice(*whole)
