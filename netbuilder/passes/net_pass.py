"""The interface of passes: a function of a net and a context that returns a new net and named extras."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from typing import Any

from netbuilder.graph.devices import Devices
from netbuilder.graph.message import message_of
from netbuilder.proto import NetDef
from netbuilder.proto.call_checks import checked
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["NetPass", "PassContext", "PassResult", "net_pass"]


@dataclass(frozen=True)
class PassContext:
    """Information about a net for passes; each pass reads the fields that it needs.

    Args:
        devices: devices of the replicas, from the record that Parallelize stored; None: the net has no replicas.
        parameters: name -> value of parameters.
        sizes: name -> size of blobs in bytes; None: not known.
        keep: blobs that keep their names and values, in addition to the net's external inputs and outputs.
        available: blobs that exist before the net runs, in addition to its external inputs.
    """

    devices: Devices | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] | None = None
    keep: Collection[str] = ()
    available: Collection[str] = ()


@dataclass(frozen=True)
class PassResult:
    """The result of a pass: the new net, and named additional results."""

    net: NetDef
    extras: Mapping[str, Any] = field(default_factory=dict)


class NetPass:
    """A pass: gets a NetDef where users pass a Net or NetDef, and does not change it; options are given by keyword."""

    def __init__(self, function: Callable[..., PassResult]) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, net: Any, context: PassContext | None = None, **options: Any) -> PassResult:
        return self._function(message_of(net), PassContext() if context is None else context, **options)


@checked()
def net_pass(function: Callable[..., PassResult]) -> NetPass:
    """Decorate ``function(net, context, **options)`` as a pass."""
    return NetPass(function)
