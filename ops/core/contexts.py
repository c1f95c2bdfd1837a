"""The protocols of what an operator is given when it is differentiated, planned and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from netbuilder.ops.core.extensions import Extension, OwnMemory, SplitKernel
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import NetDef, OperatorDef
from netbuilder.proto.late_dataclass import dataclass

if TYPE_CHECKING:
    from netbuilder.ops.core.instructions import Instruction
    from netbuilder.ops.core.operator_event import OnOperator
    from netbuilder.ops.core.replication import Replication

__all__ = [
    "ANY_ORDER",
    "CHANNELS_LAST",
    "LEFT_AS_IS",
    "NOT_NEGATIVE",
    "AddInOrder",
    "BoundStep",
    "CompiledSubgraph",
    "Demand",
    "GradientContext",
    "Layout",
    "PlanContext",
    "Prepared",
    "RunContext",
    "Subgraph",
    "Sparse",
]


Array = Any
"""A NumPy or CuPy array."""

Call = Callable[[], object]
"""A bound call: runs one operator on the buffers it was bound to."""

E = TypeVar("E", bound=Extension)


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

    def normalized_images(self, op: Any, pixels: Array, dtype: str) -> Array:
        """On a GPU: the result of a NormalizeImages for pixels there, of a type: float32 or float16."""

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

    def loops(self, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...] | None:
        """How a value of a shape is stored: (axis, extent) of the loops over its elements in memory, slowest first.

        An axis may have several, its most significant part first; together they may be longer than the axis, which is
        padded with zeros. None: it cannot be said so; on the host, other engines then read plain values only.
        """


LEFT_AS_IS: Any = object()
"""What a plain kernel outside a plan returns for an output whose blob keeps its present value."""

NOT_NEGATIVE = "not negative"
"""The key published with an output whose elements are not negative, such as that of a Relu."""

ANY_ORDER, CHANNELS_LAST = "any order", "channels last"
"""In which order the images of a plan should be stored."""

Demand = Literal["run", "fetch", "never"]
"""When an output is needed: in each run, when its blob is fetched, or never."""


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
        extensions: what only some kernels tell the plan, at most one of each type (see ``ops.core.extensions``).
    """

    inputs: Sequence[TensorSpec | None]
    outputs: Sequence[TensorSpec | None]
    bind: Callable[[Sequence[Array | None], Sequence[Array | None], Array | None], Call]
    scratch: int = 0
    inplace: Sequence[tuple[int, int]] = ()
    name: str = ""
    engine: str = ""
    extensions: tuple[Extension, ...] = ()

    def __post_init__(self) -> None:
        if self.scratch and self.get(SplitKernel):
            raise ValueError(
                f"kernel {self.name!r} is split, so other calls use the lane's scratch memory before it is done: it "
                f"must have none, got scratch={self.scratch}; let bind allocate it"
            )

    def get(self, kind: type[E]) -> E | None:
        """Return what the kernel tells of this kind; None: nothing."""
        for each in self.extensions:
            if type(each) is kind:
                return each
        return None

    @property
    def own_memory(self) -> Sequence[Array]:
        """Memory that it has allocated for itself."""
        own = self.get(OwnMemory)
        return own.arrays if own is not None else ()

    def extend(self, *more: Extension) -> Prepared:
        """Let the kernel tell more, in place of what it has told of the same kinds; return it."""
        kinds = {type(each) for each in more}
        self.extensions = (*(each for each in self.extensions if type(each) not in kinds), *more)
        return self


@dataclass(frozen=True, eq=False)
class Subgraph:
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
    """A bound call of a subgraph, and a function that adds the operator's position to an error of the call."""

    call: Call
    failed: Callable[[Exception], BaseException]


class CompiledSubgraph(Protocol):
    """A subgraph with its kernels; binding it to the buffers of a step gives the calls of that step."""

    scratch: int  #: bytes of scratch memory that the calls need
    name: str  #: what profilers show
    engine: str  #: the name of the engine whose threads compute; "" if the caller's thread does
    capturable: bool  #: whether its calls on a GPU can be captured, see ``Capturable``
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
    builds_later: bool  #: whether ``Engine.finish_kernels`` may build what takes long
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

    def uses_engine(self, name: str) -> bool:
        """Whether kernels of an engine may be used."""

    def together(self, jobs: Sequence[Call]) -> Call:
        """Return a call that does jobs, of which none may raise, in parallel: one in each thread of the lane."""

    def compile_subgraph(self, subgraph: Subgraph) -> CompiledSubgraph:
        """Compile operators of the operator's subgraph in the way the plan itself is compiled.

        Raises:
            NetError: one of the operators has no kernel; the message names it.
        """

    def repeats(self, input: int) -> bool:
        """Whether the operator reads the same value of an input many times per run, so that a reorder is worth it."""

    def ends_early(self, output: int, reads: Sequence[int]) -> bool:
        """Whether an output is needed in the run and, later, when it is fetched, where it can be computed again.

        A kernel that writes it may declare a ``Deferred`` for it, from these inputs: then it is not kept. If it can be
        computed ``Again``, operators of the backward pass may read it, too.
        """

    def may_be_read_by(self, output: int, op_type: str) -> bool:
        """Whether an operator of this type may read an output."""

    def demand(self, output: int, reads: Sequence[int] = ()) -> Demand:
        """When an output is needed; a kernel need not write one that is not needed in each run.

        Args:
            output: its index.
            reads: the inputs that a ``Deferred`` would read; "fetch" is returned only if they keep their values.
        """
