"""Saves a predictor to one database file, and loads it."""

from __future__ import annotations

import logging
import os
from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.exchange import predictor_exporter as native
from netbuilder.exchange.predictor_exporter import (
    get_meta_net_def,
    save_to_db,
)
from netbuilder.graph import Net
from netbuilder.graph.blob_devices import place_operators
from netbuilder.graph.observability import ALL
from netbuilder.graph.scope import CurrentDeviceScope
from netbuilder.proto import DeviceOption, MetaNetDef, NetDef, NetError, PredictorConsts
from netbuilder.proto.arguments import make_op
from netbuilder.runtime.execute import default

__all__ = [
    "PredictorExportMeta",
    "get_meta_net_def",
    "get_predictor_exporter_helper",
    "load_from_db",
    "prepare_prediction_net",
    "save_to_db",
    "set_model_info",
]

__getattr__ = names_of(__name__)

_log = logging.getLogger("netbuilder")


class PredictorExportMeta(native.PredictorExportMeta):
    """The contents of a predictor's file, see ``netbuilder.exchange.predictor_exporter``.

    Caffe2's trainers save their training net this way, which has more inputs than are listed. The file is written with
    a warning: its parameters can be loaded.
    """

    def _check_net(self, where: str) -> None:
        try:
            super()._check_net(where)
        except NetError as error:
            _log.warning("%s; the saved net will not run as a predictor; make one with ExtractPredictorNet", error)


def prepare_prediction_net(
    filename: str | os.PathLike[str], db_type: str, device_option: DeviceOption | None = None, *args: Any, **kwargs: Any
) -> Net:
    """Load a predictor into the current workspace and create its net; return the net. All of its blobs can be fetched.

    Args:
        filename, db_type, device_option, kwargs: see ``netbuilder.exchange.predictor_exporter.prepare_prediction_net``.
        args: ignored.
    """
    return native.prepare_prediction_net(filename, db_type, device_option, *args, **{"observable": ALL, **kwargs})


def load_from_db(
    filename: str | os.PathLike[str], db_type: str, device_option: DeviceOption | None = None, *args: Any, **kwargs: Any
) -> MetaNetDef:
    """Load a predictor's parameters into the current workspace; return its MetaNetDef.

    A reader of the file is created, too, so that the net under GLOBAL_INIT_NET_TYPE can run: it loads the parameters
    again.

    Args:
        filename: the file.
        db_type: "minidb".
        device_option: device of the parameters and of all operators of the nets; None: that of the current device
            scope.

    Raises:
        FileNotFoundError, ParseError, ArgumentError: see ``netbuilder.exchange.predictor_exporter.load_from_db``.
    """
    device = CurrentDeviceScope() if device_option is None else device_option
    meta = native.load_from_db(filename, db_type, device, parameters_only=True)
    if device is not None:
        for net in meta.nets:
            place_operators(net.value, device)
    reader = make_op("CreateDB", [], [PredictorConsts().PREDICTOR_DBREADER], db=os.fspath(filename), db_type=db_type)
    default.workspace().run_operator_once(reader)
    return meta


def get_predictor_exporter_helper(submodelNetName: str) -> PredictorExportMeta:
    """Return an object that has the keys of the predictor of this name, without a net."""
    return PredictorExportMeta(NetDef(name=submodelNetName), [], [], [], {}, submodelNetName)


def set_model_info(meta_net_def: MetaNetDef, project_str: str, model_class_str: str, version: str) -> None:
    """Set the project, class and version of a model."""
    meta_net_def.modelInfo.project = project_str
    meta_net_def.modelInfo.modelClass = model_class_str
    meta_net_def.modelInfo.version = version
