"""Arguments that Caffe2's builders of optimizers took and did nothing with: ignored, with a warning."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from netbuilder.graph.lenient import warn_ignored
from netbuilder.optimizers import Optimizer

__all__ = ["ignore_unknown_arguments"]

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")

_INSTEAD = {"weight_decay": "; add_weight_decay(model, {value}) before it decays the weights"}


def ignore_unknown_arguments(builder: Callable[_Given, _Made], optimizer: type[Optimizer]) -> Callable[_Given, _Made]:
    """Return a builder that ignores arguments which neither its optimizer nor a learning rate has.

    Caffe2 hands them to the rate's operator, which does not read them. Names that are nearly those of arguments are
    refused.

    Args:
        builder: such as ``build_sgd``.
        optimizer: the class that it makes.
    """

    @functools.wraps(builder)
    def build(*args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
        for name in optimizer.unknown_arguments(kwargs, builder):
            hint = _INSTEAD.get(name, "").format(value=kwargs.pop(name))
            warn_ignored(builder.__name__, name, f"; nothing reads it{hint}")
        return builder(*args, **kwargs)

    return build
