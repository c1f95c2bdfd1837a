"""Memory sharing in data-parallel nets: gradients of a replica that are not needed at the same time share blobs."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from netbuilder.graph.blob import GradientSlice, blob_name
from netbuilder.graph.gradient_shares import gradient_blobs
from netbuilder.graph.observability import ALL, OUTPUTS
from netbuilder.graph.replicas import Replicas
from netbuilder.graph.shapes import infer_shapes
from netbuilder.model import ModelHelper
from netbuilder.parallel.accumulate import created_nets
from netbuilder.passes.share_memory import share_gradients
from netbuilder.proto import NetDef, NetError
from netbuilder.proto.call_checks import checked

__all__ = ["OptimizeGradientMemory", "share_gradient_memory"]

_log = logging.getLogger("netbuilder")


def share_gradient_memory(
    model: ModelHelper,
    record: Replicas,
    *,
    sizes: Mapping[str, int] | None = None,
    excluded: Iterable[Any] = (),
    activations: bool = False,
) -> Replicas:
    """Let gradients in the main net of a model share blobs if they are not needed at the same time.

    Gradients of parameters and losses keep their names, so updates, exchange and checkpoints are not affected, and
    the results are bitwise identical. Other gradients and activations are not kept after a run (see
    ``Net.set_observable``), except ``excluded`` ones and where all blobs are observable by default, as in Caffe2;
    gradients that share a name are removed from ``grad_map``. With micro-batches, blobs that the update parts use do
    not share.

    Args:
        model: model with a backward pass; its net is changed.
        record: the record of its replicas.
        sizes: name -> size in bytes, so that blobs of equal size share.
        excluded: other blobs that keep their names.
        activations: share activations that operators read as well.

    Returns:
        The record, with ``shares_memory`` set.

    Raises:
        NetError: the model has no backward pass.
    """
    main = model.net.Proto()
    if not record.trains or not model.param_to_grad:
        raise NetError(
            f"model {model.name!r} has no backward pass, so it has no gradients that could share memory; do not "
            "request it for an evaluation model"
        )
    chosen = [blob_name(blob) for blob in excluded]
    keep = {*chosen} | {loss for losses in record.losses for loss in losses}
    for gradient in model.param_to_grad.values():
        keep.update(_blobs(gradient))
    for group in record.gradients:
        for name in filter(None, (group.values, group.indices)):
            keep.update(record.devices.copies(name))
    keep.update((*record.accumulated, *record.accumulated_rows))
    for part in created_nets(main, record)[1:]:  # they refer to blobs of the first part by name
        keep.update(name for op in part.op for name in (*op.input, *op.output))
    before = len(_written(main))
    gradients = gradient_blobs(main.op).union(*map(_blobs, model.grad_map.values()))
    scopes = record.devices.scopes
    made, names = share_gradients(main, scopes, gradients, keep=keep, sizes=sizes, activations=activations)
    model.net.replace_message(made)
    if model.net.observes != ALL:
        of_parameters = [name for gradient in model.param_to_grad.values() for name in _blobs(gradient)]
        model.net.set_observable(OUTPUTS, dict.fromkeys([*chosen, *of_parameters]))
    model.grad_map = {
        blob: gradient for blob, gradient in model.grad_map.items() if names.keys().isdisjoint(_blobs(gradient))
    }
    _log.info("model %r: memory sharing reduces %d blobs to %d", model.name, before, len(_written(main)))
    return dataclasses.replace(record, shares_memory=True)


def _written(net: NetDef) -> set[str]:
    return {name for op in net.op for name in op.output}


def _blobs(gradient: Any) -> list[str]:
    """Return the blobs of a gradient: one, or two if it is sparse."""
    return [str(part) for part in gradient] if isinstance(gradient, GradientSlice) else [str(gradient)]


@checked()
def OptimizeGradientMemory(
    model: ModelHelper, input_shapes: Mapping[Any, Sequence[int]] | None, excluded_blobs: Iterable[Any] | None,
    recycle_activations: bool,
) -> None:  # fmt: skip
    """Let gradients of the same replica that are not needed at the same time share blobs.

    Call it before the net is created. A second call changes nothing.

    Args:
        model: a training model made by Parallelize.
        input_shapes: name -> shape of the inputs, from which the shapes of all blobs are inferred, so that blobs of
            equal size share; None: sizes are ignored.
        excluded_blobs: blobs that keep their names.
        recycle_activations: share activations that operators read as well.

    Raises:
        ArgumentError: ``model`` is not a ModelHelper.
        NetError: the model is not data-parallel, or has no backward pass.
        ShapeError: the shapes contradict the net.
    """
    main = model.net.Proto()
    record = Replicas.load(main)
    if record.shares_memory:
        _log.info("model %r shares memory already", model.name)
        return
    sizes = None
    if input_shapes is not None:
        inferred = infer_shapes([model.param_init_net, model.net], input_shapes)
        specs = {name: inferred.spec(name) for name in inferred.shapes}
        sizes = {name: spec.nbytes for name, spec in specs.items() if spec is not None and not spec.dtype.hasobject}
    record = share_gradient_memory(
        model, record, sizes=sizes, excluded=excluded_blobs or (), activations=bool(recycle_activations)
    )
    record.store(model.net.Proto())
