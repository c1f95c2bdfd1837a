"""Runs ONNX models."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.caffe2.missing import names_of
from netbuilder.exchange.fills import fill_operator
from netbuilder.exchange.onnx import ReadModel, read_onnx
from netbuilder.ops.engines.arrays import gpu_count
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


def _outputs_named(names: Sequence[str]) -> Any:
    """Return the named tuple type of a run's outputs."""
    return namedtuple("Outputs", names, rename=True)


class Caffe2Rep:
    """A model ready to run.

    Args:
        model: the model that was read.
        device: where it runs.
    """

    def __init__(self, model: ReadModel, device: DeviceOption) -> None:
        self._model = model
        self._predictor = model.predictor(device=device)
        self._outputs = _outputs_named(model.outputs)

    @property
    def predict_net(self) -> NetDef:
        """The net that computes the outputs."""
        return self._model.net

    @property
    def init_net(self) -> NetDef:
        """The net that fills the parameters."""
        return init_net_of(self._model)

    def run(self, inputs: Any, **kwargs: Any) -> Any:
        """Return the outputs as a named tuple; names that are not Python identifiers become ``_<index>``.

        Args:
            inputs: an array, a list of them in the order of the model's inputs, or a dict by name.

        Raises:
            NetError: the number of arrays is wrong.
        """
        names = self._model.inputs
        if not isinstance(inputs, Mapping):
            values = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
            if len(values) != len(names):
                raise NetError(f"onnx.backend: the model has the inputs {list(names)}, got {len(values)} arrays")
            inputs = dict(zip(names, values))
        results = self._predictor.run(dict(inputs))
        return self._outputs(*(results[name] for name in self._model.outputs))


class Caffe2Backend:
    """The functions of this module as class methods."""

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", raw_values_dict: Any = None, **kwargs: Any) -> Caffe2Rep:
        """Return a model ready to run; ``raw_values_dict`` is ignored."""
        return Caffe2Rep(read_onnx(model), _device(device))

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str = "CPU", **kwargs: Any) -> Any:
        """Return a model's outputs for inputs."""
        return cls.prepare(model, device).run(inputs)

    @classmethod
    def onnx_graph_to_caffe2_net(cls, model: Any, device: str = "CPU", opset_version: Any = None) -> tuple[Any, Any]:
        """Return the init net and the predict net of a model."""
        read = read_onnx(model)
        _device(device)
        return init_net_of(read), read.net

    @classmethod
    def supports_device(cls, device_str: str) -> bool:
        """Whether models run on a device, such as "CPU" or "CUDA:1"."""
        device = _device(device_str)
        return device.device_type != PROTO_CUDA or device.device_id < gpu_count()


prepare = Caffe2Backend.prepare
run_model = Caffe2Backend.run_model
supports_device = Caffe2Backend.supports_device
