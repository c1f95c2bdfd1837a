"""Our side of the benchmarks: ``python -m netbuilder.tools.bench.ours mlp THREADS BATCH``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import netbuilder
from netbuilder import ModelHelper, Workspace, brew
from netbuilder.optimizers import add_weight_decay, build_sgd
from netbuilder.tools.bench.worker import serve
from netbuilder.zoo.resnet import create_resnet50

__all__ = ["main"]

Step = Callable[[], None]


def _mlp(model: ModelHelper, width: int = 64, depth: int = 4) -> Any:
    blob: Any = "data"
    for i in range(depth):
        blob = brew.fc(model, blob, f"fc{i}", width, width)
        if i < depth - 1:
            blob = brew.relu(model, blob, blob)
    return blob


def _training(task: str, batch: int) -> tuple[ModelHelper, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    model = ModelHelper(name=task, arg_scope={"order": "NCHW"})
    if task == "mlp":
        prediction = _mlp(model)
        x, y = rng.standard_normal((batch, 64)), rng.integers(0, 64, batch)
    elif task == "resnet50":
        prediction = create_resnet50(model, "data", 3, 1000, no_loss=True, no_bias=True)
        x, y = rng.standard_normal((batch, 3, 224, 224)), rng.integers(0, 1000, batch)
    else:
        raise SystemExit(f"unknown task {task!r}")
    _, loss = model.net.SoftmaxWithLoss([prediction, "label"], ["softmax", "loss"])
    model.AddGradientOperators([loss])
    if task == "resnet50":
        add_weight_decay(model, 1e-4)
    build_sgd(model, 0.01, momentum=0.9)
    return model, x.astype(np.float32), y.astype(np.int32)


def training_step(task: str, threads: int, batch: int) -> Step:
    """Return a call that runs one training step: forward, backward, update."""
    model, x, y = _training(task, batch)
    workspace = Workspace(threads=threads)
    workspace.feed("data", x)
    workspace.feed("label", y)
    workspace.run_net_once(model.param_init_net)
    workspace.create_net(model.net)
    name = model.net.Name()

    def step() -> None:
        workspace.run_net(name)

    return step


def main(arguments: list[str]) -> None:
    """Serve the steps of one task (see ``worker.serve``)."""
    task, threads, batch = arguments[0], int(arguments[1]), int(arguments[2])
    serve(training_step(task, threads, batch), warmup=300 if task == "mlp" else 2,
          info={"netbuilder": netbuilder.__version__})  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
