"""An engine for GPUs that tests own: prepared kernels, fusions and joined updates over CuPy's double."""

import contextlib

import numpy as np

from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.operator import Exchange
from netbuilder.ops.core.registry import GPU, operator_types, plain_kernel, prepared_kernels
from netbuilder.ops.engines import engine as engines
from netbuilder.ops.engines.engine import Engine, Fusion, Pattern
from netbuilder.ops.engines.gpu import gpu
from netbuilder.ops.engines.joined_updates import UpdateForm
from netbuilder.ops.engines.upload import PinnedRing
from netbuilder.proto import PROTO_CPU, PROTO_CUDA
from netbuilder.runtime.plan.run_context import KernelContext

__all__ = ["CapturableEngine", "FakeGpuEngine", "FastEngine", "installed"]


def _fc_relu(op, ctx, x, w, b):
    """FC and Relu as one kernel."""
    xp, out = ctx.run.xp, op.infer(x, w, b)[0]

    def bind(inputs, outputs, scratch):
        (a, weight, bias), (y,) = inputs, outputs

        def call():
            xp.matmul(a, weight.T, out=y)
            xp.add(y, bias, out=y)
            xp.maximum(y, 0, out=y)

        return call

    return Prepared([x, w, b], [out], bind, name="fake fc + relu", engine="FAKE")


class FakeGpuEngine(Engine):
    """Attributes: joined: the numbers of operators of the joined updates that were made."""

    name = "FAKE"
    device_types = (PROTO_CUDA,)
    joined: list[int] = []

    def fusions(self):
        return [Fusion(Pattern.CHAIN, ("FC",), "Relu", _fc_relu, "fc_relu")]

    def update_form(self, op, *specs):
        return UpdateForm(frozenset({2}), {0: 1}) if op.type == "MomentumSGDUpdate" else None

    def join_updates(self, ctx, updates):
        self.joined.append(sum(map(len, updates.chains)))
        specs = [spec.plain for spec in updates.specs]
        made = dict(enumerate(specs))
        for op in (op for chain in updates.chains for op in chain):
            made |= dict.fromkeys(op.outputs, made[op.inputs[0]])

        def bind(inputs, outputs, scratch):
            def call():
                values = dict(enumerate(inputs))
                for operator in (operator for chain in updates.chains for operator in chain):
                    g, m, lr, p = (values[n] for n in operator.inputs)
                    step = operator.op.momentum * m + lr * g
                    results = (step, step, p - step)
                    values.update(zip(operator.outputs, results))
                for buffer, number in zip(outputs, updates.outputs):
                    buffer[...] = values[number]

            return call

        pairs = [
            (i, j)
            for chain in updates.chains
            for j, number in enumerate(updates.outputs)
            for i in {i for op in chain for k, i in enumerate(op.inputs) if k != 2 and i < len(specs)}
            if any(number in op.outputs for op in chain)
        ]
        return Prepared(specs, [made[n] for n in updates.outputs], bind, inplace=pairs, name="fake updates")


class CapturableEngine(Engine):
    """Prepared kernels of many operators: one launch each, which may be captured, and computes by the plain kernel."""

    name = "CAPTURABLE"
    device_types = (PROTO_CUDA,)
    refused: frozenset[str] = frozenset()  # operators without a kernel here

    def kernels(self):
        return {op_type: self.make for op_type in operator_types() if op_type not in self.refused}

    def make(self, op, ctx, *specs):
        elsewhere = op.outputs_on_host or op.colocate_outputs_with is not None
        elsewhere |= any(op.input_location(i) == "host" for i in range(len(specs)))
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
    joined: list[int] = []

    def make(self, op, ctx, *specs):
        return self._rate(op, ctx, *specs) if op.type == "LearningRate" else super().make(op, ctx, *specs)

    def _rate(self, op, ctx, count):
        """The host computes the rate, which goes to the GPU through pinned memory."""
        out = op.infer(count)[0]

        def bind(inputs, outputs, scratch):
            here, value = gpu(ctx.device_id), np.zeros(out.shape, out.dtype)
            ring = PinnedRing(here, out.nbytes)
            return lambda: ring.upload(value, outputs[0], here.stream().raw)

        return Prepared([count], [out], bind, name="double rate")

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
        return FakeGpuEngine.update_form(self, op, *specs)

    def join_updates(self, ctx, updates):
        found = FakeGpuEngine.join_updates(self, ctx, updates)
        found.bind, found.capturable = self._launching(ctx, "updates"), True
        return found


@contextlib.contextmanager
def installed(monkeypatch, cls=FakeGpuEngine):
    """Let netbuilder find an engine; its kernels are removed at the end."""
    sources = {**engines._sources(), cls.name: f"{cls.__module__}:{cls.__qualname__}"}
    with monkeypatch.context() as patch:
        patch.setattr(engines, "_sources", lambda: sources)
        patch.setattr(engines, "_found", dict(engines._found))
        cls.joined = []
        try:
            yield engines.find_engine(cls.name)
        finally:
            for op_type in cls().kernels():
                rows = prepared_kernels(op_type, GPU)
                rows[:] = [row for row in rows if row.engine != cls.name]
