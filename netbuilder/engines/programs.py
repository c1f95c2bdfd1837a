"""Programs: what an elementwise kernel computes for each element, as expressions of its inputs.

``netbuilder.engines.tracing`` makes them of plain kernels; engines make machine code and CUDA code of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from netbuilder.engines.random import first_counter
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "Constant",
    "Expression",
    "HostNumber",
    "Load",
    "NotTraced",
    "Program",
    "Stacked",
    "Step",
    "Sum",
    "Uniform",
    "View",
    "numpy_function",
]


class NotTraced(Exception):
    """A kernel does something that a program of elementwise functions cannot do."""


@dataclass(frozen=True)
class Load:
    """An element of an input (its number), or of a ``Sum``, broadcast from ``shape`` to the shape of the outputs.

    Of an input with ``stride`` values for each element, it is value ``offset``.
    """

    input: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int = 0
    stride: int = 1


@dataclass(frozen=True, eq=False)
class Sum:
    """The sums of a value of a shape over some of its axes, which are computed before what reads them.

    With another ``function`` than add, they are its maxima or minima.
    """

    value: Expression
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    dtype: np.dtype[Any]
    function: str = "add"


@dataclass(frozen=True)
class Constant:
    """A number; the type of a Python number is None, as it does not widen what it is combined with."""

    value: Any
    dtype: np.dtype[Any] | None


@dataclass(frozen=True, eq=False)
class HostNumber:
    """A number that each call computes on the host, from an integer in an array of one element.

    It is an int64 if ``dtype`` says so, else a float64 that, like Python's, does not widen what it is combined with.
    """

    function: Callable[[int], float]
    input: int
    dtype: np.dtype[Any] | None = None

    @property
    def stored(self) -> np.dtype[Any]:
        """The type of the number in the kernel's memory, which has 64 bits."""
        return np.dtype(np.float64) if self.dtype is None else self.dtype

    def value(self, inputs: Sequence[Any]) -> Any:
        """Return the number for the present elements of the kernel's inputs."""
        return self.stored.type(self.function(int(inputs[self.input].item())))

    def same_as(self, other: Any) -> bool:
        """Whether another one is the same in each call: the same method of equal operators."""
        if not isinstance(other, HostNumber):
            return False
        mine, its = (getattr(number.function, "__func__", number.function) for number in (self, other))
        owners = [repr(getattr(number.function, "__self__", None)) for number in (self, other)]
        return (self.input, self.dtype) == (other.input, other.dtype) and mine is its and owners[0] == owners[1]


@dataclass(eq=False)
class Uniform:
    """Random numbers in [0, 1): element i of the outputs gets element ``start`` + i of the stream of the run.

    With ``moved`` (a, n, b), the numbers are drawn in the shape (n, a, b), and the outputs have the shape (a, n, b).
    """

    run: Any
    start: int
    shape: tuple[int, ...]
    moved: tuple[int, int, int] | None = None
    input: None = None
    dtype: np.dtype[Any] = np.dtype(np.float64)

    def value(self, inputs: Sequence[Any]) -> Any:
        """Return the hash's counter of element 0 in this run."""
        return np.uint64(first_counter(self.run.position(())[0], self.start))

    def same_as(self, other: Any) -> bool:
        return self is other


@dataclass(frozen=True, eq=False)
class Step:
    """A function of values: ``function`` in the type ``compute``, its result rounded to ``dtype``."""

    function: str
    operands: tuple[Any, ...]
    compute: np.dtype[Any]
    dtype: np.dtype[Any]


@dataclass(frozen=True, eq=False)
class Stacked:
    """Several values for each element, next to each other; only outputs have such values."""

    values: tuple[Expression, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True, eq=False)
class View:
    """A value of a shape, in another shape in which it cannot be expressed; only outputs are such values."""

    value: Expression
    shape: tuple[int, ...]

    @property
    def dtype(self) -> Any:
        return self.value.dtype


Expression = Load | Constant | HostNumber | Uniform | Step | Stacked | View


@dataclass(frozen=True, eq=False)
class Program:
    """What a kernel computes for each element.

    Args:
        shape: of all outputs.
        outputs: the expression of each output.
        dtypes: the element types of the outputs.
        numbers: what each call computes on the host.
    """

    shape: tuple[int, ...]
    outputs: tuple[Expression, ...]
    dtypes: tuple[np.dtype[Any], ...]
    numbers: tuple[HostNumber | Uniform, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def values_of(self, output: int) -> int:
        """Return how many values an output has for each element."""
        expression = self.outputs[output]
        return len(expression.values) if isinstance(expression, Stacked) else 1

    def steps(self) -> Sequence[Step]:
        """Return the steps, each after those whose results it reads."""
        return self._steps

    @cached_property
    def _steps(self) -> Sequence[Step]:
        found: dict[int, Step] = {}
        left: list[Expression] = [*reversed(self.outputs)]
        while left:
            value = left[-1]
            parts = value.values if isinstance(value, Stacked) else value.operands if isinstance(value, Step) else ()
            unseen = [part for part in parts if isinstance(part, Step) and id(part) not in found]
            if unseen:
                left += reversed(unseen)
                continue
            if isinstance(value, Step):
                found.setdefault(id(value), value)
            left.pop()
        return list(found.values())

    def with_loads(self, shape: tuple[int, ...], loads: Mapping[Load, Expression]) -> Program:
        """Return the program for outputs of another shape, with other values in place of its loads."""
        found: dict[int, Step] = {}

        def new(value: Any) -> Any:
            return found[id(value)] if isinstance(value, Step) else loads[value] if isinstance(value, Load) else value

        for step in self.steps():
            found[id(step)] = replace(step, operands=tuple(map(new, step.operands)))
        return replace(self, shape=shape, outputs=tuple(map(new, self.outputs)))

    @cached_property
    def _loads(self) -> dict[Load, None]:
        values = [*self.outputs, *(operand for step in self.steps() for operand in step.operands)]
        values += [part for output in self.outputs if isinstance(output, Stacked) for part in output.values]
        return {load: None for load in values if isinstance(load, Load)}

    def loads(self) -> list[Load]:
        """Return the distinct loads of inputs, by input."""
        found = [load for load in self._loads if not isinstance(load.input, Sum)]
        return sorted(found, key=lambda load: (load.input, load.shape, load.offset))

    def sums(self) -> list[Sum]:
        """Return the distinct sums that it reads."""
        return [*dict.fromkeys(load.input for load in self._loads if isinstance(load.input, Sum))]


def numpy_function(name: str) -> Callable[..., Any]:
    """Return the function of arrays that a step of a program names: NumPy's, or one that NumPy has not."""
    own = {"erf": math.erf, "erfc": math.erfc}.get(name)
    if own is None:
        found: Callable[..., Any] = getattr(np, name)
        return found
    return lambda x: np.vectorize(own, otypes=[np.asarray(x).dtype])(x)
