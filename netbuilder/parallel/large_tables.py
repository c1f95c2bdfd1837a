"""Large embedding tables are stored once, outside the replicas, instead of once per replica."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from netbuilder.graph.blob import BlobReference
from netbuilder.graph.devices import Devices
from netbuilder.model import ModelHelper, ParameterInfo
from netbuilder.parallel.sharded_tables import LOOKUPS
from netbuilder.passes.replicate import draw_as
from netbuilder.proto import PROTO_CPU, NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import arguments, make_device_option

__all__ = ["move_tables_outside"]

_log = logging.getLogger("netbuilder")


def move_tables_outside(model: ModelHelper, devices: Devices, least_bytes: int) -> list[BlobReference]:
    """Replace the replicas' copies of each table of at least ``least_bytes`` by one table outside the replicas.

    The name of the table loses the replica's scope. It has the first replica's initializer and is on the CPU, where the
    operators that look up its rows run too. The log lists the moved tables, and why other large parameters were not
    moved.

    Args:
        model: model with the replicas' forward pass, without backward pass; its nets and lists are changed.
        devices: devices of the replicas.
        least_bytes: minimum size of a table that is moved.

    Returns:
        The tables.

    Raises:
        NetError: a blob has the name of a table already, or the replicas' tables differ in shape.
    """
    readers = _readers(model.net.Proto())
    moved = []
    for param in list(model.params):
        if devices.replica_of(str(param)) != 0:
            continue
        name = devices.short_name(str(param))
        size = _bytes(model, param)
        if size is None or size < least_bytes:
            continue
        if reason := _obstacle(model, devices.copies(name), readers):
            _log.info(
                "model %r: parameter %r, %s, stays inside the replicas: %s", model.name, name, _size_text(size), reason
            )
            continue
        moved.append(_move(model, devices, name, readers))
        _log.info(
            "model %r: table %r, %s, is stored once, on the CPU, outside the replicas",
            model.name,
            name,
            _size_text(size),
        )
    return moved


def _readers(net: NetDef) -> dict[str, list[OperatorDef]]:
    readers: dict[str, list[OperatorDef]] = {}
    for op in net.op:
        for blob in dict.fromkeys((*op.input, *op.output)):
            readers.setdefault(blob, []).append(op)
    return readers


def _bytes(model: ModelHelper, param: BlobReference) -> int | None:
    info = model.get_param_info(param)
    if info is None or info.shape is None:
        return None
    makers = _makers(model.param_init_net.Proto(), [str(param)])
    half = any(op.type.startswith("Float16") for op in makers)
    return math.prod(info.shape) * (2 if half else 4)


def _size_text(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size} bytes"


def _makers(net: NetDef, blobs: Sequence[str]) -> list[OperatorDef]:
    return [op for op in net.op if any(blob in blobs for blob in op.output)]


def _obstacle(model: ModelHelper, copies: Sequence[str], readers: dict[str, list[OperatorDef]]) -> str:
    """Return why a parameter cannot be moved; "" if it can."""
    for blob in copies:
        info = model.get_param_info(BlobReference(blob))
        if info is not None and info.blob_copy:
            return "it has copies of other types"
        for op in readers.get(blob, []):
            if not _looks_up(op, blob):
                return f"{op.type} uses it, which is not a lookup with a sparse gradient"
    makers = _makers(model.param_init_net.Proto(), copies)
    if any(len(op.output) > 1 or op.input for op in makers):
        return "its initializer reads or writes other blobs"
    return "" if len(makers) in (0, len(copies)) else "it is not initialized once for each replica"


def _looks_up(op: OperatorDef, table: str) -> bool:
    if op.type not in LOOKUPS or op.input[0] != table or table in op.input[1:] or table in op.output:
        return False
    given = arguments(op)
    return not given.get("dense_gradient") and not given.get("axis")


def _move(model: ModelHelper, devices: Devices, name: str, readers: dict[str, list[OperatorDef]]) -> BlobReference:
    copies = devices.copies(name)
    init_net, main = model.param_init_net.Proto(), model.net.Proto()
    if name in readers or _makers(init_net, [name]):
        raise NetError(
            f"table {name!r} cannot be moved outside the replicas (outside_from_bytes), because a blob of this name "
            "exists already; give one of them another name"
        )
    infos = [model.get_param_info(BlobReference(blob)) for blob in copies]
    if len({tuple(info.shape or ()) for info in infos if info is not None}) > 1:
        raise NetError(
            f"table {name!r} has different shapes on the devices {list(devices.ids)}; the builders must make the same "
            "net on each device"
        )
    host = make_device_option(PROTO_CPU, 0)
    for blob in copies:
        for op in readers.get(blob, []):
            op.input[0] = name
            if not devices.is_cpu:
                op.device_option.CopyFrom(host)
    if makers := _makers(init_net, copies):
        makers[0].output[0] = name
        draw_as(makers[0], devices.scopes[0], 0)
        makers[0].device_option.CopyFrom(host)
        _remove(init_net, copies)
    for net in (main, init_net):
        net.external_input[:] = dict.fromkeys(name if blob in copies else blob for blob in net.external_input)
    return _list_once(model, copies, BlobReference(name, model.param_init_net))


def _remove(net: NetDef, blobs: Sequence[str]) -> None:
    for index in reversed(range(len(net.op))):
        if any(blob in blobs for blob in net.op[index].output):
            del net.op[index]


def _list_once(model: ModelHelper, copies: Sequence[str], table: BlobReference) -> BlobReference:
    """Replace the first replica's table by ``table`` in the model's lists, and remove those of the other replicas."""
    known = model.get_param_info(BlobReference(copies[0]))
    assert known is not None
    info = ParameterInfo(known.param_id, table, known.key, known.shape, known.length)
    if known.optimizer is not None:
        info.optimizer = known.optimizer
    for params in (model.params, model.weights, model.biases):
        params[:] = [table if str(param) == copies[0] else param for param in params if str(param) not in copies[1:]]
    for blob in copies:
        model._infos.pop(blob, None)
    model._infos[str(table)] = info
    return table
