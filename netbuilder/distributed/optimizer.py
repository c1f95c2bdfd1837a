"""DistributedOptimizer: an optimizer builder together with the strategy by which processes exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from netbuilder.distributed.strategies import Strategy
from netbuilder.model import ModelHelper

__all__ = ["DistributedOptimizer"]


class DistributedOptimizer:
    """An optimizer and a strategy, to be given to ``Parallelize`` as ``optimizer_builder_fun``.

    It is the same as giving both arguments.

    Args:
        build: appends the update of all parameters, such as ``lambda model: build_sgd(model, 0.1)``.
        strategy: as for ``Parallelize``.

    Raises:
        TypeError: ``build`` is not a function, or ``strategy`` is no strategy.
        ArgumentError: there is no strategy of this text, or a field is out of range.

    >>> from netbuilder.optimizers import build_sgd
    >>> DistributedOptimizer(lambda model: build_sgd(model, 0.1), strategy="topk:0.01").strategy
    TopK(fraction=0.01, residual=True)
    """

    def __init__(self, build: Callable[[ModelHelper], Any], *, strategy: Strategy | str | None = None) -> None:
        if not callable(build):
            raise TypeError(f"DistributedOptimizer: build must be a function of a ModelHelper, got {build!r}")
        self.build = build
        self.strategy = Strategy.of(strategy)

    def __call__(self, model: ModelHelper) -> Any:
        """Append the update; return what the builder returns."""
        return self.build(model)

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.build!r}, strategy={self.strategy!r})"
