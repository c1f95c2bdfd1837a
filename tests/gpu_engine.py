"""An engine for GPUs that tests own: prepared kernels, layouts, fusions and joined updates over CuPy's double.

Its layout stores the rows of a matrix padded to a multiple of 8 elements, in float32 or rounded to float16. Its kernels
read the padding, which must be zeros, and write everything in place, so that a step of them allocates nothing.
"""

import contextlib
from dataclasses import dataclass

import numpy as np

from netbuilder.ops.core.contexts import Deferred, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.registry import GPU, prepared_kernels
from netbuilder.ops.engines import engine as engines
from netbuilder.ops.engines.arrays import as_flat
from netbuilder.ops.engines.engine import Engine, Fusion, Pattern
from netbuilder.ops.engines.gpu import gpu
from netbuilder.ops.engines.joined_updates import UpdateForm
from netbuilder.proto import PROTO_CUDA

__all__ = ["FakeGpuEngine", "Padded", "installed"]

_MULTIPLE = 8


@dataclass(frozen=True)
class Padded:
    """Rows padded to a multiple of 8 elements."""

    shape: tuple[int, int]
    itemsize: int = 4
    engine: str = "FAKE"
    filled: bool = False

    @property
    def columns(self):
        return -(-self.shape[1] // _MULTIPLE) * _MULTIPLE

    @property
    def nbytes(self):
        return self.shape[0] * self.columns * self.itemsize

    def whole(self, buffer):
        """Return the buffer as a matrix, padding included."""
        dtype = np.float32 if self.itemsize == 4 else np.float16
        return as_flat(buffer, dtype).reshape(self.shape[0], self.columns)

    def matrix(self, buffer):
        return self.whole(buffer)[:, : self.shape[1]]


def padded(spec, itemsize=4):
    return spec.with_layout(Padded(spec.shape, itemsize))


def _prepared(inputs, outputs, call, name, **options):
    """Return a kernel that calls ``call(xp, inputs, outputs, scratch)``."""

    def bind(ins, outs, scratch):
        assert scratch is None or scratch.data.ptr % 256 == 0
        xp = gpu(ins[0].device.id).xp
        return lambda: call(xp, ins, outs, scratch)

    return Prepared(inputs, outputs, bind, name=f"fake {name}", engine="FAKE", **options)


def _fc(op, ctx, x, w, b, relu=False):
    """Reads X and W padded, so that the product needs no other columns; its sums are in scratch memory."""
    if x.ndim != 2 or w.ndim != 2:
        return None
    out = op.infer(x.plain, w.plain, b.plain)[0]
    ins, made = [padded(x.plain), padded(w.plain), b.plain], padded(out, 2 if ctx.precision == "bfloat16" else 4)

    def call(xp, inputs, outputs, scratch):
        sums = as_flat(scratch, np.float32).reshape(out.shape)
        xp.matmul(ins[0].layout.whole(inputs[0]), ins[1].layout.whole(inputs[1]).T, out=sums)
        xp.add(sums, inputs[2], out=sums)
        if relu:
            xp.maximum(sums, 0, out=sums)
        made.layout.matrix(outputs[0])[...] = sums

    return _prepared(ins, [made], call, "fc + relu" if relu else "fc", scratch=out.nbytes)


def _relu(op, ctx, x):
    spec = x if x.layout is not None and not x.rounds else padded(x.plain) if x.ndim == 2 else x.plain

    def call(xp, inputs, outputs, scratch):
        source, target = (as_flat(each, np.float32) for each in (inputs[0], outputs[0]))
        xp.maximum(source, 0, out=target)

    return _prepared([spec], [spec], call, "relu", inplace=[(0, 0)])


def _scale(op, ctx, x):
    """Its output may be computed when it is fetched."""
    spec = padded(x.plain) if x.ndim == 2 else x.plain

    def call(xp, inputs, outputs, scratch):
        xp.multiply(as_flat(inputs[0], np.float32), np.float32(op.scale), out=as_flat(outputs[0], np.float32))

    whole = _prepared([spec], [spec], call, "scale", inplace=[(0, 0)])
    if ctx.demand(0, [0]) != "fetch":
        return whole
    later = {0: Deferred(lambda: whole, [0])}
    return Prepared([None], [None], lambda *buffers: lambda: None, name="fake scale", deferred=later)


def _sum(op, ctx, x):
    """The sum of everything in the buffer: padding must be zeros."""
    if x.ndim != 2 or op.average:
        return None
    spec = x if x.layout is not None and not x.rounds else padded(x.plain)

    def call(xp, inputs, outputs, scratch):
        xp.sum(spec.layout.whole(inputs[0]), out=outputs[0])

    return _prepared([spec], [TensorSpec((), x.dtype)], call, "sum")


class FakeGpuEngine(Engine):
    """Attributes: joined: the numbers of operators of the joined updates that were made."""

    name = "FAKE"
    device_types = (PROTO_CUDA,)
    joined: list[int] = []

    def kernels(self):
        return {"FC": _fc, "Relu": _relu, "Scale": _scale, "SumElements": _sum}

    def fusions(self):
        return [
            Fusion(Pattern.CHAIN, ("FC",), "Relu", lambda op, ctx, *specs: _fc(op, ctx, *specs, relu=True), "fc_relu")
        ]

    def new_buffer(self, spec, location):
        with gpu(location[1]) as there:
            return there.xp.zeros(spec.nbytes, np.uint8)

    def prepare_reorder(self, ctx, source, target, location):
        def call(xp, inputs, outputs, scratch):
            given = inputs[0] if source.layout is None else source.layout.matrix(inputs[0])
            if target.layout is None:
                outputs[0][...] = given
            else:
                target.layout.matrix(outputs[0])[...] = given

        return _prepared([source], [target], call, "reorder")

    def update_form(self, op, *specs):
        return UpdateForm(frozenset({2}), {0: 1}) if op.type == "MomentumSGDUpdate" else None

    def join_updates(self, ctx, updates):
        """In the layout that a parameter has; gradients are read in that layout."""
        self.joined.append(sum(map(len, updates.chains)))
        specs = [spec.plain for spec in updates.specs]
        made = dict(enumerate(specs))
        for op in (op for chain in updates.chains for op in chain):
            for n in (*op.inputs[:2], op.inputs[3], *op.outputs):
                made[n] = updates.specs[op.inputs[3]]
        specs = [made[n] for n in range(len(specs))]

        def call(xp, inputs, outputs, scratch):
            values = {n: as_flat(array, np.float32) for n, array in enumerate(inputs)}
            for operator in (operator for chain in updates.chains for operator in chain):
                g, m, lr, p = (values[n] for n in operator.inputs)
                step = operator.op.momentum * m + lr * g
                values.update(zip(operator.outputs, (step, step, p - step)))
            for buffer, number in zip(outputs, updates.outputs):
                as_flat(buffer, np.float32)[...] = values[number]

        pairs = [
            (i, j)
            for chain in updates.chains
            for j, number in enumerate(updates.outputs)
            for i in {i for op in chain for k, i in enumerate(op.inputs) if k != 2 and i < len(specs)}
            if any(number in op.outputs for op in chain)
        ]
        return _prepared(specs, [made[n] for n in updates.outputs], call, "updates", inplace=pairs)


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
