"""What operators are given when they are differentiated, planned and run: protocols, no machinery."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import NetDef, OperatorDef

if TYPE_CHECKING:
    from netbuilder.ops.core.instructions import Instruction

__all__ = [
    "ANY_ORDER",
    "CHANNELS_LAST",
    "LEFT_AS_IS",
    "BoundStep",
    "CompiledSegment",
    "Demand",
    "GradientContext",
    "Kept",
    "Later",
    "Layout",
    "PlanContext",
    "Prepared",
    "RunContext",
    "Segment",
    "Sparse",
]

Array = Any
"""A NumPy or CuPy array."""

Call = Callable[[], object]
"""A bound call: runs one operator on buffers fixed when it was made."""


@dataclass(frozen=True)
class Sparse:
    """A sparse gradient: the rows ``indices`` of a table have the gradients ``values`` (blob names)."""

    indices: str
    values: str


class GradientContext(Protocol):
    """Names of the blobs around one operator while its gradient is built.

    Blobs are asked for by index or by the name in the operator's signature.
    """

    op: OperatorDef

    def input(self, which: int | str) -> str:
        """Name of a forward input; using it declares that the gradient reads it."""

    def output(self, which: int | str) -> str:
        """Name of a forward output; using it declares that the gradient reads it."""

    def d_output(self, which: int | str) -> str:
        """Name of the gradient of an output.

        Raises:
            GradientError: it has none, or a sparse one.
        """

    def has_d_output(self, which: int | str) -> bool:
        """Whether a gradient of this output reaches the operator."""

    def d_output_sparse(self, which: int | str) -> Sparse | None:
        """The gradient of an output if it is sparse, else None."""

    def d_input(self, which: int | str) -> str:
        """Name for the gradient of an input (``<input>_grad``), which the returned operators must write."""

    def set_d_input(self, which: int | str, blob: str) -> None:
        """Say that the gradient of an input is ``blob`` (an existing one, such as the output's gradient)."""

    def set_d_input_sparse(self, which: int | str, indices: str, values: str) -> None:
        """Say that the gradient of an input is sparse."""

    def set_forward_argument(self, name: str, value: Any) -> None:
        """Give the forward operator an argument: what it has to keep for its gradient."""

    def differentiate(self, net: NetDef, losses: Any, **options: Any) -> Any:
        """Differentiate a net that the operator holds (see netbuilder.graph.gradients)."""


class RunContext(Protocol):
    """What a plain kernel may use besides its inputs."""

    xp: Any  #: numpy or cupy
    is_gpu: bool
    workspace: Any  #: the workspace the net runs in
    op_def: OperatorDef  #: the operator as it is in the net

    def uniform(self, shape: Sequence[int], *, per_sample: bool = False) -> Array:
        """Doubles in [0, 1), by (seed, operator, iteration, global sample); see ops.engines.random."""

    def position(self, shape: Sequence[int], *, per_sample: bool = False) -> tuple[int, int]:
        """The key of the stream that ``uniform`` would draw from in this iteration, and the first element drawn."""

    def normal(self, shape: Sequence[int], *, per_sample: bool = False) -> Array:
        """Standard normal doubles, by the same key."""

    def host(self, array: Array) -> np.ndarray[Any, Any]:
        """``array`` as a NumPy array (a copy if it is on a device)."""

    def inner(self, op_def: OperatorDef, step: int) -> RunContext:
        """Return the context of an operator of a step net, in a time step; random numbers depend on both."""

    def compile(self, net: NetDef) -> Callable[[], None]:
        """Return a call that runs ``net`` in the operator's workspace (for operators that hold nets)."""


class Layout(Protocol):
    """How an engine orders a value in memory; compared and hashed by meaning."""

    nbytes: int
    itemsize: int  #: bytes of an element as it is stored; fewer than the dtype's if it is rounded
    engine: str


LEFT_AS_IS: Any = object()
"""What a plain kernel that runs by itself returns for an output whose blob keeps the value that it has."""

ANY_ORDER, CHANNELS_LAST = "any order", "channels last"
"""In which order the images of a plan should be stored."""

Demand = Literal["run", "fetch", "never"]
"""When an output is needed: in each run, when somebody fetches it, or not at all."""


class Kept(Protocol):
    """A copy of an input that a call makes, for an output that is computed later."""

    spec: TensorSpec

    @property
    def buffer(self) -> Any:
        """The memory of the copy."""


@dataclass(frozen=True, eq=False)
class Later:
    """Recipe for an output that the kernel does not write; evaluated when the blob is fetched.

    Args:
        prepare: returns the operator made ready to write this output alone, as output 0; inputs as in ``Prepared``.
        reads: the inputs that are read as they are stored then; they stay as they are until then.
        kept: the inputs of which the kernel's call makes a copy, which is read instead, by index.
    """

    prepare: Callable[[], Prepared]
    reads: Sequence[int]
    kept: Mapping[int, Kept] = field(default_factory=dict)


@dataclass(eq=False)
class Prepared:
    """An operator made ready for inputs of given specs; binding it to buffers gives a call.

    Args:
        inputs: the spec each input must have; a layout that differs from what the value has makes the
            plan insert a reorder. None: the input is not read.
        outputs: the specs of the outputs, with the layouts that the call writes. None: not written.
        bind: ``bind(inputs, outputs, scratch) -> call``. Buffers are arrays of the spec's shape and
            dtype, or, for a value with a layout, one-dimensional uint8 of ``nbytes``; all are aligned
            to 64 bytes. ``scratch`` is uint8 of ``scratch`` bytes, shared with other calls of the lane.
        scratch: bytes of scratch memory a call needs.
        inplace: pairs (input index, output index) that may be given the same buffer. In any other
            case the plan sees to it that outputs and inputs do not overlap.
        capturable: the call reads nothing on the host and does not synchronize.
        name: what profilers show (library and implementation).
        engine: the name of the engine whose threads compute; "" for the caller's own.
        later: how to compute outputs that are not written, though they are needed (see ``PlanContext.demand``).
        split: the call only begins the work, returns at once, and returns another call, which waits until the work is
            done. Between the two the plan neither reads the outputs nor overwrites inputs or outputs, and other kernels
            of the lane run; such a kernel has no scratch memory. An error of either half is the operator's; after an
            error elsewhere the plan still waits for what has begun.
    """

    inputs: Sequence[TensorSpec | None]
    outputs: Sequence[TensorSpec | None]
    bind: Callable[[Sequence[Array | None], Sequence[Array | None], Array | None], Call]
    scratch: int = 0
    inplace: Sequence[tuple[int, int]] = ()
    capturable: bool = True
    name: str = ""
    engine: str = ""
    notes: dict[str, Any] = field(default_factory=dict)
    later: dict[int, Later] = field(default_factory=dict)
    split: bool = False

    def __post_init__(self) -> None:
        if self.split and self.scratch:
            raise ValueError(
                f"kernel {self.name!r} is split, so other calls use the lane's scratch memory before it is done: it "
                f"must have none, got scratch={self.scratch}; let bind allocate it"
            )


@dataclass(frozen=True, eq=False)
class Segment:
    """Operators of a net that an operator holds, to be compiled together.

    Args:
        net: the name of that net, for messages.
        operators: in order.
        specs: the plain specs of all blobs that they read and write.
        outputs: the blobs that the caller has buffers for, as it has for all that the operators read before they write
            it. Where the others are stored is up to the compiler.
        fixed: blobs that hold the same in all steps: copies of them in another layout are made once.
        on_host: blobs that are stored on the host wherever the operators run.
    """

    net: str
    operators: Sequence[Instruction]
    specs: Mapping[str, TensorSpec]
    outputs: frozenset[str]
    fixed: frozenset[str] = frozenset()
    on_host: frozenset[str] = frozenset()


class BoundStep(NamedTuple):
    """A bound call of a segment, and what makes of an error in it the one that says where it was."""

    call: Call
    failed: Callable[[Exception], BaseException]


class CompiledSegment(Protocol):
    """A segment with its kernels; binding it to the buffers of a step gives the calls of that step."""

    scratch: int  #: bytes of scratch memory that the calls need
    name: str  #: what profilers show
    engine: str  #: the name of the engine whose threads compute; "" for the caller's own

    def copies(self, buffer_of: Callable[[str], Array], scratch: Array | None) -> list[BoundStep]:
        """Return the calls that copy what is fixed into the layouts that kernels read; they come before the others.

        Args:
            buffer_of: gives the buffer of a blob.
            scratch: ``scratch`` bytes.
        """

    def bind(self, buffer_of: Callable[[str], Array], scratch: Array | None, step: int = -1) -> list[BoundStep]:
        """Return the calls of the operators, in order.

        Args:
            buffer_of: gives the buffer of a blob, in this step.
            scratch: ``scratch`` bytes.
            step: the number of the step, for random numbers and messages; -1: there is only one.
        """


class PlanContext(Protocol):
    """What a prepared kernel may use while it is made ready, once per plan."""

    threads: int  #: threads its lane computes with
    precision: str  #: how the plan may keep activations in memory (see ops.precision)
    image_order: str  #: in which order images should be stored: ANY_ORDER or CHANNELS_LAST
    device_id: int
    op_def: OperatorDef
    run: RunContext  #: for kernels that call plain ones

    def publish(self, output: int, key: str, value: Any) -> None:
        """Keep ``value`` for the kernels that read this output (a pooling workspace, a forward primitive)."""

    def published(self, input: int, key: str) -> Any:
        """What the kernel that made this input published under ``key``, or None."""

    def is_constant(self, input: int) -> bool:
        """Whether an input seldom changes, so that a reorder of it costs a run nothing."""

    def does(self, optimization: str) -> bool:
        """Whether the plan may do that: a name of ``netbuilder.runtime.plan.optimizations``."""

    def compile_segment(self, segment: Segment) -> CompiledSegment:
        """Compile operators of a net that the operator holds, as the plan's own are.

        Raises:
            NetError: no kernel serves one of them; the message says which.
        """

    def repeats(self, input: int) -> bool:
        """Whether the operator runs many times a run with the same value of an input, so that a reorder pays."""

    def demand(self, output: int, reads: Sequence[int] = ()) -> Demand:
        """When an output is needed; a kernel may leave one unwritten that is not needed in each run.

        Args:
            reads: the inputs that ``Later`` would read; "fetch" is the answer only if they stay as they are till then.
        """
