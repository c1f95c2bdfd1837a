"""Nets in files, as commands read them: with an init net, and inputs from the command line."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from netbuilder.exchange.predictor_files import read_net
from netbuilder.exchange.trust import check_harmless
from netbuilder.graph.defuse import undefined_inputs
from netbuilder.graph.replicas import Replicas
from netbuilder.parallel import replicas_of
from netbuilder.proto import BlobError, NetDef, NetError
from netbuilder.runtime import Workspace

__all__ = ["read_nets", "replicas_in", "start_nets", "unknown_input", "without_filling"]


def read_nets(path: str | Path, init: str | Path | None, *, trusted: bool) -> tuple[NetDef, NetDef]:
    """Return a net and its init net, which is empty if there is none.

    Raises:
        ParseError, NetError, OSError: a file or net is invalid, or holds operators that touch files, loop, wait or call
            Python, and is not ``trusted``.
    """
    net, init_net = read_net(path), read_net(init) if init is not None else NetDef()
    if not trusted:
        # Not check_fills: init nets of training also hold operators such as CreateMutex.
        check_harmless(init_net, f"--init {str(init)!r}")
        check_harmless(net, repr(str(path)))
    return net, init_net


def start_nets(workspace: Workspace, net: NetDef, init: NetDef, values: Mapping[str, Any]) -> frozenset[str]:
    """Run an init net, and feed the inputs of its net; return the blobs that the init net makes.

    Raises:
        BlobError: the net reads blobs that neither the init net makes nor ``values`` has.
    """
    workspace.run_net_once(init)
    made = frozenset(blob for op in init.op for blob in op.output)
    for name, value in values.items():
        workspace.feed(name, value)
    if missing := [name for name in undefined_inputs(net.op) if name not in made and name not in values]:
        raise BlobError(
            f"net {net.name!r} reads {missing[:8]}{' and more' if len(missing) > 8 else ''}, which have no values; "
            + "give "
            + " ".join(f"--input {name}=SHAPE" for name in missing[:3])
            + (" and so on" if len(missing) > 3 else "")
            + (", or the init net that makes them by --init" if not init.op else "")
        )
    return made


def without_filling(init_net: NetDef, names: Collection[str]) -> NetDef:
    """Return an init net without the operators that fill only these blobs, such as the placeholder of an input."""
    kept = NetDef()
    kept.CopyFrom(init_net)
    del kept.op[:]
    kept.op.extend(op for op in init_net.op if not op.output or not set(names).issuperset(op.output))
    return kept


def replicas_in(net: NetDef) -> Replicas | None:
    """Return the record of replicas, also of nets that Caffe2 stored; None for a net without replicas."""
    try:
        return replicas_of(net)
    except NetError:
        return None


def unknown_input(name: str, net: NetDef, inputs: Iterable[str]) -> BlobError:
    """Return the error for an input that a command line gives, and the net does not have."""
    known = list(inputs)
    return BlobError(
        f"input {name!r}: net {net.name!r} has no such external input; its inputs are {known[:8]}"
        f"{' and more' if len(known) > 8 else ''}"
    )
