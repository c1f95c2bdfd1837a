"""Operators and nets as Caffe2's scripts build them: what is wrong with an operator is said when its net is created."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.net import Net
from netbuilder.graph.operators import known_arguments, make_operator, unknown_arguments
from netbuilder.graph.source import warn_user
from netbuilder.ops.registry import find, is_registered
from netbuilder.proto import OperatorDef

__all__ = ["IgnoredArgumentWarning", "LenientNet", "build_leniently"]


class IgnoredArgumentWarning(UserWarning):
    """An operator was given an argument that it does not read; given once for each operator type and argument."""


_warned: set[tuple[str, str]] = set()


def build_leniently(op_type: str, inputs: list[str], outputs: list[str], debug_info: str, **kwargs: Any) -> OperatorDef:
    """Return an operator that is not checked; arguments that it does not read are kept, with a warning.

    Args: as for ``build_operator``. The operator's type need not be known.
    """
    op = make_operator(op_type, inputs, outputs, debug_info, **kwargs)
    if is_registered(op_type):
        cls = find(op_type)
        for name in unknown_arguments(cls, op):
            if (op_type, name) not in _warned:
                warn_user(f"{op_type}: ignored argument {name!r}{known_arguments(cls, name)}", IgnoredArgumentWarning)
                _warned.add((op_type, name))
    return op


class _EveryNet(type):
    """Makes ``isinstance(net, LenientNet)`` true of every net: scripts use it to tell a net from a step or a name."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Net)


class LenientNet(Net, metaclass=_EveryNet):
    """A ``Net`` that takes operators without checks: numbers of blobs, in-place rules and arguments.

    What is wrong is an error when the net is created in a workspace, as in Caffe2. An argument that an operator does
    not read is kept and ignored, with an ``IgnoredArgumentWarning``.
    """

    _build = staticmethod(build_leniently)
