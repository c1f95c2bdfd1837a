"""What a call of a net computes, reads, writes and is there for: what a profile says of it besides its time."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from netbuilder.ops.core.instructions import Instruction, Role
from netbuilder.ops.core.operator import STRING, Operator, TensorSpec
from netbuilder.ops.engines.layouts import HOST, Location
from netbuilder.proto import PROTO_CPU
from netbuilder.runtime.execute.net import RuntimeNet
from netbuilder.runtime.plan.binding import needs_temporary
from netbuilder.runtime.plan.values import Node, Step, StepKind, Value
from netbuilder.runtime.profile.timing import Span

__all__ = ["CallProfile", "Operand", "describe_alone", "describe_step", "device_text", "step_text"]


@dataclass(frozen=True)
class Operand:
    """A value that a call reads or writes: its blob, its shape, its element type, its order in memory."""

    blob: str
    shape: tuple[int, ...]
    dtype: str
    layout: str

    def __str__(self) -> str:
        return f"{self.blob} {'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype} {self.layout}"


@dataclass(frozen=True)
class CallProfile:
    """A call: an operator, several joined into one, or a copy that the plan put in.

    Args:
        kind: the operator's type; of joined ones all types, in the order of the net, with "+" between them and how
            often one comes if it is more than once; of copies "reorder", "transfer" or "restore"; "wait" for what
            a kernel in two halves has begun.
        category: "operator", "gradient", "exchange" (between devices), "input" or "copy".
        output: the first blob that it writes.
        operators: its operators' types with their first outputs, in the order of the net.
        inputs, outputs: what it reads and writes.
        kernel: what serves: library and implementation.
        device: "CPU 0", "GPU 1"; on the CPU the number is that of a replica.
        lane: whose thread runs it.
        flops: of one call, by the operators' formulas.
        nbytes: read and written by one call, the padding of layouts included; no value is counted twice.
        reason: of a copy, or a detour: which operator wanted what.
        line: of the user's program, that made the operator.
        count: calls a step; less than 1 if not all steps make it.
        seconds: a step, in all its calls.
        spans: each call, see ``timing.Span``.
        bfloat16: whether it reads values that lie rounded to bfloat16.
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
    nbytes: int
    reason: str
    line: str
    count: float
    seconds: float
    spans: tuple[Span, ...]
    bfloat16: bool = False

    @property
    def name(self) -> str:
        """Kind and first output."""
        return f"{self.kind} {self.output}".rstrip()


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
    """Return what an operator, or joined ones, are there for."""
    if any(part.role is Role.EXCHANGE for part in parts):
        return "exchange"
    if any(part.op_def.type in _INPUT for part in parts):
        return "input"
    return "gradient" if any(part.op_def.is_gradient_op for part in parts) else "operator"


def device_text(device: tuple[int, int]) -> str:
    """Return "CPU 0" or "GPU 1"."""
    return f"{'CPU' if device[0] == PROTO_CPU else 'GPU'} {device[1]}"


def step_text(step: Step) -> str:
    """Return kind and first output of a step."""
    return f"{_kind(step)} {_first(step.outputs)}".rstrip()


def describe_step(step: Step, *, count: float, seconds: float, spans: Any) -> CallProfile:
    """Return what there is to say of a step of a plan, with its times."""
    parts = _in_order(step.node)
    return CallProfile(
        kind=_kind(step),
        category="copy" if step.moves else _category(parts),
        output=_first(step.outputs) or next(iter(parts[0].outputs), ""),
        operators=() if step.kind is StepKind.WAIT else tuple(_operator_text(part) for part in parts),
        inputs=_operands(step.inputs),
        outputs=_operands(step.outputs),
        kernel=step.prepared.name,
        device=device_text(parts[0].device),
        lane=step.lane,
        flops=_flops_of_step(step),
        nbytes=_nbytes(step),
        reason=_reason(step),
        line=parts[-1].op_def.debug_info,
        count=count,
        seconds=seconds,
        spans=spans,
        bfloat16=step.reads_rounded,
    )


def describe_alone(
    net: RuntimeNet, instruction: Instruction, *, count: float, seconds: float, spans: Any
) -> CallProfile:
    """Return what there is to say of an operator that no plan holds; the shapes are those of the last run."""
    blobs = [[net.find_blob(name) for name in names] for names in (instruction.inputs, instruction.outputs)]
    ins, outs = (
        [(blob.name, blob.spec) for blob in side if blob is not None and blob.spec is not None] for side in blobs
    )
    specs = [spec.plain for _, spec in ins]
    whole = len(specs) == len(instruction.inputs)
    sizes = [*map(_size, specs)], [_size(spec.plain) for _, spec in outs]
    return CallProfile(
        kind=instruction.op_def.type,
        category=_category([instruction]),
        output=next(iter(instruction.outputs), ""),
        operators=(_operator_text(instruction),),
        inputs=tuple(_operand(*pair) for pair in dict(ins).items()),
        outputs=tuple(_operand(*pair) for pair in outs),
        kernel="plain, by itself",
        device=device_text(instruction.device),
        lane=0,
        flops=_flops_of(instruction.op, specs) if whole else 0,
        nbytes=_rows_only(instruction.op, specs, *sizes) if whole else sum(map(sum, sizes)),
        reason="its output shapes depend on data: no plan can hold it",
        line=instruction.op_def.debug_info,
        count=count,
        seconds=seconds,
        spans=spans,
    )


def _in_order(node: Node) -> list[Instruction]:
    return sorted(node.parts, key=lambda part: part.index)


def _kind(step: Step) -> str:
    return _kind_of(step.node) if step.kind is StepKind.COMPUTE else step.what


def _kind_of(node: Node) -> str:
    counts = Counter(part.op_def.type for part in _in_order(node))
    return "+".join(kind if count == 1 else f"{kind} x{count}" for kind, count in counts.items())


def _first(values: Sequence[Value | None]) -> str:
    return next((value.name for value in values if value is not None), "")


def _operator_text(part: Instruction) -> str:
    return f"{part.op_def.type} {next(iter(part.outputs), '')}".rstrip()


def _operand(name: str, spec: TensorSpec) -> Operand:
    dtype = "object" if spec.dtype == STRING else str(spec.dtype)
    return Operand(name, spec.shape, dtype, _layout_text(spec))


def _operands(values: Sequence[Value | None]) -> tuple[Operand, ...]:
    distinct = {id(value): value for value in values if value is not None}
    return tuple(_operand(value.name, value.spec) for value in distinct.values() if value.spec is not None)


def _layout_text(spec: TensorSpec) -> str:
    """Return how the value is ordered in memory: "plain", or the layout's letters without the extents."""
    if spec.layout is None:
        return "plain"
    letters, _, extents = str(getattr(spec.layout, "text", spec.layout)).partition(" of ")
    return f"{letters} padded" if extents.endswith("padded") else letters


def _single(node: Node) -> list[Node]:
    """Return the nodes of single operators that a node was joined from."""
    return [node] if not node.originals else [single for part in node.originals for single in _single(part)]


def _flops_of_step(step: Step) -> int:
    """Return the operations of a step, those for outputs that it leaves out not counted."""
    if step.kind is not StepKind.COMPUTE:
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
    except Exception:  # a formula for shapes that only a run can tell
        return 0


def _size(spec: TensorSpec | None) -> int:
    return 0 if spec is None or spec.dtype == STRING else spec.nbytes


def _nbytes(step: Step) -> int:
    """Return the bytes that a step reads and writes, those of a value that it reads twice once."""
    if step.kind is StepKind.WAIT:
        return 0
    reads = list(step.inputs)
    ins = [_size(value.spec) if value is not None and value not in reads[:i] else 0 for i, value in enumerate(reads)]
    outs = [_size(value.spec) if value is not None else 0 for value in step.outputs]
    if step.moves:
        return sum(ins) + sum(outs)
    lies = [value.buffer for value in reads if value is not None]
    stays = len(lies) == 1 and all(value is None or value.buffer is lies[0] for value in step.outputs)
    if stays and not any(map(_flops, _single(step.node))):
        return 0  # a value passed on where it lies, under another name or shape
    if len(step.node.parts) > 1:
        return sum(ins) + sum(outs)
    return _rows_only(step.node.first.op, [value.spec for value in step.node.inputs], ins, outs)


def _rows_only(op: Operator, specs: Sequence[TensorSpec | None], ins: Sequence[int], outs: Sequence[int]) -> int:
    """Return the sum of bytes read and written, of tables only the rows that ``indices`` names."""
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
    """Return why a copy is there; of an operator, why it copies its own result."""
    if step.kind is StepKind.WAIT:
        return f"{_kind_of(step.node)} has begun before; what comes next needs it done"
    if not step.moves:
        names = [value.name for j, value in enumerate(step.outputs) if value is not None and needs_temporary(step, j)]
        text = "its kernel may not write {} where an input lies: the result is made elsewhere and copied there"
        return text.format(", ".join(names)) if names else ""
    source, target = step.inputs[0], step.outputs[0]
    assert source is not None and target is not None and source.spec is not None and target.spec is not None
    operator = f"{_kind_of(step.node)} {_first(step.node.outputs)}".rstrip()
    lies, wanted = _layout_text(source.spec), _layout_text(target.spec)
    if lies == wanted:
        wanted += " in another way"
    if step.kind is StepKind.RESTORE:
        return f"the blob {target.name} keeps its layout, {wanted}; {operator} writes it as {lies}"
    if step.kind is StepKind.TRANSFER:
        return f"{operator} needs {source.name} on {_place(target.location)}; it lies on {_place(source.location)}"
    index = next((i for i, value in enumerate(step.node.inputs) if value.name == source.name), 0)
    return f"{operator} wants {source.name} (input {index}) as {wanted}; it lies as {lies}"


def _place(location: Location) -> str:
    return "the host" if location == HOST else device_text(location)
