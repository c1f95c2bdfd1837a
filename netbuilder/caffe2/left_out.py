"""Arguments that Caffe2's builders of optimizers took and did nothing with: left out, with a word in the log."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from netbuilder.optimizers import Optimizer

__all__ = ["without_unknown"]

_LOG = logging.getLogger("netbuilder")
_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")

_INSTEAD = {"weight_decay": "; add_weight_decay(model, {value}) in front of it would decay the weights"}


def without_unknown(builder: Callable[_Given, _Made], optimizer: type[Optimizer]) -> Callable[_Given, _Made]:
    """Return a builder that leaves out arguments which neither its optimizer nor a learning rate has.

    Caffe2 hands them to the rate's operator, which does not read them. Names that are nearly those of arguments are
    refused as ever.

    Args:
        builder: such as ``build_sgd``.
        optimizer: the class that it makes.
    """

    @functools.wraps(builder)
    def build(*args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
        for name in optimizer.unknown_arguments(kwargs, builder):
            value = kwargs.pop(name)
            hint = _INSTEAD.get(name, "").format(value=value)
            _LOG.warning("%s: the argument %s=%r is left out: nothing reads it%s", builder.__name__, name, value, hint)
        return builder(*args, **kwargs)

    return build
