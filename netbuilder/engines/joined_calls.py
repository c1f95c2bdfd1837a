"""Calls of which several, one after another, can be made as one: without the interpreter in between."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

__all__ = ["JoinableCall", "joined"]

Call = Callable[[], object]


class JoinableCall(partial[Any]):
    """A call that can be joined with neighbors of its class."""

    @classmethod
    def together(cls, calls: Sequence[Any]) -> Call:
        """Return the call that does what some do, in order."""
        raise NotImplementedError


def joined(calls: Sequence[Call]) -> Iterator[tuple[Call, int]]:
    """Yield calls that together do what some do, one after another, each with the index of the first that it does."""
    index = 0
    for kind, group in itertools.groupby(calls, type):
        members = list(group)
        if issubclass(kind, JoinableCall) and len(members) > 1:
            yield kind.together(members), index
        else:
            yield from zip(members, itertools.count(index))
        index += len(members)
