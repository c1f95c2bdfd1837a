"""Runs ONNX models."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.python.onnx.backend_rep import Caffe2Rep
from netbuilder.caffe2.python.onnx.workspace import Workspace
from netbuilder.engines.arrays import gpu_count
from netbuilder.exchange.fills import fill_operator
from netbuilder.exchange.onnx import ReadModel, read_onnx
from netbuilder.exchange.trust import check_harmless
from netbuilder.proto import PROTO_CUDA, DeviceOption, NetDef, NetError
from netbuilder.proto.arguments import make_device_option

__all__ = ["Caffe2Backend", "Caffe2Rep", "prepare", "run_model", "supports_device"]

__getattr__ = names_of(__name__)


def _device(device: str) -> DeviceOption:
    kind, _, number = device.partition(":")
    if kind not in ("CPU", "CUDA") or number and not number.isdigit():
        raise NetError(f"onnx.backend: device must be 'CPU', 'CUDA' or 'CUDA:1', got {device!r}")
    return make_device_option(PROTO_CUDA if kind == "CUDA" else 0, int(number or 0))


def init_net_of(model: ReadModel) -> NetDef:
    """Return a net that fills a model's parameters."""
    operators = [fill_operator(name, np.asarray(value)) for name, value in model.parameters.items()]
    return NetDef(name=model.net.name + "_init", op=operators)


def _nets(model: ReadModel, device: str) -> tuple[NetDef, NetDef]:
    """Return a model's init net and predict net, on a device."""
    nets = init_net_of(model), model.net
    for net in nets:
        net.device_option.CopyFrom(_device(device))
    return nets


class Caffe2Backend:
    """The functions of this module as class methods."""

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", raw_values_dict: Any = None, **kwargs: Any) -> Caffe2Rep:
        """Return a model ready to run; ``raw_values_dict`` is ignored.

        Raises:
            NetError: the device is not "CPU" or "CUDA"; or the model may loop without end, or do other than compute.
        """
        read = read_onnx(model)
        check_harmless(read.net, f"ONNX model {read.net.name!r}")
        return Caffe2Rep(*_nets(read, device), Workspace(), read.inputs)

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str = "CPU", **kwargs: Any) -> Any:
        """Return a model's outputs for inputs."""
        return cls.prepare(model, device).run(inputs)

    @classmethod
    def onnx_graph_to_caffe2_net(cls, model: Any, device: str = "CPU", opset_version: Any = None) -> tuple[Any, Any]:
        """Return the init net and the predict net of a model."""
        return _nets(read_onnx(model), device)

    @classmethod
    def supports_device(cls, device_str: str) -> bool:
        """Whether models run on a device, such as "CPU" or "CUDA:1"."""
        device = _device(device_str)
        return device.device_type != PROTO_CUDA or device.device_id < gpu_count()


prepare = Caffe2Backend.prepare
run_model = Caffe2Backend.run_model
supports_device = Caffe2Backend.supports_device
