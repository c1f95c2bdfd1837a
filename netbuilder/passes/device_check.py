"""The check that no operator reads or writes a blob of another device."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from netbuilder.graph.device_faults import CROSSING, DeviceFault, device_faults
from netbuilder.graph.devices import Devices
from netbuilder.graph.message import message_of
from netbuilder.passes.net_pass import PassContext, PassResult, net_pass
from netbuilder.proto import NetDef, NetError
from netbuilder.proto.call_checks import checked

__all__ = ["CROSSING", "DeviceFault", "check_devices", "check_devices_pass", "device_faults"]

_SHOWN = 3


@checked()
def check_devices(
    net: Any, *, init_net: Any = None, devices: Devices | None = None, shared: Collection[str] = ()
) -> None:
    """Raise NetError, naming operators and blobs, if ``device_faults`` yields any.

    Args: see ``device_faults``; nets may also be given as a Net.
    """
    init_net = None if init_net is None else message_of(init_net)
    result = check_devices_pass(net, PassContext(devices=devices), init_net=init_net, shared=shared)
    if faults := result.extras["faults"]:
        more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise NetError(f"net {result.net.name!r}: " + "; ".join(map(str, faults[:_SHOWN])) + more)


@net_pass
def check_devices_pass(
    net: NetDef, context: PassContext, *, init_net: NetDef | None = None, shared: Collection[str] = ()
) -> PassResult:
    """Return the net unchanged; extra ``faults``: the list of ``device_faults``. Reads ``devices``."""
    return PassResult(
        net, {"faults": list(device_faults(net, init_net=init_net, devices=context.devices, shared=shared))}
    )
