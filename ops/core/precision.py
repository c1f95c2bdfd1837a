"""How a plan may keep activations in memory: an argument of the net, which says nothing about what values look like."""

from __future__ import annotations

from typing import Any

from netbuilder.proto import NetError

__all__ = ["PRECISIONS", "PRECISION_ARGUMENT", "check_precision"]

PRECISIONS = ("float32", "bfloat16")
"""With any of them, shape inference and whoever fetches or saves a value sees float32."""

PRECISION_ARGUMENT = "activation_dtype"
"""The argument of a net that holds its precision; a net without it keeps activations as they are."""


def check_precision(value: Any, where: str) -> str:
    """Return a precision as it is written in nets.

    Args:
        value: one of ``PRECISIONS``, as string or bytes.
        where: what asks for it, for the message.

    Raises:
        NetError: it is none of them.

    >>> check_precision(b"bfloat16", "net 'train'")
    'bfloat16'
    """
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    if text not in PRECISIONS:
        raise NetError(f"{where}: activations are kept as one of {', '.join(PRECISIONS)}; got {text!r}")
    return str(text)
