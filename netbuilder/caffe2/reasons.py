"""Why the face does not have a module or name of Caffe2, and what to use instead."""

from __future__ import annotations

__all__ = ["REASONS", "reason_of"]

REASONS: dict[str, str] = {}


def reason_of(name: str) -> str:
    """Return why the face lacks a module or name, "" if nothing is written about it.

    Args:
        name: without "caffe2.", such as "python.memonger".
    """
    while name:
        if name in REASONS:
            return REASONS[name]
        name = name.rpartition(".")[0]
    return ""
