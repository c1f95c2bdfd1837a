"""Rules by which a plan's kernels do the work of several operators.

Fusion: one kernel replaces neighboring operators.

A rule says the operators, with names for the values that they read and write; a value that one of them writes and
another reads is an edge. It says what the kernel reads and writes, in the same names, and what else must be true.
``netbuilder.runtime.plan.fusion`` finds where rules apply.

Unstored: no kernel writes a value that all kernels which read it can compute, or some of these do so although it is
written (``netbuilder.runtime.plan.unstored``).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Any

from netbuilder.ops.core.contexts import Prepared
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["GRADIENT_OF_ACTIVATION", "Condition", "Fusion", "Make", "Part", "Unstored"]


class Condition(enum.Enum):
    """What must be true of a value of a rule, or may be."""

    OVERWRITTEN = "the kernel overwrites it, so only these operators may need it from there on"
    READ_LAST = "no operator after the first one reads it"
    CONSTANT = "it is declared constant, or the same in all steps of a recurrent net"
    OF_ACTIVATION = (
        "it is the mean of a normalization, and the first operator the gradient of the activation that follows it"
    )
    WHEN_FETCHED = (
        "the kernel does not write it, but it may be observable if it overwrites an input of its operator, which a "
        "fetch then runs"
    )


GRADIENT_OF_ACTIVATION: Mapping[str, Condition] = MappingProxyType(
    {"dy": Condition.READ_LAST, "mean": Condition.OF_ACTIVATION, "g": Condition.WHEN_FETCHED}
)
"""The conditions of ``ReluGradient: y dy -> g`` with the gradient of the normalization before the Relu."""


@dataclass(frozen=True)
class Part:
    """An operator of a rule.

    Args:
        types: of the operator, or of those that an earlier fusion has joined.
        inputs, outputs: names of its values; "*name", the last one, stands for all the others.
        either_order: its two inputs may be exchanged; the first is the one that is made later.
    """

    types: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    either_order: bool = False

    @staticmethod
    def parse(text: str) -> Part:
        types, _, values = text.partition(":")
        inputs, _, outputs = values.partition("->")
        either = inputs.strip().startswith("{")
        return Part(tuple(types.strip().split("+")), tuple(inputs.strip(" {}").split()), tuple(outputs.split()), either)


@dataclass(frozen=True, eq=False)
class Fusion:
    """A kernel that does the work of neighboring operators.

    Args:
        operators: separated by semicolons, in order, each as ``Type: inputs -> outputs``, where a name stands for a
            value and ``*name`` for all further ones: ``"Conv: *x -> a; Relu: a -> y"``. Each but the last makes a value
            that a later one reads. ``Conv+Sum`` are operators that another rule has joined; ``{a b}`` are inputs in
            either order, of which ``a`` is made later.
        kernel: what the kernel reads and writes: ``"*x -> y"``. Values that it does not write are read by no other
            operator, and cannot be fetched.
        make: ``make(op, *further, ctx, *specs) -> Prepared | None``; is given the main operator, further ones, and the
            specs of the kernel's inputs; returns None if it does not apply.
        optimization: the name that switches it off, of ``netbuilder.runtime.plan.optimizations``: one of its own only
            if something is to switch it off alone.
        main: the index of the operator that makes the kernel: the first, or the last.
        place: the index of the operator at whose place in the net the kernel runs. Operators after it may move there
            if they write first versions of names, or overwrite values that nobody else needs.
        conditions: what else must be true, by the name of a value.
        further: the indices of the further operators that ``make`` is given; joined ones count one by one.
        of_joined: the rule is tried after those without, for operators as they are then, joined or not.

    Raises:
        ValueError: a value that an operator writes is neither an edge nor written by the kernel, or the kernel has a
            value that no operator has.
    """

    operators: str
    kernel: str
    make: Callable[..., Prepared | None]
    optimization: str = "engine_fusions"
    main: int = 0
    place: int = 0
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    further: tuple[int, ...] = ()
    of_joined: bool = False
    parts: tuple[Part, ...] = field(init=False, repr=False)
    inputs: tuple[str, ...] = field(init=False, repr=False)
    outputs: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        parts = tuple(map(Part.parse, self.operators.split(";")))
        inputs, _, outputs = self.kernel.partition("->")
        for name, value in (("parts", parts), ("inputs", tuple(inputs.split())), ("outputs", tuple(outputs.split()))):
            object.__setattr__(self, name, value)
        read = {name for part in parts[1:] for name in part.inputs}
        known = {name for part in parts for name in (*part.inputs, *part.outputs)}
        for name in (*self.inputs, *self.outputs, *self.conditions):
            if name not in known:
                raise ValueError(f"fusion {self.operators!r}: no operator has the value {name!r} of its kernel")
        for part in parts:
            for name in part.outputs:
                if name not in self.outputs and name not in read:
                    raise ValueError(
                        f"fusion {self.operators!r}: {'+'.join(part.types)} writes {name!r}, which must be written by "
                        "the kernel, or read by a later operator"
                    )
            if part is not parts[-1] and read.isdisjoint(part.outputs):
                raise ValueError(f"fusion {self.operators!r}: no later operator reads what {part.types[0]} writes")

    @property
    def types(self) -> tuple[str, ...]:
        """The types of all operators, in order."""
        return tuple(name for part in self.parts for name in part.types)


Make = Callable[..., Prepared | None]


@dataclass(frozen=True, eq=False)
class Unstored:
    """A value that no kernel writes, because all that read it compute it from other values.

    Where it is written all the same, for other readers, those of ``repeating`` may compute it: to the bit as it is
    written then, by a kernel of ``makers``.

    Operators are written as those of a ``Fusion``: that which makes the value is bound together with each that reads
    it, so that equal names are equal values.

    Their kernels are made by ``make(operators, ctx, *specs, computes=, stored=) -> Prepared | None``. ``computes``
    are the operators that make a value which these read, or None: with it the inputs are followed by the sources, and
    the value is not read. Without ``stored``, the value that the operators make is not written. Whether there is a
    kernel may depend on the layouts of the sources, not on those of other inputs, which may not be known yet.

    Args:
        value: its name.
        sources: the names of what it is computed from.
        makers: how the kernel of operators that make it is made.
        readers: how the kernel of operators that read it is made.
        repeating: how that of operators is made which compute it to the bit.
        faster: ``faster(ctx, key, first, second)``: whether the second one of two sequences of kernels is faster.
    """

    value: str
    sources: str
    makers: Mapping[str, Make]
    readers: Mapping[str, Make]
    faster: Callable[[Any, str, Sequence[Prepared], Sequence[Prepared]], bool]
    repeating: Mapping[str, Make] = field(default_factory=dict)
