"""Predictors in files: init_net.pb with the weights and predict_net.pb with the net, in one folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.data.extents import count_elements
from netbuilder.data.tensor_records import DATA_TYPES, NUMPY_TYPES
from netbuilder.exchange.divided import Divided, give_divided, taken
from netbuilder.exchange.fills import fill_in_parts, fill_operator, fill_type
from netbuilder.exchange.image_preparation import ImagePreparation, describe_images
from netbuilder.exchange.mobile_exporter import fetch_parameters
from netbuilder.exchange.predictor import Predictor, check_names
from netbuilder.exchange.predictor_names import given_shapes
from netbuilder.exchange.trust import check_not_swapped
from netbuilder.graph.blob import blob_name
from netbuilder.graph.defuse import undefined_inputs
from netbuilder.graph.message import message_of
from netbuilder.graph.observability import OUTPUTS
from netbuilder.graph.replicas import remove_record
from netbuilder.graph.shapes import infer_shapes
from netbuilder.ops.core.operator import TensorSpec, spec_of
from netbuilder.passes.extract_predictor import remove_sources
from netbuilder.passes.fold_batch_norm import fold_batch_norm
from netbuilder.proto import (
    ArgumentError,
    BlobError,
    DeviceOption,
    NetDef,
    NetError,
    ParseError,
    TensorShape,
    TensorShapes,
    files,
    opened_files,
)
from netbuilder.proto.arguments import arguments, set_argument
from netbuilder.proto.call_checks import checked
from netbuilder.proto.file_kinds import kind_of
from netbuilder.proto.os_errors import make_folder, no_such_file, said_of
from netbuilder.proto.wire import varint
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute import default

__all__ = [
    "INIT_FILE",
    "PREDICT_FILE",
    "load_predictor",
    "read_net",
    "require_predictor",
    "save_predictor",
    "stored_specs",
]

INIT_FILE, PREDICT_FILE = "init_net.pb", "predict_net.pb"

_OPERATOR = b"\x12"  # tag of a NetDef's field 2 (op)
_SHOWN = 5  # number of file names in a message

_INPUTS, _OUTPUTS, _SHAPES, _WEIGHTS = (
    "predictor_inputs",
    "predictor_outputs",
    "predictor_shapes",
    "predictor_weights",
)


@checked("directory")
def save_predictor(
    directory: str | os.PathLike[str],
    predict_net: Any,
    parameters: Iterable[Any] | Mapping[Any, Any] | None = None,
    *,
    inputs: Sequence[Any] | None = None,
    outputs: Sequence[Any] | None = None,
    shapes: Mapping[Any, Any] | None = None,
    workspace: Workspace | None = None,
    fold: bool = False,
    images: ImagePreparation | None = None,
    classes: Sequence[str] | None = None,
) -> None:
    """Write a predictor to a folder, for ``load_predictor``.

    Other readers of init_net.pb and predict_net.pb, such as Caffe2, can read it too. If it has tables whose rows are
    divided over processes, all of them call it; the first one writes, and has some megabytes of the others' rows at a
    time. These files hold less than 2 GiB; those of ``save_to_db`` may be larger.

    Args:
        directory: created if it does not exist; files of an earlier predictor in it are both replaced, or, after an
            error, both unchanged.
        predict_net: a Net or NetDef in test mode, as ``extract_predictor`` and ``ExtractPredictorNet`` return it.
        parameters: blobs, or a mapping of blobs to arrays; None: all external inputs that are not in ``inputs``.
        inputs: blobs that will be fed; None: all external inputs that are not in ``parameters``.
        outputs: blobs that the predictor returns; None: the net's external outputs.
        shapes: input -> shape, the batch first; for other inputs the shapes of the workspace's blobs are used, if any.
        workspace: has the parameters' values; None: the current default one.
        fold: fold batch normalizations into the weights before them (``passes.fold_batch_norm``), for readers that do
            not fold; ``load_predictor`` does.
        images: preprocessing of images, stored as arguments of the net; None: keep the net's, if any.
        classes: names of the classes from 0 on, stored likewise.

    Raises:
        NetError: parameters and inputs overlap, are both None, or lack a blob that the net reads; there is no output; a
            normalization to fold is in training mode; or ``parameters`` is empty, though the net reads weights.
        BlobError: a parameter is not in the workspace, or an output not in the net.
        ArgumentError: a parameter is of a type that files cannot hold.
        OSError: the files cannot be written.
    """
    if not isinstance(directory, (str, os.PathLike)):
        raise TypeError(
            f"save_predictor: directory must be a path, got {reprlib.repr(directory)} of type "
            f"{type(directory).__name__}"
        )
    proto = message_of(predict_net)
    given, workspace = workspace, workspace or default.workspace()
    needed = _needed(proto)
    fed, kept = _divide(proto, needed, inputs, parameters)
    if inputs is None and not kept and (weights := _read_later(proto, needed)):
        raise NetError(
            f"net {proto.name!r}: no parameters are given, but it reads {weights} as operators read weights; name the "
            "parameters, or give inputs= if these are fed"
        )
    requested = [blob_name(blob) for blob in outputs] if outputs is not None else list(proto.external_output)
    if both := sorted(set(kept).intersection(requested)):
        raise NetError(f"net {proto.name!r}: {both} cannot be parameters and outputs at once")
    try:
        values = fetch_parameters(workspace, proto, parameters if isinstance(parameters, Mapping) else kept)
    except BlobError as error:
        if given is not None:
            raise
        raise BlobError(
            f"{error}; looked in the default workspace {default.current_name()!r}: if the parameters are in another, "
            "give workspace="
        ) from error
    if give_divided(values):
        return
    with taken(values) as pieces:
        if fold:
            proto, values, kept = _folded(proto, values, requested)
        _check_types(proto, {name: values[name] for name in kept})
        check_names(proto, kept, fed, requested)
        stored = _described(proto, values, (fed, kept, requested), shapes, images, classes, workspace)
        _write(Path(directory), proto.name, {name: values[name] for name in kept}, pieces, stored)


def _check_types(net: NetDef, values: Mapping[str, Any]) -> None:
    """Raise ArgumentError unless an init net can hold these values; a net in training has others, such as locks."""
    try:
        for name, value in values.items():
            fill_type(name, value)
    except ArgumentError as error:
        if not any(op.is_gradient_op for op in net.op):
            raise
        raise ArgumentError(
            f"{error}; net {net.name!r} is a net for training: save the net of a model in test mode, or the part of it "
            "that extract_predictor returns"
        ) from None


def _described(
    proto: NetDef,
    values: Mapping[str, Any],
    blobs: tuple[Sequence[str], Sequence[str], Sequence[str]],
    shapes: Mapping[Any, Any] | None,
    images: ImagePreparation | None,
    classes: Sequence[str] | None,
    workspace: Workspace,
) -> NetDef:
    """Return a predict net as it is stored, but for the digest of the weights.

    Args:
        blobs: its inputs, parameters and outputs.
    """
    (fed, kept, requested), stored = blobs, NetDef()
    stored.CopyFrom(proto)
    remove_record(stored)
    remove_sources(stored)
    stored.external_input[:] = [*fed, *kept]
    stored.external_output[:] = requested
    set_argument(stored, _INPUTS, fed)
    set_argument(stored, _OUTPUTS, requested)
    describe_images(stored, images, classes)
    known = _shapes(stored, values, fed, requested, shapes, workspace)
    set_argument(stored, _SHAPES, known.SerializeToString())
    return stored


def _write(
    folder: Path, name: str, values: Mapping[str, Any], pieces: Mapping[str, Iterator[Any]], stored: NetDef
) -> None:
    """Write both files: first the init net, operator by operator, and then the predict net with its digest."""
    digest = hashlib.sha256()

    def init_net() -> Iterator[bytes]:
        for part in _init_net_bytes(f"{name}_init", values, pieces):
            digest.update(part)
            yield part

    def predict_net() -> Iterator[bytes]:
        set_argument(stored, _WEIGHTS, digest.hexdigest())
        yield files.to_bytes(stored)

    new = not folder.exists()
    make_folder(folder)
    try:
        files.save_all({folder / INIT_FILE: init_net(), folder / PREDICT_FILE: predict_net()})
    except BaseException:
        if new:
            with contextlib.suppress(OSError):  # the error that is raised says more
                folder.rmdir()
        raise


def _init_net_bytes(name: str, values: Mapping[str, Any], pieces: Mapping[str, Iterator[Any]]) -> Iterator[bytes]:
    """Yield the bytes of an init net that fills blobs, without having all of it in memory.

    Args:
        name: of the net.
        values: of the blobs.
        pieces: of those that are divided, see ``taken``.
    """
    yield NetDef(name=name).SerializeToString()
    for blob, value in values.items():
        yield _OPERATOR
        if blob in pieces and value.dtype == np.float32:
            yield from fill_in_parts(blob, value.shape, pieces[blob])
            continue
        op = fill_operator(blob, value.whole(pieces[blob]) if blob in pieces else value)
        data = files.to_bytes(op)
        yield varint(len(data)) + data


@checked("directory")
def load_predictor(
    directory: str | os.PathLike[str],
    *,
    init_net: str | os.PathLike[str] | None = None,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    device: DeviceOption | None = None,
    workspace: Workspace | None = None,
    fold: bool = True,
    observable: str | Iterable[Any] | None = OUTPUTS,
    threads: int | None = None,
    trusted: bool = False,
) -> Predictor:
    """Load a predictor from a folder with init_net.pb and predict_net.pb.

    Args:
        directory: written by ``save_predictor``, by Caffe2's exporters, or by its translator of Caffe models; with
            ``init_net``, the file of the predict net.
        init_net: the file of the init net, if the two have other names; binary, or text in .pbtxt.
        inputs, outputs: blobs, if the files do not name them, or to replace those (see ``Predictor``).
        device: where it runs; None: on the devices that the nets name. Give the CPU's for nets written for a GPU.
        workspace: None: a new one.
        fold: fold batch normalizations, for speed (see ``Predictor``); the files are not changed.
        observable: blobs that can be fetched after a run (see ``Predictor``).
        threads: how many threads at most compute at the same time (see ``Predictor``).
        trusted: allow all operators, also those that touch files, loop, wait or call Python.

    Raises:
        FileNotFoundError: the folder or one of the files does not exist.
        ParseError: a file is truncated or not a net, or the two were not saved together.
        NetError: the two are swapped; the init net lacks a parameter; or a net holds operators that are allowed only
            if ``trusted``.
        DeviceError: the device is not available.
    """
    for path, what in ((directory, "directory"), (init_net, "init_net")):
        if not isinstance(path, (str, os.PathLike)) and (path is not None or what == "directory"):
            raise TypeError(
                f"load_predictor: {what} must be a path, got {reprlib.repr(path)} of type {type(path).__name__}"
            )
    if init_net is None:
        require_predictor(Path(directory))
        init_path, predict_path = Path(directory) / INIT_FILE, Path(directory) / PREDICT_FILE
    else:
        init_path, predict_path = Path(init_net), Path(directory)
    init_proto, predict_net = read_net(init_path), read_net(predict_path)
    check_not_swapped(init_proto, predict_net, init_path, predict_path)
    found = arguments(predict_net)
    saved = found.get(_WEIGHTS)
    if saved is not None and saved != _digest(init_proto).encode():
        raise ParseError(
            f"{str(init_path)!r} does not hold the weights that {str(predict_path)!r} was saved with; saving was "
            "interrupted, or one of the files was replaced: save the predictor again"
        )
    if inputs is None and _INPUTS in found:
        inputs = _names(found[_INPUTS], _INPUTS, predict_path)
    if outputs is None and _OUTPUTS in found:
        outputs = _names(found[_OUTPUTS], _OUTPUTS, predict_path)
    specs = stored_specs(predict_net, str(predict_path))
    with opened_files.naming(predict_path):
        return Predictor(
            init_proto,
            predict_net,
            inputs=inputs,
            outputs=outputs,
            specs=specs,
            device=device,
            workspace=workspace,
            fold=fold,
            observable=observable,
            threads=threads,
            trusted=trusted,
        )


def _names(stored: Any, argument: str, path: Path) -> list[str]:
    """Decode the names of blobs in an argument of the predict net."""
    try:
        return [name.decode() for name in stored or ()]
    except (AttributeError, TypeError, UnicodeDecodeError):
        raise ParseError(f"{str(path)!r}: argument {argument!r} must be a list of blob names, got {stored!r}") from None


def read_net(path: str | os.PathLike[str]) -> NetDef:
    """Read a net from a binary file, or from text in .pbtxt or .prototxt.

    Raises:
        ParseError: the file is not a net.
        OSError: it cannot be read.
    """
    text = os.fspath(path).endswith((".pbtxt", ".prototxt"))
    return files.load_text(path, NetDef) if text else files.load(path, NetDef)


def _folded(net: NetDef, values: Mapping[str, Any], outputs: Sequence[str]) -> tuple[NetDef, dict[str, Any], list[str]]:
    """Return a net with its normalizations folded, the parameters' values, and the parameters in order of use."""
    requested = NetDef()
    requested.CopyFrom(net)
    requested.external_output[:] = outputs
    folded, new = fold_batch_norm(requested, values)
    return folded, new, [name for name in _needed(folded) if name in new]


def _needed(net: NetDef) -> list[str]:
    reads = dict.fromkeys(undefined_inputs(net.op))
    return list(dict.fromkeys([*(blob for blob in net.external_input if blob in reads), *reads]))


def _read_later(net: NetDef, needed: Sequence[str]) -> list[str]:
    """Return the external inputs that no operator reads as its first input."""
    first = {op.input[0] for op in net.op if op.input}
    return [blob for blob in needed if blob not in first]


def _divide(
    net: NetDef, needed: Sequence[str], inputs: Sequence[Any] | None, parameters: Iterable[Any] | None
) -> tuple[list[str], list[str]]:
    """Divide the external inputs of a net into those that are fed and those that are stored as parameters."""
    if inputs is None and parameters is None:
        raise NetError(
            f"net {net.name!r} reads {list(needed)}; give inputs= or parameters= to say which of these are inputs"
        )
    kept = None if parameters is None else list(dict.fromkeys(map(blob_name, parameters)))
    fed = [blob_name(blob) for blob in inputs] if inputs is not None else [b for b in needed if b not in (kept or ())]
    if kept is None:
        kept = [blob for blob in needed if blob not in fed]
    if len(set(fed)) < len(fed):
        raise NetError(f"net {net.name!r}: inputs must be distinct, got {fed}")
    if both := sorted(set(fed).intersection(kept)):
        raise NetError(f"net {net.name!r}: {both} cannot be inputs and parameters at once")
    if missing := [blob for blob in needed if blob not in fed and blob not in kept]:
        raise NetError(f"net {net.name!r} reads {missing}, which are neither inputs nor parameters")
    return fed, kept


def _shapes(
    net: NetDef,
    values: Mapping[str, Any],
    inputs: Sequence[str],
    outputs: Sequence[str],
    shapes: Mapping[Any, Any] | None,
    workspace: Workspace,
) -> TensorShapes:
    """Return the known shapes and types of inputs and outputs."""
    given = given_shapes(shapes or {}, inputs, f"net {net.name!r}")
    for name in inputs:
        spec = workspace.spec(name) if name not in given and workspace.has(name) else None
        if spec is not None:
            given[name] = spec
    known = infer_shapes([net], {**{name: _spec(value) for name, value in values.items()}, **given})
    result = TensorShapes()
    for name in (*inputs, *outputs):
        spec = known.spec(name)
        if spec is not None:
            result.shapes.append(TensorShape(name=name, dims=spec.shape, data_type=DATA_TYPES[spec.dtype]))
    return result


def _spec(value: Any) -> TensorSpec:
    return TensorSpec(value.shape, value.dtype) if isinstance(value, Divided) else spec_of(value)


def require_predictor(folder: Path, names: Sequence[str] = (INIT_FILE, PREDICT_FILE)) -> None:
    """Raise FileNotFoundError, which lists what the folder holds, unless it holds these files of a predictor."""
    missing = [name for name in names if not (folder / name).is_file()]
    if not missing:
        return
    if not folder.exists():
        raise FileNotFoundError(said_of(str(folder), no_such_file(folder, "folder")))
    if not folder.is_dir():
        kind = kind_of(opened_files.read_bytes(folder)) or "a file"
        raise FileNotFoundError(
            f"{str(folder)!r} is {kind}; give a predictor's folder, with {INIT_FILE} and {PREDICT_FILE}"
        )
    there = sorted(entry.name for entry in folder.iterdir())
    shown = ", ".join(there[:_SHOWN]) + (", ..." if len(there) > _SHOWN else "")
    lacking = " and ".join(missing) + (" is missing" if len(missing) == 1 else " are missing")
    kind = "is an LMDB database and " if "data.mdb" in there else ""
    raise FileNotFoundError(
        f"{str(folder)!r} {kind}does not hold a predictor: {lacking}; it holds {shown or 'nothing'}"
    )


def stored_specs(predict_net: NetDef, source: str) -> dict[str, TensorSpec]:
    """Return the shapes and types of inputs and outputs that a predict net was saved with.

    Raises:
        ParseError: they are damaged; ``source`` is the name of the net's file in the message.
    """
    stored = arguments(predict_net).get(_SHAPES) or b""
    if not isinstance(stored, bytes):
        raise ParseError(f"{source!r}: argument {_SHAPES!r} must be the bytes of a TensorShapes, got {stored!r}")
    shapes = files.parse(stored, TensorShapes, source=source) if stored else TensorShapes()
    for row in shapes.shapes:
        if row.data_type not in NUMPY_TYPES or count_elements(row.dims) is None:
            raise ParseError(
                f"{source!r}: argument {_SHAPES!r}: blob {row.name!r} cannot have the shape {list(row.dims)} and the "
                f"type {row.data_type}"
            )
    return {row.name: TensorSpec(tuple(row.dims), NUMPY_TYPES[row.data_type]) for row in shapes.shapes}


def _digest(init_net: NetDef) -> str:
    return hashlib.sha256(init_net.SerializeToString(deterministic=True)).hexdigest()
