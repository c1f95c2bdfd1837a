"""Passages of a net: single values through which all data pass, such as the sums between residual blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from netbuilder.graph.versions import Versions

__all__ = ["values_left"]


def values_left(versions: Versions, indices: Iterable[int]) -> Iterator[tuple[int, set[int]]]:
    """Yield each operator with the values that these operators have written by then, and that later ones read.

    A value that every path through the operators passes is at one point the only one, in whatever order they are.

    Args:
        versions: of the values.
        indices: of the operators, ascending.
    """
    chosen = list(indices)
    left: dict[int, int] = {}
    for index in chosen:
        for value in versions.inputs[index]:
            left[value] = left.get(value, 0) + 1
    live: set[int] = set()
    for index in chosen:
        for value in versions.inputs[index]:
            left[value] -= 1
        live = {value for value in live.union(versions.outputs[index]) if left.get(value)}
        yield index, live
