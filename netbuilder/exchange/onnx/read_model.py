"""ReadModel: an imported ONNX model, as a predict net with parameters."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.exchange.onnx.model_inputs import Extent
from netbuilder.exchange.onnx.training import add_net, in_test_mode
from netbuilder.exchange.predictor import Predictor
from netbuilder.exchange.predictor_files import save_predictor
from netbuilder.graph.blob import BlobReference
from netbuilder.model import ModelHelper
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import NetDef, NetError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime import Workspace

__all__ = ["ReadModel"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ReadModel:
    """An imported model.

    Args:
        net: the predict net; blobs are named like the model's values.
        parameters: the constants that the net reads, by name. Large ones of a file are read-only, and predictors use
            them as they are.
        inputs, outputs: names of the inputs and outputs.
        extents: of each input, by name: a number, the name of a dynamic extent, or None for one without a name; None
            in place of all of them if even their number is not stated.
        dtypes: types of the inputs' elements, by name.
        reference_nodes: the nodes that ONNX's reference implementation runs (``ONNXNode``): for each type their names,
            or first outputs.
        dynamic_nodes: those of them that would be operators if their extents were known (see ``shapes``), sorted.
        trained: the parameters that can be trained: the model's own constants of floating-point numbers, not scalars.
        joined: ``passes.join_parts`` has found all that it can find in the net.
    """

    net: NetDef
    parameters: Mapping[str, Array]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    extents: Mapping[str, tuple[Extent, ...] | None]
    dtypes: Mapping[str, np.dtype[Any]]
    reference_nodes: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    dynamic_nodes: tuple[str, ...] = ()
    trained: tuple[str, ...] = ()
    joined: bool = False

    @property
    def specs(self) -> dict[str, TensorSpec]:
        """Shape and type of the inputs whose extents are all known; a first one that is not, the batch, is 1."""
        found = {}
        for name in self.inputs:
            first, *rest = self.extents[name] or (None, None)
            shape = [first if isinstance(first, int) else 1, *rest]
            if self.extents[name] == ():
                shape = []
            if all(isinstance(extent, int) for extent in shape):
                found[name] = TensorSpec(tuple(shape), self.dtypes[name])  # type: ignore[arg-type]
        return found

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write init_net.pb and predict_net.pb; see ``save_predictor``."""
        shapes = {name: spec.shape for name, spec in self.specs.items()}
        save_predictor(
            directory, self.net, dict(self.parameters), inputs=self.inputs, outputs=self.outputs, shapes=shapes,
            workspace=Workspace(),
        )  # fmt: skip

    def add_to(self, model: ModelHelper, *, frozen: Sequence[str] = ()) -> dict[str, BlobReference]:
        """Append the net to a model that is to be trained; its constants become parameters with their values.

        It can be called in the forward pass of ``Parallelize``. With ``read_onnx(..., training=True)`` normalization
        and dropout are as in training, and a constant that was computed from a parameter is computed in the net.

        Args:
            model: has no backward pass yet; the inputs are blobs under its current name scope.
            frozen: patterns of names (``fnmatch``) of parameters that keep their values, such as masks.

        Returns:
            The outputs by name.

        Raises:
            NetError: a node runs in ONNX's reference implementation, which has no gradient; a pattern fits nothing.
            ArgumentError: an init net cannot hold the values of a parameter, for their type.
        """
        if self.reference_nodes:
            raise NetError(
                f"ONNX model {self.net.name!r} cannot be trained: nodes of the types "
                f"{', '.join(self.reference_nodes)} run in ONNX's reference implementation, without gradients"
            )
        return add_net(model, self.net, self.parameters, self.trained, inputs=self.inputs, frozen=frozen)

    def in_test_mode(self) -> ReadModel:
        """Return what was read with ``training=True`` in test mode, with its parameters: to evaluate and export it.

        Normalization is by the running averages, and Dropout drops nothing.
        """
        return dataclasses.replace(self, net=in_test_mode(self.net), joined=False)

    def predictor(self, **options: Any) -> Predictor:
        """Return a predictor; options are those of ``Predictor``."""
        known = {"inputs": self.inputs, "outputs": self.outputs, "specs": self.specs}
        given = {name: value for name, value in options.items() if value is not None or name not in known}
        adopt = "parameters" not in given  # those of the model, which nobody can change
        own = {"parameters": self.parameters, "adopt": adopt, "join": not self.joined}
        return Predictor(NetDef(), self.net, **{**own, **known, **given})
