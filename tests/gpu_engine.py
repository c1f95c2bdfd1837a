"""Engines for GPUs that tests own: one with a layout, and others whose kernels are counted."""

import contextlib
from dataclasses import dataclass

import numpy as np

from netbuilder.ops.core.contexts import Deferred, Prepared
from netbuilder.ops.core.operator import Exchange, TensorSpec
from netbuilder.ops.core.registry import GPU, operator_types, plain_kernel, prepared_kernels
from netbuilder.ops.engines import engine as engines
from netbuilder.ops.engines.arrays import as_flat
from netbuilder.ops.engines.cuda.elementwise import elementwise
from netbuilder.ops.engines.engine import Engine, Fusion, Pattern
from netbuilder.ops.engines.gpu import gpu
from netbuilder.ops.engines.joined_updates import UpdateForm
from netbuilder.proto import PROTO_CPU, PROTO_CUDA
from netbuilder.runtime.plan.run_context import KernelContext

__all__ = ["CapturableEngine", "FastEngine", "Padded", "PaddedEngine", "installed"]

_MULTIPLE = 8


@dataclass(frozen=True)
class Padded:
    """Rows padded to a multiple of 8 elements."""

    shape: tuple[int, int]
    itemsize: int = 4
    engine: str = "PADDED"
    filled: bool = False

    @property
    def columns(self):
        return -(-self.shape[1] // _MULTIPLE) * _MULTIPLE

    @property
    def nbytes(self):
        return self.shape[0] * self.columns * self.itemsize

    def whole(self, buffer):
        """Return the buffer as a matrix, padding included."""
        return as_flat(buffer, np.float32).reshape(self.shape[0], self.columns)

    def matrix(self, buffer):
        return self.whole(buffer)[:, : self.shape[1]]


def padded(spec):
    return spec.plain.with_layout(Padded(spec.shape))


def _prepared(inputs, outputs, call, name, **options):
    """Return a kernel that calls ``call(xp, input, output)``."""

    def bind(ins, outs, scratch):
        assert scratch is None or scratch.data.ptr % 256 == 0
        xp = gpu(ins[0].device.id).xp
        return lambda: call(xp, ins[0], outs[0])

    return Prepared(inputs, outputs, bind, name=f"padded {name}", engine="PADDED", **options)


def _scale(op, ctx, x):
    """Writes no padding; its output may be computed when it is fetched."""
    spec = padded(x)

    def call(xp, source, target):
        xp.multiply(spec.layout.matrix(source), np.float32(op.scale), out=spec.layout.matrix(target))

    whole = _prepared([spec], [spec], call, "scale", inplace=[(0, 0)])
    if ctx.demand(0, [0]) != "fetch":
        return whole
    later = {0: Deferred(lambda: whole, [0])}
    return Prepared([None], [None], lambda *buffers: lambda: None, name="padded scale", deferred=later)


def _sum(op, ctx, x):
    """The sum of everything in the buffer."""
    spec = padded(x)
    return _prepared([spec], [TensorSpec((), x.dtype)], lambda xp, x, y: xp.sum(spec.layout.whole(x), out=y), "sum")


class PaddedEngine(Engine):
    """A small engine, for matrices in a layout whose padding must be zeros."""

    name = "PADDED"
    device_types = (PROTO_CUDA,)

    def kernels(self):
        return {"Scale": _scale, "SumElements": _sum}

    def new_buffer(self, spec, location):
        with gpu(location[1]) as there:
            return there.xp.zeros(spec.nbytes, np.uint8)

    def prepare_reorder(self, ctx, source, target, location):
        def call(xp, given, made):
            values = given if source.layout is None else source.layout.matrix(given)
            (made if target.layout is None else target.layout.matrix(made))[...] = values

        return _prepared([source], [target], call, "reorder", scratch=100)


class CapturableEngine(Engine):
    """Prepared kernels of many operators: one launch each, which may be captured, and computes by the plain kernel."""

    name = "CAPTURABLE"
    device_types = (PROTO_CUDA,)
    refused: frozenset[str] = frozenset()  # operators without a kernel here

    def kernels(self):
        return {op_type: self.make for op_type in operator_types() if op_type not in self.refused}

    def make(self, op, ctx, *specs):
        elsewhere = (
            op.outputs_on_host or op.colocate_outputs_with is not None or plain_kernel(op.type, PROTO_CPU) is None
        )
        steps = op.type.startswith("LSTMUnit")  # which reads the number of the step on the host
        elsewhere |= any(op.input_location(i) == "host" for i in range(len(specs))) and not steps
        exchanges = op.exchanges in (Exchange.ALWAYS, Exchange.BETWEEN_PROCESSES)
        if elsewhere or exchanges or op.stateful or not op.static_for(*specs):
            return None
        return self.prepared(op, ctx, specs, op.infer(*specs))

    def prepared(self, op, ctx, specs, outs):
        kernel = plain_kernel(op.type, PROTO_CPU)
        run = KernelContext(ctx.op_def, device=(PROTO_CPU, 0))
        array = ctx.run.xp.ndarray

        def bind(inputs, outputs, scratch):
            def compute():
                results = [np.array(result) for result in kernel(op, run, *(getattr(x, "_values", x) for x in inputs))]
                for out, result in zip(outputs, results):
                    out._values[...] = result

            reads = [x for i, x in enumerate(inputs) if op.input_location(i) == "here"]
            return lambda: array._work(op.type, reads, list(outputs), compute)

        pairs = [(i, j) for i in range(len(specs)) for j in range(len(outs))]
        plain, made = [spec.plain for spec in specs], [spec.plain for spec in outs]
        return Prepared(plain, made, bind, inplace=pairs, name=f"double {op.type}", engine=self.name, capturable=True)


class FastEngine(CapturableEngine):
    """Kernels that compute nothing: as many launches as a fast library needs, for counting them in large nets."""

    name = "FAST"

    def make(self, op, ctx, *specs):
        return elementwise(op, ctx, *specs) if op.type == "LearningRate" else super().make(op, ctx, *specs)

    def prepared(self, op, ctx, specs, outs):
        found = super().prepared(op, ctx, specs, outs)
        launches = len(outs) if op.type in ("ConvGradient", "FCGradient") else 1
        found.bind = self._launching(ctx, op.type, launches)
        return found

    def _launching(self, ctx, name, launches=1):
        array = ctx.run.xp.ndarray

        def bind(inputs, outputs, scratch):
            reads, writes = ([x for x in xs if isinstance(x, array)] for xs in (inputs, outputs))

            def call():
                for _ in range(launches):
                    array._work(name, reads, writes, lambda: None)

            return call

        return bind

    def fusions(self):
        def chain(op, ctx, *specs):
            return self.prepared(op, ctx, specs, op.infer(*specs))

        return [
            Fusion(Pattern.CHAIN, ("SpatialBN",), "Relu", chain, "bn_relu"),
            Fusion(Pattern.CHAIN, ("Sum",), "Relu", chain, "sum_relu"),
        ]

    def update_form(self, op, *specs):
        if op.type == "WeightedSum":
            return UpdateForm(frozenset(range(1, len(specs), 2)))
        return UpdateForm(frozenset({2}), {0: 1}) if op.type == "MomentumSGDUpdate" else None

    def join_updates(self, ctx, updates):
        specs = [spec.plain for spec in updates.specs]
        made, own = dict(enumerate(specs)), {}
        for chain in updates.chains:
            tensors = {n for op in chain for n in op.inputs if n < len(specs) and n not in self._numbers(op)}
            for op in chain:
                made |= dict.fromkeys(op.outputs, made[op.inputs[0]])
                own |= dict.fromkeys(op.outputs, tensors)
        pairs = [(i, j) for j, number in enumerate(updates.outputs) for i in own[number]]
        bind = self._launching(ctx, "updates")
        outs = [made[number] for number in updates.outputs]
        return Prepared(specs, outs, bind, inplace=pairs, name="double updates", engine=self.name, capturable=True)

    def _numbers(self, joined):
        form = self.update_form(joined.op, *joined.inputs)
        return {joined.inputs[i] for i in form.numbers}


@contextlib.contextmanager
def installed(monkeypatch, cls):
    """Let netbuilder find an engine; its kernels are removed at the end."""
    sources = {**engines._sources(), cls.name: f"{cls.__module__}:{cls.__qualname__}"}
    with monkeypatch.context() as patch:
        patch.setattr(engines, "_sources", lambda: sources)
        patch.setattr(engines, "_found", dict(engines._found))
        try:
            yield engines.find_engine(cls.name)
        finally:
            for op_type in cls().kernels():
                rows = prepared_kernels(op_type, GPU)
                rows[:] = [row for row in rows if row.engine != cls.name]
