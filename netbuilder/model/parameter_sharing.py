"""Parameter sharing: name scopes that use the parameters of other scopes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from netbuilder.graph.blob import BlobReference
from netbuilder.graph.scope import SEPARATOR, CurrentNameScope
from netbuilder.proto import NetError

__all__ = ["ParameterSharing", "parameter_name"]

# Complete scopes, each ending in "/"; entries of the innermost block replace those of enclosing blocks.
_overrides: ContextVar[Mapping[str, str]] = ContextVar("netbuilder_parameter_sharing")


@contextmanager
def ParameterSharing(shared_scopes: Mapping[str, str]) -> Iterator[None]:
    """Let layers in some scopes use the parameters of other scopes.

    Scopes inside a shared scope are shared too. The longest match is used, and sharing is transitive.

    Args:
        shared_scopes: scope -> the scope whose parameters it uses, both relative to the current name
            scope; "" is the current scope itself.

    Raises:
        NetError: a scope shares, directly or indirectly, its own parameters or those of a scope inside it.
        TypeError: ``shared_scopes`` is not a mapping of strings.

    >>> from netbuilder.graph.scope import NameScope
    >>> with ParameterSharing({"b": "a", "c": "b"}), NameScope("c"), NameScope("d"):
    ...     parameter_name("fc_w")
    BlobReference("a/d/fc_w")
    """
    if not isinstance(shared_scopes, Mapping):
        raise TypeError(f"ParameterSharing: shared_scopes must be a mapping of strings, got {shared_scopes!r}")
    overrides = dict(_overrides.get({}))
    here = CurrentNameScope()
    for scope, other in shared_scopes.items():
        overrides[here + _normalized(scope)] = here + _normalized(other)
    for scope, other in overrides.items():
        if other.startswith(scope):
            raise NetError(
                f"ParameterSharing: scope {scope!r} cannot use the parameters of {other!r}, which is the scope itself "
                "or inside it"
            )
        _resolve(scope, overrides)
    token = _overrides.set(overrides)
    try:
        yield
    finally:
        _overrides.reset(token)


def parameter_name(name: str) -> BlobReference:
    """Return the full name of the parameter that ``name`` refers to in the current name scope."""
    scope = CurrentNameScope()
    overrides = _overrides.get({})
    return BlobReference((_resolve(scope, overrides) if overrides else scope) + name)


def _normalized(scope: str) -> str:
    if not isinstance(scope, str):
        raise TypeError(f"ParameterSharing: a scope must be a string, got {scope!r}")
    return scope if not scope or scope.endswith(SEPARATOR) else scope + SEPARATOR


def _resolve(scope: str, overrides: Mapping[str, str]) -> str:
    path: list[str] = []
    while matches := [shared for shared in overrides if scope.startswith(shared)]:
        longest = max(matches, key=len)
        if longest in path:
            raise NetError(f"ParameterSharing: the scopes form a cycle: {' -> '.join([*path, longest])}")
        path.append(longest)
        scope = overrides[longest] + scope[len(longest) :]
    return scope
