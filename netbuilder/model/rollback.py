"""Rollback of changes to a model if a block raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from netbuilder.graph.net import Net
from netbuilder.proto import NetDef

if TYPE_CHECKING:
    from netbuilder.model.model_helper import ModelHelper

__all__ = ["remove_added_on_error", "restore_on_error"]


def remove_added_on_error(model: ModelHelper) -> AbstractContextManager[None]:
    """If the block raises, remove the operators, external inputs and parameters that it appended to ``model``.

    The cost does not depend on the size of the model. Other changes are not undone; see ``restore_on_error``.
    """
    return _Added(model)


class _Added:
    """What a block appends to a model. This is a class because generators would take twice the time, in each layer."""

    __slots__ = ("_counts", "_lists", "_model", "_nets")

    def __init__(self, model: ModelHelper) -> None:
        self._model = model

    def __enter__(self) -> None:
        model = self._model
        net, init_net = self._nets = model.net.Proto(), model.param_init_net.Proto()
        lists = self._lists = model.params, model._computed_params, model.weights, model.biases, model._updated
        self._counts = (
            (len(net.op), len(net.external_input)),
            (len(init_net.op), len(init_net.external_input)),
            [*map(len, lists)],
            len(model._infos),
        )

    def __exit__(self, kind: type[BaseException] | None, error: Any, traceback: Any) -> None:
        if kind is None:
            return
        *nets, lists, infos = self._counts
        for net, (operators, inputs) in zip(self._nets, nets):
            del net.op[operators:]
            del net.external_input[inputs:]
        for of_kind, count in zip(self._lists, lists):
            del of_kind[count:]
        for name in list(self._model._infos)[infos:]:
            del self._model._infos[name]


@contextmanager
def restore_on_error(model: ModelHelper) -> Iterator[None]:
    """If the block raises, restore ``model``, its nets, lists and dictionaries; all of them are copied first."""
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
    """Restore the contents in place, because other objects may refer to it, such as a model that shares parameters."""
    if isinstance(value, Net):
        value.Proto().CopyFrom(contents)
    elif isinstance(value, list):
        value[:] = contents
    elif isinstance(value, (dict, set)):
        value.clear()
        value.update(contents)
