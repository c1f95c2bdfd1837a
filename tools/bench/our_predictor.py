"""Our side of the benchmark of predictors: ``python -m netbuilder.tools.bench.our_predictor WARMUP FOLDER THREADS``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import netbuilder
from netbuilder import ModelHelper, Workspace, load_predictor, save_predictor
from netbuilder.graph.versions import number_versions
from netbuilder.model import brew
from netbuilder.passes import extract_predictor
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import arguments
from netbuilder.tools.bench.worker import serve
from netbuilder.zoo.resnet import create_resnet

__all__ = ["OUTPUTS", "export", "main"]

OUTPUTS = "outputs.npz"
"""File of our outputs; the peer's are in ``peer.npz``."""

_CLASSES = 1000
_WIDTHS = (64, 128, 128, 10)


def export(folder: Path, *, layers: int, batch: int, size: int) -> None:
    """Write a net with random parameters, as a predictor and as a graph for the peer, and a batch of inputs.

    Args:
        folder: gets the predictor's files, ``graph.json``, ``weights.npz`` and ``batch.npy``.
        layers: of a residual net, 18 to 200; 0: a small net of fully connected layers, of 64-128-128-10.
        batch: number of inputs.
        size: height and width of the images in pixels.
    """
    model = ModelHelper(name=f"resnet{layers}" if layers else "mlp", arg_scope={"order": "NCHW"})
    shape: tuple[int, ...]
    if layers:
        softmax = create_resnet(model, "data", 3, _CLASSES, layers, is_test=True)
        scores = f"last_out_L{_CLASSES}"
        shape = (batch, 3, size, size)
    else:
        scores, softmax = _mlp(model)
        shape = (batch, _WIDTHS[0])
    net, parameters = extract_predictor(model.net, ["data"], [scores, softmax])
    workspace = Workspace()
    workspace.run_net_once(model.param_init_net)
    rng = np.random.default_rng(0)
    values: dict[str, Any] = {name: _value(name, workspace.fetch(name), rng) for name in parameters}
    save_predictor(folder, net, values, inputs=["data"], shapes={"data": shape})
    graph = {"input": "data", "shape": shape, **_single_assignment(net)}
    (folder / "graph.json").write_text(json.dumps(graph), encoding="utf-8")
    np.savez(folder / "weights.npz", **values)
    np.save(folder / "batch.npy", rng.standard_normal(shape, np.float32))


def _mlp(model: ModelHelper) -> tuple[str, str]:
    """Add the small net; return its scores and probabilities."""
    blob: Any = "data"
    for number, (inputs, outputs) in enumerate(zip(_WIDTHS, _WIDTHS[1:])):
        if number:
            blob = brew.relu(model, blob, blob)
        blob = brew.fc(model, blob, f"fc{number}", inputs, outputs)
    return str(blob), str(brew.softmax(model, blob, "softmax"))


def _value(name: str, value: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return a parameter; vectors, which are initialized to 0 or 1, get random elements, so that mix-ups show."""
    if value.ndim > 1:
        return value
    positive = name.endswith(("_s", "_riv"))
    return (rng.uniform(0.5, 1.5, value.shape) if positive else rng.normal(0, 0.1, value.shape)).astype(np.float32)


def _single_assignment(net: NetDef) -> dict[str, Any]:
    """Return operators and outputs of a net in single-assignment form: each value has its own name."""
    versions = number_versions(net.op)
    names = [name if version == 0 else f"{name}/{version}" for name, version in zip(versions.names, versions.versions)]
    operators = [
        {
            "type": op.type,
            "inputs": [names[value] for value in versions.inputs[index]],
            "outputs": [names[value] for value in versions.outputs[index]],
            "arguments": {k: v for k, v in arguments(op).items() if isinstance(v, (int, float))},
        }
        for index, op in enumerate(net.op)
    ]
    return {"operators": operators, "outputs": [names[versions.last[name]] for name in net.external_output]}


def main(arguments: list[str]) -> None:
    """Write the outputs for the batch in the folder, then serve runs of it (see ``worker.serve``)."""
    folder, threads = Path(arguments[1]), int(arguments[2])
    workspace = Workspace(threads=threads)
    predictor = load_predictor(folder, workspace=workspace)
    batch = np.load(folder / "batch.npy")
    predictor.run(data=batch)
    for name in workspace.nets():
        workspace.net(name).measure_choices()
    np.savez(folder / OUTPUTS, **predictor.run(data=batch))
    serve(lambda: predictor.run(data=batch), warmup=int(arguments[0]), info={"version": netbuilder.__version__})


if __name__ == "__main__":
    main(sys.argv[1:])
