"""Buffers of the values of a plan: the last version of a name is stored in its blob, others in the plan's memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from netbuilder.engines.arrays import aligned_zeros
from netbuilder.engines.buffer_rows import part_of_row
from netbuilder.engines.layouts import HOST, prepare_reorder
from netbuilder.ops.core.extensions import Together
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.runtime.plan.binding import buffer_of
from netbuilder.runtime.plan.compiler import Compilation
from netbuilder.runtime.plan.memory_plan import MemoryPlan, Provide, assign
from netbuilder.runtime.plan.recompute import Recomputed, drop_cheap, fit_into
from netbuilder.runtime.plan.values import Step, StepKind, Value
from netbuilder.runtime.values.blob import Blob, EdgeContext
from netbuilder.runtime.values.reserved_rows import reserve_row

__all__ = ["Output", "append_restore", "assign_buffers", "versions_of"]


class Output:
    """A blob that a plan writes, and the last version of its value."""

    __slots__ = ("blob", "value")

    def __init__(self, blob: Blob, value: Value) -> None:
        self.blob = blob
        self.value = value


def assign_buffers(
    plan: Compilation,
    make_blob: Callable[[str], Blob],
    may_relayout: Callable[[Blob], bool],
    enabled: Callable[[str], bool],
    provide: Provide | None = None,
) -> tuple[list[Output], dict[str, Any], MemoryPlan]:
    """Give every value of a plan its buffer.

    A blob that the plan both reads and writes has to end in the buffer in which it began. Where the writer's kernel
    uses another layout (an update in the layout of the gradient), the blob takes that layout permanently, unless
    another net has chosen its layout: the requested layouts are returned, and the caller compiles the plan again with
    them. Where the blob cannot change its layout, a step that converts the value back is added.

    Args:
        plan: the steps and values; restoring steps may be added to it.
        make_blob: returns the blob of a name, made if it does not exist.
        may_relayout: whether a blob may change its layout.
        enabled: whether an optimization is on, by its name in ``runtime.plan.optimizations``.
        provide: returns so many bytes at a location for all values that share memory there; None: new ones.

    Returns:
        The blobs written; the layouts requested, by blob name (if there are any, no buffer is set); and where the
        values that are not in blobs are, or that the memory budget is too small for them.
    """
    versions = versions_of(plan)
    requested: dict[str, Any] = {}
    for name, chain in versions.items():
        first, final = chain[0], _physical(chain[-1])
        if first.blob is not None and final is not first and _same_kind(first, final):
            assert first.spec is not None and final.spec is not None
            if first.spec.layout != final.spec.layout and not final.spec.rounds and may_relayout(first.blob):
                requested[name] = final.spec.layout
    if requested:
        return [], requested, MemoryPlan()

    together = _together(plan, versions, make_blob) if enabled("buckets_in_place") else []
    outputs: list[Output] = []
    for name, chain in versions.items():
        first, last = chain[0], chain[-1]
        final = _physical(last)
        if first.blob is not None:
            if final is not first:
                first.blob.own_value()
            first.buffer = first.blob.buffer
            if final is not first and _same_kind(first, final) and first.spec != final.spec:
                assert first.spec is not None
                final = last = append_restore(plan, first.spec, final)
        if final.blob is None and name not in plan.graph.hidden:
            if final.producer is not None and final.lazy is not None:
                final = last = _when_fetched(plan, final)
            assert final.spec is not None
            blob = first.blob or make_blob(name)
            if final.lazy is not None and final.location == HOST and not blob.has_buffer_for(final.spec):
                # Hardly ever written, so not between buffers that are, with which it would share large pages.
                blob.reserve(final.spec, part_of_row(aligned_zeros(final.spec.nbytes), final.spec))
            final.buffer = blob.buffer_for(final.spec, final.location)
            outputs.append(Output(blob, last))
        for value in reversed(chain):
            if value.shares is not None and value.shares.buffer is None and value.shares.blob is None:
                value.shares.buffer = value.buffer
    rest = [value for value in plan.values if value.buffer is None and value.producer is not None]
    for value in rest:
        if value.constant is not None:
            assert value.spec is not None
            value.copy = value.constant.constant_copy(value.spec, value.location)
            value.buffer = value.copy.buffer
    read_later = {read for value in plan.values for read in value.lazy_reads}
    own = [value for value in rest if value.buffer is None]
    again = None
    if enabled("cheap_recomputation") and enabled("reuse"):
        again = drop_cheap(plan.steps, own, read_later)
    if plan.graph.options.memory_budget is not None:
        again = _keep_to_budget(plan, own, read_later, again)
        if again.shortfall is not None:
            return [], {}, MemoryPlan(shortfall=again.shortfall)
    if again is not None:
        _compute_again(plan, own, again)
        own = again.values
    memory = assign(
        own, plan.steps, provide,
        reuse=enabled("reuse"), apart=read_later, rows=together, join=enabled("parts_in_place"),
    )  # fmt: skip
    if again is not None:
        memory.work, memory.work_again, memory.whole = again.total, again.work * again.total, again.whole
    return outputs, {}, memory


def _together(
    plan: Compilation, versions: Mapping[str, Sequence[Value]], make_blob: Callable[[str], Blob]
) -> list[list[Value]]:
    """Store what a kernel works on as one in a row: values that the plan makes and their blobs will have.

    Returns:
        The rows of values that nobody can fetch; they are part of the arena, unless there is a memory budget.
    """
    found = []
    for step in plan.steps:
        together = step.prepared.get(Together) if step.kind is StepKind.COMPUTE else None
        for indices in together.outputs if together is not None else ():
            values = {value.name: value for j in indices if (value := step.outputs[j]) is not None}
            last = [_physical(versions[name][-1]) for name in values]
            if len(values) < len(indices) or any(versions[name][0].blob is not None for name in values):
                continue
            if plan.graph.hidden.issuperset(values):
                found.append([*values.values()])
            elif all(_will_be_in_blob(value, plan.graph.hidden, versions) for value in last):
                reserve_row([(make_blob(value.name), value.spec) for value in last if value.spec is not None])
    return found if plan.graph.options.memory_budget is None else []


def _will_be_in_blob(value: Value, hidden: Collection[str], versions: Mapping[str, Sequence[Value]]) -> bool:
    """Whether the plan makes a value, on the host, in memory that its blob will have until the next run."""
    if value.name in hidden or value.producer is None or value.location != HOST or value.lazy is not None:
        return False
    chain = versions.get(value.name)
    if chain is None or chain[0].blob is not None:
        return False
    final = last = _physical(chain[-1])
    while last is not value and last.shares is not None:
        last = last.shares
    return last is value and final.lazy is None and final.spec == value.spec


def _when_fetched(plan: Compilation, value: Value) -> Value:
    """Return the value of a blob that is computed when it is fetched, though the plan has it for a part of the run."""
    blob_value = Value(value.name, value.version, value.spec, None, value.location)
    blob_value.lazy, blob_value.lazy_reads, blob_value.guarded = value.lazy, value.lazy_reads, value.guarded
    value.lazy, value.lazy_reads, value.intermediate = None, (), True
    plan.values.append(blob_value)
    return blob_value


def _keep_to_budget(
    plan: Compilation, own: list[Value], apart: Collection[Value], cheap: Recomputed | None
) -> Recomputed:
    """Return the steps and values with which a plan keeps to its budget."""
    budget = plan.graph.options.memory_budget
    assert budget is not None
    inside = set(own).difference(apart)
    outside = {id(buffer): buffer for buffer in map(buffer_of, plan.values) if buffer is not None}
    fixed = sum(int(getattr(buffer, "nbytes", 0)) for buffer in outside.values())
    fixed += sum(value.spec.nbytes for value in own if value not in inside and value.spec is not None)
    alone = {id(array): array.nbytes for step in plan.steps for array in step.prepared.own_memory}
    fixed += sum(alone.values())
    return fit_into(plan.graph.net, plan.steps, own, apart, budget, fixed, cheap, plan.graph.options.largest_plan)


def _compute_again(plan: Compilation, own: list[Value], found: Recomputed) -> None:
    """Replace the steps and the values in the arena of a plan."""
    replaced = set(own).difference(found.values)
    plan.values[:] = [value for value in plan.values if value not in replaced]
    known = set(plan.values)
    plan.values += [value for value in found.values if value not in known]
    plan.steps[:] = found.steps


def versions_of(plan: Compilation) -> dict[str, list[Value]]:
    """Return the versions of each name in order, an external value first; copies for kernels are not among them."""
    versions: dict[str, list[Value]] = {}
    for value in plan.values:
        if value.producer is not None or value.blob is not None or value.lazy is not None:
            if not _is_copy(value) and not value.intermediate:
                versions.setdefault(value.name, []).append(value)
    return versions


def append_restore(plan: Compilation, spec: TensorSpec, final: Value) -> Value:
    """Append a step that converts the last version of a name to the layout of ``spec``; return the value it makes."""
    assert final.spec is not None
    assert final.producer is not None
    made = Value(final.name, final.version + 1, spec, None, final.location)
    prepared = prepare_reorder(EdgeContext(), final.spec, spec, final.location)
    step = Step(final.producer.node, prepared, [final], [made], final.producer.lane, StepKind.RESTORE)
    made.producer = step
    plan.steps.append(step)
    plan.values.append(made)
    return made


def _is_copy(value: Value) -> bool:
    """Whether the value is a copy of another one, in another layout or at another location."""
    return value.producer is not None and value.producer.kind in (StepKind.REORDER, StepKind.TRANSFER)


def _physical(value: Value) -> Value:
    """Return the value whose buffer a name's value is stored in: for a deferred one, the version it replaces."""
    return value.lazy_from if value.lazy_from is not None else value


def _same_kind(a: Value, b: Value) -> bool:
    assert a.spec is not None and b.spec is not None
    return a.spec.plain == b.spec.plain and a.location == b.location
