"""The base of what adds operators to a net that has been built: ``modifier(net)``."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.graph import Net
from netbuilder.proto import DeviceOption

__all__ = ["NetModifier"]

__getattr__ = names_of(__name__)


class NetModifier(abc.ABC):
    """What adds operators to a net; a subclass says by ``modify_net`` which."""

    @abc.abstractmethod
    def modify_net(
        self,
        net: Net,
        init_net: Net | None = None,
        grad_map: Mapping[Any, Any] | None = None,
        blob_to_device: Mapping[Any, DeviceOption] | None = None,
        modify_output_record: bool = False,
    ) -> None:
        """Add the operators.

        Args:
            net: gets them.
            init_net: gets what has to run once before.
            grad_map: blob -> its gradient.
            blob_to_device: blob -> the device to work on; others are on the CPU.
            modify_output_record: add the results to the net's output record.
        """

    def __call__(
        self,
        net: Net,
        init_net: Net | None = None,
        grad_map: Mapping[Any, Any] | None = None,
        blob_to_device: Mapping[Any, DeviceOption] | None = None,
        modify_output_record: bool = False,
    ) -> None:
        """Add the operators; see ``modify_net``."""
        self.modify_net(
            net,
            init_net=init_net,
            grad_map=grad_map,
            blob_to_device=blob_to_device,
            modify_output_record=modify_output_record,
        )
