"""What surrounds the building of a model: undoing it on failure, and no garbage collection meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from netbuilder.graph.net import Net
from netbuilder.model import ModelHelper
from netbuilder.proto import NetDef

__all__ = ["unchanged_on_error"]


@contextmanager
def unchanged_on_error(model: ModelHelper) -> Iterator[None]:
    """Give ``model``, its nets and its lists back as they were if the block raises."""
    before = {name: (value, _contents(value)) for name, value in vars(model).items()}
    try:
        yield
    except BaseException:
        for name in vars(model).keys() - before.keys():
            del vars(model)[name]
        for name, (value, contents) in before.items():
            _restore(value, contents)
            vars(model)[name] = value
        raise


def _contents(value: Any) -> Any:
    if isinstance(value, Net):
        proto = NetDef()
        proto.CopyFrom(value.Proto())
        return proto
    return value.copy() if isinstance(value, (list, dict, set)) else None


def _restore(value: Any, contents: Any) -> None:
    """Put the contents back into the object itself: others may hold it, as a model that shares parameters does."""
    if isinstance(value, Net):
        value.Proto().CopyFrom(contents)
    elif isinstance(value, list):
        value[:] = contents
    elif isinstance(value, (dict, set)):
        value.clear()
        value.update(contents)
