"""The exchange of gradients and computed parameters between the processes that train one model."""

from __future__ import annotations

import math
from collections.abc import Iterator

from netbuilder.graph.blob import BlobReference, GradientSlice, gathered_name
from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.parallel.backward import gathered_gradients
from netbuilder.parallel.replicate import initial_shapes
from netbuilder.passes.net_pass import PassContext
from netbuilder.passes.processes import ProcessLink, allreduce_over_processes_pass, broadcast_over_processes
from netbuilder.passes.reductions import PeerAccess, gather_sparse

__all__ = ["exchange_over_processes"]


def exchange_over_processes(
    model: ModelHelper,
    record: Replicas,
    link: ProcessLink,
    *,
    bucket_bytes: int,
    peer_access: PeerAccess | None,
    hand_back: bool,
) -> Replicas:
    """Add the exchange of gradients and computed parameters over all devices of all processes to a model.

    Dense gradients are summed in buckets as soon as they are ready; sparse ones are concatenated after the backward
    pass, and computed parameters are those of the first replica of all. Replicas that train on their own (block-wise
    updates) exchange only the gradients of parameters outside of them.

    Returns:
        The record with the names of the gradients after the exchange, which the model gets, too.
    """
    main, devices = model.net.Proto(), record.devices
    alone = record.block is not None
    if record.broadcasts_computed:
        outside = [(str(param),) for param in model.GetComputedParams("") if str(param) in record.outside]
        groups = [*map(devices.copies, record.computed), *outside]
        main.MergeFrom(broadcast_over_processes(groups, link))
    dense = dict(_dense_gradients(model, record))
    shapes = initial_shapes(model.param_init_net.Proto())
    sizes = {group[0]: 4 * math.prod(shapes[param]) for group, param in dense.items() if param in shapes}
    made = allreduce_over_processes_pass(
        main,
        PassContext(devices=devices, available=[*link.worlds, *model.param_init_net.Proto().external_output]),
        groups=list(dense),
        link=link,
        sizes=sizes,
        bucket_bytes=bucket_bytes,
        peer_access=peer_access,
        hand_back=hand_back,
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
    _gather_outside(model, record, link, joined)
    return record if alone else gathered_gradients(model, record)


def _dense_gradients(model: ModelHelper, record: Replicas) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the blobs of each dense gradient, and its parameter; those of the last parameters come first."""
    for group in reversed(record.gradients if record.block is None else ()):
        if not group.is_sparse:
            yield record.devices.copies(group.values), record.blobs(group.parameter)[0]
    for param in reversed(record.outside):
        gradient = model.param_to_grad.get(BlobReference(param))
        if isinstance(gradient, BlobReference):
            yield (str(gradient),), param


def _gather_outside(model: ModelHelper, record: Replicas, link: ProcessLink, joined: set[str]) -> None:
    """Append the concatenation of the sparse gradients of tables outside the replicas over all processes."""
    for param in map(BlobReference, record.outside):
        gradient = model.param_to_grad.get(param)
        if not isinstance(gradient, GradientSlice):
            continue
        whole = []
        for blob in map(str, gradient):
            whole.append(BlobReference(gathered_name(blob)))
            if blob not in joined:
                model.net.extend_ops(link.allgather(blob, str(whole[-1])))
                joined.add(blob)
        model.param_to_grad[param] = GradientSlice(*whole)
