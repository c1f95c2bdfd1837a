"""The protocols of what an operator is given when it is differentiated, planned and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import NetDef, OperatorDef

if TYPE_CHECKING:
    from netbuilder.ops.core.instructions import Instruction
    from netbuilder.ops.core.operator_event import OnOperator
    from netbuilder.ops.core.replication import Replication

__all__ = [
    "ANY_ORDER",
    "CHANNELS_LAST",
    "LARGE_GRADIENT",
    "LEFT_AS_IS",
    "AddInOrder",
    "BoundStep",
    "Checkpoints",
    "CompiledSegment",
    "Deferred",
    "Demand",
    "GradientContext",
    "InParts",
    "Joinable",
    "KeptMemory",
    "Layout",
    "PlanContext",
    "Prepared",
    "Rest",
    "RunContext",
    "Saved",
    "Segment",
    "Sparse",
]


Array = Any
"""A NumPy or CuPy array."""

Call = Callable[[], object]
"""A bound call: runs one operator on the buffers it was bound to."""


AddInOrder = Callable[[Array, Array, Array], None]
"""Adds rows to a matrix on a GPU: ``add(matrix, numbers of its rows, values)``, in the order of the numbers."""


@dataclass(frozen=True)
class Sparse:
    """A sparse gradient: the rows ``indices`` of a table have the gradients ``values`` (blob names)."""

    indices: str
    values: str


class GradientContext(Protocol):
    """The names of an operator's blobs and of their gradients, while its gradient is built.

    A blob is given by its index or by its name in the operator's signature.
    """

    op: OperatorDef
    number: int  # of the operator in the backward pass; operators in subgraphs have other numbers

    def input(self, which: int | str) -> str:
        """Name of a forward input; asking for it declares that the gradient reads it."""

    def output(self, which: int | str) -> str:
        """Name of a forward output; asking for it declares that the gradient reads it."""

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
        """Name of the gradient of an input (``<input>_grad``), which the returned operators must write."""

    def d_input_name(self, which: int | str) -> str:
        """The name that ``d_input`` returns; asking for it declares nothing."""

    def set_d_input(self, which: int | str, blob: str) -> None:
        """Declare that the gradient of an input is ``blob``, an existing one such as the output's gradient."""

    def set_d_input_sparse(self, which: int | str, indices: str, values: str) -> None:
        """Declare that the gradient of an input is sparse."""

    def set_forward_argument(self, name: str, value: Any) -> None:
        """Set an argument of the forward operator, which tells it what to keep for its gradient."""

    def differentiate(self, net: NetDef, losses: Any, **options: Any) -> Any:
        """Differentiate a subgraph of the operator (see ``netbuilder.graph.gradients.differentiate``)."""


class RunContext(Protocol):
    """What a plain kernel may use besides its inputs."""

    xp: Any  #: numpy or cupy
    is_gpu: bool
    workspace: Any  #: the workspace the net runs in
    op_def: OperatorDef  #: the operator as it is in the net
    on_operator: OnOperator | None  #: to be called after each operator of a step net
    add_in_order: AddInOrder | None  #: for ``add_rows``, where sums must be the same in each run
    located: Callable[[Exception], Exception]  #: adds the operator's position to an error that is raised later

    def uniform(self, shape: Sequence[int], *, per_sample: bool = False) -> Array:
        """Doubles in [0, 1), determined by seed, operator, iteration, global sample; see netbuilder.engines.random."""

    def position(self, shape: Sequence[int], *, per_sample: bool = False) -> tuple[int, int]:
        """The key of the stream that ``uniform`` draws from in this iteration, and the index of the first element."""

    def normal(self, shape: Sequence[int], *, per_sample: bool = False) -> Array:
        """Standard normal doubles, determined in the same way."""

    def host(self, array: Array) -> np.ndarray[Any, Any]:
        """``array`` as a NumPy array (a copy if it is on a device)."""

    def derived(self, function: Callable[[int], float], counter: Array, dtype: Any = None) -> float:
        """A number computed on the host from the integer in an array of one element.

        A kernel for a GPU that is made from the plain one computes it in each call. Without it, the number would be
        the same in all calls. Such a kernel has it as a float64, or as an int64 if ``dtype`` says so: float64 does not
        hold all integers above 2**53.
        """

    def update_rows(self, op: Any, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> bool:
        """On a GPU: update rows of the tables among ``outputs`` in place, without a wait.

        Args:
            op: a ``RowUpdate``.
            inputs: of it; tables are not read.
            outputs: of it; tables hold their values.

        Returns:
            False if that cannot be; then nothing has been done.
        """

    def checked_range(self, values: Array, lowest: int, extent: int, error: Callable[[int], Exception]) -> Array:
        """Integers on a GPU, with those outside of [lowest, extent) replaced; the error is raised at the run's end."""

    def inner(self, op_def: OperatorDef, step: int) -> RunContext:
        """Return the context of an operator of a step net, in a time step; random numbers depend on both."""

    def compile(self, net: NetDef, replication: Replication | None = None) -> Callable[[], None]:
        """Return a call that runs a subgraph in the operator's workspace.

        Args:
            net: the subgraph.
            replication: the devices that run it at the same time; None: it runs once, on the devices of its operators.
        """


class Layout(Protocol):
    """How an engine stores a value in memory; layouts that mean the same are equal and have the same hash."""

    nbytes: int
    itemsize: int  #: bytes of an element as it is stored; fewer than the dtype's if it is rounded
    filled: bool  #: each kernel that writes such a value writes every byte, padding included; False by default
    engine: str


LEFT_AS_IS: Any = object()
"""What a plain kernel outside a plan returns for an output whose blob keeps its present value."""

ANY_ORDER, CHANNELS_LAST = "any order", "channels last"
"""In which order the images of a plan should be stored."""

Demand = Literal["run", "fetch", "never"]
"""When an output is needed: in each run, when its blob is fetched, or never."""


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


class KeptMemory(Protocol):
    """Memory in which a kernel keeps something for another one; before ``bind`` the plan may say where it is."""

    nbytes: int

    def place(self, buffer: Array) -> None:
        """Use a buffer, uint8 of ``nbytes``, aligned as those of values are, whose content is undefined."""


@dataclass(frozen=True, eq=False)
class Joinable:
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
class Rest:
    """Outputs that a kernel leaves to a later one: they are written before they are read, or the plan ends.

    Args:
        work: computes them.
        reads: what it reads, as indices of the kernel's inputs and, following them, its outputs.
        writes: the indices of the outputs, which the kernel does not write: their specs are None.
    """

    work: Joinable
    reads: Sequence[int]
    writes: Sequence[int]


@dataclass(eq=False)
class Prepared:
    """A prepared kernel: an operator for inputs of given specs; binding it to buffers gives a call.

    Args:
        inputs: the spec each input must have; a layout that differs from what the value has makes the
            plan insert a reorder. None: the input is not read.
        outputs: the specs of the outputs, with the layouts that the call writes. None: not written.
        bind: ``bind(inputs, outputs, scratch) -> call``. Buffers are arrays of the spec's shape and
            dtype, or, for a value with a layout, one-dimensional uint8 of ``nbytes``; all are aligned
            to 64 bytes, on a GPU to 256. ``scratch`` is uint8 of ``scratch`` bytes, shared with other calls of the
            lane. They are in the memory of the device, unless the operator reads an input or makes its outputs on the
            host.
        scratch: bytes of scratch memory a call needs.
        inplace: pairs (input index, output index) that may have the same buffer. In any other
            case the plan ensures that outputs and inputs do not overlap.
        name: what profilers show (library and implementation).
        engine: the name of the engine whose threads compute; "" if the caller's thread does.
        notes: facts for tests and profiles, such as the library's name of the implementation.
        deferred: recipes for outputs that are not written but are needed at a fetch (see ``PlanContext.demand``), or
            that are written but not kept until then (see ``PlanContext.ends_early``).
        queue: split kernels with this name run one after another, in the order in which they began, so that a control
            input between two of them makes neither wait for the other's end; "": there is no such order.
        again: a kernel that computes output 0 a second time in the same run, equal to the bit and with no other effect:
            its inputs are those of the operator, then the operator's outputs as the first call wrote them. None: if the
            operator is not stateful and overwrites none of its inputs, that is this kernel.
        split: the call begins the work and returns, at once, another call that waits until the work is done. Between
            the two the plan neither reads the outputs nor overwrites inputs or outputs, and other kernels of the lane
            run; such a kernel has no scratch memory. An error of either call is the operator's; after an error
            elsewhere the plan still waits for work that has begun.
        together: the indices of outputs that the call processes together if they are next to each other in memory, in
            any order, each beginning at a multiple of 64 bytes, see ``netbuilder.engines.rows.order_in_row``. The plan
            tries to store them so, unless it takes more memory.
        saved_flops: how many floating-point operations fewer the call does than the operators' formulas count, as with
            minimal filtering.
        seconds: the measured time of a call, as stored for the machine; None: it is not known.
        kept: memory that the call shares with those of other steps: a kernel of the forward pass writes it, that of the
            gradient reads it. The plan provides it from the first to the last step that has it.
        checkpoints: how the operator and its gradient keep less between them, for a memory budget; None: they cannot.
        capturable: a call on a GPU only adds work to the GPU's current stream: it allocates nothing, reads nothing back
            and does not wait, and every argument that it computes on the host is the same in each call, except what it
            reads as ``netbuilder.engines.cuda.run_numbers``. Such calls can be captured into a CUDA graph.
        numbers_from: the inputs on the host that a capturable call computes such numbers from.
        copies_in_place: where an output has the buffer of an input, the call computes it elsewhere and copies it. So
            the plan lets them have the same buffer only where it must, as for a parameter that is updated.
        in_parts: how the call is divided, so that output 0, a gradient of ``LARGE_GRADIENT`` bytes or more, need not
            exist as a whole; None: it is not.
        joinable: the same work, for the plan to do together with that of other kernels.
        rest: what the kernel leaves to a later one, which may do so for many kernels.
        own: memory that the kernel has allocated for itself, and has as long as it exists.
        warning: what a user should know: that the kernel is not the one that the net asks for, why, and the remedy. It
            is given once for each net.
    """

    inputs: Sequence[TensorSpec | None]
    outputs: Sequence[TensorSpec | None]
    bind: Callable[[Sequence[Array | None], Sequence[Array | None], Array | None], Call]
    scratch: int = 0
    inplace: Sequence[tuple[int, int]] = ()
    name: str = ""
    engine: str = ""
    notes: dict[str, Any] = field(default_factory=dict)
    deferred: dict[int, Deferred] = field(default_factory=dict)
    split: bool = False
    queue: str = ""
    again: Prepared | None = None
    together: Sequence[Sequence[int]] = ()
    saved_flops: int = 0
    seconds: float | None = None
    kept: Sequence[KeptMemory] = ()
    checkpoints: Checkpoints | None = None
    capturable: bool = False
    numbers_from: frozenset[int] = frozenset()
    copies_in_place: bool = False
    in_parts: InParts | None = None
    joinable: Joinable | None = None
    rest: Rest | None = None
    own: Sequence[Array] = ()
    warning: str = ""

    def __post_init__(self) -> None:
        if self.split and self.scratch:
            raise ValueError(
                f"kernel {self.name!r} is split, so other calls use the lane's scratch memory before it is done: it "
                f"must have none, got scratch={self.scratch}; let bind allocate it"
            )


LARGE_GRADIENT = 4 << 20
"""A gradient of so many bytes is worth being computed in parts, each followed by its update."""


@dataclass(frozen=True, eq=False)
class InParts:
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


@dataclass(frozen=True, eq=False)
class Checkpoints:
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


@dataclass(frozen=True, eq=False)
class Segment:
    """Operators of an operator's subgraph, to be compiled together.

    Args:
        net: the name of the subgraph, for messages.
        operators: in order.
        specs: the plain specs of all blobs that they read and write.
        outputs: the outputs that the caller provides buffers for, as it does for all inputs from outside. The compiler
            decides where the other blobs are stored.
        fixed: blobs that have the same value in all steps: copies of them in another layout are made once.
        on_host: blobs that are stored on the host wherever the operators run.
    """

    net: str
    operators: Sequence[Instruction]
    specs: Mapping[str, TensorSpec]
    outputs: frozenset[str]
    fixed: frozenset[str] = frozenset()
    on_host: frozenset[str] = frozenset()


class BoundStep(NamedTuple):
    """A bound call of a segment, and a function that adds the operator's position to an error of the call."""

    call: Call
    failed: Callable[[Exception], BaseException]


class CompiledSegment(Protocol):
    """A segment with its kernels; binding it to the buffers of a step gives the calls of that step."""

    scratch: int  #: bytes of scratch memory that the calls need
    name: str  #: what profilers show
    engine: str  #: the name of the engine whose threads compute; "" if the caller's thread does
    capturable: bool  #: whether its calls on a GPU can be captured, see ``Prepared``
    own: Sequence[Array]  #: memory that it has allocated for its own values

    def copies(self, buffer_of: Callable[[str], Array], scratch: Array | None) -> list[BoundStep]:
        """Return the calls that copy fixed blobs to the layouts that kernels read, to be run before the others.

        Args:
            buffer_of: returns the buffer of a blob.
            scratch: ``scratch`` bytes.
        """

    def bind(self, buffer_of: Callable[[str], Array], scratch: Array | None, step: int = -1) -> list[BoundStep]:
        """Return the calls of the operators, in order.

        Args:
            buffer_of: returns the buffer of a blob in this step.
            scratch: ``scratch`` bytes.
            step: the number of the step, for random numbers and messages; -1 if there is only one.
        """


class PlanContext(Protocol):
    """What a prepared kernel is given when it is made, once per plan."""

    threads: int  #: number of threads of its lane
    precision: str  #: how the plan may store activations (see ops.core.precision)
    allow_tf32: bool  #: whether GPUs may round float32 factors of products to 10 bits
    image_order: str  #: in which order images should be stored: ANY_ORDER or CHANNELS_LAST
    device_id: int
    op_def: OperatorDef
    run: RunContext  #: for kernels that call plain ones

    def publish(self, output: int, key: str, value: Any) -> None:
        """Keep ``value`` for the kernels that read this output (a pooling workspace, a forward primitive)."""

    def published(self, input: int, key: str) -> Any:
        """The value that the producer of this input published under ``key``, or None."""

    def location(self, input: int) -> tuple[int, int]:
        """Where the kernel reads an input: the type of the device, and its number."""

    def is_constant(self, input: int) -> bool:
        """Whether an input is declared constant, so that a reorder of it costs a run nothing."""

    def enabled(self, optimization: str) -> bool:
        """Whether an optimization is on, by its name in ``netbuilder.runtime.plan.optimizations``."""

    def together(self, jobs: Sequence[Call]) -> Call:
        """Return a call that does jobs, of which none may raise, in parallel: one in each thread of the lane."""

    def compile_segment(self, segment: Segment) -> CompiledSegment:
        """Compile a segment of the operator's subgraph in the way the plan itself is compiled.

        Raises:
            NetError: one of the operators has no kernel; the message names it.
        """

    def repeats(self, input: int) -> bool:
        """Whether the operator reads the same value of an input many times per run, so that a reorder is worth it."""

    def ends_early(self, output: int, reads: Sequence[int]) -> bool:
        """Whether an output is needed in the run and, later, when it is fetched, where it can be computed again.

        A kernel that writes it may declare a ``Deferred`` for it, from these inputs: then it is not kept. If it can be
        ``Prepared.again``, operators of the backward pass may read it, too.
        """

    def may_be_read_by(self, output: int, op_type: str) -> bool:
        """Whether an operator of this type may read an output."""

    def demand(self, output: int, reads: Sequence[int] = ()) -> Demand:
        """When an output is needed; a kernel need not write one that is not needed in each run.

        Args:
            output: its index.
            reads: the inputs that a ``Deferred`` would read; "fetch" is returned only if they keep their values.
        """
