"""Predictors extracted from parallel models, and nets converted to run as a replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netbuilder.graph.blob import BlobReference, blob_name, device_prefix
from netbuilder.graph.blob_devices import place_operators
from netbuilder.graph.net import Net
from netbuilder.graph.net_copy import copy_net
from netbuilder.graph.scope import SEPARATOR, CurrentDeviceScope
from netbuilder.model import ModelHelper
from netbuilder.ops.core.renaming import check_renamable, rename_blobs
from netbuilder.parallel.record import replicas_of
from netbuilder.parallel.sharded_tables import whole_lookups
from netbuilder.passes.extract_predictor import extract_predictor, note_sharded
from netbuilder.passes.replicate import draw_as
from netbuilder.proto import DeviceOption, NetDef, NetError
from netbuilder.proto.call_checks import checked

__all__ = ["ConvertNetForDevice", "ExtractPredictorNet"]


@checked()
def ExtractPredictorNet(
    model: ModelHelper | Net | NetDef,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    device: DeviceOption | None = None,
) -> tuple[Net, list[BlobReference]]:
    """Return the part of the first replica that computes ``outputs`` from ``inputs``, and the parameters it needs.

    The names in the result, parameters included, are without the replica's scope; the net's arguments map parameters
    to the blobs with their values, for ``netbuilder.exchange``. Labels that only a loss needs are not parameters.
    Tables whose rows are divided over processes are read whole; ``save_predictor`` and ``save_to_db`` gather their
    rows, where all processes call them.

    Args:
        model: a parallel model, or a parallel net, in test mode; unchanged.
        inputs: blobs that will be fed, with or without the scope of the first replica.
        outputs: requested blobs, likewise.
        device: device of the predictor; None: that of the first replica.

    Raises:
        NetError: the net is not data-parallel, and as for ``passes.extract_predictor``.
        BlobError: an input or output is not in the net.
        TypeError: ``inputs`` or ``outputs`` is a single string.
    """
    net = model if isinstance(model, NetDef) else (model if isinstance(model, Net) else model.net).Proto()
    record = replicas_of(net)
    scope, net = record.devices.scopes[0], whole_lookups(net)
    predictor, parameters = extract_predictor(
        net,
        _scoped("inputs", inputs, scope, net),
        _scoped("outputs", outputs, scope, net),
        device=device,
        renames=lambda name: name.removeprefix(scope),
    )
    rows = record.rows_of_sharded
    note_sharded(predictor, {name: rows[name] for name in parameters if name in rows}, record.world.barrier)
    made = Net(predictor, inplace=True)
    return made, [BlobReference(name, made) for name in parameters]


def _scoped(what: str, blobs: Sequence[Any], scope: str, net: NetDef) -> list[str]:
    if isinstance(blobs, (str, bytes)):
        raise TypeError(f"{what} of a predictor must be a list of blobs, got the single string {blobs!r}")
    known = {name for op in net.op for names in (op.input, op.output) for name in names}
    names = map(blob_name, blobs)
    return [name if name.startswith(scope) or name in known else scope + name for name in names]


@checked()
def ConvertNetForDevice(net: Net, device: DeviceOption | None = None) -> Net:
    """Return a copy of a net under the name scope of a replica, with all operators on the replica's device.

    Args:
        net: a net without scopes; unchanged.
        device: the replica's device; None: the current device scope.

    Raises:
        NetError: no device is given and no scope is active, or the device is neither a CPU nor a GPU.
        NotImplementedError: an unknown operator has a subgraph.
    """
    device = device if device is not None else CurrentDeviceScope()
    if device is None:
        raise NetError("ConvertNetForDevice: give a device, or call it inside a DeviceScope")
    scope = device_prefix(device.device_type, device.device_id) + SEPARATOR
    proto = net.Proto()
    check_renamable(proto, "register the operator first")
    moved = copy_net(proto)
    rename_blobs(moved, lambda name: scope + name)
    place_operators(moved, device)
    for op in moved.op:  # replicas draw different numbers; Parallelize, which knows their order, sets these again
        draw_as(op, scope, device.device_id)
    return Net(moved, inplace=True)
