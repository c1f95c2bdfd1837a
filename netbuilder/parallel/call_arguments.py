"""Arguments of a call: their arrays by name, in nested tuples, lists and dicts too, and how these are split."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.proto import NetError, ShapeError
from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "Leaf",
    "difference",
    "is_array",
    "map_leaves",
    "named_arguments",
    "samples_of",
    "split_sizes",
    "take_leaves",
]


@dataclass(frozen=True)
class Leaf:
    """Stands for an array in a nested structure.

    Args:
        name: of the array.
    """

    name: str


def is_array(value: Any) -> bool:
    """Whether a value is an array, of NumPy, CuPy or another library; Python's numbers and strings are not."""
    return isinstance(value, (np.ndarray, np.generic)) or any(
        hasattr(value, name) for name in ("__array__", "__cuda_array_interface__", "__dlpack__")
    )


def map_leaves(function: Callable[[Any, str], Any], value: Any, path: str) -> Any:
    """Return a copy of nested tuples, lists and dicts, with ``function(leaf, path)`` in place of each leaf.

    >>> map_leaves(lambda leaf, path: f"{path}={leaf}", {"a": (1, [2])}, "x")
    {'a': ('x_a_0=1', ['x_a_1_0=2'])}
    """
    if isinstance(value, Mapping):
        return {key: map_leaves(function, item, f"{path}_{key}") for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = [map_leaves(function, item, f"{path}_{number}") for number, item in enumerate(value)]
        if isinstance(value, list):
            return items
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return function(value, path)


def take_leaves(value: Any, name: str, used: set[str]) -> tuple[Any, dict[str, Any]]:
    """Return a nested structure with a ``Leaf`` in place of each array, and the arrays by name.

    Args:
        value: nested tuples, lists and dicts; leaves that are not arrays stay as they are.
        name: the first part of the arrays' names.
        used: names that are taken; those of the arrays are added.
    """
    found: dict[str, Any] = {}

    def take(leaf: Any, path: str) -> Any:
        if not is_array(leaf):
            return leaf
        chosen, number = path, 1
        while chosen in used:
            number += 1
            chosen = f"{path}_{number}"
        used.add(chosen)
        found[chosen] = leaf
        return Leaf(chosen)

    return map_leaves(take, value, name), found


def difference(got: Any, want: Any, path: str) -> str:
    """Return in what a structure differs from another, in the words of an error message; "" if they are equal.

    >>> difference({"x": [1, 2]}, {"x": [1]}, "inputs")
    "inputs['x'] has 2 items, and had 1"
    """
    kinds = [_kind(value) for value in (got, want)]
    if kinds[0] != kinds[1]:
        return f"{path} is {kinds[0]}, and was {kinds[1]}"
    if isinstance(want, Mapping):
        if set(got) != set(want):
            return f"{path} has the keys {list(got)}, and had {list(want)}"
        pairs = [(f"{path}[{key!r}]", got[key], want[key]) for key in want]
    elif isinstance(want, (tuple, list)):
        if len(got) != len(want):
            return f"{path} has {counted(len(got), 'item')}, and had {len(want)}"
        pairs = [(f"{path}[{k}]", a, b) for k, (a, b) in enumerate(zip(got, want))]
    else:
        same = isinstance(want, Leaf) or got is want or type(got) is type(want) and got == want
        return "" if same else f"{path} is {got!r}, and was {want!r}"
    return next((text for name, a, b in pairs if (text := difference(a, b, name))), "")


def _kind(value: Any) -> str:
    if isinstance(value, Leaf):
        return "an array"
    for kind, name in ((Mapping, "a dict"), (tuple, "a tuple"), (list, "a list")):
        if isinstance(value, kind):
            return name
    return f"of type {type(value).__name__}"


def samples_of(arrays: Mapping[str, Any], axes: Mapping[str, int], where: str) -> int:
    """Return the number of samples of a batch, 0 if no array has one; arrays without axes are not split.

    Args:
        arrays: name -> array.
        axes: name -> the axis of its samples, if that is not the first.
        where: what the message begins with.

    Raises:
        ShapeError: the arrays have different numbers of samples, or an array has no such axis.
    """
    found: dict[str, int] = {}
    for name, array in arrays.items():
        if not array.shape:
            continue
        axis = axes.get(name, 0)
        if not 0 <= axis < len(array.shape):
            raise ShapeError(f"{where}: {name!r} of shape {tuple(array.shape)} has no axis {axis}, that of its samples")
        found[name] = array.shape[axis]
    if len(set(found.values())) > 1:
        raise ShapeError(f"{where}: all arrays that are split must have the same number of samples, got {found}")
    return next(iter(found.values()), 0)


def split_sizes(sizes: Sequence[int], array: Any, axis: int) -> list[Any]:
    """Return consecutive parts of an array along an axis, views of it; an array without axes is repeated."""
    if not array.shape:
        return [array] * len(sizes)
    parts, start = [], 0
    for size in sizes:
        parts.append(array[(slice(None),) * axis + (slice(start, start + size),)])
        start += size
    return parts


def named_arguments(
    function: Callable[..., Any], skipped: int, args: tuple[Any, ...], kwargs: Mapping[str, Any], where: str
) -> list[tuple[str, Any]]:
    """Return (name, value) for each argument, in the order given: the names of a function's parameters.

    Raises:
        NetError: the function does not take these arguments.
    """
    signature = inspect.signature(function)
    expected = list(signature.parameters.values())[skipped:]
    try:
        bound = signature.bind(*[None] * skipped, *args, **kwargs)
    except TypeError as error:
        takes = ", ".join(map(str, expected))
        raise NetError(
            f"{where}: the function takes ({takes}), got {counted(len(args), 'positional argument')}"
            f"{' and ' + ', '.join(kwargs) if kwargs else ''}: {error}"
        ) from None
    names: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}_{number}" for number in range(len(bound.arguments.get(parameter.name, ())))]
        elif parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return [*zip(names[skipped:], args), *kwargs.items()]
