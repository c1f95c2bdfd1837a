"""The precision in which a plan stores activations: an argument of the net; users always see float32."""

from __future__ import annotations

from typing import Any

from netbuilder.proto import NetError

__all__ = ["PRECISIONS", "PRECISION_ARGUMENT", "check_precision"]

PRECISIONS = ("float32", "bfloat16")
"""With each of them, shape inference, fetches and saved files have float32."""

PRECISION_ARGUMENT = "activation_dtype"
"""The argument of a net that has its precision; without it, activations are stored in their own type."""


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
    if text not in PRECISIONS:
        raise NetError(f"{where}: activations must be stored as one of {', '.join(PRECISIONS)}; got {text!r}")
    return str(text)
