"""What a benchmark trains: the net, its sizes, its optimizer.

The peers' environments, which have no netbuilder, import it too, so it must not import netbuilder.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

__all__ = ["MODELS", "TASKS", "Task", "Work"]


@dataclass(frozen=True)
class Work:
    """One training step: softmax, mean loss, gradients of all parameters, momentum, weight decay.

    Args:
        net: "mlp", "alexnet", "alexnet_one_tower", "inception_v1", "vgg16", "lstm", "attention", "resnet" followed by
            its number of layers, or a net of ``MODELS``.
        batch: samples per step, over all devices.
        threads: of the process.
        size: height and width of the images in pixels; for "mlp" the width of its layers, for "lstm" and
            "attention" that of the embeddings and states.
        classes: number of classes; for "lstm" and "attention" of words; for "dlrm" rows of each table.
        length: words per sample; for "dlrm" the most rows of a table that are summed.
        decay: weight decay (of convolutions, fully connected layers and normalizations, not of biases).
        rate: the learning rate.
        momentum: of SGD; 0: without.
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
        start: the peer writes a file of this name with its parameters before its first step, if there is none yet, and
            netbuilder starts from them.
    """

    net: str
    batch: int
    threads: int = 1
    size: int = 224
    classes: int = 1000
    length: int = 35
    decay: float = 1e-4
    rate: float = 0.001
    momentum: float = 0.9
    dropout: bool = True
    devices: int = 1
    combine_bn: bool = False
    width: int = 0
    bucket: int = 12 << 20  # as in netbuilder, which a peer may not have
    dtype: str = "float32"
    mode: str = "eager"
    test: bool = False
    observable: str = ""
    budget: float | str | None = None
    gpu: bool = False
    tf32: bool = False
    exhaustive: bool = False
    state: str = ""
    start: str = ""

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


def _model(net: str, batch: int, steps: int, small: dict[str, Any], **options: Any) -> Task:
    # Values that only a program would look at are no outputs, as in PyTorch and in netbuilder-train.
    work = Work(net, batch, decay=0.0, rate=0.01, dropout=False, observable="outputs", **options)
    return Task(work, steps, 3, dataclasses.replace(work, batch=4, **small))


_SMALL = {"size": 64, "classes": 10}
_TEXT = {"length": 12, "classes": 10}

MODELS = {
    "mobilenet-v2": _model("mobilenet-v2", 8, 2, _SMALL, size=128),
    "mobilenet-v3": _model("mobilenet-v3", 8, 2, _SMALL, size=128),
    "efficientnet-b0": _model("efficientnet-b0", 8, 2, _SMALL, size=128),
    "regnet-y": _model("regnet-y", 8, 2, _SMALL, size=128),
    "densenet-121": _model("densenet-121", 4, 2, _SMALL, size=128),
    "convnext-tiny": _model("convnext-tiny", 2, 2, _SMALL, size=128),
    "vit-small": _model("vit-small", 1, 2, {"classes": 10}),
    "swin-tiny": _model("swin-tiny", 1, 2, {"classes": 10}),
    "unet": _model("unet", 1, 2, {"size": 32}, size=64, classes=4),
    "gpt2": _model("gpt2", 1, 2, {"length": 12}, length=64, classes=50257),
    "bert": _model("bert", 4, 2, _TEXT, length=32, classes=4),
    "dlrm": _model("dlrm", 128, 20, {"classes": 50}, length=4, classes=10_000, momentum=0.0),
    "tagger": _model("tagger", 16, 10, _TEXT, size=96, length=32, classes=20),
}
"""Nets of the zoo in sizes of today, and a tagger: words' embeddings, an LSTM in each direction, a class of each word.

Language models have the width of their smallest usual size, and two layers.
"""
