"""What makes the builders of optimizers, ``build_adam`` and others: they create one and add its updates to a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from netbuilder.graph.blob import BlobReference
from netbuilder.model.model_helper import ModelHelper
from netbuilder.optimizers.build import Params, build_optimizer
from netbuilder.optimizers.optimizer import OPTIMIZERS, Optimizer
from netbuilder.proto.suggestions import suggests_arguments

__all__ = ["builder", "selective_builder"]


class Builder(Protocol):
    """The signature of most builders."""

    def __call__(
        self,
        model: ModelHelper,
        base_learning_rate: float,
        max_gradient_norm: float | None = None,
        allow_lr_injection: bool = False,
        *,
        params: Params | None = None,
        **kwargs: Any,
    ) -> Optimizer: ...


class SelectiveBuilder(Protocol):
    """The signature of the other builders, which have Caffe2's argument ``parameters`` in place of ``params``, too."""

    def __call__(
        self,
        model: ModelHelper,
        base_learning_rate: float,
        parameters: Iterable[BlobReference] | None = None,
        max_gradient_norm: float | None = None,
        allow_lr_injection: bool = False,
        *,
        params: Params | None = None,
        **kwargs: Any,
    ) -> Optimizer: ...


_OF_BUILD = ("decoupled_decay", "no_decay", "rates", "weights_only")


def builder(optimizer: type[Optimizer]) -> Builder:
    """Return the builder of an optimizer that has a name, ``build_adam`` for ``"adam"``."""
    rate = _rate_name(optimizer)

    def build(
        model: ModelHelper,
        base_learning_rate: float,
        max_gradient_norm: float | None = None,
        allow_lr_injection: bool = False,
        *,
        params: Params | None = None,
        **kwargs: Any,
    ) -> Optimizer:
        settings: dict[str, Any] = {name: kwargs.pop(name) for name in _OF_BUILD if name in kwargs}
        settings |= {"max_gradient_norm": max_gradient_norm, "allow_lr_injection": allow_lr_injection}
        return build_optimizer(model, optimizer(**{rate: base_learning_rate}, **kwargs), params=params, **settings)

    return suggests_arguments(_described(build, optimizer))


def selective_builder(optimizer: type[Optimizer]) -> SelectiveBuilder:
    """Return a builder that has Caffe2's argument ``parameters``, too."""
    plain = builder(optimizer)

    def build(
        model: ModelHelper,
        base_learning_rate: float,
        parameters: Iterable[BlobReference] | None = None,
        max_gradient_norm: float | None = None,
        allow_lr_injection: bool = False,
        *,
        params: Params | None = None,
        **kwargs: Any,
    ) -> Optimizer:
        chosen = parameters if params is None else params
        return plain(model, base_learning_rate, max_gradient_norm, allow_lr_injection, params=chosen, **kwargs)

    selected = "parameters: the same as ``params``, which replaces it."
    return suggests_arguments(_described(build, optimizer, selected))


def _described(build: Any, optimizer: type[Optimizer], *more: str) -> Any:
    """Give a builder its name, as a function of the optimizer's module, and its docstring."""
    arguments = (
        "model: the model, after its backward pass.",
        "base_learning_rate: base learning rate, before its policy.",
        *more,
        "max_gradient_norm, allow_lr_injection, params: see ``build_optimizer``.",
        f"kwargs: arguments of ``{optimizer.__name__}``, and {', '.join(_OF_BUILD)} of ``build_optimizer``.",
    )
    build.__doc__ = f"""Update a model by ``{optimizer.__name__}``; returns the optimizer.

    Args:
        {(chr(10) + " " * 8).join(arguments)}

    Raises:
        ArgumentError: an argument is unknown or out of range.
        GradientError: there is no backward pass yet.
    """
    name = next(name for name, named in OPTIMIZERS.items() if named is optimizer)
    build.__name__ = build.__qualname__ = f"build_{name.replace('-', '_')}"
    build.__module__ = optimizer.__module__
    return build


def _rate_name(optimizer: type[Optimizer]) -> str:
    assert optimizer.rate_name is not None, f"{optimizer.__name__} has no learning rate"
    return optimizer.rate_name
