"""What only some prepared kernels tell the plan: an object of a type of its own for each (``Prepared.extensions``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

if TYPE_CHECKING:
    from netbuilder.ops.core.contexts import Prepared

__all__ = [
    "CAPTURABLE",
    "LARGE_GRADIENT",
    "Again",
    "Capturable",
    "Checkpoints",
    "CopiesInPlace",
    "Deferred",
    "DeferredOutputs",
    "Extension",
    "FurtherBytes",
    "InParts",
    "Joinable",
    "Joined",
    "KeptForGradient",
    "KeptMemory",
    "MeasuredTime",
    "OwnMemory",
    "Rest",
    "RunsAgain",
    "Saved",
    "SavedFlops",
    "SplitKernel",
    "Together",
    "Warned",
]

Array = Any
"""A NumPy or CuPy array."""


class Extension:
    """What only some kernels tell the plan; ``Prepared.get`` returns it by its type."""


# What the call does, and when.


@dataclass(frozen=True, eq=False)
class FurtherBytes(Extension):
    """Bytes that a call reads and writes besides each input and output once: in further passes, and in scratch memory.

    Args:
        count: how many.
    """

    count: int


@dataclass(frozen=True, eq=False)
class SplitKernel(Extension):
    """The call begins the work and returns, at once, another call that waits until the work is done.

    Between the two the plan neither reads the outputs nor overwrites inputs or outputs, and other kernels of the lane
    run; such a kernel has no scratch memory. An error of either call is the operator's; after an error elsewhere the
    plan still waits for work that has begun.

    Args:
        queue: kernels with this name run one after another, in the order in which they began, so that a control input
            between two of them makes neither wait for the other's end; "": there is no such order.
    """

    queue: str = ""


@dataclass(frozen=True, eq=False)
class Capturable(Extension):
    """A call on a GPU only adds work to the GPU's current stream, so that it can be captured into a CUDA graph.

    It allocates nothing, reads nothing back and does not wait, and every argument that it computes on the host is the
    same in each call, except what it reads as ``netbuilder.engines.cuda.run_numbers``.

    Args:
        numbers_from: the inputs on the host that it computes such numbers from.
    """

    numbers_from: frozenset[int] = frozenset()


CAPTURABLE = (Capturable(),)
"""The extensions of most kernels on GPUs."""


@dataclass(frozen=True, eq=False)
class CopiesInPlace(Extension):
    """Where an output has the buffer of an input, the call computes it elsewhere and copies it.

    So the plan lets them have the same buffer only where it must, as for a parameter that is updated.
    """


@dataclass(frozen=True, eq=False)
class SavedFlops(Extension):
    """The call does fewer floating-point operations than the operators' formulas count, as with minimal filtering.

    Args:
        count: how many fewer.
    """

    count: int


@dataclass(frozen=True, eq=False)
class MeasuredTime(Extension):
    """The measured time of a call, as stored for the machine."""

    seconds: float


@dataclass(frozen=True, eq=False)
class Warned(Extension):
    """What a user should know: that the kernel is not the one that the net asks for, why, and the remedy.

    It is given once for each net.
    """

    text: str


# Memory.


class KeptMemory(Protocol):
    """Memory in which a kernel keeps something for another one; before ``bind`` the plan may say where it is."""

    nbytes: int

    def place(self, buffer: Array) -> None:
        """Use a buffer, uint8 of ``nbytes``, aligned as those of values are, whose content is undefined."""


@dataclass(frozen=True, eq=False)
class KeptForGradient(Extension):
    """Memory that a call shares with those of other steps: one of the forward pass writes it, the gradient's reads it.

    The plan provides it from the first to the last step that has it.
    """

    memory: Sequence[KeptMemory]


@dataclass(frozen=True, eq=False)
class OwnMemory(Extension):
    """Memory that the kernel has allocated for itself, and has as long as it exists."""

    arrays: Sequence[Array]


@dataclass(frozen=True, eq=False)
class Together(Extension):
    """Outputs that the call processes together if they are next to each other in memory.

    The plan tries to store them so, unless it takes more memory.

    Args:
        outputs: their indices, in any order, each beginning at a multiple of 64 bytes, see
            ``netbuilder.engines.buffer_rows.order_in_row``.
    """

    outputs: Sequence[Sequence[int]]


@dataclass(frozen=True, eq=False)
class Joined(Extension):
    """The inputs, next to each other in memory in their order, are the first output.

    The plan tries to store them in it, unless it takes more memory; the call copies nothing then.
    """


# What is computed later, again, or in parts.


class Saved(Protocol):
    """A copy of an input that a call saves, for an output that is computed later."""

    spec: TensorSpec

    @property
    def buffer(self) -> Any:
        """The memory of the copy."""


@dataclass(frozen=True, eq=False)
class Deferred:
    """Recipe for an output that the kernel does not write; evaluated when the blob is fetched.

    Args:
        prepare: returns a prepared kernel that writes this output alone, as its output 0, from the same inputs.
        reads: the inputs that it reads from their blobs, which keep their values until then.
        saved: the inputs of which the original kernel's call saves a copy, which is read instead, by index.
    """

    prepare: Callable[[], Prepared]
    reads: Sequence[int]
    saved: Mapping[int, Saved] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class DeferredOutputs(Extension):
    """Outputs that are computed when they are fetched.

    The call does not write them (see ``PlanContext.demand``), or they are not kept (see ``PlanContext.ends_early``).

    Args:
        recipes: how, by the index of the output.
    """

    recipes: Mapping[int, Deferred]


@dataclass(frozen=True, eq=False)
class Again(Extension):
    """A kernel that computes output 0 a second time in the same run, equal to the bit and with no other effect.

    Its inputs are those of the operator, then the operator's outputs as the first call wrote them. Without it, if the
    operator is not stateful and overwrites none of its inputs, that is the kernel itself.
    """

    kernel: Prepared


@dataclass(frozen=True, eq=False)
class RunsAgain(Extension):
    """The kernel keeps less, for a memory budget, so that its gradient runs it again.

    Args:
        segments: what the gradient's kernel has to know of it.
    """

    segments: Any


@dataclass(frozen=True, eq=False)
class Checkpoints(Extension):
    """How an operator keeps less for its gradient, which then computes the rest again, equal to the bit.

    Both kernels have it. The plan uses both of the other kernels or none, and only if nothing else reads the value.

    Args:
        make: returns the other kernel, in which that value has another spec. The operator's is given None; the
            gradient's, which may read more inputs, is given the operator's, and may return None if they do not fit.
        output: the index of the operator's output with what it keeps; None for the gradient.
        input: the index of the gradient's input that is this output; None for the operator.
    """

    make: Callable[[Prepared | None], Prepared | None]
    output: int | None = None
    input: int | None = None


LARGE_GRADIENT = 4 << 20
"""A gradient of so many bytes is worth being computed in parts, each followed by its update."""


@dataclass(frozen=True, eq=False)
class InParts(Extension):
    """A call in parts: some consecutive rows of output 0, a matrix in plain order, at a time.

    The rows are equal to those of the whole call to the bit. The kernels have its inputs and outputs; inputs that they
    do not read are None, too.

    Args:
        rows: the number of rows in a part, a divisor of their number.
        part: returns the kernel that computes the rows from this one on as output 0, and no other output.
        rest: the kernel that computes the other outputs.
    """

    rows: int
    part: Callable[[int], Prepared]
    rest: Prepared


# Work for several operators.


@dataclass(frozen=True, eq=False)
class Joinable(Extension):
    """Small work that one kernel can do for many operators, or copies, at once.

    Args:
        kind: work of one kind can be joined.
        member: describes the work, for ``make``.
        make: returns the kernel that does the work of several members. Its inputs and outputs are theirs, in order.
    """

    kind: str
    member: Any
    make: Callable[[Sequence[Any]], Prepared]


@dataclass(frozen=True, eq=False)
class Rest(Extension):
    """Outputs that a kernel leaves to a later one: they are written before they are read, or the plan ends.

    Args:
        work: computes them.
        reads: what it reads, as indices of the kernel's inputs and, following them, its outputs.
        writes: the indices of the outputs, which the kernel does not write: their specs are None.
    """

    work: Joinable
    reads: Sequence[int]
    writes: Sequence[int]
