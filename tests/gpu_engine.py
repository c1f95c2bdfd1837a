"""Engines for GPUs that tests own: one with a layout, and others whose kernels are counted."""

import contextlib
from dataclasses import dataclass

import numpy as np

from netbuilder.engines import engine as engines
from netbuilder.engines.arrays import as_flat
from netbuilder.engines.engine import Engine
from netbuilder.engines.gpu import gpu
from netbuilder.ops.core import registry
from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.extensions import Deferred, DeferredOutputs
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.registry import GPU, prepared_kernels
from netbuilder.proto import PROTO_CUDA

__all__ = ["Padded", "PaddedEngine", "installed"]

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
    return Prepared(
        [None], [None], lambda *buffers: lambda: None, name="padded scale", extensions=(DeferredOutputs(later),)
    )


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


@contextlib.contextmanager
def installed(monkeypatch, cls):
    """Let netbuilder find an engine; its kernels are removed at the end."""
    sources = {**engines.sources(), cls.name: f"{cls.__module__}:{cls.__qualname__}"}
    with monkeypatch.context() as patch:
        patch.setattr(engines, "sources", lambda: sources)
        patch.setattr(engines, "found_engines", dict(engines.found_engines))
        try:
            yield engines.find_engine(cls.name)
        finally:
            registry._given.pop((cls.name, GPU), None)
            for op_type in cls().kernels():
                rows = prepared_kernels(op_type, GPU)
                rows[:] = [row for row in rows if row.engine != cls.name]
