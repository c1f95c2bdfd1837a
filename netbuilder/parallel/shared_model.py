"""One copy of each parameter for all replicas on the CPU, instead of one each."""

from __future__ import annotations

from netbuilder.graph.blob import BlobReference
from netbuilder.graph.devices import Devices
from netbuilder.model import ModelHelper
from netbuilder.proto import NetDef
from netbuilder.proto.depth import deep_nets

__all__ = ["share_parameters"]


def share_parameters(model: ModelHelper, parameters: list[str], devices: Devices) -> None:
    """Let all replicas read the first one's parameters, and forget those of the others.

    Args:
        model: with its replicas, and, if it trains, its backward pass; both nets and its lists are changed.
        parameters: names without scope. Computed parameters stay one for each replica.
        devices: where the replicas are, on the CPU.
    """
    first, *others = devices.scopes
    instead = {scope + name: first + name for scope in others for name in parameters}
    _read_instead(model.net.Proto(), instead)
    _drop_initializers(model.param_init_net.Proto(), instead)
    for params in (model.params, model.weights, model.biases):
        params[:] = [param for param in params if str(param) not in instead]
    for name in instead:
        model.param_to_grad.pop(BlobReference(name), None)


def _read_instead(net: NetDef, instead: dict[str, str]) -> None:
    for op in net.op:
        for slot, blob in enumerate(op.input):
            if blob in instead:
                op.input[slot] = instead[blob]
    net.external_input[:] = [blob for blob in net.external_input if blob not in instead]


def _drop_initializers(net: NetDef, dropped: dict[str, str]) -> None:
    kept = [op for op in net.op if not op.output or any(blob not in dropped for blob in op.output)]
    if len(kept) < len(net.op):
        shorter = NetDef()
        shorter.CopyFrom(net)
        del shorter.op[:]
        with deep_nets():
            shorter.op.extend(kept)
        net.CopyFrom(shorter)
