"""What a net's step reads, writes and computes on a GPU that a file describes: its plan, made without a GPU."""

from __future__ import annotations

import dataclasses
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from netbuilder.engines.described_gpu import DescribedGPU, planned_for
from netbuilder.engines.layouts import HOST, Location, new_buffer
from netbuilder.graph.message import message_of
from netbuilder.graph.shapes import infer_shapes
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.ops.core.precision import PRECISIONS
from netbuilder.proto import PROTO_CUDA, NetDef, NetError
from netbuilder.proto.arguments import make_argument
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.execute.executable import Planned, plan_buffers
from netbuilder.runtime.execute.workspace import Workspace
from netbuilder.runtime.plan.program import read_program
from netbuilder.runtime.profile.call import CallProfile, describe_step
from netbuilder.runtime.profile.text_table import Report, TextTable

__all__ = ["PlannedKind", "PlannedStep", "planned_report", "planned_step"]

_GPU: Location = (PROTO_CUDA, 0)


@dataclass(frozen=True)
class PlannedKind:
    """All calls of one kind (see ``CallProfile.kind``).

    Args:
        kind: of the calls.
        calls: their number.
        flops, nbytes: their sums.
        seconds: the sum of the least times on the described GPU.
    """

    kind: str
    calls: int
    flops: int
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class PlannedStep:
    """A step of a net as it is planned for a described GPU.

    Args:
        net: its name.
        gpu: the GPU.
        dtype: how activations are stored, see ``PlanOptions``.
        allow_tf32: whether products of float32 values use TF32.
        calls: what the plan runs, in order, each once.
        end: the operator before which the plan ends, because its output shapes depend on data; None: it is whole.
    """

    net: str
    gpu: DescribedGPU
    dtype: str
    allow_tf32: bool
    calls: tuple[CallProfile, ...]
    end: str | None

    def seconds_of(self, call: CallProfile) -> float:
        """Return the least time of a call on the GPU; 0 for what runs on the host."""
        if not call.device.startswith("GPU"):
            return 0.0
        stored = self.dtype if call.bfloat16 else PRECISIONS[0]
        tf32 = self.allow_tf32 and stored == PRECISIONS[0] and "tf32" in self.gpu.rates
        return self.gpu.seconds(call.flops, call.nbytes, "tf32" if tf32 else stored)

    def kinds(self) -> list[PlannedKind]:
        """Return the sums by kind of call, the longest first; calls on the host are not among them."""
        found: dict[str, list[CallProfile]] = defaultdict(list)
        for call in self.calls:
            if call.device.startswith("GPU"):
                found[call.kind].append(call)
        sums = [
            PlannedKind(
                kind, len(calls), sum(call.flops for call in calls), sum(call.nbytes for call in calls),
                sum(map(self.seconds_of, calls)),
            )
            for kind, calls in found.items()
        ]  # fmt: skip
        return sorted(sums, key=lambda each: -each.seconds)

    @property
    def nbytes(self) -> int:
        """Bytes that a step reads and writes in the GPU's memory."""
        return sum(each.nbytes for each in self.kinds())

    @property
    def flops(self) -> int:
        """Floating-point operations of a step, by the operators' formulas."""
        return sum(each.flops for each in self.kinds())

    @property
    def seconds(self) -> float:
        """The sum of the least times of all calls, which follow one another."""
        return sum(each.seconds for each in self.kinds())

    def to_dict(self) -> dict[str, Any]:
        """Return everything in types of JSON."""
        calls = [
            {"kind": call.kind, "output": call.output, "kernel": call.kernel, "device": call.device,
             "flops": call.flops, "nbytes": call.nbytes, "seconds": self.seconds_of(call),
             "inputs": [str(each) for each in call.inputs], "outputs": [str(each) for each in call.outputs]}
            for call in self.calls
        ]  # fmt: skip
        return {
            "net": self.net, "gpu": dataclasses.asdict(self.gpu), "dtype": self.dtype, "allow_tf32": self.allow_tf32,
            "nbytes": self.nbytes, "flops": self.flops, "seconds": self.seconds, "planned_until": self.end,
            "kinds": [dataclasses.asdict(each) for each in self.kinds()], "calls": calls,
        }  # fmt: skip


def planned_step(
    net: Any, init_net: Any, inputs: Mapping[str, TensorSpec], gpu: DescribedGPU, *,
    exhaustive_search: bool = False, **options: Any,
) -> PlannedStep:  # fmt: skip
    """Plan a step for a described GPU; neither the net nor its init net runs, and no GPU or library of one is needed.

    Args:
        net: a Net or NetDef whose operators are on GPU 0.
        init_net: the net that makes its parameters, likewise.
        inputs: the specs of its other inputs, which are taken to be in the GPU's memory.
        gpu: the GPU.
        exhaustive_search: plan as if kernels had been searched for: where there is one of cuDNN and one of ours, that
            which reads and writes fewer bytes.
        options: of ``Workspace`` (allow_tf32, engines, without) and ``Workspace.create_net`` (dtype, observable, ...).

    Raises:
        NetError: the net cannot be planned, its first operator's shapes depend on data, or it is for several GPUs.
        ShapeError: shapes do not fit.
    """
    proto, init = message_of(net), message_of(init_net)
    if exhaustive_search:
        proto = _searching(proto)
    with planned_for(gpu), warnings.catch_warnings():
        # This CPU is not that of the described GPU's machine.
        warnings.filterwarnings("ignore", ".* activations were requested, but this CPU", RuntimeWarning)
        workspace = Workspace(threads=1)
        _make_blobs(workspace, proto, init, inputs)
        created = workspace.net(workspace.create_net(proto, **options))
        if created.gpus != (0,):
            raise NetError(f"net {created.name!r}: a described GPU runs nets on GPU 0 alone; it is on {created.gpus}")
        found = plan_buffers(created, 0, created.options, workspace.make, workspace.arena)
        if not isinstance(found, Planned):
            why = "the memory budget is too small" if found else "output shapes of its first operator depend on data"
            raise NetError(f"net {created.name!r} cannot be planned: {why}")
        calls = tuple(describe_step(step, count=1, seconds=0.0, spans=()) for step in found.compilation.steps)
    end = found.compilation.end
    last = created.program[end].op_def.type if end < len(created.program) else None
    return PlannedStep(proto.name, gpu, created.options.dtype, created.options.allow_tf32, calls, last)


def _searching(net: NetDef) -> NetDef:
    """Return a copy of a net whose operators search for the fastest kernel."""
    made = NetDef()
    made.CopyFrom(net)
    for op in made.op:
        kept = [arg for arg in op.arg if arg.name != "exhaustive_search"]
        del op.arg[:]
        op.arg.extend([*kept, make_argument("exhaustive_search", 1)])
    return made


def _make_blobs(workspace: Workspace, net: NetDef, init: NetDef, inputs: Mapping[str, TensorSpec]) -> None:
    """Make the blobs that exist before a run, where they would be after the init net, without values."""
    specs = infer_shapes([init], inputs)
    locations = {
        name: HOST if each.op.outputs_on_host else each.location for each in read_program(init) for name in each.outputs
    }
    for name in (*inputs, *locations):
        spec = specs.spec(name)
        if spec is None or spec.dtype == STRING:  # a mutex, a counter, a queue: on the host
            workspace.feed(name, "")
            continue
        location = locations.get(name, _GPU)
        workspace.make(name).bind(spec, new_buffer(spec, location), location)


def planned_report(found: PlannedStep, top: int = 20) -> Report:
    """Return a planned step as tables, after a summary.

    Args:
        found: the step.
        top: how many calls to list, the longest first.
    """
    on_gpu = [call for call in found.calls if call.device.startswith("GPU")]
    lines = [
        f"net {found.net!r} as planned for {found.gpu.name}, {found.dtype}: a model, nothing has run",
        f"{len(on_gpu)} calls, {found.nbytes / 1e9:.2f} GB read and written, {found.flops / 1e12:.3f} TFLOP, "
        f"ideally {1e3 * found.seconds:.3f} ms",
        f"the GPU: {found.gpu.bandwidth / 1e12:.2f} TB/s; products in TFLOP/s: "
        + ", ".join(f"{name} {rate / 1e12:.0f}" for name, rate in found.gpu.rates.items()),
    ]
    if found.end is not None:
        lines.append(f"the plan ends before {found.end}, whose output shapes depend on data: what follows is missing")
    kinds = [(*_figures(each.seconds, each.nbytes, each.flops), str(each.calls), each.kind) for each in found.kinds()]
    longest = sorted(on_gpu, key=found.seconds_of, reverse=True)[:top]
    calls = [(*_figures(found.seconds_of(call), call.nbytes, call.flops), call.name, call.kernel) for call in longest]
    head = ("ideal ms", "GB", "GFLOP")
    return [
        "\n".join(lines),
        TextTable("by kind", (*head, "calls", "kind"), kinds),
        TextTable(f"by call, the {len(calls)} longest of {len(on_gpu)}", (*head, "call", "kernel"), calls),
    ]


def _figures(seconds: float, nbytes: int, flops: int) -> Sequence[str]:
    return f"{1e3 * seconds:.3f}", f"{nbytes / 1e9:.3f}", f"{flops / 1e9:.1f}" if flops else ""
