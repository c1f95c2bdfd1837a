"""What a plan is made of: versioned values, and the steps that compute them."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

from netbuilder.engines.layouts import HOST, Location, convert
from netbuilder.ops.core.contexts import Demand, Prepared
from netbuilder.ops.core.instructions import Instruction, Role
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.values.blob import Blob, ConstantCopy, EdgeContext

__all__ = ["Node", "Step", "StepKind", "Value"]


@dataclass(slots=True, eq=False, repr=False)
class Value:
    """One version of a name's value: written once, by one step, or external, that is, there when the plan starts.

    Args:
        name: the blob's name.
        version: 0 for the external value, or for the first value that the plan makes.
        spec: shape and dtype; with the layout once the producer is prepared.
        blob: the blob of an external value.
        location: where its buffer is.
        buffer: assigned when all steps are known.
        producer: the step that makes it; None for an external value.
        shares: the value whose buffer this one overwrites (in place), if any.
        readers: how many operators read it.
        copies: the same value at other locations or in other layouts, by (layout, location).
        published: what the producing kernel keeps for the kernels that read the value.
        lazy: for a deferred value, which no kernel writes: computes it in plain order from the buffers of others.
        lazy_from: for a deferred value: the version of the same name that keeps the buffer.
        lazy_reads: the values that ``lazy`` reads.
        guarded: whether a deferred value is computed before a value that it reads is overwritten.
        demand: when the value is needed.
        read_by: the types of the operators that read it; None: not known.
        ends_early: whether it is needed in the run, and later when it is fetched, where it can be computed again;
            without ``cheap_recomputation``, only if no operator of the backward pass reads it.
        persists: whether its blob keeps it until a feed or another run overwrites it.
        intermediate: written by a kernel in a layout that the next step converts to plain order; it is not a version
            of the name.
        constant: the blob of a parameter that does not change from run to run, if this is its value or a copy of it.
        copy: for a copy of such a parameter: what holds its buffer, for all plans that read the same copy.
    """

    name: str
    version: int
    spec: TensorSpec | None = None
    blob: Blob | None = None
    location: Location = HOST
    buffer: Any = None
    producer: Step | None = None
    shares: Value | None = None
    readers: int = 0
    copies: dict[tuple[Any, Location], Value] = field(default_factory=dict)
    published: dict[str, Any] = field(default_factory=dict)
    lazy: Callable[[], Any] | None = None
    lazy_from: Value | None = None
    lazy_reads: tuple[Value, ...] = ()
    guarded: bool = False
    demand: Demand = "run"
    read_by: set[str] | None = None
    ends_early: bool = False
    persists: bool = False
    intermediate: bool = False
    constant: Blob | None = None
    copy: ConstantCopy | None = None

    def __repr__(self) -> str:  # values, steps and nodes refer to each other
        return f"<value {self.name!r}, version {self.version}>"

    def plain(self) -> Any:
        """Return the value in plain order: its buffer, or a converted copy."""
        assert self.spec is not None
        if self.spec.layout is None:
            return self.buffer
        return convert(self.buffer, self.spec, self.spec.plain, EdgeContext(), location=self.location)


Maker = Callable[..., Prepared | None]


class StepKind(enum.Enum):
    """What a step of a plan is: an operator's kernel, or a step that the plan inserted."""

    COMPUTE = "compute"
    REST = "rest"  #: what kernels before it have left to it (see ``Rest``)
    REORDER = "reorder"  #: into the layout that a kernel reads
    TRANSFER = "transfer"  #: to another device, or between a device and the host
    RESTORE = "restore"  #: back into the layout in which the blob's other readers expect the value
    RECOMPUTE = "recompute"  #: a kernel a second time, since its output was not kept (see ``recompute``)
    WAIT = "wait"  #: for the work that a split kernel has begun


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """An operator, or several fused into one, over values.

    Args:
        parts: the operators; messages name the first.
        inputs, outputs: the values.
        fused: makes the prepared kernel of a fused node.
        originals: the nodes to use instead of a fused node if no kernel can be made for it.
        locations: where the kernel reads each input; None: as the first operator says.
    """

    parts: list[Instruction]
    inputs: list[Value]
    outputs: list[Value]
    fused: Maker | None = None
    originals: list[Node] = field(default_factory=list)
    locations: Sequence[Location] | None = None

    def __repr__(self) -> str:
        return f"<node of {', '.join(part.op_def.type for part in self.parts)}: {self.inputs} -> {self.outputs}>"

    def input_location(self, index: int) -> Location:
        """Return where the kernel reads an input."""
        if self.locations is not None:
            return self.locations[index]
        own = self.first.location
        place = "here" if own == HOST else self.first.op.input_location(index)
        return own if place == "here" else HOST if place == "host" else self.inputs[index].location

    @property
    def first(self) -> Instruction:
        return self.parts[0]

    @property
    def role(self) -> Role:
        """EXCHANGE if that is the role of all operators of the node."""
        return Role.EXCHANGE if all(part.role is Role.EXCHANGE for part in self.parts) else Role.COMPUTE


@dataclass(slots=True, eq=False, repr=False)
class Step:
    """A prepared kernel over values: an operator of the net, or a copy that the plan inserted.

    A waiting step (``StepKind.WAIT``) has the values of the step that begins its kernel, which is in ``waits_for``.
    ``at`` is where it works, for a step that repeats a copy; None: as ``location`` says.
    """

    node: Node
    prepared: Prepared
    inputs: list[Value | None]
    outputs: list[Value | None]
    lane: int
    kind: StepKind = StepKind.COMPUTE
    waits_for: Step | None = None
    at: Location | None = None

    def __repr__(self) -> str:
        return f"<step {self.what!r}: {self.inputs} -> {self.outputs}>"

    @property
    def location(self) -> Location:
        """Where its kernel works, and has its scratch memory: a copy is made where it is stored."""
        if self.at is not None:
            return self.at
        made = self.outputs[0] if self.moves else None
        return made.location if made is not None else self.node.first.location

    @property
    def moves(self) -> bool:
        """Whether the step is a copy that the plan inserted: to another layout or location, or back."""
        return self.kind in (StepKind.REORDER, StepKind.TRANSFER, StepKind.RESTORE)

    @property
    def what(self) -> str:
        """What the step does, for messages and profiles: the kernel's name, or the kind of step."""
        return self.prepared.name if self.kind is StepKind.COMPUTE else self.kind.value

    @property
    def reads_rounded(self) -> bool:
        """Whether some input of its kernel is stored rounded, to bfloat16."""
        return any(value is not None and value.spec is not None and value.spec.rounds for value in self.inputs)
