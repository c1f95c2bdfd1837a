"""The shared part of the tests of functions of one operand: drawn inputs, and a reference function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis import strategies as st

from suite import OperatorSuite, Refusal, f32, floats, i32, refusal

__all__ = ["UnaryGradientOperatorSuite", "UnaryOperatorSuite", "unlike", "wants_floats"]


class UnaryOperatorSuite(OperatorSuite):
    """``function`` gives the outputs of one input drawn between ``low`` and ``high``, not near ``avoid``."""

    low: ClassVar[float] = -2.0
    high: ClassVar[float] = 2.0
    avoid: ClassVar[float | None] = None
    function: ClassVar[Callable[[Any], Any]]

    def draw(self, data: Any) -> tuple[Any, list[Any]]:
        shape = data.draw(st.sampled_from([(), ((1, 4),), ((1, 3), (0, 3), (1, 3))]))
        return self.operator(), [data.draw(floats(*shape, low=self.low, high=self.high, avoid=self.avoid))]

    def reference(self, op: Any, x: Any) -> list[Any]:
        return [type(self).function(x)]


def wants_floats(cls: type) -> tuple[Refusal, ...]:
    """Refusals of an operator that takes floating-point numbers only."""
    return (refusal(cls(), [i32(2)], "the inputs must have one floating type, got X int32"),)


class UnaryGradientOperatorSuite(OperatorSuite):
    """For gradients of two inputs, one of them the output's gradient: ``slope`` is of the other."""

    no_gradient = "a gradient operator"
    slope: ClassVar[Callable[[Any], Any]]

    def draw(self, data: Any) -> tuple[Any, list[Any]]:
        x = data.draw(floats((1, 4), (1, 3), low=0.2))
        return self.operator(), [x, data.draw(floats(*x.shape))]

    def reference(self, op: Any, x: Any, dy: Any) -> list[Any]:
        if op.inputs[0] == "dY":
            return [x * type(self).slope(dy)]
        return [dy * type(self).slope(x)]


def unlike(cls: type) -> tuple[Refusal, ...]:
    """Refusals of a gradient whose two inputs have different shapes."""
    return (refusal(cls(), [f32(2), f32(3)], "must have the shape of"),)
