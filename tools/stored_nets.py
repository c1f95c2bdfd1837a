"""Nets in files, as commands read them: with an init net, and inputs from the command line."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from netbuilder.data.tensor_records import DATA_TYPES
from netbuilder.exchange.onnx import read_onnx
from netbuilder.exchange.predictor_files import INIT_FILE, PREDICT_FILE, read_net, require_predictor, stored_specs
from netbuilder.exchange.predictor_names import find_placeholders
from netbuilder.exchange.trust import check_harmless, check_not_swapped
from netbuilder.graph.defuse import undefined_inputs
from netbuilder.graph.replicas import Replicas
from netbuilder.parallel import replicas_of
from netbuilder.proto import BlobError, NetDef, NetError
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime import Workspace

__all__ = [
    "NET_HELP",
    "FileNet",
    "is_onnx",
    "is_predictor",
    "read_nets",
    "read_stored",
    "refuse_init",
    "replicas_in",
    "start_nets",
    "unknown_input",
]

NET_HELP = "a net in a file (.pb, or text in .pbtxt), a folder with a predictor, or an ONNX model (.onnx)"


@dataclass(frozen=True)
class FileNet:
    """A net as files hold it, and what they and a command line say of its blobs.

    Args:
        net: the net.
        init: makes its parameters, and no inputs; None: there is none.
        specs: the known shapes, by blob.
        unknown: inputs whose shape is not known, because the files hold only a placeholder or leave it open.
    """

    net: NetDef
    init: NetDef | None
    specs: Mapping[str, Any]
    unknown: tuple[str, ...]

    def given(self, specs: Mapping[str, Any]) -> FileNet:
        """Return it with the shapes of inputs, which the init net does not fill then."""
        unknown = tuple(name for name in self.unknown if name not in specs)
        init = None if self.init is None else _without_filling(self.init, specs)
        return FileNet(self.net, init, {**self.specs, **specs}, unknown)


def is_onnx(path: str | Path) -> bool:
    """Whether a path is that of an ONNX model."""
    return Path(path).suffix == ".onnx"


def is_predictor(path: str | Path) -> bool:
    """Whether a path is that of a net with its parameters: a folder, or an ONNX model."""
    return Path(path).is_dir() or is_onnx(path)


def refuse_init(path: str | Path, init: str | None) -> None:
    """Raise NetError if an init net is given for a predictor, which holds its parameters."""
    if init is not None and is_predictor(path):
        kind = "an ONNX model" if is_onnx(path) else "a folder with a predictor"
        own = "parameters" if is_onnx(path) else INIT_FILE
        raise NetError(f"--init: {str(path)!r} is {kind}, which has its own {own}; leave --init out")


def read_stored(path: str | Path, init: str | None = None, given: Mapping[str, Any] | None = None) -> FileNet:
    """Return the net in a file, in a folder with a predictor, or of an ONNX model.

    Args:
        path: see above.
        init: the file of the init net; None: there is none, or it is in the folder.
        given: shapes of inputs that an ONNX model leaves open.

    Raises:
        ParseError, NetError, OSError: a file or net is invalid, or one is missing.
    """
    refuse_init(path, init)
    path = Path(path)
    if is_onnx(path):
        return _read_onnx(path, given or {})
    specs: Mapping[str, Any] = {}
    if path.is_dir():
        require_predictor(path, [PREDICT_FILE])
        net = read_net(path / PREDICT_FILE)
        init_net = read_net(path / INIT_FILE) if (path / INIT_FILE).exists() else None
        specs = {name: spec for name, spec in stored_specs(net, str(path)).items() if name in net.external_input}
    else:
        net, init_net = read_net(path), read_net(init) if init is not None else None
    if init_net is None:
        return FileNet(net, None, specs, ())
    check_not_swapped(init_net, net, init or path / INIT_FILE, path / PREDICT_FILE if path.is_dir() else path)
    unknown = [name for name in find_placeholders(net, init_net) if name not in specs]
    return FileNet(net, _without_filling(init_net, unknown), specs, tuple(unknown))


def _read_onnx(path: Path, given: Mapping[str, Any]) -> FileNet:
    """Return an ONNX model; its init net says only the shapes and types of the parameters."""
    read = read_onnx(path, shapes={name: tuple(getattr(spec, "shape", spec)) for name, spec in given.items()})
    init = NetDef(name=f"{read.net.name}_init")
    for name, value in read.parameters.items():
        fill = make_op("ConstantFill", [], [name], shape=list(value.shape), dtype=DATA_TYPES[value.dtype])
        init.op.append(fill)
    return FileNet(read.net, init, read.specs, tuple(name for name in read.inputs if name not in read.specs))


def read_nets(path: str | Path, init: str | Path | None, *, trusted: bool) -> tuple[NetDef, NetDef]:
    """Return a net and its init net, which is empty if there is none.

    Raises:
        ParseError, NetError, OSError: a file or net is invalid, or holds operators that touch files, loop, wait or call
            Python, and is not ``trusted``.
    """
    net, init_net = read_net(path), read_net(init) if init is not None else NetDef()
    if init is not None:
        check_not_swapped(init_net, net, init, path)
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
    init = _without_filling(init, find_placeholders(net, init))
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


def _without_filling(init_net: NetDef, names: Collection[str]) -> NetDef:
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
