"""Large tables of the replicas, kept once outside of them instead."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from netbuilder.graph.blob import BlobReference
from netbuilder.graph.devices import Devices
from netbuilder.model import ModelHelper, ParameterInfo
from netbuilder.parallel.replicate import draw_as
from netbuilder.proto import PROTO_CPU, NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import arguments, make_device_option

__all__ = ["move_tables_outside"]

_log = logging.getLogger("netbuilder")

# Operators that read rows of their first input, and so have a sparse gradient for it.
_LOOKUPS = frozenset(
    {
        "Gather",
        "SparseLengthsMean",
        "SparseLengthsPositionalWeightedSum",
        "SparseLengthsSum",
        "SparseLengthsWeightedSum",
    }
)


def move_tables_outside(model: ModelHelper, devices: Devices, least_bytes: int) -> list[BlobReference]:
    """Let all replicas look rows up in one table, outside of them, where a table has ``least_bytes`` or more.

    The table gets its name without a replica's scope, the first replica's initializer, and the CPU for its device; the
    operators that look up in it run there. The log says what was moved, and why a large parameter was not.

    Args:
        model: with the replicas' forward pass, without backward pass; its nets and lists are changed.
        devices: where the replicas are.
        least_bytes: how large a table is moved.

    Returns:
        The tables.

    Raises:
        NetError: a blob outside has a table's name already, or the replicas' tables differ in shape.
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
        if reason := _hindrance(model, devices.copies(name), readers):
            _log.info(
                "model %r: parameter %r, %s, stays inside the replicas: %s", model.name, name, _words(size), reason
            )
            continue
        moved.append(_move(model, devices, name, readers))
        _log.info(
            "model %r: table %r, %s, is kept once, on the CPU, outside the replicas", model.name, name, _words(size)
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


def _words(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size} bytes"


def _makers(net: NetDef, blobs: Sequence[str]) -> list[OperatorDef]:
    return [op for op in net.op if any(blob in blobs for blob in op.output)]


def _hindrance(model: ModelHelper, copies: Sequence[str], readers: dict[str, list[OperatorDef]]) -> str:
    """Return why a parameter cannot be moved; "" if it can."""
    for blob in copies:
        info = model.get_param_info(BlobReference(blob))
        if info is not None and info.blob_copy:
            return "it has copies of other types"
        for op in readers.get(blob, []):
            if not _looks_up(op, blob):
                return f"{op.type} uses it, too"
    makers = _makers(model.param_init_net.Proto(), copies)
    if any(len(op.output) > 1 or op.input for op in makers):
        return "its initializer reads or makes other blobs"
    return "" if len(makers) in (0, len(copies)) else "it is not initialized once for each replica"


def _looks_up(op: OperatorDef, table: str) -> bool:
    if op.type not in _LOOKUPS or op.input[0] != table or table in op.input[1:] or table in op.output:
        return False
    given = arguments(op)
    return not given.get("dense_gradient") and not given.get("axis")


def _move(model: ModelHelper, devices: Devices, name: str, readers: dict[str, list[OperatorDef]]) -> BlobReference:
    copies = devices.copies(name)
    init_net, main = model.param_init_net.Proto(), model.net.Proto()
    if name in readers or _makers(init_net, [name]):
        raise NetError(
            f"table {name!r} is to be kept outside the replicas (outside_from_bytes), but a blob of this name exists "
            "already; give one of them another name"
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
    """Let the model's lists name the table where they had the first replica's, and forget those of the others."""
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
