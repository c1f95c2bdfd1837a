"""The parameter update of replicas, which an optimizer builder appends, and warnings of what it leaves out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.graph.devices import Devices
from netbuilder.graph.replicas import Replicas
from netbuilder.graph.source import definition_of, warn_user
from netbuilder.model import ModelHelper
from netbuilder.optimizers.build import updates_of_one_replica
from netbuilder.parallel.builders import call_per_device
from netbuilder.parallel.gradient_scaling import scale_update
from netbuilder.parallel.loss_scale import LossScale, warn_of_scaled_updates
from netbuilder.parallel.request import Request

__all__ = ["append_update"]


def append_update(model: ModelHelper, request: Request, record: Replicas) -> Any:
    """Append the parameter update; return the result of the optimizer builder."""
    start, optimizer, devices = model.net.op_len, None, request.devices
    if request.block is not None:
        call_per_device(devices, lambda replica: _update_replica(model, request, record, replica))
    else:
        if request.options.reduce_update_broadcast:
            devices = Devices(devices.device_type, devices.ids[:1])
        with _only_parameters_of(model, record, range(len(devices))):
            if request.optimize is not None:
                optimizer = request.optimize(model)
            elif request.update is not None:
                update = request.update
                with updates_of_one_replica():
                    call_per_device(devices, lambda replica: update(model))
    if request.options.gradient_scaling is not None:
        scale_update(model, record, start, request.options.gradient_scaling)
    written = {blob for op in model.net.Proto().op[start:] for blob in op.output}
    parameters = {blob for name in record.parameters for blob in record.blobs(name)}
    if parameters and written.isdisjoint(parameters):
        _warn_of_no_update(model, request)
    elif record.outside:
        _warn_of_missing_updates(model, record, written)
    if record.world.size > 1 and record.block is None:
        blobs = [blob for group in record.gradients for blob in record.devices.copies(group.values)]
        scale = LossScale(1.0 / record.world.size)
        warn_of_scaled_updates(model.net.Proto().op[start:], blobs, scale, record.world.size)
    return optimizer


def _update_replica(model: ModelHelper, request: Request, record: Replicas, replica: int) -> None:
    """Append the update of a replica that trains on its own; the builder sees only this replica's parameters.

    The first replica's builder also sees those outside the replicas, so that they are updated once.
    """
    assert request.update is not None
    with _only_parameters_of(model, record, [replica], hidden=record.outside if replica else ()):
        request.update(model)


def _warn_of_no_update(model: ModelHelper, request: Request) -> None:
    """Warn that the builder of the update has added none, as one does that forgets to call build_sgd."""
    name, builder = "optimizer_builder_fun", request.optimize
    if builder is None:
        name, builder = "param_update_builder_fun", request.update
    where = definition_of(builder)
    warn_user(
        f"model {model.name!r}: {name}{f' ({where})' if where else ''} has added no operator that writes a parameter, "
        "so that training changes nothing; build an optimizer in it, such as build_sgd(model, 0.1)"
    )


def _warn_of_missing_updates(model: ModelHelper, record: Replicas, written: set[str]) -> None:
    """Warn about parameters outside the replicas that have a dense gradient but that the update does not write.

    Tables with sparse gradients are often updated by the caller after ``Parallelize``, so there is no warning for them.
    """
    not_updated = [
        name
        for name in record.outside
        if name not in written and isinstance(model.param_to_grad.get(BlobReference(name)), BlobReference)
    ]
    if not_updated:
        warn_user(
            f"model {model.name!r}: the parameters {not_updated}, which were created before Parallelize and so are "
            "outside the replicas, have dense gradients, but the update builder does not update them, so that they "
            "keep their initial values; use optimizer_builder_fun, which updates model.GetOptimizationParamInfo() "
            "once for all devices, or put StopGradient after parameters that are constant"
        )


@contextmanager
def _only_parameters_of(
    model: ModelHelper, record: Replicas, replicas: Collection[int], hidden: Sequence[str] = ()
) -> Iterator[None]:
    """Hide, in the block, parameters of other replicas than ``replicas``, and ``hidden``, from the model's lists."""
    blobs = [record.blobs(name) for name in record.parameters]
    shown = {copies[replica] for copies in blobs for replica in replicas}
    concealed = {blob for copies in blobs for blob in copies}.difference(shown).union(hidden)
    lists = [(params, list(params)) for params in (model.params, model.weights, model.biases)]
    for params, _ in lists:
        params[:] = [param for param in params if str(param) not in concealed]
    without = {
        param: model.param_to_grad.pop(param)
        for param in map(BlobReference, sorted(concealed))
        if param in model.param_to_grad
    }
    try:
        yield
    finally:
        for params, before in lists:
            known = set(map(str, before))
            params[:] = [*before, *(param for param in params if str(param) not in known)]
        model.param_to_grad.update(without)
