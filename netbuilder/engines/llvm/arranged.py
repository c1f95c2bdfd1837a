"""Programs over values in the layouts of other engines, computed in the order in which memory has the elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from netbuilder.engines.llvm.code import FROM_BFLOAT16, TO_BFLOAT16
from netbuilder.engines.programs import Constant, Expression, Load, Program, Step, Uniform
from netbuilder.engines.traced import keeps_zeros
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Arranged", "arranged", "merged"]

_FLOAT, _BITS = np.dtype(np.float32), np.dtype(np.uint16)
_Loops = Sequence[tuple[int, int]]
"""(axis, extent) of loops over a value in memory, slowest first."""


@dataclass(frozen=True, eq=False)
class Arranged:
    """A program whose axes are the loops over its outputs in memory.

    Args:
        program: the program.
        expected, written: the specs of its inputs and outputs.
        longer: inputs that are read from copies with zeros at the end of axes, with the extents of the inputs and of
            the copies.
        mask: the program's last input, which says what is no padding; None: it has none.
    """

    program: Program
    expected: Sequence[TensorSpec]
    written: Sequence[TensorSpec]
    longer: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    mask: Any = None

    @property
    def scratch(self) -> int:
        """Bytes of memory for the copies."""
        return sum(_bytes(self.expected[i], extents) for i, (_, extents) in self.longer.items())

    def buffers(self, inputs: Sequence[Any], scratch: Any) -> tuple[list[Any], Callable[[], None] | None]:
        """Return what the program is to read, and the call that first makes the copies, if there are any."""
        found, at, pairs = [*inputs], 0, []
        for i, (given, extents) in self.longer.items():
            spec, end = self.expected[i], at + _bytes(self.expected[i], extents)
            copy = scratch[at : at + math.prod(extents) * spec.dtype.itemsize].view(spec.dtype).reshape(extents)
            pairs.append((copy, copy[tuple(map(slice, given))], inputs[i].reshape(given)))
            found[i], at = copy, end

        def fill() -> None:
            for whole, part, given in pairs:
                whole.fill(0)
                part[...] = given

        return [*found, *([] if self.mask is None else [self.mask])], fill if pairs else None


def _bytes(spec: TensorSpec, extents: Sequence[int]) -> int:
    return -(-math.prod(extents) * spec.dtype.itemsize // 64) * 64


def arranged(program: Program, specs: Sequence[TensorSpec], outs: Sequence[TensorSpec]) -> Arranged:
    """Return a program in the layout of the first input of the outputs' shape that has one; else, as it is.

    Values are stored as bfloat16 if all of that shape are.

    Args:
        program: over plain values.
        specs: of the inputs, in their layouts.
        outs: plain specs of the outputs.
    """
    loads = program.loads()
    whole = {load.input for load in loads if load.shape == program.shape == specs[load.input].shape}
    found = [specs[i] for i in sorted(whole) if specs[i].layout is not None]
    if not all(specs[i].rounds for i in whole):
        found = [spec for spec in found if not spec.rounds]
    random = any(isinstance(number, Uniform) for number in program.numbers)
    alike = {(specs[i].shape, specs[i].dtype) for i in whole} | {(out.shape, out.dtype) for out in outs}
    loops = found[0].layout.loops(program.shape) if found and not random and len(alike) == 1 else None
    once = len({load.input for load in loads}) == len(loads)
    if loops is None or not once or any(out.dtype != _FLOAT for out in outs):
        return Arranged(program, [spec.plain for spec in specs], outs)
    expected, longer = [spec.plain for spec in specs], dict[int, Any]()
    in_memory: dict[Load, Expression] = {}
    for load in loads:
        own = _own(load, program)
        if load.input in whole:
            own = {*range(len(program.shape))}
            expected[load.input] = found[0]
        elif own and not _serve_as_stored(load, specs[load.input], program, loops, expected):
            extents = _longer(load, program, loops)
            if extents is None:
                return Arranged(program, [spec.plain for spec in specs], outs)
            longer[load.input] = load.shape, extents
        stored = replace(load, shape=tuple(n if axis in own else 1 for axis, n in loops) if own else ())
        in_memory[load] = stored
        if load.input in whole and found[0].rounds:
            in_memory[load] = Step(FROM_BFLOAT16, (replace(stored, dtype=_BITS),), _FLOAT, _FLOAT)
    made = program.with_loads(tuple(n for _, n in loops), in_memory)
    mask = _mask(made, program, loops)
    if mask is not None:
        made = _masked(made, Load(len(specs), mask.shape, mask.dtype))
    if found[0].rounds:
        rounded = tuple(Step(TO_BFLOAT16, (output,), _FLOAT, _BITS) for output in made.outputs)
        made = replace(made, outputs=rounded, dtypes=(_BITS,) * len(outs))
    return Arranged(made, expected, [found[0]] * len(outs), longer, mask)


def _own(load: Load, program: Program) -> set[int]:
    """Return the axes of the outputs along which a load is not broadcast."""
    start = len(program.shape) - len(load.shape)
    return {start + a for a, extent in enumerate(load.shape) if extent != 1}


def merged(loops: _Loops) -> list[tuple[int, int]]:
    """Return loops without those of extent 1, neighbors over one axis as one."""
    found: list[tuple[int, int]] = []
    for axis, extent in loops:
        if extent != 1 and found and found[-1][0] == axis:
            found[-1] = (axis, found[-1][1] * extent)
        elif extent != 1:
            found.append((axis, extent))
    return found


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return extents from the first that is not 1 on."""
    return shape[next((a for a, extent in enumerate(shape) if extent != 1), len(shape)) :]


def _serve_as_stored(load: Load, spec: TensorSpec, program: Program, loops: _Loops, expected: list[TensorSpec]) -> bool:
    """Whether an input that is broadcast can be read as it is, or in plain order; if so, ``expected`` gets its spec."""
    own, start = _own(load, program), len(program.shape) - len(load.shape)
    wanted = merged([(axis, n) for axis, n in loops if axis in own])
    if spec.layout is not None and not spec.rounds and _without_ones(spec.shape) == _without_ones(load.shape):
        stored, first = spec.layout.loops(spec.shape), len(program.shape) - spec.ndim
        if stored is not None and merged([(first + axis, n) for axis, n in stored]) == wanted:
            expected[load.input] = spec
            return True
    return merged([(start + axis, n) for axis, n in enumerate(load.shape)]) == wanted


def _longer(load: Load, program: Program, loops: _Loops) -> tuple[int, ...] | None:
    """Return the extents of a copy, with axes as long as in memory; None if the elements come in another order."""
    start, own = len(program.shape) - len(load.shape), _own(load, program)
    wanted = merged([(axis, n) for axis, n in loops if axis in own])
    axes = [axis for axis, _ in wanted]
    if axes != sorted(set(axes)):
        return None
    extents = dict(wanted)
    return tuple(extents.get(start + a, 1) for a in range(len(load.shape)))


def _mask(made: Program, program: Program, loops: _Loops) -> Any:
    """Return an array over memory, broadcast, that is False in padding; None where there is none or it stays zero."""
    shape = program.shape
    stored = {axis: math.prod(n for other, n in loops if other == axis) for axis, _ in loops}
    padded = [axis for axis, extent in stored.items() if extent != shape[axis]]
    along = [k for k, (axis, n) in enumerate(loops) if axis in padded and n != 1]
    if not padded or (
        all(load.shape and all(load.shape[k] != 1 for k in along) for load in made.loads()) and keeps_zeros(program)
    ):
        return None
    mask = np.ones([1] * len(loops), bool)
    for axis in padded:
        extents = [n if other == axis else 1 for other, n in loops]
        mask = mask & (np.arange(stored[axis]) < shape[axis]).reshape(extents)
    return mask


def _masked(program: Program, mask: Load) -> Program:
    """Return a program whose outputs are zero where the mask is False."""
    zero = Constant(0.0, _FLOAT)
    outputs = [
        Step("where", (mask, output, zero), dtype, dtype) for output, dtype in zip(program.outputs, program.dtypes)
    ]
    return replace(program, outputs=tuple(outputs))
