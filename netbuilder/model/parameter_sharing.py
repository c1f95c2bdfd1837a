"""Scopes that use the parameters of other scopes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from netbuilder.graph.blob import BlobReference
from netbuilder.graph.scope import SEPARATOR, CurrentNameScope
from netbuilder.proto import NetError

__all__ = ["ParameterSharing", "parameter_name"]

# Complete scopes, each ending in "/"; the innermost block's entries have replaced those around it.
_overrides: ContextVar[Mapping[str, str]] = ContextVar("netbuilder_parameter_sharing")


@contextmanager
def ParameterSharing(shared_scopes: Mapping[str, str]) -> Iterator[None]:
    """Let parameters made in some scopes be those of other scopes.

    Scopes inside a shared one follow it, the longest match decides, and a scope that is itself shared
    leads on to the next one.

    Args:
        shared_scopes: scope -> the scope whose parameters it uses, both relative to the current name
            scope; "" is the current scope itself.

    Raises:
        NetError: a scope leads to itself, or into itself.
        TypeError: ``shared_scopes`` is not a mapping of strings.

    >>> from netbuilder.graph.scope import NameScope
    >>> with ParameterSharing({"b": "a", "c": "b"}), NameScope("c"), NameScope("d"):
    ...     parameter_name("fc_w")
    BlobReference("a/d/fc_w")
    """
    if not isinstance(shared_scopes, Mapping):
        raise TypeError(f"ParameterSharing: needs a mapping from scope to scope, got {shared_scopes!r}")
    overrides = dict(_overrides.get({}))
    here = CurrentNameScope()
    for scope, other in shared_scopes.items():
        overrides[here + _normalized(scope)] = here + _normalized(other)
    for scope, other in overrides.items():
        if other.startswith(scope):
            raise NetError(f"ParameterSharing: scope {scope!r} cannot use the parameters of {other!r}, inside itself")
        _resolve(scope, overrides)
    token = _overrides.set(overrides)
    try:
        yield
    finally:
        _overrides.reset(token)


def parameter_name(name: str) -> BlobReference:
    """Return the full name of the parameter that ``name`` means in the current name scope."""
    scope = CurrentNameScope()
    overrides = _overrides.get({})
    return BlobReference((_resolve(scope, overrides) if overrides else scope) + name)


def _normalized(scope: str) -> str:
    if not isinstance(scope, str):
        raise TypeError(f"ParameterSharing: a scope is a string, got {scope!r}")
    return scope if not scope or scope.endswith(SEPARATOR) else scope + SEPARATOR


def _resolve(scope: str, overrides: Mapping[str, str]) -> str:
    way: list[str] = []
    while matches := [shared for shared in overrides if scope.startswith(shared)]:
        longest = max(matches, key=len)
        if longest in way:
            raise NetError(f"ParameterSharing: scopes lead round in a circle: {' -> '.join([*way, longest])}")
        way.append(longest)
        scope = overrides[longest] + scope[len(longest) :]
    return scope
