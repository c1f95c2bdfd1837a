"""What a plan is made of: versioned values, and the steps that compute them."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from netbuilder.ops.core.contexts import Demand, Prepared
from netbuilder.ops.core.instructions import Instruction, Role
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.layouts import HOST, Location
from netbuilder.runtime.values.blob import Blob

__all__ = ["Node", "Step", "StepKind", "Value"]


@dataclass(slots=True, eq=False)
class Value:
    """One version of a name's value: written once, by one step, or there when the plan starts.

    Args:
        name: the blob's name.
        version: 0 is what the workspace held, or the first value made here.
        spec: shape and dtype; the layout once the producer is prepared.
        blob: for a value that was there before, the blob that holds it.
        location: where its buffer lies.
        shares: the value whose buffer this one overwrites (in place), if any.
        copies: the same value elsewhere or in another layout, by (layout, location).
        published: what the producing kernel keeps for the kernels that read the value.
        lazy: computes the plain value from the buffers of others: its operator was fused away.
        lazy_from: the value of the same name that takes its place in memory.
        lazy_reads: the values that ``lazy`` reads.
        guarded: whether ``lazy`` runs before somebody overwrites what it reads.
        demand: when the value is needed.
        stays: whether it lies in a blob until a feed or another run overwrites it.
        passing: it is what a kernel writes, which the next step puts in plain order: no version of the name.
        constant: the blob of a parameter that does not change from run to run, whose value, or a copy, it is.
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
    stays: bool = False
    passing: bool = False
    constant: Blob | None = None


Maker = Callable[..., Prepared | None]


class StepKind(enum.Enum):
    """What a step of a plan is: an operator's kernel, a copy that the plan put in, or the second half of a kernel."""

    COMPUTE = "compute"
    REORDER = "reorder"  #: into the layout that a kernel reads
    TRANSFER = "transfer"  #: to another device, or between a device and the host
    RESTORE = "restore"  #: back into the layout in which others expect the value
    WAIT = "wait"  #: for what an operator's kernel has begun


@dataclass(slots=True, eq=False)
class Node:
    """An operator, or several fused into one, over values.

    ``fused`` makes the prepared kernel of a fused node; ``parts`` are then its operators, the first of which stands
    for it in messages, and ``originals`` the nodes that serve if no kernel can be made for them together.
    """

    parts: list[Instruction]
    inputs: list[Value]
    outputs: list[Value]
    fused: Maker | None = None
    originals: list[Node] = field(default_factory=list)

    @property
    def first(self) -> Instruction:
        return self.parts[0]

    @property
    def role(self) -> Role:
        """Exchange if all operators of the node exchange."""
        return Role.EXCHANGE if all(part.role is Role.EXCHANGE for part in self.parts) else Role.COMPUTE


@dataclass(slots=True, eq=False)
class Step:
    """A prepared kernel over values: an operator of the net, or a copy that the plan put in.

    A step that waits has ``begun``: the step of the same kernel that begins; their values are the same.
    """

    node: Node
    prepared: Prepared
    inputs: list[Value | None]
    outputs: list[Value | None]
    lane: int
    kind: StepKind = StepKind.COMPUTE
    begun: Step | None = None

    @property
    def moves(self) -> bool:
        """Whether the step is a copy that the plan put in: into another layout or place, or back."""
        return self.kind not in (StepKind.COMPUTE, StepKind.WAIT)

    @property
    def what(self) -> str:
        """What the step does, for messages and profiles: the kernel's name, or the kind of step."""
        return self.prepared.name if self.kind is StepKind.COMPUTE else self.kind.value

    @property
    def reads_rounded(self) -> bool:
        """Whether some of what its kernel reads lies rounded, to bfloat16, in memory."""
        return any(value is not None and value.spec is not None and value.spec.rounds for value in self.inputs)
