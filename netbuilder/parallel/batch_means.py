"""Means over the samples of all shares of a batch: the replicas of all processes add up their divisors."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from netbuilder.graph.batch_means import BatchMeans, split_means, sums_first
from netbuilder.graph.replicas import Replicas
from netbuilder.graph.source import warn_user
from netbuilder.model import ModelHelper
from netbuilder.parallel.builders import call_per_device
from netbuilder.parallel.shares import SHARE_WEIGHT
from netbuilder.parallel.step_divisors import OF_STEP, why_not_before_a_step
from netbuilder.passes.processes import ProcessLink
from netbuilder.passes.reductions import allreduce, broadcast, nccl_allreduce
from netbuilder.proto import NetDef, OperatorDef

if TYPE_CHECKING:
    from netbuilder.parallel.request import Request

__all__ = ["add_up_divisors", "combine_means", "divisor_sums"]

_REMEDY = (
    "let one operator form the mean (SoftmaxWithLoss with weights; AveragedLoss, of BooleanMask's rows), whose "
    "divisors all shares add up; or give combine_means=False, if the number of shares does not matter"
)


def combine_means(model: ModelHelper, request: Request, record: Replicas) -> tuple[Replicas, list[str]]:
    """Turn means whose divisor the data determine into means over all shares of a batch, in the forward pass.

    Warns of losses that the shares cannot combine: what they are depends on the number of devices and micro-batches.

    Returns:
        The record that says so, and the blobs, without the replicas' scopes, that ``add_up_divisors`` has to sum.
    """
    main, steps = model.net.Proto(), request.options.accumulate_steps if record.trains else 1
    alone = request.strategy.blocks or request.block is not None
    parts = 1 if alone else record.world.size if record.trains and request.strategy.sums_gradients else len(record)
    if not request.options.combine_means or parts * steps == 1 and not (alone and record.weighted_shares):
        return record, []
    made = _made(model, record)
    first_replica = BatchMeans(_of_first_replica(main, record), made, request.loss_scale)
    _warn_of_losses(model, record, first_replica)
    if not first_replica.combined:
        return record, []
    found = BatchMeans(main.op, made, request.loss_scale)
    found.leave_mixed(loss for of_replica in record.losses for loss in of_replica)
    if not found.combined:
        return record, []
    taken = made.union(main.external_input, *((*op.input, *op.output) for op in main.op))
    weights = [(scope, scope + SHARE_WEIGHT) for scope in record.devices.scopes if record.weighted_shares]
    unfed = _why_not_fed(model, record, found, made) if steps > 1 else ""
    part = steps if unfed else 1  # each micro-batch then has a mean of its own, and all of them the same weight
    split = split_means(main.op, found, taken, parts=parts, part=part, weights=weights)
    first = [each for each in split.divisors if record.devices.replica_of(each.own) == 0]
    changed = NetDef()
    changed.CopyFrom(main)
    del changed.op[:]
    changed.op.extend(split.ops)
    changed.external_input.extend(blob for _, blob in weights if blob not in main.external_input)
    short = record.devices.short_name
    if steps > 1 and not unfed:
        record = _feed_divisors(model, record, changed, [short(each.own) for each in first])
    model.net.replace_message(changed)
    return dataclasses.replace(record, combines_means=True), [] if alone else [short(each.total) for each in first]


def _made(model: ModelHelper, record: Replicas) -> set[str]:
    """Return the blobs that do not depend on the samples: parameters, and what the init net fills."""
    params = {str(param) for param in (*model.GetAllParams(""), *model.GetComputedParams(""))}
    return params.union(record.outside, *(op.output for op in model.param_init_net.Proto().op))


def _of_first_replica(net: NetDef, record: Replicas) -> list[OperatorDef]:
    """Return the operators of the first replica, and those outside of the replicas."""
    replica_of = record.devices.replica_of
    return [op for op in net.op if not op.output or not replica_of(op.output[0])]


def _warn_of_losses(model: ModelHelper, record: Replicas, found: BatchMeans) -> None:
    for loss in record.losses[0] if record.losses else ():
        if why := found.why(loss):
            warn_user(
                f"model {model.name!r}: the loss {loss!r}, and with it the parameters, depend on the number of "
                "devices, processes and micro-batches, each of which computes it from its own share of a batch: "
                f"{why}; {_REMEDY}"
            )


def _why_not_fed(model: ModelHelper, record: Replicas, found: BatchMeans, made: set[str]) -> str:
    """Return why the divisors of a step are not known before its first micro-batch, after a warning; "" if they are."""
    ops, scope = model.net.Proto().op, record.devices.scopes[0]
    needed = [blob for index in found.combined for blob in found.reads(index, ops[index])]
    own = _of_first_replica(model.net.Proto(), record)
    why = why_not_before_a_step(own, [blob for blob in needed if blob.startswith(scope)], made)
    if why:
        names = sorted({op.output[mean.output] for index, mean in found.combined.items() for op in [ops[index]]})
        warn_user(
            f"model {model.name!r}: {', '.join(map(repr, names))}: the divisors of these means are not known before a "
            f"step: {why}; so each micro-batch divides by its own, and all have the same weight; let labels and "
            "weights be inputs, which feed_shares or prefetch feeds"
        )
    return why


def _feed_divisors(model: ModelHelper, record: Replicas, net: NetDef, divisors: Sequence[str]) -> Replicas:
    """Let the sums begin with blobs that are fed with the divisors of all micro-batches of a step."""
    names = tuple(name + OF_STEP for name in divisors)
    for name in names:
        call_per_device(
            record.devices,
            lambda replica, name=name: model.param_init_net.ConstantFill([], name, shape=[1], value=float("nan")),  # type: ignore[misc]
        )
    own = {blob for name in divisors for blob in record.devices.copies(name)}
    for op in net.op:
        if op.type == "Copy" and op.input[0] in own:
            op.input[0] += OF_STEP
    net.external_input.extend(blob for name in names for blob in record.devices.copies(name))
    return dataclasses.replace(record, step_divisors=names)


def add_up_divisors(
    model: ModelHelper, request: Request, record: Replicas, totals: Sequence[str], link: ProcessLink | None
) -> None:
    """Add to the main net the sums of divisors over all shares; a net for evaluation sums over its own devices."""
    if not totals:
        return
    groups = [record.devices.copies(name) for name in totals]
    across = link if record.trains and request.strategy.sums_gradients else None
    sums = divisor_sums(groups, request, across)
    result = NetDef()
    result.CopyFrom(model.net.Proto())
    ops = sums_first(result.op, [blob for group in groups for blob in group], sums)
    del result.op[:]
    result.op.extend(ops)
    known = {*result.external_input, *(name for op in ops for name in op.output)}
    result.external_input.extend(dict.fromkeys(name for op in sums for name in op.input if name not in known))
    model.net.replace_message(result)


def divisor_sums(groups: Sequence[Sequence[str]], request: Request, link: ProcessLink | None) -> Sequence[OperatorDef]:
    """Return the operators that replace the blobs of each group, one per device, by their sum over all shares."""
    devices, debug_info = request.devices, request.debug_info
    if link is None:
        if request.options.use_nccl:
            return nccl_allreduce(groups, devices, debug_info=debug_info).op
        return allreduce(groups, devices, peer_access=request.peer_access, debug_info=debug_info).op
    if link.over_gpus:
        return link.allreduce_over_gpus(groups)
    own = allreduce(groups, devices, peer_access=request.peer_access, hand_back=False, debug_info=debug_info)
    return [*own.op, *link.allreduce([group[0] for group in groups]), *broadcast(groups, devices).op]
