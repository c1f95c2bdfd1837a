"""The interface of passes: a function of a net and a context that returns a new net and named extras."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from netbuilder.graph.devices import Devices
from netbuilder.graph.message import message_of
from netbuilder.proto import NetDef
from netbuilder.proto.call_checks import checked

__all__ = ["CHECKS", "PASSES", "Check", "NetPass", "PassContext", "PassResult", "net_pass"]


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


class NetPass(Protocol):
    """A pass: it does not change its net; options are given by keyword."""

    __name__: str

    def __call__(self, net: Any, context: PassContext = ..., **options: Any) -> PassResult: ...


Check = Callable[[str, NetDef, NetDef, PassContext, PassResult], None]
"""Called with the pass's name, a copy of the net before the pass, the same net after it, the context and the result."""

PASSES: dict[str, NetPass] = {}
"""Name -> pass, for all passes that have been imported."""

CHECKS: list[Check] = []
"""Functions called after each pass. The library has none; tests add one."""


@checked()
def net_pass(function: Callable[..., PassResult]) -> NetPass:
    """Decorate ``function(net, context, **options)`` as a pass: it gets a NetDef where users pass a Net or NetDef."""

    @functools.wraps(function)
    def run(net: Any, context: PassContext | None = None, **options: Any) -> PassResult:
        context = PassContext() if context is None else context
        net = message_of(net)
        if not CHECKS:
            return function(net, context, **options)
        before = NetDef()
        before.CopyFrom(net)
        result = function(net, context, **options)
        for check in CHECKS:
            check(function.__name__, before, net, context, result)
        return result

    PASSES[function.__name__] = run
    return run
