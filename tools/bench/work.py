"""What a benchmark trains: the net, its sizes, its optimizer.

The peers' environments, which have no netbuilder, import it too, so it must not import netbuilder.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

__all__ = ["TASKS", "Task", "Work"]

MOMENTUM = 0.9
"""Momentum of the SGD of both sides."""


@dataclass(frozen=True)
class Work:
    """One training step: softmax, mean loss, gradients of all parameters, momentum, weight decay.

    Args:
        net: "mlp", "alexnet", "alexnet_one_tower", "inception_v1", "vgg16", "lstm", "attention", or "resnet" followed
            by its number of layers.
        batch: samples per step, over all devices.
        threads: of the process.
        size: height and width of the images in pixels; for "mlp" the width of its layers, for "lstm" and
            "attention" that of the embeddings and states.
        classes: number of classes; for "lstm" and "attention" of words.
        length: words per sample.
        decay: weight decay (of convolutions, fully connected layers and normalizations, not of biases).
        rate: the learning rate.
        dropout: whether dropout layers are active.
        devices: devices that share the batch; our side only.
        combine_bn: batch normalization over all of several devices.
        bucket: bytes from which gradients are exchanged between processes without waiting for further ones; our side
            only.
        width: channels of the first stage's 3x3 convolutions in a residual net with bottlenecks; 0: as usual (64).
        dtype: of activations, "float32" or "bfloat16"; parameters and their gradients are always float32.
        mode: how the peer runs, "eager", "compile", "graphs": compiled, with CUDA graphs, or "checkpoint": eager, and
            parts of the net are computed again in the backward pass (``torch.utils.checkpoint``).
        test: the forward pass in test mode instead of a training step.
        observable: which values can be fetched after a step, see ``Workspace.create_net``; "": as the net says; our
            side only.
        budget: ``memory_budget`` of ``Workspace.create_net``; None: none is given; our side only.
        gpu: on GPUs instead of the CPU; ``devices`` are their number.
        tf32: products of float32 values on GPUs may use TF32.
        exhaustive: plans of cuDNN are measured for convolutions (``exhaustive_search``); our side only, since the peer
            always measures.
        state: the peer writes a file of this name instead of serving, see ``check``.
    """

    net: str
    batch: int
    threads: int = 1
    size: int = 224
    classes: int = 1000
    length: int = 35
    decay: float = 1e-4
    rate: float = 0.001
    dropout: bool = True
    devices: int = 1
    combine_bn: bool = False
    width: int = 0
    bucket: int = 4 << 20
    dtype: str = "float32"
    mode: str = "eager"
    test: bool = False
    observable: str = ""
    budget: float | str | None = None
    gpu: bool = False
    tf32: bool = False
    exhaustive: bool = False
    state: str = ""

    def to_text(self) -> str:
        """Return one line of JSON, for a command line."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_text(text: str) -> Work:
        return Work(**json.loads(text))

    @property
    def layers(self) -> int:
        """The number of layers of a residual net; 0 for other nets."""
        number = self.net.removeprefix("resnet")
        return int(number) if number.isdigit() and number != self.net else 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a batch."""
        if self.reads_words:
            return (self.length, self.batch)
        return (self.batch, self.size) if self.net == "mlp" else (self.batch, 3, self.size, self.size)

    @property
    def labels(self) -> int:
        """Number of labels per batch."""
        return self.length * self.batch if self.reads_words else self.batch

    @property
    def reads_words(self) -> bool:
        """Whether the input is indices of words."""
        return self.net in ("lstm", "attention")


@dataclass(frozen=True)
class Task:
    """A training step that is compared with a peer.

    Args:
        work: with the default batch.
        steps: per turn.
        warmup: steps before the first turn; the first ones compile.
        small: the same net, small enough that three steps take hardly any time, for ``check``.
    """

    work: Work
    steps: int
    warmup: int
    small: Work

    @property
    def unit(self) -> tuple[str, float]:
        """Unit for the time of a step, and how many units are in a second."""
        return ("us", 1e6) if self.work.net == "mlp" else ("ms", 1e3)


def _images(net: str, batch: int, steps: int, size: int) -> Task:
    # A large decay, so that missing or misplaced decay shows after a few steps.
    small = Work(net, batch=4, size=size, classes=10, decay=1.0, rate=0.01, dropout=False)
    return Task(Work(net, batch), steps, 4, small)


TASKS = {
    "mlp": Task(
        Work("mlp", 32, size=64, classes=64, decay=0.0),
        500,
        300,
        Work("mlp", 4, size=8, classes=8, decay=1.0, rate=0.01),
    ),
    "lstm": Task(
        Work("lstm", 20, size=512, classes=10_000, decay=0.0),
        5,
        6,
        Work("lstm", 4, size=8, classes=12, length=5, decay=1.0, rate=0.01),
    ),
    "attention": Task(
        Work("attention", 20, size=256, classes=1000, length=20, decay=0.0),
        5,
        6,
        Work("attention", 4, size=8, classes=12, length=5, decay=1.0, rate=0.01),
    ),
    "resnet18": _images("resnet18", 32, 4, 64),
    "resnet50": _images("resnet50", 32, 2, 64),
    "inception_v1": _images("inception_v1", 32, 4, 64),
    "vgg16": _images("vgg16", 32, 1, 32),
    "alexnet": _images("alexnet", 128, 3, 67),
    "alexnet_one_tower": _images("alexnet_one_tower", 128, 3, 67),
}
"""Name -> task; AlexNet has the batch of its papers."""
