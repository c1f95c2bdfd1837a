"""The tests that every operator has, as a base class: forward, gradient, in place, refusals.

A test class per operator names the operator and says how to draw inputs and what is right::

    class TestSoftmax(OperatorSuite):
        operator = Softmax
        refusals = (refusal(Softmax(axis=2), [f32(3, 4)], "axis must lie in"),)

        def draw(self, data):
            x = data.draw(floats((1, 4), (1, 4)))
            return Softmax(axis=1), [x]

        def reference(self, op, x):
            return [np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)]

The walk over the registry (tests/ops/core/test_registry.py) demands one for each operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checks import DEVICES, check_forward, check_gradient, check_inplace
from netbuilder.ops.core.operator import Operator, TensorSpec, decode, encode
from netbuilder.proto import NetError

__all__ = ["OperatorSuite", "Refusal", "f32", "floats", "i32", "i64", "refusal"]

EXAMPLES = settings().max_examples  # conftest takes it from the variable EXAMPLES

QUICK = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.differing_executors],
)


def f32(*shape: int) -> TensorSpec:
    return TensorSpec(shape, np.dtype(np.float32))


def i32(*shape: int) -> TensorSpec:
    return TensorSpec(shape, np.dtype(np.int32))


def i64(*shape: int) -> TensorSpec:
    return TensorSpec(shape, np.dtype(np.int64))


@st.composite  # which reads the source of what it decorates: once here, and not for each call of ``floats``
def _arrays(
    draw: Any, extents: Sequence[int | tuple[int, int]], low: float, high: float, apart: float, avoid: float | None
) -> Any:
    shape = tuple(draw(st.integers(*e)) if isinstance(e, tuple) else e for e in extents)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = int(np.prod(shape))
    x = rng.uniform(low, high, size)
    if apart:
        x = rng.permutation(low + apart * np.arange(size)) + rng.uniform(0, apart / 4, size)
    if avoid is not None:
        x = np.where(np.abs(x - avoid) < 0.05, avoid + 0.1, x)
    return x.reshape(shape).astype(np.float32)


def floats(
    *extents: int | tuple[int, int],
    low: float = -2.0,
    high: float = 2.0,
    apart: float = 0.0,
    avoid: float | None = None,
) -> st.SearchStrategy[Any]:
    """Float32 arrays; an extent is a number or a range (least, most).

    Args:
        low, high: bounds of the elements.
        apart: least difference between any two elements (for maxima, whose gradient jumps at ties).
        avoid: no element within 0.05 of this value (where the operator has a kink).
    """

    return _arrays(extents, low, high, apart, avoid)


@dataclass(frozen=True)
class Refusal:
    """Input that an operator must refuse, and a pattern that the message matches."""

    op: Operator
    inputs: Sequence[TensorSpec]
    match: str
    error: type[Exception] = NetError
    n_out: int | None = None


def refusal(
    op: Operator, inputs: Sequence[TensorSpec], match: str, error: type[Exception] = NetError, n_out: int | None = None
) -> Refusal:
    return Refusal(op, tuple(inputs), match, error, n_out)


class OperatorSuite:
    """Base of the operators' test classes; see the module's text.

    Class attributes:
        operator: the class under test.
        wrt: inputs (those that are given) whose gradients are compared with central differences; () needs
            ``no_gradient``.
        no_gradient: why there is no gradient check.
        d_outputs: outputs that a gradient reaches.
        refusals: bad input, at least one; () needs ``refuses_nothing``.
        left_out: tests of this class that are not for this operator, each with the reason.
        refuses_nothing: why no input of the right number and kind is wrong.
        rtol, atol: of the forward comparison.
    """

    operator: ClassVar[type[Operator]]
    wrt: ClassVar[tuple[int, ...]] = (0,)
    no_gradient: ClassVar[str] = ""
    d_outputs: ClassVar[tuple[int, ...]] = (0,)
    refusals: ClassVar[tuple[Refusal, ...]] = ()
    refuses_nothing: ClassVar[str] = ""
    left_out: ClassVar[Mapping[str, str]] = {}
    rtol: ClassVar[float] = 1e-5
    atol: ClassVar[float] = 1e-6
    gradient_rtol: ClassVar[float] = 1e-4
    gradient_atol: ClassVar[float] = 1e-6

    def __init_subclass__(cls, **more: Any) -> None:
        """Leave out the tests that would have nothing to check, so that they are not collected."""
        super().__init_subclass__(**more)
        useful = {
            "test_forward": True,
            "test_gradient": not cls.no_gradient,
            "test_inplace": not hasattr(cls, "operator") or bool(cls.operator.inplace),
        }
        for test, has_use in useful.items():
            _collect(cls, test, has_use and test not in cls.left_out)

    def draw(self, data: Any) -> tuple[Operator, list[Any]]:
        """Return an operator and its inputs."""
        raise NotImplementedError(f"{type(self).__name__}: draw returns an operator and its inputs")

    def reference(self, op: Any, *inputs: Any) -> list[Any]:
        """Return the outputs, computed independently; floating inputs are float64."""
        raise NotImplementedError(f"{type(self).__name__}: reference returns the outputs")

    def draw_gradient(self, data: Any) -> tuple[Operator, list[Any]]:
        """Return an operator and inputs for the gradient check; by default as for the forward one."""
        return self.draw(data)

    @pytest.mark.parametrize("device", DEVICES)
    @QUICK
    @given(data=st.data())
    def test_forward(self, device: str, data: Any) -> None:
        op, inputs = self.draw(data)
        exact = [x.astype(np.float64) if np.asarray(x).dtype.kind == "f" else x for x in inputs]
        expected = self.reference(op, *exact)
        check_forward(op, inputs, expected, device, rtol=self.rtol, atol=self.atol)

    @pytest.mark.parametrize("device", DEVICES)
    @settings(QUICK, max_examples=max(EXAMPLES // 2, 2))
    @given(data=st.data())
    def test_gradient(self, device: str, data: Any) -> None:
        op, inputs = self.draw_gradient(data)
        check_gradient(
            op,
            inputs,
            device,
            wrt=[i for i in self.wrt if i < len(inputs)],
            outputs=self.d_outputs,
            rtol=self.gradient_rtol,
            atol=self.gradient_atol,
        )

    @pytest.mark.parametrize("device", DEVICES)
    @settings(QUICK, max_examples=max(EXAMPLES // 4, 2))
    @given(data=st.data())
    def test_inplace(self, device: str, data: Any) -> None:
        op, inputs = self.draw(data)
        pairs = self.operator.inplace
        if pairs == "one-to-one":
            pairs = tuple((i, i) for i in range(min(len(inputs), op.n_out)))
        for pair in pairs:
            if pair[0] < len(inputs) and pair[1] < max(op.n_out, 1):
                check_inplace(op, inputs, pair, device)

    def test_refusals(self) -> None:
        assert self.refusals or self.refuses_nothing, "name bad input, or why there is none"
        for bad in self.refusals:
            n_out = bad.n_out if bad.n_out is not None else bad.op.n_out
            xs, ys = [f"x{i}" for i in range(len(bad.inputs))], [f"y{j}" for j in range(n_out)]
            for i, j in type(bad.op).must_inplace:
                if i < len(xs) and j < len(ys):
                    ys[j] = xs[i]
            with pytest.raises(bad.error, match=bad.match):
                decode(type(bad.op), encode(bad.op, xs, ys)).infer(*bad.inputs)


def _collect(suite: type[OperatorSuite], test: str, useful: bool) -> None:
    if not useful:
        setattr(suite, test, None)
    elif getattr(suite, test) is None:  # its base has no use for it
        setattr(suite, test, getattr(OperatorSuite, test))
