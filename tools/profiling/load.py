"""Nets from files, made ready to run: their inputs get values from an init net, or random ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from netbuilder.exchange import load_predictor
from netbuilder.exchange.onnx import read_onnx
from netbuilder.graph.blob_devices import place_operators
from netbuilder.graph.defuse import undefined_inputs
from netbuilder.proto import BlobError, DeviceOption
from netbuilder.runtime import Workspace
from netbuilder.tools.profiling.ready import Ready, value_of
from netbuilder.tools.stored_nets import is_onnx, read_nets, start_nets, unknown_input

__all__ = ["load_net", "load_stored_predictor"]


def load_net(
    workspace: Workspace,
    path: str | Path,
    init: str | Path | None,
    given: Mapping[str, Any],
    *,
    device: DeviceOption | None = None,
    trusted: bool = False,
    observable: str | None = None,
    memory_budget: str | None = None,
    dtype: str | None = None,
) -> Ready:
    """Create a net from a file.

    Args:
        workspace: where the net is created.
        path: file of the net.
        init: file of the init net, which runs first; None: there is none.
        given: inputs, as arrays, or as specs for random arrays.
        device: where all operators run; None: on the devices in the files.
        trusted: allow all operators; if not, none that touches files, loops, waits or calls Python.
        observable: which blobs can be fetched after a run, see ``Workspace.create_net``.
        memory_budget: of a run, see there.
        dtype: how activations are stored, see there.

    Raises:
        BlobError: the net reads a blob that neither the init net makes nor ``given`` names, or ``given`` names a blob
            that it does not read.
        ParseError, NetError, OSError: a file or net is invalid, or holds operators that are allowed only if
            ``trusted``.
    """
    net, init_net = read_nets(path, init, trusted=trusted)
    if device is not None:
        place_operators(init_net, device)
        place_operators(net, device)
    reads = undefined_inputs(net.op)
    if unknown := [name for name in given if name not in reads]:
        raise unknown_input(unknown[0], net, reads)
    made = start_nets(workspace, net, init_net, {name: value_of(spec) for name, spec in given.items()})
    name = workspace.create_net(net, observable=observable, memory_budget=memory_budget, dtype=dtype)
    return Ready(workspace, name, made)


def load_stored_predictor(
    workspace: Workspace,
    path: str | Path,
    batch: int | None,
    given: Mapping[str, Any],
    *,
    device: DeviceOption | None = None,
    trusted: bool = False,
) -> Ready:
    """Create the net of a predictor.

    Args:
        workspace: where the net is created.
        path: a folder with init_net.pb and predict_net.pb, or an ONNX model.
        batch: samples of each input; None: the stored batch, or 1 without one.
        given: inputs, as arrays, or as specs for random arrays; not needed for inputs whose shapes are stored.
        device: where all operators run; None: on the devices in the files.
        trusted: allow all operators; see ``load_predictor``.

    Raises:
        BlobError: the shape of an input is not known.
        ParseError, NetError, OSError: a file or net is invalid.
    """
    if is_onnx(path):
        shapes = {name: value.shape for name, value in given.items()}
        predictor = read_onnx(path, shapes=shapes).predictor(workspace=workspace, device=device, trusted=trusted)
    else:
        predictor = load_predictor(path, workspace=workspace, device=device, trusted=trusted)
    parameters = frozenset(workspace.blobs()) - set(predictor.inputs)
    specs: dict[str, Any] = {**predictor.specs, **given}
    for name in predictor.inputs:
        spec = specs.get(name)
        if spec is None:
            raise BlobError(f"{str(path)!r} does not store the shape of its input {name!r}; give --input {name}=SHAPE")
        if name not in given and spec.ndim:
            spec = spec.with_shape((batch or spec.shape[0] or 1, *spec.shape[1:]))
        workspace.feed(name, value_of(spec))
    return Ready(workspace, predictor.net.name, parameters)
