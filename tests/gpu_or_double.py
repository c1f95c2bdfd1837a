"""A GPU for tests of kernels: a real or emulated one where CuPy has it, else the double."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from cupy_double import gpus
from netbuilder.ops.engines.arrays import gpu_count
from netbuilder.ops.engines.gpu import gpu
from netbuilder.proto import PROTO_CUDA, NetDef
from netbuilder.proto.arguments import make_device_option
from netbuilder.runtime import Workspace

__all__ = ["ON_GPU", "bound", "one_gpu", "run_net"]

ON_GPU = make_device_option(PROTO_CUDA, 0)


@contextmanager
def one_gpu() -> Iterator[object]:
    """Provide a GPU; yield the double's machine, or None where kernels really run."""
    if gpu_count():
        yield None
        return
    with gpus(1) as machine:
        yield machine


def bound(prepared, inputs, outputs):
    """Run a prepared kernel on copies of arrays; return the outputs, which begin as the given ones."""
    with gpu(0) as here:
        ins = [None if spec is None else here.xp.asarray(x) for spec, x in zip(prepared.inputs, inputs)]
        outs = [here.xp.asarray(y) for y in outputs]
        scratch = here.xp.empty(max(prepared.scratch, 1), "uint8")
        prepared.bind(ins, outs, scratch)()
        return [y.get() for y in outs]


def run_net(ops, feeds, fetches, *, gpu=True, runs=1, host=(), **options):
    """Run operators as a net on a GPU, but for those of the types in ``host``; return blobs."""
    net = NetDef(name="net")
    net.op.extend(ops)
    kept = {name for op in ops if op.type in host for name in op.input}
    for op in net.op:
        if gpu and op.type not in host:
            op.device_option.CopyFrom(ON_GPU)
    workspace = Workspace(**options)
    for name, value in feeds.items():
        workspace.feed(name, value, ON_GPU if gpu and name not in kept else None)
    workspace.create_net(net)
    for _ in range(runs):
        workspace.run_net("net")
    return {name: np.asarray(workspace.fetch(name)) for name in fetches}
