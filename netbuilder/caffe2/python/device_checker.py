"""Checks that an operator, or a net, gives the same results on several devices."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.caffe2.checking import input_devices, run_with
from netbuilder.caffe2.missing import names_of
from netbuilder.graph.blob import blob_name
from netbuilder.graph.blob_devices import place_operators
from netbuilder.graph.message import message_of
from netbuilder.proto import DeviceOption, NetDef, OperatorDef

__all__ = ["DeviceChecker"]

__getattr__ = names_of(__name__)


class DeviceChecker:
    """Runs an operator or net on several devices and compares the results.

    Args:
        threshold: largest allowed difference of two elements.
        device_options: the devices; results are compared with those of the first.
    """

    def __init__(self, threshold: float, device_options: Sequence[DeviceOption]) -> None:
        self._threshold = threshold
        self._device_options = list(device_options)

    def CheckSimple(
        self, op: OperatorDef, inputs: Sequence[Any], outputs_to_check: Collection[int],
        input_device_options: Mapping[str, DeviceOption] | None = None,
    ) -> bool:  # fmt: skip
        """Whether outputs of an operator agree on all devices; differences are printed.

        Args:
            op: unchanged.
            inputs: its inputs, as arrays.
            outputs_to_check: indices of outputs.
            input_device_options: devices of inputs by blob, where they differ from the operator's.
        """
        names = [op.output[i] for i in outputs_to_check]
        results = []
        for device in self._device_options:
            placed = OperatorDef()
            placed.CopyFrom(op)
            placed.device_option.CopyFrom(device)
            places = input_devices(placed, device, input_device_options)
            values = dict(zip(placed.input, inputs))
            results.append(run_with(values, places, [placed], names))
        return self._agree(op.type, names, results)

    def CheckNet(
        self, net: Any, inputs: Mapping[str, Any] | None = None, blobs_to_check: Collection[Any] | None = None,
        ignore: Collection[Any] | None = None,
    ) -> bool:  # fmt: skip
        """Whether blobs of a net agree on all devices; differences are printed.

        Args:
            net: a Net or NetDef, unchanged.
            inputs: the net's inputs, arrays by blob.
            blobs_to_check: the blobs to compare; None: all that its operators write.
            ignore: blobs not to compare.
        """
        message = message_of(net)
        made = list(dict.fromkeys(name for op in message.op for name in op.output))
        ignored = {blob_name(blob) for blob in ignore or ()}
        requested = map(blob_name, made if blobs_to_check is None else blobs_to_check)
        names = [name for name in requested if name not in ignored]
        results = []
        for device in self._device_options:
            placed = NetDef()
            placed.CopyFrom(message)
            place_operators(placed, device)
            values = {blob_name(name): value for name, value in (inputs or {}).items()}
            results.append(run_with(values, dict.fromkeys(values, device), placed.op, names))
        return self._agree(f"net {message.name}", names, results)

    def _agree(self, what: str, names: Sequence[str], results: Sequence[Sequence[Any]]) -> bool:
        success = True
        for number, found in enumerate(results[1:], 1):
            for name, first, other in zip(names, results[0], found):
                if not _equal(first, other, self._threshold):
                    places = [_shown(self._device_options[i]) for i in (0, number)]
                    print(
                        f"{what}: blob {name!r} differs by more than {self._threshold} between device 0 ({places[0]}) "
                        f"and device {number} ({places[1]}):\n{first}\n{other}"
                    )
                    success = False
        return success


def _equal(first: Any, other: Any, threshold: float) -> bool:
    x, y = np.asarray(first), np.asarray(other)
    if x.shape != y.shape:
        return False
    if x.dtype.kind not in "biuf":
        return bool(np.array_equal(x, y))
    difference = np.abs(x.astype(np.float64) - y.astype(np.float64))
    return bool(np.all(~(difference > threshold)) and np.array_equal(np.isnan(x), np.isnan(y)))


def _shown(device: DeviceOption) -> str:
    return f"type {device.device_type}, id {device.device_id}"
