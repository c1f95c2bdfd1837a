"""Predictors in one database file, as Caffe2's predictor_exporter writes them: nets in a MetaNetDef, and parameters.

A file has the record ``!!META_NET_DEF``, and the parameters as the Save operator writes them. The MetaNetDef names
parameters, inputs and outputs, and holds three nets: one that loads the parameters, one that makes blobs of the right
shapes, and the predict net.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.data.db_reader import read_records
from netbuilder.data.minidb import write_minidb
from netbuilder.data.stored_blobs import BlobParts
from netbuilder.exchange.divided import give_divided, records_of, taken
from netbuilder.exchange.mobile_exporter import fetch_parameters
from netbuilder.exchange.predictor import Predictor
from netbuilder.exchange.trust import check_fills, check_harmless
from netbuilder.graph import Net
from netbuilder.graph.blob import blob_name
from netbuilder.graph.blob_devices import place_operators
from netbuilder.graph.defuse import undefined_inputs
from netbuilder.graph.message import message_of
from netbuilder.graph.observability import OUTPUTS
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import (
    ArgumentError,
    BlobProto,
    BlobsMap,
    DeviceOption,
    MetaNetDef,
    NetDef,
    NetError,
    NetsMap,
    ParseError,
    PredictorConsts,
    files,
    opened_files,
)
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.suggestions import did_you_mean
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute import default

__all__ = [
    "PredictorExportMeta",
    "get_meta_net_def",
    "load_from_db",
    "load_predictor_from_db",
    "net_of",
    "prepare_prediction_net",
    "save_to_db",
]

_NAMES = PredictorConsts()


@dataclass(frozen=True)
class PredictorExportMeta:
    """Contents of a predictor's file.

    Args:
        predict_net: a Net or NetDef in test mode.
        parameters: the blobs that it reads and that are saved.
        inputs, outputs: the blobs that are fed and fetched.
        shapes: shapes by blob; ``prepare_prediction_net`` makes these blobs.
        name: name of the predictor, a suffix of the keys, so that a file can hold several.
        extra_init_net: runs before the predict net.
        global_init_net: runs after the parameters have been loaded.
        net_type, num_workers: set on the predict net; None: unchanged.
        trainer_prefix: prefix of the parameters' names in the trainer's workspace; the file does not have it.

    Raises:
        NetError: inputs, outputs or parameters are named twice or overlap, the net reads other blobs, or does not make
            an output.
        ArgumentError: a shape is given for a blob that is neither input nor output nor parameter.
    """

    predict_net: Any
    parameters: Iterable[Any]
    inputs: Iterable[Any]
    outputs: Iterable[Any]
    shapes: Mapping[Any, Sequence[int]] | None = None
    name: str = ""
    extra_init_net: Any = None
    global_init_net: Any = None
    net_type: str | None = None
    num_workers: int | None = None
    trainer_prefix: str | None = None

    def __post_init__(self) -> None:
        net = NetDef()
        net.CopyFrom(message_of(self.predict_net))
        given = {"predict_net": net, "shapes": {blob_name(b): tuple(s) for b, s in (self.shapes or {}).items()}}
        for what in ("parameters", "inputs", "outputs"):
            given[what] = tuple(map(blob_name, getattr(self, what)))
        for key, value in given.items():
            object.__setattr__(self, key, value)
        self._check()

    def _check(self) -> None:
        where = f"predictor {self.predict_net.name!r}"
        for what in ("parameters", "inputs", "outputs"):
            names = getattr(self, what)
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise NetError(f"{where}: {what} are named twice: {twice}")
        parameters = set(self.parameters)
        for what in ("inputs", "outputs"):
            if both := sorted(parameters.intersection(getattr(self, what))):
                raise NetError(f"{where}: {both} are both parameters and {what}; remove them from one of the lists")
        known = parameters.union(self.inputs, self.outputs)
        if strange := sorted(set(self.shapes or {}) - known):
            raise ArgumentError(
                f"{where}: shapes are given for {strange}, which are neither inputs nor outputs nor parameters"
            )
        self._check_net(where)

    def _check_net(self, where: str) -> None:
        """Raise NetError if the net reads a blob that is neither fed nor filled, or does not make an output."""
        before = [message_of(net) for net in (self.extra_init_net, self.global_init_net) if net is not None]
        known = {*self.inputs, *self.parameters, *(blob for net in before for op in net.op for blob in op.output)}
        if unknown := [blob for blob in dict.fromkeys(undefined_inputs(self.predict_net.op)) if blob not in known]:
            raise NetError(
                f"{where} reads {unknown}, which are neither among its inputs {list(self.inputs)} nor its parameters "
                f"nor made by extra_init_net or global_init_net{did_you_mean(unknown[0], known)}"
            )
        known.update(blob for op in self.predict_net.op for blob in op.output)
        if unknown := [blob for blob in self.outputs if blob not in known]:
            raise NetError(f"{where}: no operator makes the outputs {unknown}{did_you_mean(unknown[0], known)}")

    def inputs_name(self) -> str:
        """The key of the list of inputs."""
        return _key(_NAMES.INPUTS_BLOB_TYPE, self.name)

    def outputs_name(self) -> str:
        """The key of the list of outputs."""
        return _key(_NAMES.OUTPUTS_BLOB_TYPE, self.name)

    def parameters_name(self) -> str:
        """The key of the list of parameters."""
        return _key(_NAMES.PARAMETERS_BLOB_TYPE, self.name)

    def global_init_name(self) -> str:
        """The key of the net that loads the parameters."""
        return _key(_NAMES.GLOBAL_INIT_NET_TYPE, self.name)

    def predict_init_name(self) -> str:
        """The key of the net that makes blobs of the right shapes."""
        return _key(_NAMES.PREDICT_INIT_NET_TYPE, self.name)

    def predict_net_name(self) -> str:
        """The key of the predict net."""
        return _key(_NAMES.PREDICT_NET_TYPE, self.name)


def _key(key: str, name: str) -> str:
    return f"{key}_{name}" if name else key


def get_meta_net_def(
    predictor_export_meta: PredictorExportMeta, ws: Any = None, db_type: str | None = None
) -> MetaNetDef:
    """Return the contents of the record ``!!META_NET_DEF``.

    Args:
        predictor_export_meta: what to write.
        ws: ignored; Caffe2 has this argument.
        db_type: type of the file, written into the net that loads the parameters.
    """
    meta = predictor_export_meta
    result = MetaNetDef()
    for key, names in (
        (meta.parameters_name(), meta.parameters), (meta.inputs_name(), meta.inputs),
        (meta.outputs_name(), meta.outputs),
    ):  # fmt: skip
        result.blobs.append(BlobsMap(key=key, value=names))
    for key, net in (
        (meta.predict_init_name(), _predict_init_net(meta)),
        (meta.global_init_name(), _global_init_net(meta, db_type)),
        (meta.predict_net_name(), _predict_net(meta)),
    ):
        result.nets.append(NetsMap(key=key, value=net))
    return result


def _predict_init_net(meta: PredictorExportMeta) -> NetDef:
    net = NetDef(name="predict-init")
    for name, shape in (meta.shapes or {}).items():
        net.op.append(make_op("ConstantFill", [], [name], shape=list(shape), value=0.0))
        net.external_input.append(name)
    _append(net, meta.extra_init_net)
    return net


def _global_init_net(meta: PredictorExportMeta, db_type: str | None) -> NetDef:
    net = NetDef(name="global-init")
    args: dict[str, Any] = {"db_type": db_type} if db_type else {}
    net.op.append(make_op("Load", [_NAMES.PREDICTOR_DBREADER], list(meta.parameters), **args))
    net.external_input.append(_NAMES.PREDICTOR_DBREADER)
    net.external_output.extend(meta.parameters)
    _append(net, meta.global_init_net)
    return net


def _append(net: NetDef, more: Any) -> None:
    if more is not None:
        message = message_of(more)
        net.op.extend(message.op)
        net.external_input.extend(name for name in message.external_input if name not in net.external_input)
        net.external_output.extend(message.external_output)


def _predict_net(meta: PredictorExportMeta) -> NetDef:
    net = NetDef()
    net.CopyFrom(meta.predict_net)
    net.external_input[:] = [*meta.inputs, *meta.parameters]
    net.external_output[:] = list(meta.outputs)
    if meta.net_type is not None:
        net.type = meta.net_type
    if meta.num_workers is not None:
        net.num_workers = meta.num_workers
    return net


def save_to_db(
    db_type: str, db_destination: str | os.PathLike[str], predictor_export_meta: PredictorExportMeta,
    use_ideep: bool = False, *, workspace: Workspace | None = None, **kwargs: Any,
) -> None:  # fmt: skip
    """Write a predictor to one file, whole or not at all.

    If it has tables whose rows are divided over processes, all of them call it; the first one writes, and has some
    megabytes of the others' rows at a time.

    Args:
        db_type: "minidb".
        db_destination: the file.
        predictor_export_meta: what to write.
        use_ideep: ignored; the library is chosen when the net runs.
        workspace: has the parameters; None: the current default one.

    Raises:
        BlobError: a parameter is not in the workspace.
        ArgumentError: the type of database or an argument is unknown.
        OSError: the file cannot be written; an existing one is unchanged.
    """
    if kwargs:
        raise ArgumentError(f"save_to_db: unknown arguments {sorted(kwargs)}")
    if db_type != "minidb":
        raise ArgumentError(f"save_to_db writes databases of type 'minidb', got {db_type!r}")
    meta = predictor_export_meta
    prefix = meta.trainer_prefix or ""
    source = workspace or default.workspace()
    found = fetch_parameters(source, meta.predict_net, [prefix + name for name in meta.parameters])
    values = {name: found[prefix + name] for name in meta.parameters}
    record = get_meta_net_def(meta).SerializeToString()
    if give_divided(values):
        return
    blobs = {_NAMES.META_NET_DEF: record, **values}
    with taken(values) as pieces:
        records = (each for name, value in blobs.items() for each in records_of(name, value, pieces))
        write_minidb(db_destination, records)


def net_of(meta_net_def: MetaNetDef, key: str) -> NetDef:
    """Return a net of a MetaNetDef by its key, with or without the name of the predictor at the end.

    Raises:
        NetError: there is no such net, or several predictors have one.
    """
    found = [each for each in meta_net_def.nets if each.key == key]
    found = found or [each for each in meta_net_def.nets if each.key.startswith(f"{key}_")]
    if len(found) != 1:
        names = [each.key for each in meta_net_def.nets]
        raise NetError(f"the file holds {len(found)} nets under {key!r}; its nets are {names}")
    net: NetDef = found[0].value
    return net


def load_from_db(
    filename: str | os.PathLike[str], db_type: str, device_option: DeviceOption | None = None, *args: Any,
    workspace: Workspace | None = None, trusted: bool = False, parameters_only: bool = False, **kwargs: Any,
) -> MetaNetDef:  # fmt: skip
    """Load the parameters of a predictor into a workspace; return its MetaNetDef.

    Args:
        filename: the file.
        db_type: "minidb".
        device_option: device of the parameters; None: the CPU.
        workspace: gets the parameters; None: the current default one.
        trusted: allow all operators in the global init net; if not, only fills (``trust.FILLS``).
        parameters_only: do not run the global init net; the caller will.

    Raises:
        FileNotFoundError: there is no such file.
        ParseError: it is not such a file, or lacks a parameter; the workspace is unchanged.
        NetError: the global init net holds operators that are allowed only if ``trusted``.
        ArgumentError: the type of database is unknown.
    """
    meta, values = _read(filename, db_type)
    space = workspace or default.workspace()
    with opened_files.naming(filename):
        rest = NetDef()
        rest.CopyFrom(net_of(meta, _NAMES.GLOBAL_INIT_NET_TYPE))
        more = [] if parameters_only else [op for op in rest.op if op.type != "Load"]
        if not trusted:
            check_fills(more, f"net {rest.name!r}")
        for name, value in values.items():
            space.feed(name, value, device_option)
        if more:
            del rest.op[:]
            rest.op.extend(more)
            if device_option is not None:
                place_operators(rest, device_option)
            space.run_net_once(rest)
    return meta


def _read(filename: str | os.PathLike[str], db_type: str) -> tuple[MetaNetDef, dict[str, Any]]:
    parts, meta = BlobParts(), None
    for key, value in read_records(filename, db_type):
        where = f"{os.fspath(filename)}, record {key.decode(errors='replace')!r}"
        blob = files.parse(value, BlobProto, source=where)
        if blob.name == _NAMES.META_NET_DEF:
            meta = files.parse(blob.content, MetaNetDef, source=where)
        else:
            parts.add(blob.name, blob, where)
    if meta is None:
        raise ParseError(f"{os.fspath(filename)} has no record {_NAMES.META_NET_DEF!r}, so it is not a predictor")
    lists = [list(each.value) for each in meta.blobs if each.key.startswith(_NAMES.PARAMETERS_BLOB_TYPE)]
    if twice := sorted({name for names in lists for name in names if names.count(name) > 1}):
        raise ParseError(f"{os.fspath(filename)}: parameters are named twice: {twice}")
    named = list(dict.fromkeys(name for names in lists for name in names))
    if missing := [name for name in named if name not in parts.names]:
        raise ParseError(f"{os.fspath(filename)}: parameters are missing: {missing}")
    return meta, {name: parts.value(name, os.fspath(filename)) for name in named}


def prepare_prediction_net(
    filename: str | os.PathLike[str], db_type: str, device_option: DeviceOption | None = None, *args: Any,
    workspace: Workspace | None = None, trusted: bool = False, observable: str | Iterable[Any] | None = None,
    **kwargs: Any,
) -> Net:  # fmt: skip
    """Load a predictor into a workspace and create its net; return the net, for ``run_net`` and ``run_net_once``.

    Args:
        filename, db_type, device_option, workspace: see ``load_from_db``.
        trusted: allow all operators, also those that touch files, loop, wait or call Python.
        observable: the blobs that can be fetched after a run, see ``Workspace.create_net``; None: what the net stores,
            or "outputs".

    Raises:
        NetError: the file holds several predictors; or a net is invalid, or holds operators that are allowed only if
            ``trusted``.
        FileNotFoundError, ParseError, ArgumentError: see ``load_from_db``.
    """
    space = workspace or default.workspace()
    meta = load_from_db(filename, db_type, device_option, workspace=space, trusted=trusted)
    with opened_files.naming(filename):
        nets = []
        for key in (_NAMES.PREDICT_INIT_NET_TYPE, _NAMES.PREDICT_NET_TYPE):
            net = NetDef()
            net.CopyFrom(net_of(meta, key))
            if device_option is not None:
                place_operators(net, device_option)
            nets.append(net)
        if not trusted:
            check_fills(nets[0].op, f"net {nets[0].name!r}")
            check_harmless(nets[1], f"net {nets[1].name!r}")
        space.run_net_once(nets[0])
        made = Net(nets[1])
        space.create_net(made, overwrite=True, observable=observable, observable_default=OUTPUTS)
    return made


def load_predictor_from_db(
    filename: str | os.PathLike[str],
    db_type: str = "minidb",
    *,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    **options: Any,
) -> Predictor:
    """Load a predictor from a file into its own workspace.

    Args:
        filename, db_type: the file.
        inputs, outputs: blobs to use instead of those that the file names.
        options: see ``Predictor``.
    """
    meta, values = _read(filename, db_type)
    names = {
        kind: tuple(name for each in meta.blobs if each.key.startswith(kind) for name in each.value)
        for kind in (_NAMES.INPUTS_BLOB_TYPE, _NAMES.OUTPUTS_BLOB_TYPE)
    }
    inputs, outputs = (given or found for given, found in zip((inputs, outputs), names.values()))
    with opened_files.naming(filename):
        shapes = _shapes(net_of(meta, _NAMES.PREDICT_INIT_NET_TYPE))
        specs = {name: TensorSpec(shapes[name], np.dtype(np.float32)) for name in inputs if name in shapes}
        net = net_of(meta, _NAMES.PREDICT_NET_TYPE)
        return Predictor(NetDef(), net, inputs=inputs, outputs=outputs, specs=specs, parameters=values, **options)


def _shapes(init: NetDef) -> dict[str, tuple[int, ...]]:
    return {
        op.output[0]: tuple(arg.ints)
        for op in init.op
        if op.type == "ConstantFill" and op.output
        for arg in op.arg
        if arg.name == "shape"
    }
