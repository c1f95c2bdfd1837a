"""The plan compiler: from a net's operators and the specs of its inputs to steps over values.

A plan covers the operators from ``start`` up to the first one whose output shapes depend on data. The phases:
shapes, values (each write makes a new version), fusion, kernels with their layouts, buffers, binding.
"""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from netbuilder.graph.blob import strip_prefix
from netbuilder.ops.contexts import ANY_ORDER, Later, Prepared
from netbuilder.ops.engines import onednn
from netbuilder.ops.engines.layouts import HOST, Location, prepare_reorder
from netbuilder.ops.engines.onednn.image_order import best_image_order
from netbuilder.ops.operator import STRING, TensorSpec
from netbuilder.ops.registry import plain_kernel, prepared_kernels
from netbuilder.proto import BlobError, NetError
from netbuilder.runtime.blob import Blob, Generation
from netbuilder.runtime.demand import late_value, note_demand
from netbuilder.runtime.fuse_updates import join_updates
from netbuilder.runtime.fusion import fuse
from netbuilder.runtime.node_context import NodeContext
from netbuilder.runtime.plain import plain_prepared, transfer
from netbuilder.runtime.program import Instruction, describe, located
from netbuilder.runtime.run_context import KernelContext
from netbuilder.runtime.values import Node, Step, Value

__all__ = ["Compilation", "Runner", "Setting", "compile_steps", "default_threads", "missing"]


def default_threads() -> int:
    """Return how many threads a step may use: OMP_NUM_THREADS, or the cores this process may run on."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    if text.isdigit() and int(text) > 0:
        return int(text)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Setting:
    """How a net is to be planned.

    Args:
        engines: libraries that may serve; None: all that are present, (): NumPy alone.
        lanes: how many lanes; devices are dealt out over them.
        threads: threads over all lanes.
        without: the optimisations that are switched off, see ``runtime.optimisations``.
        precision: how activations may be kept in memory (see ``ops.precision``).
        constants: blobs that do not change from run to run: reorders of them are made once.
    """

    engines: tuple[str, ...] | None = None
    lanes: int = 1
    threads: int = 1
    without: frozenset[str] = frozenset()
    precision: str = "float32"
    constants: frozenset[str] = frozenset()

    @property
    def lane_threads(self) -> int:
        return max(1, self.threads // self.lanes)

    def does(self, optimisation: str) -> bool:
        """Whether plans may do that: a name of ``runtime.optimisations``."""
        return optimisation not in self.without

    def allows(self, engine: str) -> bool:
        return engine == "" or self.engines is None or engine in self.engines


@dataclass(slots=True)
class Compilation:
    """What the compiler hands to the buffer phase.

    ``once`` are the copies of constants, which are made when the plan is; ``hidden`` the blobs that the plan makes and
    that are not observable.
    """

    end: int
    steps: list[Step]
    once: list[Step]
    values: list[Value]
    last: dict[str, Value]
    externals: dict[str, Value]
    hidden: frozenset[str]


class Runner(Protocol):
    """What the compiler needs to know of the net it compiles for (see ``runtime.net.RuntimeNet``)."""

    name: str
    program: list[Instruction]

    def find_blob(self, name: str) -> Blob | None:
        """The blob of that name, or None."""

    def kernel_context(self, instruction: Instruction) -> KernelContext:
        """What the kernels of an operator are given."""

    def hides(self, name: str, start: int, end: int) -> bool:
        """Whether nobody but the operators from ``start`` to before ``end`` may see a blob that they make."""


def compile_steps(net: Runner, start: int, setting: Setting) -> Compilation | None:
    """Compile the longest static run of operators from ``start``; None if the first is not static."""
    if setting.allows("ONEDNN"):
        getattr(onednn, "register_kernels", lambda: None)()
        if setting.precision == "bfloat16":
            onednn.warn_without_bfloat16()
    specs, end = _infer(net, start, setting)
    if end == start:
        return None
    nodes, last, externals, values = _values(net, start, end, specs)
    for name in setting.constants.intersection(externals) if setting.does("constants") else ():
        externals[name].constant = externals[name].blob
    hidden = frozenset(name for name in last if name not in externals and net.hides(name, start, end))
    if setting.allows("ONEDNN") and onednn.available():
        nodes = fuse(nodes, last, hidden, setting.does)
    if setting.does("joined_updates"):
        nodes = join_updates(nodes, last, hidden)
    if setting.does("unread_outputs"):
        note_demand(nodes, last, hidden, [*net.program[:start], *net.program[end:]])
    steps = _kernels(net, nodes, setting, values)
    return Compilation(end, steps.made, steps.once, values, last, externals, hidden)


def missing(name: str, find: Callable[[str], Blob | None]) -> BlobError:
    """Return the error that an operator reads a blob without a value.

    Args:
        name: the blob.
        find: returns the blob of a name, None if there is none.
    """
    why = (find(name) or Blob(name, Generation())).why_empty()
    plain = strip_prefix(name)
    whole = find(plain) if plain != name else None
    if whole is not None and not whole.is_empty:
        why += f" (blob {plain!r} has a value; each replica reads its part from a blob of its own, here {name!r})"
    return BlobError(f"input blob {name!r} {why}")


def _blob(net: Runner, name: str, instruction: Instruction) -> Blob:
    blob = net.find_blob(name)
    if blob is None or blob.is_empty:
        raise located(describe(net.name, instruction), missing(name, net.find_blob))
    return blob


def _blob_spec(blob: Blob) -> TensorSpec:
    return blob.spec if blob.spec is not None else TensorSpec((), STRING)


def _infer(net: Runner, start: int, setting: Setting) -> tuple[list[tuple[TensorSpec, ...]], int]:
    """Return the plain specs of all outputs, and the first operator that a plan cannot hold."""
    known: dict[str, TensorSpec] = {}
    specs: list[tuple[TensorSpec, ...]] = []
    for index in range(start, len(net.program)):
        instruction = net.program[index]
        ins = []
        for name in instruction.inputs:
            spec = known.get(name)
            if spec is None:
                spec = known[name] = _blob_spec(_blob(net, name, instruction)).plain
            ins.append(spec)
        if not instruction.op.static_for(*ins):
            return specs, index
        try:
            outs = tuple(instruction.op.infer(*ins))
            if not setting.does("known_extents"):
                outs = tuple(_knowing(spec, None) for spec in outs)
        except NotImplementedError:
            return specs, index
        except Exception as error:
            raise located(describe(net.name, instruction), error) from error
        if any(spec.dtype == STRING for spec in outs) or (
            any(spec.dtype == STRING for spec in ins)
            and not prepared_kernels(instruction.op_def.type, instruction.device[0])
        ):
            return specs, index
        if len(outs) < len(instruction.outputs):
            text = f"its shapes are known for {len(outs)} of {len(instruction.outputs)} outputs"
            raise located(describe(net.name, instruction), NetError(text))
        specs.append(outs)
        known.update(zip(instruction.outputs, outs))
    return specs, len(net.program)


def _values(
    net: Runner, start: int, end: int, specs: Sequence[tuple[TensorSpec, ...]]
) -> tuple[list[Node], dict[str, Value], dict[str, Value], list[Value]]:
    last: dict[str, Value] = {}
    externals: dict[str, Value] = {}
    values: list[Value] = []
    nodes: list[Node] = []
    for index in range(start, end):
        instruction = net.program[index]
        ins = []
        for name in instruction.inputs:
            value = last.get(name)
            if value is None:
                blob = _blob(net, name, instruction)
                value = Value(name, 0, _blob_spec(blob), blob, blob.location)
                last[name] = externals[name] = value
                values.append(value)
            value.readers += 1
            ins.append(value)
        outs = []
        places = _places(instruction, ins)
        for name, spec, place in zip(instruction.outputs, specs[index - start], places):
            before = last.get(name)
            value = Value(name, before.version + 1 if before else 0, spec.plain, None, place)
            last[name] = value
            values.append(value)
            outs.append(value)
        nodes.append(Node([instruction], ins, outs))
    return nodes, last, externals, values


def _places(instruction: Instruction, inputs: Sequence[Value]) -> list[Location]:
    """Return where the outputs of an operator lie."""
    op, count, own = instruction.op, len(instruction.outputs), instruction.location
    if op.outputs_on_host:
        return [HOST] * count
    if op.outputs_beside is None or own == HOST:
        return [own] * count
    if op.outputs_beside == "one-to-one":
        return [value.location for value in inputs[:count]]
    return [inputs[op.outputs_beside].location] * count


def _kernels(net: Runner, nodes: list[Node], setting: Setting, values: list[Value]) -> _Steps:
    steps = _Steps(values, setting)
    lane_of = _Lanes(setting.lanes)
    image_order = _image_order(nodes, setting)
    waiting = deque(nodes)
    while waiting:
        node = waiting.popleft()
        instruction = node.first
        lane = lane_of(instruction.device)
        try:
            run = net.kernel_context(instruction)
            ctx = NodeContext(
                instruction, run, setting.lane_threads, setting.precision, node.inputs, node.outputs, setting.does,
                image_order,
            )  # fmt: skip
            prepared = _prepare(node, ctx, setting)
            if prepared is None:
                waiting.extendleft(reversed(node.originals))
                continue
            steps.add(node, prepared, lane, ctx)
        except Exception as error:
            raise located(describe(net.name, instruction), error) from error
    return steps


def _image_order(nodes: Sequence[Node], setting: Setting) -> str:
    """Return in which order images should lie: measured where all convolutions have constant weights."""
    usable = setting.allows("ONEDNN") and onednn.available() and setting.does("measured_choices")
    convs = [node for node in nodes if node.first.op_def.type == "Conv" and node.first.location == HOST]
    if not usable or not convs or not all(node.inputs[1].constant for node in convs):
        return ANY_ORDER
    specs = [[value.spec for value in node.inputs[: node.first.op.n_in]] for node in convs]
    found = [(node.first.op, plain) for node, plain in zip(convs, specs) if all(plain)]
    return best_image_order(found, setting.lane_threads, setting.precision)  # type: ignore[arg-type]


def _wanted_at(node: Node, index: int) -> Location:
    """Return where the kernel of a node wants an input."""
    own = node.first.location
    place = "here" if own == HOST else node.first.op.input_place(index)
    return own if place == "here" else HOST if place == "host" else node.inputs[index].location


class _Steps:
    """The steps so far; puts a copy before a step wherever it wants a value in another layout or place.

    Copies of constants are kept in ``once``, apart from the steps of each run.
    """

    def __init__(self, values: list[Value], setting: Setting) -> None:
        self.made: list[Step] = []
        self.once: list[Step] = []
        self._values = values
        self._does = setting.does

    def add(self, node: Node, prepared: Prepared, lane: int, ctx: NodeContext) -> None:
        ins = [
            None if wanted is None else self._in_form(value, wanted, _wanted_at(node, i), node, lane, ctx)
            for i, (value, wanted) in enumerate(zip(node.inputs, prepared.inputs))
        ]
        if not self._does("inplace"):
            prepared.inplace = ()
        step = Step(node, prepared, ins, [*node.outputs], lane, prepared.name)
        straightened: list[Step] = []
        for j, value in enumerate(node.outputs):
            spec = prepared.outputs[j] if j < len(prepared.outputs) else None
            if spec is None:
                step.outputs[j] = None
                if j in prepared.later:
                    _leave(value, prepared.later[j], node, ctx)
                continue
            value.spec = _knowing(spec, value.spec)
            value.producer = step
            if value.spec.layout is not None and not self._does("blocked_layouts"):
                straightened.append(self._straightened(step, j, ctx))
        _share(step)
        self.made += [step, *straightened]

    def _straightened(self, step: Step, j: int, ctx: NodeContext) -> Step:
        """Let a step write what nobody else reads, and return the one that puts it in plain order."""
        value = step.outputs[j]
        assert value is not None and value.spec is not None
        written, value.spec = value.spec, value.spec.plain
        passing = Value(value.name, value.version, written, None, value.location, producer=step, passing=True)
        self._values.append(passing)
        step.outputs[j] = passing
        made = Step(step.node, prepare_reorder(ctx, written, value.spec), [passing], [value], step.lane, "restore")
        value.producer = made
        return made

    def _in_form(
        self, value: Value, wanted: TensorSpec, location: Location, node: Node, lane: int, ctx: NodeContext
    ) -> Value:
        """Return ``value`` in the layout and place that a kernel wants: itself, or a copy, made once."""
        assert value.spec is not None
        if value.spec.dtype == STRING:
            return value
        if value.location != location:  # only plain values travel
            value = self._copy(value, value.spec.plain, value.location, node, lane, ctx)
            value = self._copy(value, wanted.plain, location, node, lane, ctx)
        return self._copy(value, wanted, location, node, lane, ctx)

    def _copy(
        self, value: Value, wanted: TensorSpec, location: Location, node: Node, lane: int, ctx: NodeContext
    ) -> Value:
        if value.spec == wanted and value.location == location:
            return value
        key = (wanted.layout, location)
        copy = value.copies.get(key)
        if copy is None or not self._does("shared_copies"):
            assert value.spec is not None
            if location != value.location:
                prepared, what = transfer(value.spec), "transfer"
            else:
                prepared, what = prepare_reorder(ctx, value.spec, wanted), "reorder"
            copy = Value(value.name, value.version, wanted, None, location)
            copy.published, copy.constant = value.published, value.constant
            step = Step(node, prepared, [value], [copy], lane, what)
            copy.producer = step
            value.copies[key] = copy
            self._values.append(copy)
            (self.made if copy.constant is None else self.once).append(step)
        return copy


def _leave(value: Value, later: Later, node: Node, ctx: NodeContext) -> None:
    """Leave a value to be computed when it is fetched."""
    value.lazy = late_value(later, node.inputs, ctx.threads)
    value.lazy_reads = tuple(node.inputs[i] for i in later.reads)
    value.guarded = True


def _knowing(spec: TensorSpec, inferred: TensorSpec | None) -> TensorSpec:
    """Return the spec of a kernel's output with the elements that shape inference knows."""
    known = inferred.known if inferred is not None else None
    return spec if spec.known == known else dataclasses.replace(spec, known=known)


class _Lanes:
    """Deals devices out over lanes, in the order in which they are met."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._lanes: dict[tuple[int, int], int] = {}

    def __call__(self, device: tuple[int, int]) -> int:
        lane = self._lanes.get(device)
        if lane is None:
            lane = self._lanes[device] = len(self._lanes) % self._count
        return lane


def _prepare(node: Node, ctx: NodeContext, setting: Setting) -> Prepared | None:
    """Return the kernel of a node; None if there is none for operators joined."""
    specs = [value.spec for value in node.inputs]
    if node.fused is not None:
        return node.fused(ctx, *specs)
    instruction = node.first
    op_type, device_type = instruction.op_def.type, instruction.device[0]
    for row in prepared_kernels(op_type, device_type):
        if setting.allows(row.engine) and (row.engine or setting.does("bound_kernels") or _has_text(specs)):
            prepared = row.make(instruction.op, ctx, *specs)
            if prepared is not None:
                return prepared
    kernel = plain_kernel(op_type, device_type)
    if kernel is None:
        raise NetError(f"no kernel of {op_type!r} serves inputs {[s and (s.shape, str(s.dtype)) for s in specs]}")
    outs = [value.spec for value in node.outputs]
    return plain_prepared(instruction.op, ctx.run, kernel, specs, outs, instruction.location)  # type: ignore[arg-type]


def _has_text(specs: Sequence[TensorSpec | None]) -> bool:
    return any(spec is not None and spec.dtype == STRING for spec in specs)


def _share(step: Step) -> None:
    """Let outputs that overwrite an input of the same name keep its buffer, where the kernel can."""
    allowed = set(step.prepared.inplace)
    for j, out in enumerate(step.outputs):
        if out is None:
            continue
        for i, value in enumerate(step.inputs):
            if value is None or value.name != out.name or (i, j) not in allowed:
                continue
            original = step.node.inputs[i]
            if value is original and value.spec == out.spec and value.location == out.location:
                if value.version == out.version - 1:
                    out.shares = value
                    break
