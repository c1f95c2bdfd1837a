"""PyTorch's side of the benchmarks: training steps or predictions, eager or compiled.

It runs by path in an environment with torch:
python peer_torch.py WARMUP WORK, with the work as ``Work.to_text`` writes it
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import peer_nets
import torch
from draw import draw
from torch import nn
from torch.utils.checkpoint import checkpoint
from work import MODELS, Work
from worker import resident, serve, serve_gpu, show_stacks

STATE_STEPS = 3
_COMPILED = {"compile": None, "graphs": "reduce-overhead"}  # mode -> that of torch.compile
BRANCH_SCALE = 0.2


class Training:
    """A net with its data and optimizer, ready to train."""

    def __init__(self, work: Work) -> None:
        torch.manual_seed(0)
        self.device = "cuda" if work.gpu else "cpu"
        if work.gpu:
            torch.backends.cudnn.benchmark = True  # the fastest kernels, as measured
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = work.tf32
        if work.net in MODELS:
            import peer_models  # torchvision, timm and transformers are loaded only for them

            self.net, self._loss_of, self._arrays = peer_models.build(work)
        else:
            self.net, self._loss_of = peer_nets.build(work), classified
            self._arrays = getattr(self.net, "in_order", self.net.parameters)
        self.net.to(self.device)
        self.inputs = {name: self._tensor(name, array) for name, array in draw(work).items()}
        self.optimizer = torch.optim.SGD(
            self._groups(work.decay),
            lr=work.rate,
            momentum=work.momentum,
            fused=True if work.momentum and (work.gpu or work.mode == "compile") else None,  # not of sparse gradients
        )
        self._half = work.dtype == "bfloat16"
        if work.mode == "checkpoint":
            self._scores = recomputing(self.net)
        else:
            self._scores = self.net
        if work.test:
            self.net.eval()
        function = self._predict if work.test else self._loss
        if work.mode in _COMPILED:
            function = torch.compile(function, mode=_COMPILED[work.mode])
        self._forward = function
        self.loss = torch.zeros(())

    def _groups(self, decay: float) -> list[dict]:
        # As in netbuilder: weights decay, including those of normalizations; biases do not.
        groups: dict[float, list] = {decay: [], 0.0: []}
        for name, parameter in self.net.named_parameters():
            is_weight = name.rpartition(".")[2].startswith("weight")
            groups[decay if is_weight else 0.0].append(parameter)
        return [{"params": parameters, "weight_decay": share} for share, parameters in groups.items() if parameters]

    def _tensor(self, name: str, array: np.ndarray) -> torch.Tensor:
        """Return an input on the device; images have their channels last, indices are int64."""
        value = torch.from_numpy(array).to(self.device)
        if value.dtype == torch.int32:
            return value.long()
        return value.contiguous(memory_format=torch.channels_last) if name == "data" and value.ndim == 4 else value

    def _loss(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self._half):
            return self._loss_of(self._scores, inputs)

    def _predict(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self._half):
            return torch.softmax(self.net(inputs["data"]), 1)

    def predict(self) -> None:
        """Run the forward pass in test mode."""
        with torch.inference_mode():
            self._forward(self.inputs)

    def step(self) -> None:
        """Run one step: forward, backward, update."""
        self.optimizer.zero_grad(set_to_none=True)
        self.loss = self._forward(self.inputs)
        self.loss.backward()
        self.optimizer.step()

    def arrays(self) -> list[np.ndarray]:
        """Return copies of the parameters, in netbuilder's order and form."""
        return [parameter.detach().contiguous().numpy().copy() for parameter in self._arrays()]


def classified(net: Callable[[torch.Tensor], torch.Tensor], inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the mean loss of a classifier."""
    return nn.functional.cross_entropy(net(inputs["data"]), inputs["label"])


def recomputing(net: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that computes the net and keeps only the inputs of its residual blocks for the backward pass.

    A net without such blocks is divided into as many parts as the square root of the number of its layers.
    """
    if not isinstance(net, nn.Sequential):
        raise SystemExit(f"checkpoint: only nets that are a sequence of layers, not {type(net).__name__}")
    parts = list(net) if any(isinstance(layer, peer_nets.Block) for layer in net) else divided(net)
    again_in_backward = [isinstance(part, peer_nets.Block) or len(parts) < len(net) for part in parts]

    def run(x: torch.Tensor) -> torch.Tensor:
        for part, again in zip(parts, again_in_backward):
            x = checkpoint(part, x, use_reentrant=False) if again else part(x)
        return x

    return run


def divided(net: nn.Sequential) -> list[nn.Module]:
    """Return parts of a net; none begins with Relu, which overwrites its input, and so that of the part."""
    count = round(len(net) ** 0.5)
    ends = []
    for k in range(1, count):
        end = round(k * len(net) / count)
        while isinstance(net[end], nn.ReLU):
            end += 1
        ends.append(end)
    return [net[begin:end] for begin, end in zip([0, *ends], [*ends, len(net)])]


def scale_down_blocks(net: nn.Module) -> None:
    """Scale down the branches of residual blocks relative to their shortcuts.

    Otherwise the gradients of 50 layers that normalize over few samples differ by several percent even between float32
    and float64, too much for a comparison.
    """
    for block in net.modules():
        if isinstance(block, peer_nets.Block):
            block.layers[-1].weight.data.mul_(BRANCH_SCALE)


def write_state(training: Training, file: str) -> None:
    """Train a few steps, and write the losses, and the parameters before and after."""
    scale_down_blocks(training.net)
    found: dict[str, Any] = {f"before_{i}": array for i, array in enumerate(training.arrays())}
    losses = []
    for _ in range(STATE_STEPS):
        training.step()
        losses.append(training.loss.item())
    found |= {f"after_{i}": array for i, array in enumerate(training.arrays())}
    np.savez(file, losses=losses, **found)


def memory_in_use() -> int:
    """Return the bytes of the GPU's memory that are in use, by all processes and the driver."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def libraries() -> str:
    """Return the versions of the libraries that PyTorch computes with on GPUs."""
    return f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"


def main(warmup: int, work: Work) -> None:
    """Serve training steps, or write the state that ``check`` compares."""
    if work.gpu:
        show_stacks()
    if work.mode in _COMPILED:
        importlib.import_module("torch._inductor.compile_fx")  # before what is measured, as the other imports
    start = resident()
    torch.set_num_threads(work.threads)
    training = Training(work)
    if work.start and not os.path.exists(work.start):
        arrays: dict[str, Any] = {f"before_{i}": array for i, array in enumerate(training.arrays())}
        np.savez(work.start, **arrays)
    if work.state:
        write_state(training, work.state)
    elif work.gpu:
        serve_gpu(
            training.step,
            torch.cuda.synchronize,
            warmup=warmup,
            peak=memory_in_use,
            loss=lambda: training.loss.item(),
            info={"version": torch.__version__, "mode": work.mode, "libraries": libraries()},
        )
    else:
        serve(
            training.predict if work.test else training.step,
            warmup=warmup,
            loss=None if work.test else lambda: training.loss.item(),
            info={"version": torch.__version__, "mode": work.mode, "start": start},
        )


if __name__ == "__main__":
    main(int(sys.argv[1]), Work.from_text(sys.argv[2]))
