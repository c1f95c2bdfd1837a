"""Running block-wise updates: iterations are counted, and the replicas are brought together after each block."""

from __future__ import annotations

import numpy as np

from netbuilder.graph.block_updates import BlockNets, BlockRule
from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.proto import NetError
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute import default

__all__ = ["RunWarmup", "block_nets_of", "count_iterations", "finish_block", "run_blocks"]


def RunWarmup(model: ModelHelper, *, wait: bool = True, workspace: Workspace | None = None) -> None:
    """Run the warm-up: iterations without blocks, after which all replicas continue from the master's parameters.

    Each replica trains on its own meanwhile. With ``block_iterations``, ``RunNet`` does the same by itself; this runs
    what remains of the warm-up.

    Args:
        model: made by ``Parallelize_BMUF`` with ``warmup_iterations``; its nets were created.
        wait: wait until all GPUs have finished, see ``Workspace.run_net``.
        workspace: workspace to use; None: the current default one.

    Raises:
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
    if not rule.iterations:
        workspace.run_net(model.net.Name(), rule.warmup_iterations, wait=wait)
        workspace.run_net(nets.warm_up.Name(), wait=wait)
        return
    remaining = -_counted(record, rule, workspace)
    if remaining <= 0:
        raise NetError(f"RunWarmup: the warm-up of model {model.name!r} is over; omit this call")
    run_blocks(model, record, remaining, workspace=workspace, wait=wait)


def finish_block(model: ModelHelper, *, wait: bool = True, workspace: Workspace | None = None) -> None:
    """End a block before its last iteration, so that all replicas have the same parameters, for example to evaluate.

    Nothing happens between two blocks. During the warm-up all replicas get the master's parameters, and the warm-up
    continues. Without ``block_iterations``, each call of ``RunNet`` ends a block already.

    Args:
        model: made by ``Parallelize_BMUF``; its nets were created.
        wait: wait until all GPUs have finished, see ``Workspace.run_net``.
        workspace: workspace to use; None: the current default one.

    Raises:
        NetError: the model has no block-wise updates.
    """
    workspace = workspace or default.workspace()
    record, rule = _rule(model, "finish_block")
    if not rule.iterations:
        return
    done = _counted(record, rule, workspace)
    if done:
        _end(model, record, rule, done, workspace, wait=wait)


def run_blocks(model: ModelHelper, record: Replicas, count: int, *, workspace: Workspace, wait: bool) -> None:
    """Run ``count`` iterations of the main net, and bring the replicas together after each block that they complete."""
    rule, name = record.block, model.net.Name()
    assert rule is not None
    if not rule.iterations:
        if count:
            workspace.run_net(name, count, wait=wait)
            workspace.run_net(block_nets_of(model).update.Name(), wait=wait)
        return
    while count:
        number = min(count, _end_of(rule, done := _counted(record, rule, workspace)) - done)
        workspace.run_net(name, number, wait=wait)
        count_iterations(model, number, workspace=workspace, wait=wait)
        count -= number


def count_iterations(model: ModelHelper, number: int, *, workspace: Workspace, wait: bool = True) -> None:
    """Count iterations of the main net that have run, and bring the replicas together if they complete a block.

    For callers that run the main net in another way than by ``RunNet``; nothing happens for a model without
    ``block_iterations``.
    """
    record = Replicas.load(model.net.Proto())
    rule = record.block
    if rule is None or not rule.iterations:
        return
    before = _counted(record, rule, workspace)
    done = before + number
    if done == _end_of(rule, before):
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


def _end_of(rule: BlockRule, done: int) -> int:
    return rule.iterations if done >= 0 else 0


def _end(model: ModelHelper, record: Replicas, rule: BlockRule, done: int, workspace: Workspace, *, wait: bool) -> None:
    """Bring the replicas together: after a block, or with a negative ``done`` in the warm-up, which then continues."""
    nets = block_nets_of(model)
    if done < 0:
        assert nets.warm_up is not None
        workspace.run_net(nets.warm_up.Name(), wait=wait)
        return
    workspace.run_net(nets.update.Name(), wait=wait)
    workspace.feed(_counter(record, rule), np.zeros(1, np.int64))
