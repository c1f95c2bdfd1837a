"""Sparse gradients kept over micro-batches: the rows of one are put behind those of the ones before."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from netbuilder.graph import Net, infer_shapes
from netbuilder.graph.blob import BlobReference, GradientSlice
from netbuilder.graph.replicas import GradientGroup, Replicas
from netbuilder.graph.scope import DeviceScope
from netbuilder.model import ModelHelper
from netbuilder.optimizers.placement import get_param_device
from netbuilder.proto import DeviceOption, NetError, OperatorDef, TensorProto

__all__ = ["Kept", "add_rows", "keeps_rows", "sparse_gradients", "take_rows"]

_SUFFIX = "_accumulated"
_OF_STEP = "_of_step"
_PARTS = ("_whole", "_flat", "_flat_shape", "_next", "_next_split")  # behind the name of a blob that is kept


@dataclass(frozen=True)
class Kept:
    """One blob of a sparse gradient that is kept.

    Args:
        source: indices or values of a micro-batch.
        param: the table of these values; None of indices, which several tables may have in common.
        device: where it lies.
    """

    source: str
    param: str | None
    device: DeviceOption

    @property
    def held(self) -> BlobReference:
        """The blob that has the rows of all micro-batches so far."""
        return BlobReference(self.source + _SUFFIX)

    @property
    def of_step(self) -> BlobReference:
        """The blob that has those of a whole step."""
        return BlobReference(self.source + _OF_STEP)


def sparse_gradients(
    model: ModelHelper, record: Replicas, placed: Mapping[str, DeviceOption]
) -> tuple[Replicas, list[Kept]]:
    """Return what is to be kept of sparse gradients, and the record with the gradients that a step has then.

    Args:
        model: with its backward pass; ``param_to_grad`` is changed accordingly.
        record: of its replicas.
        placed: the devices of parameters.
    """
    kept: dict[str, Kept] = {}

    def keep(param: str, gradient: GradientSlice, device: DeviceOption) -> None:
        indices, values = Kept(str(gradient.indices), None, device), Kept(str(gradient.values), param, device)
        kept.setdefault(indices.source, indices)
        kept[values.source] = values
        model.param_to_grad[BlobReference(param)] = GradientSlice(indices.of_step, values.of_step)

    groups = []
    for group in record.gradients:
        groups.append(group)
        if group.is_sparse:
            of_replicas = zip(record.blobs(group.parameter), record.devices.scopes, record.devices.options)
            for param, scope, device in of_replicas:
                pair = GradientSlice(BlobReference(scope + group.indices), BlobReference(scope + group.values))
                keep(param, pair, device)
            groups[-1] = GradientGroup(group.parameter, group.values + _OF_STEP, group.indices + _OF_STEP)
    for param in record.outside:
        whole = model.param_to_grad.get(BlobReference(param))
        if isinstance(whole, GradientSlice):
            keep(param, whole, get_param_device(param, whole, placed))
    held = tuple(str(blob.held) for blob in kept.values())
    return dataclasses.replace(record, gradients=tuple(groups), accumulated_rows=held), list(kept.values())


def add_rows(model: ModelHelper, kept: Iterable[Kept]) -> None:
    """Add the operators of a micro-batch, and what the init net begins with: no rows."""
    shapes = _shapes(model, [blob.param for blob in kept if blob.param is not None])
    for blob in kept:
        with DeviceScope(blob.device):
            _empty(model.param_init_net, blob)
            if blob.param is None:
                whole = model.net.Cast(BlobReference(blob.source), blob.held + "_whole", to=TensorProto.INT64)
                rows = model.net.FlattenToVec(whole, blob.held + "_flat")
            else:
                names = [blob.held + "_flat", blob.held + "_flat_shape"]
                rows, _ = model.net.Reshape(BlobReference(blob.source), names, shape=[-1, *shapes[blob.param][1:]])
            names = [blob.held + "_next", blob.held + "_next_split"]
            joined, _ = model.net.Concat([blob.held, rows], names, axis=0)
            model.net.Copy(joined, blob.held)


def take_rows(model: ModelHelper, kept: Iterable[Kept]) -> None:
    """Add the operators that begin an update: the rows become the step's gradients, and none are left."""
    for blob in kept:
        with DeviceScope(blob.device):
            model.net.Copy(blob.held, blob.of_step)
            _empty(model.net, blob)


def _empty(net: Net, blob: Kept) -> None:
    if blob.param is None:
        net.ConstantFill([], blob.held, shape=[0], value=0, dtype=TensorProto.INT64)
    else:
        net.Slice(BlobReference(blob.param), blob.held, starts=[0], ends=[0])


def _shapes(model: ModelHelper, params: Iterable[str]) -> dict[str, tuple[int, ...]]:
    known = infer_shapes([model.param_init_net]).shapes
    for param in params:
        if param not in known:
            raise NetError(
                f"accumulate_steps: the gradient of {param!r} is sparse, and the shape of this table is not known "
                "beforehand; give its initializer a shape"
            )
    return known


def keeps_rows(op: OperatorDef, held: Iterable[str]) -> bool:
    """Whether an operator is one of ``add_rows``, for blobs that are ``held``."""
    own = {name + part for name in held for part in _PARTS}
    return not own.isdisjoint((*op.input, *op.output))
