"""CallProfile: what a call of a net computes, reads and writes, why it exists, and its times."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from netbuilder.engines.layouts import HOST, Location
from netbuilder.ops.core.extensions import FurtherBytes, RunsAgain, SavedFlops
from netbuilder.ops.core.instructions import Instruction, Role
from netbuilder.ops.core.operator import STRING, Operator, TensorSpec
from netbuilder.proto import PROTO_CPU
from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.execute.launched_graphs import Captured
from netbuilder.runtime.execute.net import RuntimeNet
from netbuilder.runtime.plan.binding import needs_temporary
from netbuilder.runtime.plan.plain_kernels import PLAIN
from netbuilder.runtime.plan.values import Node, Step, StepKind, Value
from netbuilder.runtime.profile.timing import Span

__all__ = [
    "CallProfile",
    "Operand",
    "describe_alone",
    "describe_step",
    "device_text",
    "runs_again",
    "share_again",
    "step_text",
]


@dataclass(frozen=True)
class Operand:
    """A value that a call reads or writes: blob, shape, element type and layout."""

    blob: str
    shape: tuple[int, ...]
    dtype: str
    layout: str

    def __str__(self) -> str:
        return f"{self.blob} {'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype} {self.layout}"


@dataclass(frozen=True)
class CallProfile:
    """A call: an operator, several fused operators, or a copy that the plan inserted.

    Args:
        kind: the operator's type; for fused operators their types, in the order of the net, joined by "+", each with
            its count if it occurs more than once; for copies "reorder", "transfer" or "restore"; "wait" for the wait of
            a split kernel.
        category: "operator", "gradient", "exchange" (between devices), "input", "copy" or "recompute" (a kernel a
            second time, for a memory budget).
        output: the first blob that it writes.
        operators: its operators' types with their first outputs, in the order of the net.
        inputs, outputs: the values that it reads and writes.
        kernel: library and implementation.
        device: "CPU 0", "GPU 1"; on the CPU the number is that of a replica.
        lane: the lane that runs it.
        flops: floating-point operations of one call, by the operators' formulas.
        kernel_flops: those that the kernel does, fewer where it computes by minimal filtering.
        nbytes: bytes read and written by one call, including the padding of layouts; a value counts once, but where
            the kernel says that it reads it in further passes (``FurtherBytes``).
        reason: why a copy, or a temporary, is needed.
        line: the line of the user's program that added the operator.
        count: calls per step; less than 1 if only some steps make it.
        seconds: time per step, of all its calls.
        spans: the times of each call, see ``timing.Span``.
        bfloat16: whether it reads values that are stored rounded to bfloat16.
        runs_again: whether its gradient runs it again, for a memory budget (recurrent nets in segments of steps).
        graph: the number of the CUDA graph that it is in, in runs that are not timed; -1: in none.
        why_no_graph: why it is in none; "" for nets without GPUs.
    """

    kind: str
    category: str
    output: str
    operators: tuple[str, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    kernel: str
    device: str
    lane: int
    flops: int
    kernel_flops: int
    nbytes: int
    reason: str
    line: str
    count: float
    seconds: float
    spans: tuple[Span, ...]
    bfloat16: bool = False
    runs_again: bool = False
    graph: int = -1
    why_no_graph: str = ""

    @property
    def name(self) -> str:
        """The kind and the first output."""
        return f"{self.kind} {self.output}".rstrip()

    @property
    def by_numpy(self) -> bool:
        """Whether it runs by NumPy on the host: by a plain kernel, or by functions of NumPy that are bound to buffers.

        The reference implementation of an ONNX node is a plain kernel, too.
        """
        return self.device.startswith("CPU") and self.kernel.startswith((PLAIN, "numpy"))


_DYNAMIC = "its output shapes depend on data, so it cannot be part of a plan"

_INPUT = frozenset(
    {
        "BatchDequeue",
        "CopyFromCPUInput",
        "CreateBlobsQueue",
        "CreateDB",
        "DequeueBlobs",
        "DequeueRebatchingQueue",
        "EnqueueBlobs",
        "ImageInput",
        "ReadNextBatch",
        "ReadRandomBatch",
        "SafeDequeueBlobs",
        "SafeEnqueueBlobs",
        "TensorProtosDBInput",
        "VideoInput",
    }
)


def _category(parts: Sequence[Instruction]) -> str:
    """Return the category of an operator, or of fused operators."""
    if any(part.role is Role.EXCHANGE for part in parts):
        return "exchange"
    if any(part.op_def.type in _INPUT for part in parts):
        return "input"
    return "gradient" if any(part.op_def.is_gradient_op for part in parts) else "operator"


def _category_of_step(step: Step) -> str:
    if step.kind is StepKind.RECOMPUTE:
        return "recompute"
    return "copy" if step.moves else _category(step.node.parts)


def runs_again(step: Step) -> bool:
    """Whether a step's kernel keeps less, for a memory budget, so that its gradient runs it again."""
    return step.prepared.get(RunsAgain) is not None


def share_again(times: Iterable[tuple[bool, bool, float]]) -> float:
    """Return the time to compute values again as a fraction of that of all else.

    A kernel that its gradient runs again takes the same time there.

    Args:
        times: of each call: whether it computes a value again, whether its gradient runs it again, its time.
    """
    again = total = 0.0
    for recomputes, in_gradient, seconds in times:
        again += seconds if recomputes or in_gradient else 0.0
        total += seconds
    return again / (total - again) if total > again else 0.0


def device_text(device: tuple[int, int]) -> str:
    """Return "CPU 0" or "GPU 1"."""
    return f"{'CPU' if device[0] == PROTO_CPU else 'GPU'} {device[1]}"


def step_text(step: Step) -> str:
    """Return the kind and the first output of a step."""
    return f"{_kind(step)} {_first(step.outputs)}".rstrip()


def describe_step(
    step: Step, captured: Captured | None = None, *, count: float, seconds: float, spans: Any
) -> CallProfile:
    """Return the profile of a step of a plan; ``captured`` says in which CUDA graph it is, if the net uses GPUs."""
    parts = _in_order(step.node)
    flops = _flops_of_step(step)
    saved, further = step.prepared.get(SavedFlops), step.prepared.get(FurtherBytes)
    return CallProfile(
        kind=_kind(step),
        category=_category_of_step(step),
        output=_first(step.outputs) or next(iter(parts[0].outputs), ""),
        operators=() if step.kind is StepKind.WAIT else tuple(_operator_text(part) for part in parts),
        inputs=_operands(step.inputs),
        outputs=_operands(step.outputs),
        kernel=step.prepared.name,
        device=device_text(parts[0].device),
        lane=step.lane,
        flops=flops,
        kernel_flops=flops - min(flops, saved.count if saved is not None else 0),
        nbytes=_nbytes(step) + (further.count if further is not None else 0),
        reason=_reason(step),
        line=parts[-1].op_def.debug_info,
        count=count,
        seconds=seconds,
        spans=spans,
        bfloat16=step.reads_rounded,
        runs_again=runs_again(step),
        graph=-1 if captured is None else captured.graph,
        why_no_graph="" if captured is None else captured.why,
    )


def describe_alone(
    net: RuntimeNet, instruction: Instruction, *, count: float, seconds: float, spans: Any
) -> CallProfile:
    """Return the profile of an operator outside a plan; the shapes are those of the last run."""
    blobs = [[net.find_blob(name) for name in names] for names in (instruction.inputs, instruction.outputs)]
    ins, outs = (
        [(blob.name, blob.spec) for blob in group if blob is not None and blob.spec is not None] for group in blobs
    )
    specs = [spec.plain for _, spec in ins]
    complete = len(specs) == len(instruction.inputs)
    sizes = [*map(_size, specs)], [_size(spec.plain) for _, spec in outs]
    flops = _flops_of(instruction.op, specs) if complete else 0
    return CallProfile(
        kind=instruction.op.shown_as,
        category=_category([instruction]),
        output=next(iter(instruction.outputs), ""),
        operators=(_operator_text(instruction),),
        inputs=tuple(_operand(*pair) for pair in dict(ins).items()),
        outputs=tuple(_operand(*pair) for pair in outs),
        kernel=f"{PLAIN}, outside plans",
        device=device_text(instruction.device),
        lane=0,
        flops=flops,
        kernel_flops=flops,
        nbytes=_rows_only(instruction.op, specs, *sizes) if complete else sum(map(sum, sizes)),
        reason=_DYNAMIC,
        line=instruction.op_def.debug_info,
        count=count,
        seconds=seconds,
        spans=spans,
        why_no_graph=_DYNAMIC if net.gpus else "",
    )


def _in_order(node: Node) -> list[Instruction]:
    return sorted(node.parts, key=lambda part: part.index)


def _kind(step: Step) -> str:
    if step.kind is StepKind.RECOMPUTE:
        return f"{_kind_of(step.node)} again"
    if step.kind is StepKind.REST:
        return f"rest of {_kind_of(step.node)}"
    return _kind_of(step.node) if step.kind is StepKind.COMPUTE else step.what


def _kind_of(node: Node) -> str:
    counts = Counter(part.op.shown_as for part in _in_order(node))
    return "+".join(kind if count == 1 else f"{kind} x{count}" for kind, count in counts.items())


def _first(values: Sequence[Value | None]) -> str:
    return next((value.name for value in values if value is not None), "")


def _operator_text(part: Instruction) -> str:
    return f"{part.op.shown_as} {next(iter(part.outputs), '')}".rstrip()


def _operand(name: str, spec: TensorSpec) -> Operand:
    dtype = "object" if spec.dtype == STRING else str(spec.dtype)
    return Operand(name, spec.shape, dtype, _layout_text(spec))


def _operands(values: Sequence[Value | None]) -> tuple[Operand, ...]:
    distinct = {id(value): value for value in values if value is not None}
    return tuple(_operand(value.name, value.spec) for value in distinct.values() if value.spec is not None)


def _layout_text(spec: TensorSpec) -> str:
    """Return the layout of a value: "plain", or the layout's letters without the extents."""
    if spec.layout is None:
        return "plain"
    letters, _, extents = str(getattr(spec.layout, "text", spec.layout)).partition(" of ")
    return f"{letters} padded" if extents.endswith("padded") else letters


def _single(node: Node) -> list[Node]:
    """Return the nodes of single operators that were fused into a node."""
    return [node] if not node.originals else [single for part in node.originals for single in _single(part)]


def _flops_of_step(step: Step) -> int:
    """Return the operations of a step, without those for outputs that it does not write."""
    if step.kind not in (StepKind.COMPUTE, StepKind.RECOMPUTE):
        return 0
    written, op = len(step.outputs), step.node.first.op
    while written and step.outputs[written - 1] is None:
        written -= 1
    if len(step.node.parts) > 1 or written in (0, len(step.outputs)):
        return sum(_flops(node) for node in _single(step.node))
    without = copy.copy(op).with_arity(op.n_in, written)
    return _flops_of(without, [value.spec.plain for value in step.node.inputs if value.spec is not None])


def _flops(node: Node) -> int:
    return _flops_of(node.first.op, [value.spec.plain for value in node.inputs if value.spec is not None])


def _flops_of(op: Operator, specs: Sequence[TensorSpec]) -> int:
    try:
        return int(op.flops(*specs))
    except Exception:  # the formula needs shapes that are known only when the net runs
        return 0


def _size(spec: TensorSpec | None) -> int:
    return 0 if spec is None or spec.dtype == STRING else spec.nbytes


def _nbytes(step: Step) -> int:
    """Return the bytes that a step reads and writes; a value that it reads twice counts once."""
    if step.kind is StepKind.WAIT:
        return 0
    reads = list(step.inputs)
    ins = [_size(value.spec) if value is not None and value not in reads[:i] else 0 for i, value in enumerate(reads)]
    outs = [_size(value.spec) if value is not None else 0 for value in step.outputs]
    if step.moves:
        return sum(ins) + sum(outs)
    buffers = [value.buffer for value in reads if value is not None]
    in_place = len(buffers) == 1 and all(value is None or value.buffer is buffers[0] for value in step.outputs)
    if in_place and not any(map(_flops, _single(step.node))):
        return 0  # the same value in the same buffer, under another name or shape
    if len(step.node.parts) > 1:
        return sum(ins) + sum(outs)
    return _rows_only(step.node.first.op, [value.spec for value in step.node.inputs], ins, outs)


def _rows_only(op: Operator, specs: Sequence[TensorSpec | None], ins: Sequence[int], outs: Sequence[int]) -> int:
    """Return the sum of bytes read and written; of a table, only the rows in ``indices`` count."""
    reads, writes = list(ins), list(outs)
    signature = type(op).inputs
    if "indices" in signature:
        where = specs[signature.index("indices")]
        for i, j in op.must_inplace:  # tables that are updated
            table = specs[i]
            if where is not None and table is not None and table.shape:
                share = min(1.0, where.size / max(table.shape[0], 1))
                reads[i], writes[j] = round(reads[i] * share), round(writes[j] * share)
        if op.type in ("BatchGather", "Gather"):
            reads[0] = min(reads[0], sum(writes))
    return sum(reads) + sum(writes)


def _reason(step: Step) -> str:
    """Return why the plan inserted a copy, or why an operator's result is copied; "" otherwise."""
    if step.kind is StepKind.WAIT:
        return f"waits for {_kind_of(step.node)}, which began earlier: the next step needs its result"
    if step.kind is StepKind.RECOMPUTE:
        return "its first result was not kept until here, to keep to the memory budget"
    if step.kind is StepKind.REST:
        return "small outputs of the operators, which their kernels leave to one kernel for all"
    if not step.moves:
        names = [value.name for j, value in enumerate(step.outputs) if value is not None and needs_temporary(step, j)]
        text = "{} shares the buffer of an input that the kernel may not overwrite: a temporary is written and copied"
        return text.format(", ".join(names)) if names else ""
    source, target = step.inputs[0], step.outputs[0]
    assert source is not None and target is not None and source.spec is not None and target.spec is not None
    operator = f"{_kind_of(step.node)} {_first(step.node.outputs)}".rstrip()
    stored, needed = _layout_text(source.spec), _layout_text(target.spec)
    if stored == needed:
        needed += " with other blocks or padding"
    if step.kind is StepKind.RESTORE:
        return f"the blob {target.name} keeps its layout, {needed}; {operator} writes it as {stored}"
    if step.kind is StepKind.TRANSFER:
        where = _location_text(source.location)
        return f"{operator} needs {source.name} on {_location_text(target.location)}; it is stored on {where}"
    index = next((i for i, value in enumerate(step.node.inputs) if value.name == source.name), 0)
    others = f"; with {counted(len(step.inputs) - 1, 'other copy', 'other copies')}" if len(step.inputs) > 1 else ""
    return f"{operator} reads {source.name} (input {index}) as {needed}; it is stored as {stored}{others}"


def _location_text(location: Location) -> str:
    return "the host" if location == HOST else device_text(location)
