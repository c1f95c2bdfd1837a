"""Nets that were made of an ONNX model, ready to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.python.onnx.helper import outputs_of
from netbuilder.caffe2.python.onnx.workspace import Workspace
from netbuilder.proto import NetDef, NetError

__all__ = ["Caffe2Rep"]

__getattr__ = names_of(__name__)


class Caffe2Rep:
    """Nets of a model, and the workspace that they run in.

    Args:
        init_net: fills the parameters; it runs once, before the first run.
        predict_net: computes the outputs, on the device of its device option.
        workspace: a workspace of their own.
        uninitialized: the blobs that a run is given, in order.
    """

    def __init__(
        self, init_net: NetDef, predict_net: NetDef, workspace: Workspace, uninitialized: Sequence[str]
    ) -> None:
        self.init_net = init_net
        self.predict_net = predict_net
        self.workspace = workspace
        self.uninitialized = list(uninitialized)
        self.nets_created = False
        self.ran_init_net = False

    def run(self, inputs: Any, **kwargs: Any) -> Any:
        """Return the outputs as a named tuple; names that are not Python identifiers become ``_<index>``.

        Args:
            inputs: an array, a list of them in the order of the model's inputs, or a dict by name.

        Raises:
            NetError: the number of arrays is wrong, or a name is not that of an input.
        """
        names, device = self.uninitialized, self.predict_net.device_option
        if not isinstance(inputs, Mapping):
            values = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
            if len(values) != len(names):
                raise NetError(f"onnx.backend: the model has the inputs {names}, got {len(values)} arrays")
            inputs = dict(zip(names, values))
        if unknown := [name for name in inputs if name not in self.predict_net.external_input]:
            raise NetError(f"onnx.backend: the model has the inputs {names}, got {unknown}")
        if not self.ran_init_net:
            self.workspace.RunNetOnce(self.init_net)
            self.ran_init_net = True
        for name, value in inputs.items():
            self.workspace.FeedBlob(name, value, device)
        if not self.nets_created:
            self.workspace.CreateNet(self.predict_net)
            self.nets_created = True
        self.workspace.RunNet(self.predict_net.name)
        outputs = self.predict_net.external_output
        return outputs_of(outputs, [self.workspace.FetchBlob(name) for name in outputs])
