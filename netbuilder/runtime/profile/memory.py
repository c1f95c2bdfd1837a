"""The memory of a net's plans, planned before anything runs, and what the process will have with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from netbuilder.engines.layouts import HOST, Location
from netbuilder.graph.html_tables import folded, table
from netbuilder.ops.core.instructions import Instruction
from netbuilder.ops.core.operator import STRING
from netbuilder.proto import PROTO_CUDA
from netbuilder.proto.errors import bytes_text
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.execute.executable import Plan
from netbuilder.runtime.execute.net import RuntimeNet
from netbuilder.runtime.execute.workspace import Workspace
from netbuilder.runtime.plan.binding import buffer_of, needs_temporary
from netbuilder.runtime.plan.plain_kernels import PLAIN
from netbuilder.runtime.plan.values import Step, Value
from netbuilder.runtime.profile.process_memory import absent_bytes, peak_resident, resident
from netbuilder.runtime.values.blob import Blob

__all__ = [
    "KINDS",
    "Held",
    "Memory",
    "held_outside",
    "memory_of",
    "planned_memory",
]

KINDS = {
    "parameters": "weights, biases and other parameters",
    "state": "blobs that the net keeps from run to run: moments, running averages, counters",
    "inputs": "other blobs that exist before a run, such as images and labels",
    "blobs": "values that the net makes and that can be fetched",
    "copies": "copies of parameters in other layouts, made once",
    "alone": "values with memory of their own, which nobody can fetch",
}
"""What is outside the arena: the names of kinds, and what belongs to them."""

_NAMES = {"blobs": "values to fetch", "copies": "reordered parameters", "alone": "values with memory of their own"}

Extent = tuple[int, int]


@dataclass(frozen=True)
class Held:
    """Something outside the arena.

    Args:
        name: of the blob, or of the value.
        kind: one of ``KINDS``.
        extent: the addresses at which it begins and ends.
        location: where it is.
    """

    name: str
    kind: str
    extent: Extent
    location: Location = HOST

    @property
    def nbytes(self) -> int:
        return self.extent[1] - self.extent[0]

    @property
    def gpu(self) -> int | None:
        """The number of the GPU that it is on; None: it is on the host."""
        return None if self.location == HOST else self.location[1]


@dataclass(frozen=True)
class Memory:
    """Bytes, on the host and on GPUs together; memory that several values share counts once.

    Args:
        arena: what values that nobody can fetch, copies in other layouts and scratch memory share, on all devices.
        parameters, state, inputs, blobs, copies, alone: outside the arena, see ``KINDS``.
        scratch: scratch memory of the lanes at most; it is in the arena, unless memory is not reused.
        whole: whether all operators of the net are in plans whose memory is known.
        peak_resident: peak resident memory of the process since it started; 0 where the system does not report it.
        expected_peak: what the peak will be after a run: what is resident before it, libraries and Python's objects
            included, what the plans have not yet written, and the largest results of a plain kernel, which are copied
            to their places; 0 if they have run, or where that is unknown. On CPUs without AVX-512 oneDNN's matrix
            products may allocate some 10 MB more for a while.
        gpus: of all that, the bytes on each GPU, by its number.
        predicted_again: the time to compute values again, to save memory, as a fraction of that of all else, by the
            estimates from which the plan chose them; 0 if nothing is computed again.
    """

    arena: int
    parameters: int
    state: int
    inputs: int
    blobs: int
    copies: int
    alone: int
    scratch: int
    whole: bool
    peak_resident: int
    predicted_again: float = 0.0
    expected_peak: int = 0
    gpus: Mapping[int, int] = field(default_factory=dict)

    @property
    def outside(self) -> int:
        """External values that the net reads: parameters, state and inputs."""
        return self.parameters + self.state + self.inputs

    @property
    def values(self) -> int:
        """All that the net makes: the arena, blobs, copies, and values with memory of their own."""
        return self.arena + self.blobs + self.copies + self.alone

    @property
    def total(self) -> int:
        return self.outside + self.values

    def _repr_html_(self) -> str:
        """A table of what takes how much, for notebooks."""
        rows = [["arena", bytes_text(self.arena), "values that nobody can fetch share it"]]
        rows += [[name, bytes_text(getattr(self, name)), what] for name, what in KINDS.items()]
        return folded(f"memory: {bytes_text(self.total)}", table(["", "size", ""], rows), unfolded=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the sums."""
        return {**dataclasses.asdict(self), "outside": self.outside, "values": self.values, "total": self.total}

    def __str__(self) -> str:
        """The sums as text, such as "2.75 GiB (intermediate values 2.55 GiB, parameters 97.5 MiB)"."""
        named = {"intermediate values": self.arena, **{_NAMES.get(each, each): getattr(self, each) for each in KINDS}}
        parts = ", ".join(f"{name} {bytes_text(nbytes)}" for name, nbytes in named.items() if nbytes)
        gpus = "".join(f"; GPU {number}: {bytes_text(nbytes)}" for number, nbytes in self.gpus.items())
        return f"{bytes_text(self.total)} ({parts}{gpus})" if parts else "0 B"


def planned_memory(workspace: Workspace, nets: Any, parameters: Iterable[Any] = ()) -> Memory:
    """Return the memory that runs of created nets will take, before anything of the arena is written.

    The plans are made if they do not exist yet; the next run uses them. What follows an operator whose output shapes
    depend on data is not known before it has run; then ``whole`` is False.

    Args:
        workspace: where the nets were created and their inputs fed.
        nets: the name of a net, or several names, in the order in which they run: they share the arena.
        parameters: blobs that count as parameters.

    Raises:
        NetError: there is no such net, an input is missing, or shapes do not fit.

    >>> import numpy as np
    >>> from netbuilder.graph import Net
    >>> workspace, net = Workspace(engines=()), Net("example")
    >>> workspace.feed("x", np.ones((64, 64), np.float32))
    >>> _ = net.MatMul(["x", "x"], "y"), net.MatMul(["y", "x"], "z")
    >>> memory = planned_memory(workspace, workspace.create_net(net, observable=["z"]))
    >>> memory.arena, memory.inputs, memory.blobs
    (16384, 16384, 16384)
    """
    names = [nets] if isinstance(nets, str) or not isinstance(nets, Iterable) else list(nets)
    for name in names:  # a plan that needs a larger arena on a GPU replaces those of earlier nets there
        workspace.net(name).plan_ahead()
    chosen = {str(name) for name in parameters}
    plans: list[Plan] = []
    held: dict[Extent, Held] = {}  # what one net makes is an input of a later one
    whole = True
    for name in names:
        net = workspace.net(name)
        made = net.plan_ahead()
        whole = whole and (made[-1].end if made else 0) == len(net.program)
        for each in held_outside(net, made, [], chosen):
            held.setdefault(each.extent, each)
        plans += made
    found = _summed(plans, list(held.values()), whole)
    extents = {extent for plan in plans for location, extent in _blocks(plan) if location == HOST}
    extents |= {each.extent for each in held.values() if each.location == HOST}
    to_come = absent_bytes(extents)
    if to_come:
        to_come += max((_results_to_copy(step) for plan in plans for step in plan.steps), default=0)
    expected = max(resident() + to_come, found.peak_resident) if to_come else 0
    return dataclasses.replace(found, expected_peak=expected)


def memory_of(
    net: RuntimeNet, plans: Sequence[Plan], alone: Sequence[Instruction], parameters: Collection[str]
) -> Memory:
    """Return the memory of a run; values that kernels publish count in ``peak_resident`` only.

    Args:
        net: the net.
        plans: the plans of the run.
        alone: the operators that ran outside plans.
        parameters: blobs that count as parameters.
    """
    return _summed(plans, held_outside(net, plans, alone, set(parameters)), whole=True)


def held_outside(
    net: RuntimeNet, plans: Sequence[Plan], alone: Sequence[Instruction], parameters: Collection[str]
) -> list[Held]:
    """Return what is outside the arena, the largest first; see ``memory_of``."""
    found: dict[Extent, Held] = {}

    def add(name: str, kind: str, buffer: Any) -> None:
        extent = _extent(buffer)
        if extent[1] > extent[0]:
            location = HOST if isinstance(buffer, np.ndarray) else (PROTO_CUDA, buffer.device.id)
            found.setdefault(extent, Held(name, kind, extent, location))

    for plan in plans:
        changed, only_read = _changed(plan), _read_unchanged(plan)
        for blob in plan.input_blobs:
            add(blob.name, _kind(blob, parameters, changed, only_read), blob.buffer)
        for blob, buffer in plan.outputs:
            add(blob.name, "blobs", buffer)
        for step in plan.steps:
            for array in step.prepared.own_memory:
                add(f"{step.node.first.outputs[0]}'s operator, for its steps", "alone", array)
        for value, is_copy in _made(plan):
            if not _within(_extent(value.buffer), plan):
                add(value.name, "copies" if is_copy else "alone", value.buffer)
    for instruction in alone:
        for name in instruction.outputs:
            other = net.find_blob(name)
            if other is not None:
                add(name, "blobs", other.buffer)
    return sorted(found.values(), key=lambda held: -held.nbytes)


def _kind(blob: Blob, parameters: Collection[str], changed: Collection[int], only_read: Collection[int]) -> str:
    """Return the kind of a blob that exists before a run.

    Init nets make parameters and also moments: what only operators that change it read is no parameter.
    """
    key = id(blob.buffer)
    if blob.name in parameters and (key not in changed or key in only_read):
        return "parameters"
    return "state" if key in changed or blob.name in parameters else "inputs"


def _changed(plan: Plan) -> set[int]:
    """Return the buffers, by id, that the plan writes."""
    return {id(value.buffer) for step in plan.steps for value in step.outputs if value is not None}


def _read_unchanged(plan: Plan) -> set[int]:
    """Return the buffers, by id, that some step reads without writing them, or that are copied once."""
    found: set[int] = set()
    for step in (*plan.constant_steps, *plan.steps):
        written = {id(value.buffer) for value in step.outputs if value is not None}
        found |= {id(buffer_of(value)) for value in step.inputs if value is not None} - written
    return found


def _made(plan: Plan) -> list[tuple[Value, bool]]:
    """Return the values that are no blob's, and whether each is a copy of a constant."""
    copied = [value for step in plan.constant_steps for value in step.outputs if value is not None]
    rest = [value for step in plan.steps for value in (*step.inputs, *step.outputs) if value is not None]
    return [(value, True) for value in copied] + [(value, False) for value in rest if value.blob is None]


def _within(extent: Extent, plan: Plan) -> bool:
    """Whether something is in the plan's part of the arena."""
    return any(start <= extent[0] and extent[1] <= end for _, (start, end) in _blocks(plan))


def _blocks(plan: Plan) -> Iterator[tuple[Location, Extent]]:
    """Yield the plan's parts of the arena."""
    for location, nbytes in plan.memory.arenas.items():
        if nbytes:
            yield location, _extent(plan.arena.memory(nbytes, location))


def _summed(plans: Sequence[Plan], held: Sequence[Held], whole: bool) -> Memory:
    """Return the sums by kind; what overlaps counts for the kind that is first in ``KINDS``."""
    extents: list[Extent] = []
    sums = {}
    for kind in KINDS:
        before = _union(extents)
        extents += [each.extent for each in held if each.kind == kind]
        sums[kind] = _union(extents) - before
    arenas: dict[tuple[int, Location], int] = {}
    for plan in plans:
        for location, nbytes in plan.memory.arenas.items():
            key = id(plan.arena), location
            arenas[key] = max(arenas.get(key, 0), nbytes)
    sums["alone"] += sum(map(_temporaries, plans))
    scratch = max(map(_scratch, plans), default=0)
    work = sum(plan.memory.work for plan in plans)
    return Memory(
        sum(arenas.values()), **sums, scratch=scratch, whole=whole, peak_resident=peak_resident(),
        predicted_again=sum(plan.memory.work_again for plan in plans) / max(work, 1.0), gpus=_on_gpus(arenas, held),
    )  # fmt: skip


def _on_gpus(arenas: Mapping[tuple[int, Location], int], held: Sequence[Held]) -> dict[int, int]:
    """Return the bytes on each GPU, in arenas and outside of them."""
    found: dict[int, int] = {}
    for (_, (kind, number)), nbytes in arenas.items():
        if kind == PROTO_CUDA:
            found[number] = found.get(number, 0) + nbytes
    for number in {each.location[1] for each in held if each.location[0] == PROTO_CUDA}:
        there = _union(each.extent for each in held if each.location == (PROTO_CUDA, number))
        found[number] = found.get(number, 0) + there
    return dict(sorted(found.items()))


def _extent(buffer: Any) -> Extent:
    """Return the addresses of a buffer's begin and end; (0, 0) for anything but an array of numbers."""
    if getattr(buffer, "dtype", STRING) == STRING:
        return 0, 0
    start = buffer.ctypes.data if hasattr(buffer, "ctypes") else buffer.data.ptr
    return start, start + buffer.nbytes


def _union(extents: Iterable[Extent]) -> int:
    """Return how many bytes the union of several extents covers."""
    total, reached = 0, 0
    for start, end in sorted(extents):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _scratch(plan: Plan) -> int:
    most: dict[tuple[int, Location], int] = {}
    for step in plan.steps:
        place = step.lane, step.location
        most[place] = max(most.get(place, 0), step.prepared.scratch)
    return sum(most.values())


def _results_to_copy(step: Step) -> int:
    """Return the bytes that a plain kernel on the host allocates for its results, which are then copied."""
    if step.prepared.name != PLAIN or step.location != HOST:
        return 0
    return sum(value.spec.nbytes for value in step.outputs if value is not None and value.spec is not None)


def _temporaries(plan: Plan) -> int:
    """Return the bytes of temporaries for results that are then copied."""
    return sum(
        value.spec.nbytes
        for step in plan.steps
        for j, value in enumerate(step.outputs)
        if value is not None and value.spec is not None and needs_temporary(step, j)
    )
