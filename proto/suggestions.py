"""Similar names, for the errors about a name that is not known."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

__all__ = ["arguments_of", "did_you_mean", "mismatch", "near_or_known", "similar", "suggests_arguments"]

P = ParamSpec("P")
R = TypeVar("R")

_RATIOS = (0.7, 0.6)
"""Shares of equal letters: names with the first one hide those that have only the second one."""

_LISTED = 20
"""Names in a list that a message shows; of more than these it shows some."""

_ELSEWHERE = {
    "linear": "fc",
    "dense": "fc",
    "lr": "base_learning_rate",
    "in_features": "dim_in",
    "in_channels": "dim_in",
    "out_features": "dim_out",
    "out_channels": "dim_out",
    "units": "dim_out",
}
"""Names that other frameworks give to what has another name here."""

_DASHES = "--"  # before the name of an option

_SHORTEST = 3
"""Letters of the shortest name that counts as the beginning of another one."""


def similar(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Return the known names that are most similar to ``name``, the best first.

    They are ``name`` under scopes, as replicas have it; or else in other cases; or else what other frameworks call
    ``name``; or else those with most letters in common, in the same order; or else those that ``name`` begins with,
    and those that begin with ``name``; or else those whose words begin with its letters. The dashes of options do not
    count.

    >>> known = ["cpu_0/loss", "losses", "pad", "kernel"]
    >>> similar("loss", known), similar("kernels", known), similar("paddding", known), similar("ker", known)
    (['cpu_0/loss'], ['kernel'], ['pad'], ['kernel'])
    >>> similar("--lr", ["--learning-rate", "--trace"])
    ['--learning-rate']
    """
    names = list(dict.fromkeys(map(str, known)))
    if name.startswith(_DASHES):
        bare = [other.removeprefix(_DASHES) for other in names if other.startswith(_DASHES)]
        return [_DASHES + other for other in similar(name.removeprefix(_DASHES), bare, most)]
    if scoped := [other for other in names if other.endswith(f"/{name}")]:
        return scoped[:most]
    if alike := [other for other in names if other.casefold() == name.casefold()]:
        return alike[:most]
    if (other := _ELSEWHERE.get(name.casefold())) in names:
        return [other]
    for ratio in _RATIOS:
        if near := difflib.get_close_matches(name, names, most, ratio):
            return near
    begun = [other for other in names if _begins(name, other) or _begins(other, name)]
    if begun or len(name) < 2:
        return sorted(begun, key=lambda other: abs(len(other) - len(name)))[:most]
    return [other for other in names if "".join(word[:1] for word in other.split("-")) == name][:most]


def _begins(name: str, start: str) -> bool:
    return name.startswith(start) and len(start.lstrip("-")) >= _SHORTEST


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message, with the known names that are most similar to ``name``; "" if none is similar.

    >>> did_you_mean("resnet19", ["resnet18", "lenet"])
    "; did you mean 'resnet18'?"
    """
    near = similar(name, known)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def near_or_known(name: str, known: Iterable[str], what: str) -> str:
    """Return the end of a message about a name that is not known: similar names, or else the known ones, of many some.

    >>> near_or_known("resnet19", ["resnet18", "lenet"], "nets")
    "; did you mean 'resnet18'?"
    >>> near_or_known("gpt", ["resnet18", "lenet"], "nets")
    '; the nets are resnet18, lenet'
    """
    names = list(known)
    shown = names if len(names) <= _LISTED else names[:: -(-len(names) // _LISTED)]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return did_you_mean(name, names) or f"; the {what} are {', '.join(shown)}{more}"


def mismatch(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return why arguments do not match a signature, with similar names for those it lacks; "" if they match.

    Where a required argument is missing, the keywords that the signature does not have are said first.

    >>> mismatch(inspect.signature(lambda devices=None: None), [], {"device": [0]})
    "got an unexpected keyword argument 'device'; instead of 'device', did you mean 'devices'?"
    """
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        free = [key for key in list(signature.parameters)[len(args) :] if key not in kwargs]
        wrong = [key for key in kwargs if key not in signature.parameters]
        hints = [f"; instead of {key!r}, did you mean {near[0]!r}?" for key in wrong if (near := similar(key, free, 1))]
        text = str(error)
        if wrong and text.startswith("missing"):
            kinds = {parameter.kind for parameter in signature.parameters.values()}
            what = "" if inspect.Parameter.VAR_KEYWORD in kinds else "unexpected keyword arguments "
            text = f"got {what}{', '.join(map(repr, wrong))}; {text}"
        return f"{text}{''.join(hints)}"
    return ""


def arguments_of(source: Callable[P, R], *fixed: str) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Return a decorator for a function that passes its arguments to ``source``: it gets the signature of ``source``.

    A TypeError for arguments that do not match names the decorated function (``__init__`` and ``__call__``: its
    class), and similar arguments.

    Args:
        source: the function.
        fixed: arguments of it that the decorated function gives itself. Those after them must be given by keyword.
    """
    signature = _without(inspect.signature(source), fixed)

    def decorate(function: Callable[..., R]) -> Callable[P, R]:
        *_, owner, name = ("", *function.__qualname__.split("."))
        said = owner if name in ("__init__", "__call__") else function.__name__

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except TypeError:
                given = {name: value for name, value in kwargs.items() if name not in fixed}
                if why := mismatch(signature, args, given):
                    raise TypeError(f"{said}: {why}") from None
                raise

        result: Any = call
        result.__signature__ = signature
        return call

    return decorate


def suggests_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Let a TypeError for arguments that ``function`` does not have name similar ones."""
    return arguments_of(function)(function)


def _without(signature: inspect.Signature, fixed: Collection[str]) -> inspect.Signature:
    kept, by_keyword = [], False
    for name, parameter in signature.parameters.items():
        by_keyword = by_keyword or name in fixed
        if name not in fixed:
            kept.append(parameter.replace(kind=parameter.KEYWORD_ONLY) if by_keyword else parameter)
    return signature.replace(parameters=kept)
