"""The base of net modifiers, which add operators to an existing net: ``modifier(net)``."""

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
    """Adds operators to a net; subclasses define ``modify_net``."""

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
            net: the operators are added to it.
            init_net: gets the operators that run once before.
            grad_map: blob -> its gradient.
            blob_to_device: blob -> the device of its operators; default: the CPU.
            modify_output_record: add the results to the net's output record.
        """

    def __call__(self, net: Net, *args: Any, **kwargs: Any) -> None:
        """Add the operators; see ``modify_net``."""
        self.modify_net(net, *args, **kwargs)
