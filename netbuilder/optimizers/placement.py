"""The device on which a parameter is updated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from netbuilder.graph.blob import GradientSlice
from netbuilder.proto import DeviceError, DeviceOption, NetDef

__all__ = ["get_param_device", "parameter_devices"]


def parameter_devices(nets: Iterable[NetDef], params: Iterable[Any]) -> dict[str, DeviceOption]:
    """Return the device of each parameter: that of the first operator that reads or writes it.

    The inputs of operators that copy between devices do not count.

    Args:
        nets: searched in this order, until all parameters are found.
        params: blobs of the parameters.
    """
    missing = {str(param) for param in params}
    found: dict[str, DeviceOption] = {}
    for net in nets:
        for op in net.op:
            touched = op.output[:] if op.type.startswith("Copy") else op.input[:] + op.output[:]
            for blob in touched:
                if blob in missing:
                    missing.discard(blob)
                    found[blob] = op.device_option if op.HasField("device_option") else net.device_option
            if not missing:
                return found
    return found


def get_param_device(
    param_name: str,
    grad: Any,
    param_to_device: Mapping[str, DeviceOption] | None = None,
    default_device: DeviceOption | None = None,
) -> DeviceOption:
    """Return the device on which a parameter is updated.

    Args:
        param_name: the parameter.
        grad: its gradient, whose device is used if the parameter itself is not in ``param_to_device``.
        param_to_device: blob -> device.
        default_device: used if neither is in it.

    Raises:
        DeviceError: none of these gives the device.

    >>> get_param_device("w", None, {"w": DeviceOption(device_id=1)}).device_id
    1
    """
    devices = param_to_device or {}
    gradient = str(grad.values if isinstance(grad, GradientSlice) else grad)
    for name in (param_name, gradient):
        if name in devices:
            return devices[name]
    if default_device is None:
        raise DeviceError(
            f"parameter {param_name!r}: its device is unknown, because no operator reads or writes it; initialize it "
            "by an operator, or use it in one, under a device scope"
        )
    return default_device
