"""What a net asks of its numbers: how activations are stored, whether TF32 may be used, whether runs are repeatable.

These are arguments of the net.

Users always see float32.
"""

from __future__ import annotations

from typing import Any

from netbuilder.proto import NetDef, NetError
from netbuilder.proto.arguments import arguments
from netbuilder.proto.call_checks import is_flag

__all__ = [
    "DETERMINISTIC_ARGUMENT",
    "PRECISIONS",
    "PRECISION_ARGUMENT",
    "TF32_ARGUMENT",
    "check_precision",
    "check_switch",
    "precision_of",
]

PRECISIONS = ("float32", "bfloat16", "float16")
"""With each of them, shape inference, fetches and saved files have float32. float16 is for GPUs."""

PRECISION_ARGUMENT = "activation_dtype"
"""The argument of a net that has its precision; without it, activations are stored in their own type."""

TF32_ARGUMENT = "allow_tf32"
"""The argument of a net that has 1 if its products on GPUs may use TF32; without it, they may not."""

DETERMINISTIC_ARGUMENT = "deterministic"
"""The argument of a net that has 1 if two runs must be equal to the bit."""


def check_precision(value: Any, where: str) -> str:
    """Return a precision as a string.

    Args:
        value: one of ``PRECISIONS``, as string or bytes.
        where: who gives it, for the message.

    Raises:
        NetError: ``value`` is not one of ``PRECISIONS``.

    >>> check_precision(b"bfloat16", "net 'train'")
    'bfloat16'
    """
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    if not isinstance(text, str) or text not in PRECISIONS:
        raise NetError(f"{where}: activations must be stored as one of {', '.join(PRECISIONS)}; got {text!r}")
    return str(text)


def precision_of(net: NetDef, where: str) -> str:
    """Return the precision that a net asks for; NetError if it is not one of ``PRECISIONS``."""
    return check_precision(arguments(net).get(PRECISION_ARGUMENT, PRECISIONS[0]), where)


def check_switch(value: Any, name: str, where: str) -> bool:
    """Return an argument of a net that is on or off.

    Args:
        value: a bool, or 0 or 1, as an argument of a net has it.
        name: of the argument, for the message.
        where: who gives it, likewise.

    Raises:
        NetError: ``value`` is something else.

    >>> check_switch(1, "allow_tf32", "net 'train'")
    True
    """
    if not is_flag(value) or isinstance(value, float):
        raise NetError(f"{where}: {name} must be True or False, got {value!r}")
    return bool(value)
