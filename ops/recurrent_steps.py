"""A step net: its operators decoded, what they read and write, and calls of them over given arrays."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import length_hint
from typing import Any

import numpy as np

from netbuilder.ops.contexts import Prepared, RunContext
from netbuilder.ops.operator import STRING, Operator, TensorSpec, decode
from netbuilder.ops.recurrent_versions import one_shape_a_name
from netbuilder.ops.registry import find
from netbuilder.proto import NetDef, NetError, OperatorDef, OperatorError, ShapeError

__all__ = ["Arena", "Calls", "Slot", "StepNet", "StepOperator", "bind_operator", "placed"]

Array = Any
Call = Callable[[], object]

_ALIGNMENT = 64


@dataclass(frozen=True, eq=False)
class StepOperator:
    """One operator of a step net."""

    net: str
    index: int
    op_def: OperatorDef
    op: Operator
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def what(self) -> str:
        return f"step net {self.net!r}, operator {self.index}: {self.op_def.type} {list(self.inputs)}"

    def depends_on_data(self, specs: dict[str, TensorSpec]) -> bool:
        """Whether the shapes of the outputs are known only when the step runs."""
        return not self.op.static_for(*(specs[name] for name in self.inputs))

    def require_arrays_alone(self) -> None:
        """Raise ShapeError if the operator cannot be run on the step's arrays alone."""
        if self.op.dynamic and self.op.stateful:
            raise ShapeError(
                f"{self.what}: it runs Python, holds nets or keeps something between runs, so it cannot stand in a "
                "step net; put it outside, or unroll the net"
            )

    def infer(self, specs: dict[str, TensorSpec], linked: Container[str] = ()) -> None:
        """Add the specs of the outputs to ``specs``.

        Args:
            specs: of the blobs so far; those of what is linked are there.
            linked: blobs that have their shapes from elsewhere, also where these depend on data.

        Raises:
            ShapeError: the inputs do not fit, or the shapes depend on data.
        """
        given = [specs[name] for name in self.inputs]
        if not self.op.static_for(*given):
            if all(name in linked for name in self.outputs):
                return
            raise ShapeError(
                f"{self.what}: its shapes depend on data, or it runs Python, so it cannot stand in a step net that has "
                "a gradient, unless states are all that it makes; put it outside, or unroll the net"
            )
        try:
            made = self.op.infer(*given)
        except (ShapeError, NotImplementedError) as error:
            raise ShapeError(f"{self.what}: {error}") from error
        if any(spec.dtype == STRING for spec in made):
            raise ShapeError(f"{self.what}: makes strings, which step nets cannot hold")
        specs.update(zip(self.outputs, (spec.plain for spec in made)))


class StepNet:
    """The operators of a step net, in order.

    Args:
        net: the net.

    Raises:
        NetError: an operator is unknown or wrong.
    """

    def __init__(self, net: NetDef) -> None:
        self.name = net.name
        self.ops = []
        for index, op_def in enumerate(one_shape_a_name(net.op)):
            try:
                op = decode(find(op_def.type), op_def)
            except NetError as error:
                raise type(error)(f"step net {net.name!r}, operator {index}: {error}") from error
            self.ops.append(StepOperator(net.name, index, op_def, op, tuple(op_def.input), tuple(op_def.output)))

    @cached_property
    def read(self) -> dict[str, StepOperator]:
        """The blobs that are read before the net writes them, each with the first operator that reads it."""
        read: dict[str, StepOperator] = {}
        written: set[str] = set()
        for step in self.ops:
            for name in step.inputs:
                if name not in written:
                    read.setdefault(name, step)
            written.update(step.outputs)
        return read

    @cached_property
    def written(self) -> frozenset[str]:
        return frozenset(name for step in self.ops for name in step.outputs)

    def writes(self, name: str) -> int:
        """How many operators write a blob."""
        return sum(name in step.outputs for step in self.ops)

    def invariant(self, fixed: Iterable[str], varying: Iterable[str]) -> list[StepOperator]:
        """Return the operators that compute the same in all steps, given what is fixed.

        Args:
            fixed: blobs that are the same in all steps.
            varying: blobs that operators may not write if they are to be run once.
        """
        same, never = set(fixed), set(varying)
        found = []
        for step in self.ops:
            alone = all(
                self.writes(name) == 1 and name not in never and name not in step.inputs for name in step.outputs
            )
            if alone and not step.op.stateful and same.issuperset(step.inputs):
                found.append(step)
                same.update(step.outputs)
        return found


@dataclass(frozen=True)
class Slot:
    """A place in an arena."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def of(self, memory: Array) -> Array:
        """Return the array that lies there, a view of ``memory``, which is of bytes."""
        count = self.dtype.itemsize
        for extent in self.shape:
            count *= extent
        return memory[self.offset : self.offset + count].view(self.dtype).reshape(self.shape)


class Arena:
    """Lays arrays out in one piece of memory, each from a multiple of 64 bytes on."""

    def __init__(self) -> None:
        self.nbytes = 0

    def add(self, shape: Sequence[int], dtype: Any) -> Slot:
        """Return the place of a further array."""
        slot = Slot(self.nbytes, tuple(shape), np.dtype(dtype))
        size = slot.dtype.itemsize
        for extent in slot.shape:
            size *= extent
        self.nbytes += -(-size // _ALIGNMENT) * _ALIGNMENT
        return slot


def bind_operator(
    step: StepOperator,
    run: RunContext,
    ins: Sequence[Array],
    outs: Sequence[Array],
    prepared: Prepared | None,
    kernel: Callable[..., Any] | None,
    scratch: Array | None,
) -> Call:
    """Return a call of an operator over given arrays.

    Args:
        step: the operator.
        run: what its plain kernel is given.
        ins, outs: the arrays that it reads and writes.
        prepared: the kernel that serves; None: the plain one.
        kernel: the plain one.
        scratch: for ``prepared``.
    """
    if prepared is not None:
        given = [None if spec is None else array for spec, array in zip(prepared.inputs, ins)]
        made = [None if spec is None else array for spec, array in zip(prepared.outputs, outs)]
        return prepared.bind(given, made, scratch)
    if kernel is None:
        raise NetError(f"{step.what}: no kernel serves it")
    serve = kernel

    def call() -> None:
        given = placed(step, run, ins)
        results = serve(step.op, run, *given)
        if len(results) < len(outs):
            raise OperatorError(f"its kernel returned {len(results)} results for {len(outs)} outputs")
        if len(outs) > 1:  # a result may be a view of an input that an earlier copy overwrites
            results = [result.copy() if result is not out else out for result, out in zip(results, outs)]
        for out, result in zip(outs, results):
            if result is not out:
                out[...] = result if result.shape == out.shape else _as_state(result, out)

    return call


def _as_state(result: Array, out: Array) -> Array:
    """Return a result with the shape of the state that it is; axes of extent 1 make no difference.

    Raises:
        OperatorError: it has another shape, which is seen only when the operator has run.
    """
    if [n for n in result.shape if n != 1] != [n for n in out.shape if n != 1]:
        raise OperatorError(f"its result {tuple(result.shape)} must have the shape of its state, {tuple(out.shape)}")
    return result.reshape(out.shape)


def placed(step: StepOperator, run: RunContext, ins: Sequence[Array]) -> Sequence[Array]:
    """Return the inputs of an operator where its plain kernel wants them; the numbers of the steps lie on the host."""
    if not run.is_gpu:
        return ins
    return [_at(run, array, step.op.input_place(i)) for i, array in enumerate(ins)]


def _at(run: RunContext, array: Array, place: str) -> Array:
    if place == "host":
        return run.host(array)
    return run.xp.asarray(array) if place == "here" and isinstance(array, np.ndarray) else array


class Calls:
    """Bound calls in order, which say what failed."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._what: list[tuple[StepOperator, int] | None] = []

    def add(self, call: Call, step: StepOperator | None = None, time: int = -1) -> None:
        """Append a call; of an operator of a step net, if ``step`` is given, in step ``time``."""
        self._calls.append(call)
        self._what.append(None if step is None else (step, time))

    def run(self) -> None:
        """Run all calls.

        Raises:
            OperatorError: one failed; the message says which operator in which step.
        """
        calls = iter(self._calls)
        try:
            for call in calls:
                call()
        except Exception as error:
            what = self._what[len(self._calls) - length_hint(calls) - 1]
            if what is None:
                raise
            step, time = what
            when = f" in step {time}" if time >= 0 else ""
            raise OperatorError(f"{step.what}{when}: {error}") from error
