"""Converts nets to ONNX models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from netbuilder.caffe2.missing import names_of
from netbuilder.exchange.onnx import onnx_model
from netbuilder.exchange.onnx.library import onnx_library
from netbuilder.graph.message import message_of
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import NetError
from netbuilder.runtime import Workspace

__all__ = ["Caffe2Frontend", "caffe2_net_to_onnx_model"]

__getattr__ = names_of(__name__)


def caffe2_net_to_onnx_model(predict_net: Any, init_net: Any = None, value_info: Any = None) -> Any:
    """Return a predictor as an ``onnx.ModelProto``, checked.

    Args:
        predict_net: a net in test mode.
        init_net: fills its parameters.
        value_info: for each input its type (``onnx.TensorProto.DataType``) and shape. Inputs that the init net does
            not fill must be included.

    Raises:
        NetError: an input is not in ``value_info``.
        OperatorError: an operator cannot be exported to ONNX.
        DeviceError: the package onnx is not installed.
    """
    library = onnx_library()
    net, filled = message_of(predict_net), Workspace()
    if init_net is not None:
        filled.run_net_once(message_of(init_net))
    given: Mapping[str, Any] = value_info or {}
    parameters = {name: filled.fetch(name) for name in filled.blobs() if name not in given}
    if missing := [name for name in net.external_input if name not in given and name not in parameters]:
        raise NetError(f"net {net.name!r}: value_info must have the type and shape of its inputs {missing}")
    shapes = {
        name: TensorSpec(tuple(shape), np.dtype(library.helper.tensor_dtype_to_np_dtype(kind)))
        for name, (kind, shape) in given.items()
        if name in net.external_input
    }
    used = {name: value for name, value in parameters.items() if name in net.external_input}
    return onnx_model(net, used, shapes=shapes)


class Caffe2Frontend:
    """The functions of this module as static methods."""

    caffe2_net_to_onnx_model = staticmethod(caffe2_net_to_onnx_model)
