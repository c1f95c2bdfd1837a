"""The benchmark of strategies: accuracy and bytes after the same training with each strategy of the exchange.

``mpiexec -n P python -m netbuilder.tools.bench.strategies TRAININGS`` trains in all processes; rank 0 prints a line of
JSON for each strategy.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder import ModelHelper, Workspace, parallel
from netbuilder.distributed import Rendezvous, Strategy, exchanged_bytes
from netbuilder.distributed.launch.installed_mpi import installed_mpi
from netbuilder.ops.losses.accuracy import classes_before_label
from netbuilder.optimizers import build_sgd
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.tools.bench.report import Line
from netbuilder.tools.training.images import load_images
from netbuilder.zoo.mlp import create_mlp

__all__ = ["DEFAULT_STRATEGIES", "Trainings", "strategy_lines", "train"]

Array = Any

DEFAULT_STRATEGIES = (
    "plain", "half", "half:bfloat16", "topk:0.1", "topk:0.01", "topk:0.01,residual=false", "threshold:0.001",
    "threshold:0.01", "powersgd:2", "powersgd:4", "zero:1", "partial:2000", "local_sgd:8", "block_momentum:8",
    "diloco:8", "diloco:8,bits=8",
)  # fmt: skip

_CLASSES = 10
_SECONDS = 3600


@dataclass(frozen=True)
class Trainings:
    """A net of two layers that is trained once with each strategy, from the same values on the same batches.

    Args:
        strategies: their texts.
        processes: number of them, with one device each.
        data: as for ``load_images``: the digits that come with netbuilder, or a folder of IDX files such as MNIST's.
        epochs, batch: of all processes together.
        hidden: length of the hidden vectors.
        rate, momentum: of SGD.
    """

    strategies: Sequence[str] = DEFAULT_STRATEGIES
    processes: int = 2
    data: str = "digits"
    epochs: int = 20
    batch: int = 64
    hidden: int = 128
    rate: float = 0.05
    momentum: float = 0.9


def strategy_lines(options: Trainings) -> Iterator[Line]:
    """Train with each strategy; yield its accuracy and its bytes.

    Raises:
        ArgumentError, TypeError: a strategy cannot be read.
        DeviceError: mpi4py, its library or mpiexec is missing.
        FileNotFoundError: there is no such data.
        RuntimeError: the training failed; the message has the end of its output.
    """
    for text in options.strategies:
        Strategy.of(text)
    load_images(options.data)
    program = [sys.executable, "-m", "netbuilder.tools.bench.strategies", json.dumps(dataclasses.asdict(options))]
    mpi = installed_mpi()
    environment = {**os.environ, **mpi.environment(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*mpi.command(options.processes), *program],
        env=environment, capture_output=True, text=True, check=False, timeout=_SECONDS,
    )  # fmt: skip
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or len(found) != len(options.strategies):
        raise RuntimeError(f"the training of strategies ended with code {done.returncode}: {done.stderr[-2000:]}")
    dense = next((each["bytes"] for each in found if each["strategy"] == "plain"), None)
    data = Path(options.data).name
    for each in found:
        share = "" if dense is None else f", {each['bytes'] / dense:.3f} of plain"
        text = (
            f"{data}, {options.processes} processes, {options.epochs} epochs, {each['strategy']}: accuracy "
            f"{each['accuracy']:.4f}, {each['bytes']:.0f} bytes of each process in a step{share}"
        )
        yield Line(text, {"kind": "strategy", **dataclasses.asdict(options), **each})


def train(options: Trainings, text: str, place: Rendezvous) -> dict[str, Any]:
    """Train with one strategy in this process, with the others; return accuracy and bytes of a step."""
    data, test = load_images(options.data)
    model, record = _built(options, text, place, int(np.prod(data.shape)))
    workspace = Workspace(threads=1, seed=1)
    order, steps, given = np.random.default_rng(1), 0, 0
    scope, share = record.devices.scopes[0], options.batch // options.processes
    own = slice(share * place.shard_id, share * (place.shard_id + 1))
    for _ in range(options.epochs):
        for images, labels in data.batches(options.batch, order):
            if len(labels) < options.batch:
                break
            workspace.feed(scope + "data", images[own].reshape(share, -1))
            workspace.feed(scope + "label", labels[own])
            if not steps:
                parallel.RunInitNet(model, workspace=workspace)
                given = exchanged_bytes(model, workspace=workspace)
            parallel.RunNet(model, workspace=workspace)
            steps += 1
    given = exchanged_bytes(model, workspace=workspace) - given
    if record.block is not None:
        parallel.finish_block(model, workspace=workspace)
    parameters = [workspace.fetch(scope + name) for name in ("fc0_w", "fc0_b", "fc1_w", "fc1_b")]
    accuracy = _accuracy(parameters, *next(iter(test.batches(len(test)))))
    return {"strategy": text, "accuracy": accuracy, "bytes": given / steps}


def _built(options: Trainings, text: str, place: Rendezvous, pixels: int) -> tuple[ModelHelper, parallel.Replicas]:
    def forward(model: ModelHelper, loss_scale: float) -> list[Any]:
        _, loss = create_mlp(model, "data", [pixels, options.hidden, _CLASSES], "label")
        return [model.Scale(loss, scale=loss_scale)]

    model = ModelHelper(f"strategy_{Strategy.of(text).name}")
    record = parallel.Parallelize_CPU(
        model,
        lambda model: None,
        forward,
        optimizer_builder_fun=lambda model: build_sgd(model, options.rate, momentum=options.momentum),
        devices=[0],
        rendezvous=place,
        strategy=text,
    )
    return model, record


def _accuracy(parameters: Sequence[Array], images: Array, labels: Array) -> float:
    w0, b0, w1, b1 = parameters
    hidden = np.maximum(images.reshape(len(images), -1) @ w0.T + b0, 0)
    scores = hidden @ w1.T + b1
    return float((classes_before_label(np, scores, labels) == 0).mean())


def main(arguments: Sequence[str]) -> None:
    """Train with each strategy, in this process of several."""
    options, place = Trainings(**json.loads(arguments[0])), Rendezvous.from_environment()
    for text in options.strategies:
        result = train(options, text, place)
        if place.shard_id == 0:
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
