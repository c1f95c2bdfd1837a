"""Accumulation of sparse gradients over micro-batches: the rows of each are appended to a buffer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from netbuilder.graph import Net, infer_shapes
from netbuilder.graph.blob import BlobReference, GradientSlice
from netbuilder.graph.replicas import GradientGroup, Replicas
from netbuilder.graph.scope import DeviceScope
from netbuilder.model import ModelHelper
from netbuilder.optimizers.placement import get_param_device
from netbuilder.proto import DeviceOption, NetError, OperatorDef, TensorProto
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["RowBuffer", "append_rows", "flush_rows", "is_row_operator", "row_buffers"]

_SUFFIX = "_accumulated"
_OF_STEP = "_of_step"
_PARTS = (
    "_whole",
    "_flat",
    "_flat_shape",
    "_next",
    "_next_split",
)  # suffixes of temporary blobs, after a buffer's name


@dataclass(frozen=True)
class RowBuffer:
    """The buffer for the indices, or the values, of a sparse gradient.

    Args:
        source: the indices or values of one micro-batch.
        param: the table of these values; None for indices, which several tables may have in common.
        device: the device of the buffer.
    """

    source: str
    param: str | None
    device: DeviceOption

    @property
    def blob(self) -> BlobReference:
        """The blob with the rows of all micro-batches so far."""
        return BlobReference(self.source + _SUFFIX)

    @property
    def of_step(self) -> BlobReference:
        """The blob with the rows of the whole step, which the update uses."""
        return BlobReference(self.source + _OF_STEP)


def row_buffers(
    model: ModelHelper, record: Replicas, placed: Mapping[str, DeviceOption]
) -> tuple[Replicas, list[RowBuffer]]:
    """Return the buffers for all sparse gradients, and the record with the gradients of a whole step.

    Args:
        model: model with a backward pass; its ``param_to_grad`` is set to the gradients of a whole step.
        record: the record of its replicas.
        placed: parameter -> its device.
    """
    buffers: dict[str, RowBuffer] = {}

    def add(param: str, gradient: GradientSlice, device: DeviceOption) -> None:
        indices, values = RowBuffer(str(gradient.indices), None, device), RowBuffer(str(gradient.values), param, device)
        buffers.setdefault(indices.source, indices)
        buffers[values.source] = values
        model.param_to_grad[BlobReference(param)] = GradientSlice(indices.of_step, values.of_step)

    groups = []
    for group in record.gradients:
        groups.append(group)
        if group.is_sparse:
            of_replicas = zip(record.blobs(group.parameter), record.devices.scopes, record.devices.options)
            for param, scope, device in of_replicas:
                pair = GradientSlice(BlobReference(scope + group.indices), BlobReference(scope + group.values))
                add(param, pair, device)
            groups[-1] = GradientGroup(group.parameter, group.values + _OF_STEP, group.indices + _OF_STEP)
    for param in record.outside:
        whole = model.param_to_grad.get(BlobReference(param))
        if isinstance(whole, GradientSlice):
            add(param, whole, get_param_device(param, whole, placed))
    names = tuple(str(buffer.blob) for buffer in buffers.values())
    return dataclasses.replace(record, gradients=tuple(groups), accumulated_rows=names), list(buffers.values())


def append_rows(model: ModelHelper, buffers: Iterable[RowBuffer]) -> None:
    """Append the operators that add the rows of a micro-batch to the buffers; the init net makes empty buffers."""
    shapes = _shapes(model, [buffer.param for buffer in buffers if buffer.param is not None])
    for buffer in buffers:
        with DeviceScope(buffer.device):
            _add_empty(model.param_init_net, buffer)
            blob = buffer.blob
            if buffer.param is None:
                whole = model.net.Cast(BlobReference(buffer.source), blob + "_whole", to=TensorProto.INT64)
                rows = model.net.FlattenToVec(whole, blob + "_flat")
            else:
                names, shape = [blob + "_flat", blob + "_flat_shape"], [-1, *shapes[buffer.param][1:]]
                rows, _ = model.net.Reshape(BlobReference(buffer.source), names, shape=shape)
            joined, _ = model.net.Concat([blob, rows], [blob + "_next", blob + "_next_split"], axis=0)
            model.net.Copy(joined, blob)


def flush_rows(model: ModelHelper, buffers: Iterable[RowBuffer]) -> None:
    """Append the operators that start an update: the buffers are copied to the gradients of the step and emptied."""
    for buffer in buffers:
        with DeviceScope(buffer.device):
            model.net.Copy(buffer.blob, buffer.of_step)
            _add_empty(model.net, buffer)


def _add_empty(net: Net, buffer: RowBuffer) -> None:
    if buffer.param is None:
        net.ConstantFill([], buffer.blob, shape=[0], value=0, dtype=TensorProto.INT64)
    else:
        net.Slice(BlobReference(buffer.param), buffer.blob, starts=[0], ends=[0])


def _shapes(model: ModelHelper, params: Iterable[str]) -> dict[str, tuple[int, ...]]:
    known = infer_shapes([model.param_init_net]).shapes
    for param in params:
        if param not in known:
            raise NetError(
                f"accumulate_steps: the gradient of {param!r} is sparse, and the shape of this table cannot be "
                "inferred from its initializer; give the initializer a shape"
            )
    return known


def is_row_operator(op: OperatorDef, buffers: Iterable[str]) -> bool:
    """Whether an operator is one of ``append_rows``, for the blobs of these buffers."""
    own = {name + part for name in buffers for part in _PARTS}
    return not own.isdisjoint((*op.input, *op.output))
