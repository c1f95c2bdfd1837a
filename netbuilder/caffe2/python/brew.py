"""Layer helpers: ``brew.conv(model, ...)``; those of ``netbuilder.model.brew``, including helpers registered later."""

from __future__ import annotations

from typing import Any

from netbuilder.caffe2.layer_norm import layer_norm
from netbuilder.caffe2.missing import names_of
from netbuilder.model import brew as _brew
from netbuilder.model.brew import Register, arg_scope, has_helper

__all__ = ["Register", "arg_scope", "has_helper", "layer_norm"]


def __dir__() -> list[str]:
    return [name for name in dir(_brew) if name in __all__ or has_helper(name)]


_missing = names_of(__name__, others=__dir__)


def __getattr__(name: str) -> Any:
    return getattr(_brew, name) if has_helper(name) else _missing(name)
