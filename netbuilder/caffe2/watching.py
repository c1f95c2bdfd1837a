"""The base of net modifiers that compute a result per blob, to print it or add it to the output record."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from netbuilder.caffe2.python.modeling.net_modifier import NetModifier
from netbuilder.caffe2.records import Scalar, Struct
from netbuilder.graph import BlobReference, DeviceScope, Net
from netbuilder.proto import DeviceOption, NetError, TensorProto
from netbuilder.proto.arguments import make_device_option

__all__ = ["BlobWatcher", "as_float"]


class BlobWatcher(NetModifier):
    """Computes a result for each of several blobs.

    Args:
        blobs: the blobs.
        logging_frequency: print the result every this many runs; 0 or less: never.
    """

    def __init__(self, blobs: Sequence[Any], logging_frequency: int) -> None:
        self._blobs = [BlobReference(str(blob)) for blob in blobs]
        self._logging_frequency = logging_frequency

    @abc.abstractmethod
    def field_name_suffix(self) -> str:
        """Return the suffix of the names of results, and of their fields in the output record."""

    @abc.abstractmethod
    def add(self, net: Net, blob: BlobReference) -> tuple[BlobReference, BlobReference]:
        """Add the operators for a blob; return the blob that the result is named after, and the result."""

    def field_type(self) -> Any:
        """Return the data type of a result in the output record."""
        return (float, (1,))

    def modify_net(
        self,
        net: Net,
        init_net: Net | None = None,
        grad_map: Mapping[Any, Any] | None = None,
        blob_to_device: Mapping[Any, DeviceOption] | None = None,
        modify_output_record: bool = False,
    ) -> None:
        """Add the operators; see ``NetModifier``.

        Raises:
            NetError: the net lacks one of the blobs; nothing has been added.
        """
        if missing := [str(blob) for blob in self._blobs if not net.BlobIsDefined(blob)]:
            raise NetError(f"{type(self).__name__}: net {net} does not have the blobs {missing}")
        devices = {str(blob): device for blob, device in (blob_to_device or {}).items()}
        for blob in self._blobs:
            with DeviceScope(devices.get(str(blob), make_device_option())):
                source, result = self.add(net, blob)
                if self._logging_frequency >= 1:
                    net.Print(result, [], every_n=self._logging_frequency)
            if modify_output_record:
                _add_field(net, str(source) + self.field_name_suffix(), Scalar(self.field_type(), result))


def as_float(net: Net, blob: BlobReference) -> BlobReference:
    """Return a blob's elements as float32."""
    converted: BlobReference = net.Cast(blob, net.NextScopedBlob(prefix=f"{blob}_float"), to=TensorProto.FLOAT)
    return converted


def _add_field(net: Any, name: str, field: Scalar) -> None:
    if net.output_record() is None:
        net.set_output_record(Struct((name, field)))
    else:
        net.AppendOutputRecordField(name, field)
