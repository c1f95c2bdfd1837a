"""What a training step reads and writes on a GPU that is described, beside PyTorch's compiled step; nothing runs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from netbuilder.engines.described_gpu import read_gpu
from netbuilder.graph import DeviceScope
from netbuilder.proto import PROTO_CUDA
from netbuilder.proto.arguments import make_device_option
from netbuilder.runtime.profile.planned import planned_step
from netbuilder.tools.bench.report import Line
from netbuilder.tools.profiling.zoo import ZooOptions, zoo_model

__all__ = ["GPU_NETS", "gpu_bytes"]

GPU_NETS = {
    "resnet18": "resnet18",
    "resnet50": "resnet50",
    "vgg16": "vgg16",
    "densenet121": "densenet121",
    "mobilenet-v2-1.0x": "mobilenet_v2",
}
"""Net of the zoo -> the same net in torchvision."""

_GPU = "h100"
_PEER = Path(__file__).parent / "peer_bytes.py"


def gpu_bytes(nets: Sequence[str], batch: int, dtype: str, python: str) -> Iterator[Line]:
    """Yield a line for each net.

    Args:
        nets: of ``GPU_NETS``.
        batch: images of 224 x 224 pixels in a step.
        dtype: of activations.
        python: an interpreter with torch, torchvision and triton.

    Raises:
        RuntimeError: the peer's step could not be counted; the message has the end of its output.
    """
    gpu = read_gpu(_GPU)
    for net in nets:
        with DeviceScope(make_device_option(PROTO_CUDA, 0)):
            model, inputs = zoo_model(net, ZooOptions(batch, gpu=True, observable="outputs", dtype=dtype))
            step = planned_step(
                model.net.Proto(), model.param_init_net.Proto(), inputs, gpu, dtype=dtype, observable="outputs"
            )
        theirs = _counted(GPU_NETS[net], batch, dtype, python)
        text = (
            f"{net}, {dtype}, batch {batch}, planned for {gpu.name}: netbuilder {step.nbytes / 1e9:.1f} GB in "
            f"{len(step.calls)} calls, torch {theirs['version']} compiled {theirs['nbytes'] / 1e9:.1f} GB in "
            f"{theirs['kernels']} kernels; {step.nbytes / theirs['nbytes']:.2f} of its bytes"
        )
        record = {"kind": "gpu-bytes", "gpu": gpu.name, "nbytes": step.nbytes, "calls": len(step.calls), "peer": theirs}
        yield Line(text, record)


def _counted(name: str, batch: int, dtype: str, python: str) -> dict[str, Any]:
    command = [python, str(_PEER), name, str(batch), dtype]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"torch's step of {name} could not be counted: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
