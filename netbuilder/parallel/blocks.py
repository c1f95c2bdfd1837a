"""Running block-wise updates: iterations are counted, and the replicas are brought together after each block."""

from __future__ import annotations

import numpy as np

from netbuilder.graph.block_updates import BlockNets, BlockRule
from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.parallel.accumulate import pending_steps, run_iterations
from netbuilder.parallel.block_exchange import begin_exchange, in_flight, set_in_flight, settle
from netbuilder.proto import NetError
from netbuilder.proto.call_checks import checked
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute import default
from netbuilder.runtime.plan.options import FindNan

__all__ = ["RunWarmup", "block_nets_of", "count_iterations", "finish_block", "run_blocks"]


@checked()
def RunWarmup(
    model: ModelHelper, *, wait: bool = True, find_nan: FindNan = False, workspace: Workspace | None = None
) -> None:
    """Run the warm-up: iterations without blocks, after which all replicas continue from the master's parameters.

    Each replica trains on its own meanwhile. With ``block_iterations``, ``RunNet`` does the same by itself; this runs
    what remains of the warm-up.

    Args:
        model: made by ``Parallelize_BMUF`` with ``warmup_iterations``; its nets were created.
        wait: wait until all GPUs have finished, see ``Workspace.run_net``.
        find_nan: raise an error at the first operator whose result is NaN or infinite, see there.
        workspace: workspace to use; None: the current default one.

    Raises:
        NotFiniteError: ``find_nan`` has found something.
        NetError: the model has no warm-up, or it is over.
    """
    workspace = workspace or default.workspace()
    record, rule = _rule(model, "RunWarmup")
    nets = block_nets_of(model)
    if rule.warmup_iterations is None or nets.warm_up is None:
        raise NetError(
            f"RunWarmup: model {model.name!r} has no warm-up; give Parallelize_BMUF(warmup_iterations=...), or omit "
            "this call"
        )
    steps, pending = record.accumulate_steps, pending_steps(model, workspace)
    if not rule.iterations:
        count = rule.warmup_iterations * steps - pending
        run_iterations(model.net.Name(), record, count, workspace=workspace, wait=wait, find_nan=find_nan)
        workspace.run_net(nets.warm_up.Name(), wait=wait)
        return
    remaining = -_counted(record, rule, workspace)
    if remaining <= 0:
        raise NetError(f"RunWarmup: the warm-up of model {model.name!r} is over; omit this call")
    run_blocks(model, record, remaining * steps - pending, workspace=workspace, wait=wait, find_nan=find_nan)


@checked()
def finish_block(model: ModelHelper, *, wait: bool = True, workspace: Workspace | None = None) -> None:
    """End a block before its last iteration, so that all replicas have the same parameters, for example to evaluate.

    Nothing happens between two blocks, but the update of a block that is in flight is applied first. During the warm-up
    all replicas get the master's parameters, and the warm-up continues. Without ``block_iterations``, each call of
    ``RunNet`` ends a block already.

    Args:
        model: made by ``Parallelize_BMUF``; its nets were created.
        wait: wait until all GPUs have finished, see ``Workspace.run_net``.
        workspace: workspace to use; None: the current default one.

    Raises:
        NetError: the model has no block-wise updates, or only some micro-batches of a step have run.
    """
    workspace = workspace or default.workspace()
    record, rule = _rule(model, "finish_block")
    if pending := pending_steps(model, workspace):
        raise NetError(
            f"finish_block: {pending} of {record.accumulate_steps} micro-batches of a step of model {model.name!r} "
            "have run; run the others first, or call forget_gradients"
        )
    if not rule.iterations:
        return
    if in_flight(record, workspace):
        _arrive(model, record, workspace, wait=wait)
    if done := _counted(record, rule, workspace):
        _end(model, record, rule, done, workspace, wait=wait)
    if in_flight(record, workspace):
        _arrive(model, record, workspace, wait=wait)


def run_blocks(
    model: ModelHelper,
    record: Replicas,
    count: int,
    *,
    workspace: Workspace,
    wait: bool,
    find_nan: FindNan = False,
) -> None:
    """Run ``count`` micro-batches, and bring the replicas together after each block that their updates complete."""
    rule, name, steps = record.block, model.net.Name(), record.accumulate_steps
    assert rule is not None
    pending = pending_steps(model, workspace)
    if not rule.iterations:
        if over := (pending + count) % steps:
            raise NetError(
                f"RunNet: each call is a block of model {model.name!r}, but {count} micro-batches would end it after "
                f"{over} of the {steps} micro-batches of a step; run a multiple of {steps}, or give "
                "Parallelize_BMUF(block_iterations=...), which counts updates over calls"
            )
        if count:
            run_iterations(name, record, count, workspace=workspace, wait=wait, find_nan=find_nan)
            workspace.run_net(block_nets_of(model).update.Name(), wait=wait)
        return
    while count:
        done = _counted(record, rule, workspace)
        remaining = _stop_after(record, rule, done, workspace) - done
        number = min(count, remaining * steps - pending)
        run_iterations(name, record, number, workspace=workspace, wait=wait, find_nan=find_nan)
        updates, pending = divmod(pending + number, steps)
        if updates:
            count_iterations(model, updates, workspace=workspace, wait=wait)
        count -= number


def count_iterations(model: ModelHelper, number: int, *, workspace: Workspace, wait: bool = True) -> None:
    """Count updates of the replicas that have run, and bring the replicas together if they complete a block.

    With an overlap, the update of the last block is applied if they complete that.

    For callers that run the main net in another way than by ``RunNet``; nothing happens for a model without
    ``block_iterations``.
    """
    record = Replicas.load(model.net.Proto())
    rule = record.block
    if rule is None or not rule.iterations:
        return
    before = _counted(record, rule, workspace)
    done = before + number
    if done == _stop_after(record, rule, before, workspace):
        if in_flight(record, workspace):
            _arrive(model, record, workspace, wait=wait)
        else:
            _end(model, record, rule, before, workspace, wait=wait)
            done = 0
    workspace.feed(_counter(record, rule), np.array([done], np.int64))


def block_nets_of(model: ModelHelper) -> BlockNets:
    """Return the nets of a model's block-wise updates.

    Raises:
        NetError: its main net has a record of block-wise updates, but the model was not made by ``Parallelize_BMUF``.
    """
    if model.block_nets is None:
        raise NetError(
            f"model {model.name!r}: its main net was made by Parallelize_BMUF, but the model has no nets of block-wise "
            "updates; use the model that Parallelize_BMUF was called with"
        )
    return model.block_nets


def _rule(model: ModelHelper, called: str) -> tuple[Replicas, BlockRule]:
    record = Replicas.load(model.net.Proto())
    if record.block is None:
        raise NetError(f"{called}: model {model.name!r} has no block-wise updates; build it by Parallelize_BMUF")
    return record, record.block


def _counter(record: Replicas, rule: BlockRule) -> str:
    return record.devices.scopes[rule.master] + rule.counter


def _counted(record: Replicas, rule: BlockRule, workspace: Workspace) -> int:
    """Return how many iterations of the block have run; during the warm-up, how many remain, negative."""
    return int(np.asarray(workspace.fetch(_counter(record, rule))).reshape(()))


def _stop_after(record: Replicas, rule: BlockRule, done: int, workspace: Workspace) -> int:
    """Return after how many iterations of the block, of which some are done, there is something to do."""
    if done < 0:
        return 0
    return rule.overlap if in_flight(record, workspace) else rule.iterations


def _end(model: ModelHelper, record: Replicas, rule: BlockRule, done: int, workspace: Workspace, *, wait: bool) -> None:
    """Bring the replicas together: after a block, or with a negative ``done`` in the warm-up, which then continues.

    With an overlap, the exchange of the block begins.
    """
    nets = block_nets_of(model)
    if done < 0:
        assert nets.warm_up is not None
        workspace.run_net(nets.warm_up.Name(), wait=wait)
        return
    if nets.send is None:
        workspace.run_net(nets.update.Name(), wait=wait)
    else:
        workspace.run_net(nets.send.Name(), wait=wait)
        begin_exchange(model, nets, workspace)
        set_in_flight(record, True, workspace)
    workspace.feed(_counter(record, rule), np.zeros(1, np.int64))


def _arrive(model: ModelHelper, record: Replicas, workspace: Workspace, *, wait: bool) -> None:
    """Wait for the exchange in flight, and apply the update of its block."""
    settle(model, workspace)
    workspace.run_net(block_nets_of(model).update.Name(), wait=wait)
    set_in_flight(record, False, workspace)
