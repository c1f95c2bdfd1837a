"""Our side of the benchmark of predictors: ``python -m netbuilder.tools.bench.our_predictor WARMUP FOLDER THREADS``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import netbuilder
from netbuilder import ModelHelper, Workspace, load_predictor, save_predictor
from netbuilder.exchange.onnx import export_onnx, read_onnx
from netbuilder.model import brew
from netbuilder.passes import extract_predictor
from netbuilder.tools.bench.worker import serve
from netbuilder.zoo.resnet import create_resnet

__all__ = ["INPUTS", "MODEL", "OUTPUTS", "export", "main"]

MODEL, INPUTS = "model.onnx", "inputs.npz"
"""Files that all sides read."""

OUTPUTS = "outputs.npz"
"""File of our outputs; a peer's has its name."""

_PREDICTOR = "predictor"
_CLASSES = 1000
_WIDTHS = (64, 128, 128, 10)


def export(folder: Path, *, layers: int, batch: int, size: int) -> None:
    """Write a net with random parameters, as a predictor and as a model for the peers, and a batch of inputs.

    Args:
        folder: gets the folder ``predictor``, ``MODEL``, in which no normalization is folded, since the peers do that,
            and ``INPUTS``.
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
    save_predictor(folder / _PREDICTOR, net, values, inputs=["data"], shapes={"data": shape})
    export_onnx(folder / MODEL, net, values, shapes={"data": shape}, fold=False, dynamic_batch=False)
    np.savez(folder / INPUTS, data=rng.standard_normal(shape, np.float32))


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


def main(arguments: list[str]) -> None:
    """Write the outputs for the inputs in the folder, then serve runs of it (see ``worker.serve``)."""
    folder, threads = Path(arguments[1]), int(arguments[2])
    workspace = Workspace(threads=threads)
    with np.load(folder / INPUTS) as stored:
        inputs = dict(stored)
    began = time.process_time()
    plain: tuple[str, ...] = ()
    if (folder / _PREDICTOR).exists():
        predictor = load_predictor(folder / _PREDICTOR, workspace=workspace)
    else:
        read = read_onnx(folder / MODEL)
        predictor, plain = read.predictor(workspace=workspace), tuple(read.reference_nodes)
    predictor.run(inputs)
    whole = time.process_time()
    first = whole - began
    for name in workspace.nets():
        workspace.net(name).measure_choices()
    np.savez(folder / OUTPUTS, **predictor.run(inputs))
    info = {"version": netbuilder.__version__, "first": first, "whole": whole, "plain": plain}
    serve(lambda: predictor.run(inputs), warmup=int(arguments[0]), info=info)


if __name__ == "__main__":
    main(sys.argv[1:])
