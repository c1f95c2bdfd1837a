"""Kernels and nets on a GPU, a real or an emulated one, and which of our kernels they launch."""

from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest

import emulated_gpu
from cudnn_double import cudnn_double
from emulated_gpu import machine
from nccl_double import NcclDouble
from netbuilder.engines import gpu as gpus_of_process
from netbuilder.engines import nccl, peers
from netbuilder.engines.arrays import array_module, gpu_count
from netbuilder.engines.cuda import cublas
from netbuilder.engines.cuda.kernel import Kernel
from netbuilder.engines.cudnn import library
from netbuilder.engines.gpu import gpu
from netbuilder.proto import PROTO_CUDA, NetDef
from netbuilder.proto.arguments import make_device_option
from netbuilder.runtime import Workspace

__all__ = [
    "CLOSE",
    "LISTED",
    "ON_GPU",
    "assert_same",
    "bound",
    "gpus",
    "graphs",
    "launched",
    "noted",
    "run_net",
    "with_cudnn",
]

ON_GPU = make_device_option(PROTO_CUDA, 0)
LISTED = emulated_gpu.active()
"""Whether calls are recorded and results are the same to the bit: on emulated GPUs only."""
CLOSE = 1e-5 if emulated_gpu.active() else 1e-4
"""Within which parameters after some steps are those of the CPU: real GPUs add in other orders."""


@contextmanager
def gpus(devices, *, access=True):
    """Let netbuilder start afresh on this many emulated GPUs; yields what they are called for (``Machine``).

    Args:
        access: whether the GPUs can read each other's memory.
    """
    with pytest.MonkeyPatch.context() as patch, machine.recorded(access=access) as found:
        # CuPy itself sees all: it notes the number once, also for each kernel that is kept.
        patch.setattr(array_module(PROTO_CUDA).cuda.runtime, "getDeviceCount", lambda: devices)
        if not access:
            patch.setattr(array_module(PROTO_CUDA).cuda.runtime, "deviceCanAccessPeer", lambda device, peer: 0)
        double = NcclDouble()
        patch.setattr(gpus_of_process, "_made", {})
        patch.setattr(nccl, "nccl_module", lambda: double)
        patch.setattr(nccl, "groups", {})
        patch.setattr(cublas, "thread_handles", cublas.new_handles())
        peers.can_access_peer.cache_clear()
        try:
            yield found
        finally:
            peers.can_access_peer.cache_clear()


class _Unlisted:
    """An empty record, for a real GPU."""

    def __init__(self):
        self.launches, self.transfers, self.allocated, self.counts = [], [], [], Counter()


@contextmanager
def with_cudnn(count=1):
    """Let netbuilder compute with cuDNN on so many GPUs: with the real one, or with its test double on emulated GPUs.

    Yields what the GPU is called for, and the double; on a real GPU nothing is listed, and there is no double.
    """
    if LISTED:
        with gpus(count) as found, cudnn_double() as cudnn:
            yield found, cudnn
        return
    if gpu_count() < count:
        pytest.skip(f"needs {count} GPUs")
    if not library.available():
        pytest.skip(library.why_unavailable())
    yield _Unlisted(), None


def assert_same(found, wanted, rtol, **options):
    """Compare values that are the same bits where additions have one order, and within a bound on a real GPU."""
    if LISTED:
        np.testing.assert_array_equal(found, wanted, **options)
    else:
        np.testing.assert_allclose(
            found, wanted, rtol, rtol * max(float(np.abs(wanted).max(initial=0)), 1.0), **options
        )


@contextmanager
def launched():
    """Yield a list that gets the title of each kernel of netbuilder that the host launches or puts into a graph."""
    titles = []
    with noted(lambda name: titles.append(name.removeprefix("nb_").rpartition("_")[0])):
        yield titles


@contextmanager
def noted(note):
    """Call a function with the name of each kernel of netbuilder that is launched."""
    call = Kernel.__call__

    def launch(kernel, blocks, arguments, **options):
        if blocks:
            note(kernel.name)
        call(kernel, blocks, arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kernel, "__call__", launch)
        yield


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


def graphs(workspace):
    """For each step of the present plan of the net, the number of its CUDA graph; -1: none."""
    (plan,) = workspace.net("net").plan_ahead()
    return [each.graph for each in plan.captured()]
