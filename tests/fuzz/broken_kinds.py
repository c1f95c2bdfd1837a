"""Kinds of input that misbehave in each of the ways that a campaign has to notice."""

from __future__ import annotations

import os
import random
import time

from netbuilder.proto import NetError

__all__ = ["KINDS"]


def _kind(name, fault):
    def prepare(folder):
        third = random.Random(f"0/{name}/2").random()

        def trial(rng):
            if rng.random() == third:
                fault()

        return trial

    return prepare


def _bare():
    raise IndexError("list index out of range")


def _ours():
    raise NetError("net 'x': cannot be")


def _grow():
    return b"x" * (330 << 20)


def _write():
    with open("stolen", "w") as file:
        file.write("data")


_FAULTS = {
    "dies": os.abort,
    "hangs": lambda: time.sleep(100_000),
    "bare": _bare,
    "ours": _ours,
    "grows": _grow,
    "too much": lambda: bytearray(8 << 30),
    "writes": _write,
}

KINDS = {name: _kind(name, fault) for name, fault in _FAULTS.items()}
"""Kind -> a function that prepares a trial; of each the third input misbehaves."""
