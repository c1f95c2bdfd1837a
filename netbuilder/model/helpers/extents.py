"""The check of numbers of channels and elements for layers with parameters."""

from __future__ import annotations

from typing import Any

from netbuilder.proto import ArgumentError

__all__ = ["check_extents"]


def check_extents(layer: str, out: Any, **extents: Any) -> None:
    """Check extents, given by the names of the layer's arguments.

    Raises:
        ArgumentError: an extent is not a positive integer.

    >>> check_extents("fc", "scores", dim_in=4, dim_out=2)
    """
    for name, extent in extents.items():
        if not hasattr(extent, "__index__") or extent < 1:
            raise ArgumentError(f"{layer} {str(out)!r}: {name} must be a positive integer, got {extent!r}")
