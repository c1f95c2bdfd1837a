"""Arguments that layer helpers get from a block around their calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

__all__ = ["arg_scope", "scope_arguments"]

_NONE: Mapping[str, Any] = {}

# Helper name -> arguments; the innermost block has been merged over those around it.
_scope: ContextVar[Mapping[str, Mapping[str, Any]]] = ContextVar("netbuilder_arg_scope")


def scope_arguments(helper_name: str) -> Mapping[str, Any]:
    """Return what the blocks around give the helper of this name."""
    return _scope.get(_NONE).get(helper_name, _NONE)


@contextmanager
def arg_scope(
    single_helper_or_list: Callable[..., Any] | Sequence[Callable[..., Any]], **kwargs: Any
) -> Iterator[None]:
    """Give the named helpers arguments for all their calls in the block.

    An argument of a call goes before one of a block, an inner block before an outer one, and any block
    before the model's own ``arg_scope``.

    Args:
        single_helper_or_list: a helper, ``brew.conv``, or several.
        kwargs: the arguments.

    Raises:
        TypeError: something else than a helper was given.

    >>> from netbuilder.model import ModelHelper, brew
    >>> model = ModelHelper("example")
    >>> with brew.arg_scope([brew.conv, brew.fc], weight_init=("MSRAFill", {})):
    ...     fc = brew.fc(model, "x", "fc", 2, 3)
    >>> model.param_init_net.Proto().op[0].type
    'MSRAFill'
    """
    helpers: Sequence[Any] = (
        single_helper_or_list if isinstance(single_helper_or_list, (list, tuple)) else [single_helper_or_list]
    )
    for helper in helpers:
        if not callable(helper) or not hasattr(helper, "__name__"):
            raise TypeError(f"arg_scope: needs a helper such as brew.conv, or a list of them; got {helper!r}")
    outer = _scope.get(_NONE)
    inner = {helper.__name__: {**outer.get(helper.__name__, _NONE), **kwargs} for helper in helpers}
    token = _scope.set({**outer, **inner})
    try:
        yield
    finally:
        _scope.reset(token)
