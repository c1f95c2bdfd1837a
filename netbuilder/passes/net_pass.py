"""What a pass is: a function of a net, and of what it is told about it, that returns a net and named extras."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from netbuilder.graph.devices import Devices
from netbuilder.graph.message import message_of
from netbuilder.proto import NetDef

__all__ = ["CHECKS", "PASSES", "Check", "NetPass", "PassContext", "PassResult", "net_pass"]


@dataclass(frozen=True)
class PassContext:
    """What passes are told about a net; a pass reads of it what it needs.

    Args:
        devices: those of the replicas, from the record that Parallelize stored; None: the net has no replicas.
        parameters: values of parameters by name.
        sizes: bytes of blobs by name; None: not known.
        keep: blobs that keep their names and values, besides the net's external inputs and outputs.
        available: blobs that exist before the net runs, besides its external inputs.
    """

    devices: Devices | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] | None = None
    keep: Collection[str] = ()
    available: Collection[str] = ()


@dataclass(frozen=True)
class PassResult:
    """What a pass returns: the net, and what else it has found or made, by name."""

    net: NetDef
    extras: Mapping[str, Any] = field(default_factory=dict)


class NetPass(Protocol):
    """A pass: the net is left unchanged; options are given by keyword."""

    __name__: str

    def __call__(self, net: Any, context: PassContext = ..., **options: Any) -> PassResult: ...


Check = Callable[[str, NetDef, NetDef, PassContext, PassResult], None]
"""Is given the pass's name, a copy of the net made before the pass ran, the net after it, context and result."""

PASSES: dict[str, NetPass] = {}
"""All passes that have been imported, by name."""

CHECKS: list[Check] = []
"""Called after each pass. The library has none: tests add one."""


def net_pass(function: Callable[..., PassResult]) -> NetPass:
    """Declare a pass: ``function(net, context, **options)``, where ``net`` is a NetDef; users may also give a Net."""

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
