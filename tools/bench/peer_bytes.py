"""Counts what PyTorch's compiled training step reads and writes on a GPU, from its graphs; there need be no GPU.

It runs by path in an environment with torch, torchvision and triton:
python peer_bytes.py NET BATCH DTYPE

The step is traced with tensors that have no values, its graphs are given to the compiler as if they were a GPU's, and
the compiler's own count of each kernel after its fusions is summed: each buffer once for each kernel that reads it, and
once for each that writes it. The compiler leaves out what its library calls with several results write (the gradients
of a convolution); that is added here. The output is one line of JSON.
"""

from __future__ import annotations

import copy
import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
import torchvision
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.device_interface import CudaInterface
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import config, ir, scheduler
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.fx_passes.post_grad import post_grad_passes
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree

GPU = SimpleNamespace(
    type="cuda", index=0, name="H100", major=9, minor=0, multi_processor_count=132, warp_size=32,
    max_threads_per_multi_processor=2048, max_threads_per_block=1024, regs_per_multiprocessor=65536,
    shared_memory_per_block=48 << 10, shared_memory_per_block_optin=227 << 10,
    shared_memory_per_multiprocessor=228 << 10, L2_cache_size=50 << 20, total_memory=80 << 30, gcnArchName="",
)  # fmt: skip
"""What the compiler asks of the device."""


def describe_gpu() -> None:
    """Let the compiler believe that the machine has the GPU."""
    for interface in (torch.cuda, CudaInterface, CudaInterface.Worker):
        interface.get_device_properties = staticmethod(lambda *_: GPU)
        interface.current_device = staticmethod(lambda: 0)
    torch.cuda.get_device_capability = lambda *_: (GPU.major, GPU.minor)
    scheduler.has_triton = lambda *_: True
    torch._C._conv_determine_backend_memory_format = lambda *_: torch.channels_last  # that of cuDNN, which is not here


class Counter:
    """A compiler that counts instead of compiling.

    Attributes:
        nbytes: of each graph, forward and then backward.
        kernels: of each graph, with calls of libraries.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self.nbytes: list[int] = []
        self.kernels: list[int] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        """Count a graph of AOTAutograd's; what is returned runs it without compiling it."""
        with V.set_fake_mode(self.mode):
            post_grad_passes(graph, False)
        self._count(torch.fx.GraphModule(graph, copy.deepcopy(graph.graph)), inputs)
        return make_boxed_func(graph.forward)

    def _count(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> None:
        with self.mode:
            for node in graph.graph.nodes:
                node.meta["val"] = _on_gpu(node.meta.get("val"))
                if node.kwargs.get("device") is not None:
                    node.kwargs = {**node.kwargs, "device": torch.device("cuda", 0)}
            inputs = [_on_gpu(each) for each in inputs]
        lowering = GraphLowering(graph, layout_opt=True)
        with V.set_fake_mode(self.mode), V.set_debug_handler(DebugContext()), V.set_graph_handler(lowering):
            lowering.run(*inputs)
            lowering._update_scheduler()
            nodes = [
                node for node in lowering.scheduler.nodes if not isinstance(node, scheduler.NopKernelSchedulerNode)
            ]
            self.nbytes.append(sum(_nbytes(node) for node in nodes))
            self.kernels.append(sum(not isinstance(node.node, ir.MultiOutput) for node in nodes))


def _on_gpu(value: Any) -> Any:
    return _pytree.tree_map(lambda each: each.to("cuda") if isinstance(each, torch.Tensor) else each, value)


def _nbytes(node: scheduler.BaseSchedulerNode) -> int:
    """Return what a kernel reads and writes; of a call with several results each is a node, which writes it."""
    if isinstance(node.node, ir.MultiOutput):
        layout = node.node.get_layout()
        count = 1
        for extent in layout.size:
            count *= int(extent)
        return count * layout.dtype.itemsize
    return int(node.get_read_write_buffers_sizes())


def without_values(net: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """Return the net with parameters and statistics that have no values, in their layouts."""
    for module in net.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(mode.from_tensor(parameter.detach()))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = mode.from_tensor(buffer)
    return net


def count(name: str, batch: int, dtype: str) -> dict[str, Any]:
    """Return the bytes of a training step of a net of torchvision, and the kernels that it runs.

    The update by SGD with momentum is one kernel, which reads parameters, gradients and momenta and writes the first
    and the last, all float32.
    """
    describe_gpu()
    config.force_disable_caches = True
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    net = getattr(torchvision.models, name)().to(memory_format=torch.channels_last).train()
    elements = sum(parameter.numel() for parameter in net.parameters())
    without_values(net, mode)
    counter = Counter(mode)

    def partition(graph: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        with V.set_fake_mode(mode):
            joint_graph_passes(graph)
        return min_cut_rematerialization_partition(graph, inputs, compiler="inductor", **options)

    def loss(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            return nn.functional.cross_entropy(net(images), labels)

    backend = aot_autograd(
        fw_compiler=counter, bw_compiler=counter, decompositions=select_decomp_table(), partition_fn=partition
    )
    with mode:
        images = torch.empty(batch, 3, 224, 224).to(memory_format=torch.channels_last)
        labels = torch.zeros(batch, dtype=torch.int64)
        torch.compile(loss, backend=backend)(images, labels).backward()
    forward, backward = counter.nbytes
    update = 5 * 4 * elements
    return {
        "net": name, "batch": batch, "dtype": dtype, "version": torch.__version__, "forward": forward,
        "backward": backward, "update": update, "nbytes": forward + backward + update,
        "kernels": sum(counter.kernels) + 1,
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(count(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
