"""A model that was read, as part of a model to be trained: its constants become parameters."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.exchange.fills import fill_operator
from netbuilder.graph.blob import BlobReference, ScopedBlobReference, ScopedName
from netbuilder.graph.blob_devices import place_operators
from netbuilder.model import ModelHelper
from netbuilder.model.initializers import Initializer
from netbuilder.model.parameter_info import ParameterInfo, ParameterTags
from netbuilder.ops.core.renaming import all_operators, rename_in_subgraphs, subgraphs
from netbuilder.proto import NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import arguments, set_argument
from netbuilder.proto.suggestions import did_you_mean

__all__ = ["add_net", "in_test_mode"]

Array = np.ndarray[Any, Any]

_MEAN, _VARIANCE = 3, 4  # inputs of SpatialBN that are running averages


class _Given(Initializer):
    """Initializes a parameter with given values."""

    def __init__(self, values: Array) -> None:
        fill = fill_operator("values", values)
        super().__init__(fill.type)
        self._arguments = fill.arg

    def create_param(self, param_name: BlobReference | str, init_net: Any, shape: Sequence[int]) -> ParameterInfo:
        blob: BlobReference = getattr(init_net, str(self.operator_name))([], param_name)
        init_net.Proto().op[-1].arg.extend(self._arguments)  # bytes: not an object for each number
        return ParameterInfo(None, blob, shape=shape)


def add_net(
    model: ModelHelper,
    net: NetDef,
    parameters: Mapping[str, Array],
    trained: Iterable[str],
    *,
    inputs: Sequence[str],
    frozen: Sequence[str] = (),
) -> dict[str, BlobReference]:
    """Append a net to a model, under the current scopes.

    Args:
        model: without backward pass.
        net: reads ``inputs`` and ``parameters``.
        parameters: initial values by name.
        trained: names of those that the optimizer updates; the others become computed parameters.
        inputs: blobs of the model, under its current name scope.
        frozen: patterns of names (``fnmatch``) of parameters that are not trained.

    Returns:
        The net's outputs by name.

    Raises:
        NetError: a pattern fits no parameter.
        ArgumentError: an init net cannot hold the values of a parameter.
    """
    for pattern in frozen:
        if not fnmatch.filter(parameters, pattern):
            raise NetError(f"frozen: {pattern!r} fits none of the parameters{did_you_mean(pattern, list(parameters))}")
    running = {op.input[i] for op in all_operators(net) if op.type == "SpatialBN" for i in (_MEAN, _VARIANCE)}
    fixed = running | {name for pattern in frozen for name in fnmatch.filter(parameters, pattern)}
    learned = set(trained) - fixed
    blobs = {name: ScopedBlobReference(name, model.net) for name in inputs}
    for name, values in parameters.items():
        tags = (ParameterTags.WEIGHT if values.ndim > 1 else ParameterTags.BIAS) if name in learned else None
        kind = tags or ParameterTags.COMPUTED_PARAM
        blobs[name] = model.create_param(name, list(values.shape), _Given(values), tags=kind)
    for op in net.op:
        _append(model, op, blobs)
    return {name: blobs[name] for name in net.external_output}


def _append(model: ModelHelper, op: OperatorDef, blobs: dict[str, BlobReference]) -> None:
    """Append an operator; add its outputs to ``blobs``."""
    inputs = [blobs[name] for name in op.input]
    outputs = [blobs[name] if name in op.input and name in blobs else name for name in op.output]
    with_nets = any(subgraphs(op))
    if with_nets:
        copy = OperatorDef()
        copy.CopyFrom(op)
        rename_in_subgraphs(copy, lambda name: str(blobs[name]) if name in blobs else ScopedName(name))
        op = copy
    getattr(model.net, op.type)(inputs, outputs, **arguments(op))
    made = model.net.Proto().op[-1]
    for net in subgraphs(made) if with_nets and made.HasField("device_option") else ():
        place_operators(net, made.device_option)
    blobs.update({name: BlobReference(blob, model.net) for name, blob in zip(op.output, made.output)})


def in_test_mode(net: NetDef) -> NetDef:
    """Return a copy of a net that normalizes by running averages and drops nothing."""
    found = NetDef()
    found.CopyFrom(net)
    for op in all_operators(found):
        if op.type in ("SpatialBN", "Dropout"):
            del op.output[1:]
            set_argument(op, "is_test", 1)
    return found
