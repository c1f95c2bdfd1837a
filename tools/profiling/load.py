"""Nets in files, made ready to run: with values for what they read, those of an init net or random ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from netbuilder.exchange import load_predictor
from netbuilder.exchange.predictor_files import read_net
from netbuilder.exchange.trust import check_harmless
from netbuilder.graph.defuse import undefined_inputs
from netbuilder.graph.rename import place_operators
from netbuilder.proto import BlobError, DeviceOption, NetDef
from netbuilder.runtime import Workspace
from netbuilder.tools.profiling.ready import Ready, value_of

__all__ = ["load_folder", "load_net"]


def load_net(
    workspace: Workspace,
    path: str | Path,
    init: str | Path | None,
    given: Mapping[str, Any],
    *,
    device: DeviceOption | None = None,
    trusted: bool = False,
) -> Ready:
    """Create a net from a file.

    Args:
        workspace: where.
        path: of the net.
        init: of the init net, which is run first; None: none.
        given: inputs, as arrays or as specs of random ones.
        device: where all operators run; None: where the files say.
        trusted: run every operator of the nets; if not, none that touches files, loops, waits or calls Python.

    Raises:
        BlobError: the net reads what neither the init net makes nor ``given`` names, or ``given`` names what it
            does not read.
        ParseError, NetError, OSError: a file or a net is wrong, or holds operators that are run only if ``trusted``.
    """
    net = read_net(path)
    init_net = read_net(init) if init is not None else NetDef()
    if not trusted:
        check_harmless(init_net, f"--init {str(init)!r}")  # of a training net: more than fills, such as CreateMutex
        check_harmless(net, repr(str(path)))
    if device is not None:
        place_operators(init_net, device)
        place_operators(net, device)
    workspace.run_net_once(init_net)
    made = {blob for op in init_net.op for blob in op.output}
    reads = undefined_inputs(net.op)
    for name, spec in given.items():
        if name not in reads:
            raise BlobError(f"input {name!r}: net {net.name!r} reads no such blob from outside; it reads {reads}")
        workspace.feed(name, value_of(spec))
    if missing := [name for name in reads if name not in made and name not in given]:
        raise BlobError(
            f"net {net.name!r} reads {missing}, which nothing makes; give "
            + " ".join(f"--input {name}=SHAPE" for name in missing[:3])
            + (" and so on" if len(missing) > 3 else "")
            + (", or the init net that makes them by --init" if init is None else "")
        )
    return Ready(workspace, workspace.create_net(net), frozenset(made))


def load_folder(
    workspace: Workspace,
    folder: str | Path,
    batch: int | None,
    given: Mapping[str, Any],
    *,
    device: DeviceOption | None = None,
    trusted: bool = False,
) -> Ready:
    """Create the net of a predictor.

    Args:
        workspace: where.
        folder: with init_net.pb and predict_net.pb.
        batch: samples of each input; None: as saved, or 1 where none is.
        given: inputs, as arrays or as specs of random ones; none is needed where the files have the shapes.
        device: where all operators run; None: where the files say.
        trusted: run every operator of the nets; see ``load_predictor``.

    Raises:
        BlobError: the shape of an input is not known.
        ParseError, NetError, OSError: a file or a net is wrong.
    """
    predictor = load_predictor(folder, workspace=workspace, device=device, trusted=trusted)
    parameters = frozenset(workspace.blobs()) - set(predictor.inputs)
    specs: dict[str, Any] = {**predictor.specs, **given}
    for name in predictor.inputs:
        spec = specs.get(name)
        if spec is None:
            raise BlobError(
                f"{str(folder)!r} does not say which shape its input {name!r} has; give --input {name}=SHAPE"
            )
        if name not in given and spec.ndim:
            spec = spec.with_shape((batch or spec.shape[0] or 1, *spec.shape[1:]))
        workspace.feed(name, value_of(spec))
    return Ready(workspace, predictor.net.name, parameters)
