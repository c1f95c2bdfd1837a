"""run_plan: runs the execution steps of a PlanDef in a workspace."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from netbuilder.data import BlobsQueue, RebatchingQueue
from netbuilder.graph.observability import ALL
from netbuilder.ops.core.conditions import truth_of
from netbuilder.proto import ExecutionStep, NetDef, NetError, PlanDef
from netbuilder.runtime.execute.threads import PeriodicCall, run_concurrently

__all__ = ["run_plan"]

Path = tuple[int, ...]
"""The position of a step in its plan: the index of a step, of its substep, and so on."""


def run_plan(workspace: Any, plan: PlanDef) -> None:
    """Create the nets of ``plan`` in ``workspace``, then run its steps in order.

    A step with ``create_workspace`` has a workspace of its own, in which its nets are created.

    Raises:
        NetError: a step names a net that does not exist, or an operator failed.
    """
    nets = {net.name: net for net in plan.network}
    in_own = set().union(*(_nets_in(step, own_workspaces=True) for step in plan.execution_step))
    in_this = set().union(*(_nets_in(step) for step in plan.execution_step))
    for net in plan.network:
        if net.name in in_this or net.name not in in_own:
            workspace.create_net(net, overwrite=True, observable_default=ALL, shares_counter=True)
    run = _Run(nets)
    for index, step in enumerate(plan.execution_step):
        _run_step(workspace, step, (index,), run)


def _nets_in(step: ExecutionStep, *, own_workspaces: bool = False) -> set[str]:
    """Return the nets that a step runs in the workspace that it is given, or those it runs in workspaces of its own."""
    if step.create_workspace:
        return _nets_of(step) if own_workspaces else set()
    nets = set() if own_workspaces else {*step.network, step.criteria_network, step.report_net}
    return nets.union(*(_nets_in(substep, own_workspaces=own_workspaces) for substep in step.substep))


def _nets_of(step: ExecutionStep) -> set[str]:
    own = {*step.network, step.criteria_network, step.report_net}
    return own.union(*map(_nets_of, step.substep))


class _Run:
    """One run of a plan.

    Args:
        nets: the nets of the plan by their names.

    Attributes:
        done: the steps with ``only_once`` that have run.
        failed: set when one of several concurrent steps has failed, so that the others end.
    """

    def __init__(self, nets: Mapping[str, NetDef]) -> None:
        self.nets = nets
        self.done: set[Path] = set()
        self.failed = threading.Event()


def _run_step(workspace: Any, step: ExecutionStep, path: Path, run: _Run) -> None:
    """Run a step, whose position in its plan is ``path``."""
    if step.substep and step.network:
        raise NetError(f"execution step {step.name!r} has both substeps and nets; give it one of the two")
    if step.only_once and not step.should_stop_blob:
        if path in run.done:
            return
        run.done.add(path)
    copies = step.num_concurrent_instances
    if copies > 1:
        run_concurrently(
            [partial(_run_instance, workspace, step, path, run)] * copies, partial(_stop, workspace, step, run)
        )
    else:
        _run_instance(workspace, step, path, run)


def _run_instance(workspace: Any, step: ExecutionStep, path: Path, run: _Run) -> None:
    """Run a step, or one of its concurrent instances."""
    if step.create_workspace:
        workspace = type(workspace)(parent=workspace)
        inside = {*step.network, step.criteria_network, step.report_net}.union(*map(_nets_in, step.substep))
        for name, net in run.nets.items():
            if name in inside:
                workspace.create_net(net, observable_default=ALL, shares_counter=True)
    periodic = []
    if step.report_net and step.report_interval > 0:
        periodic.append(PeriodicCall(partial(workspace.run_net, step.report_net), step.report_interval))
    try:
        _iterate(workspace, step, path, run)
    finally:
        for call in periodic:
            call.stop()
    for call in periodic:
        call.check()


def _iterate(workspace: Any, step: ExecutionStep, path: Path, run: _Run) -> None:
    limit = step.num_iter if step.HasField("num_iter") else (None if step.should_stop_blob else 1)
    if step.only_once:
        limit = 1
    iteration, began = 0, 0.0
    while (limit is None or iteration < limit) and not run.failed.is_set():
        if iteration and step.run_every_ms:
            time.sleep(max(0.0, step.run_every_ms / 1000 - (time.monotonic() - began)))
        began = time.monotonic()
        if step.criteria_network:
            workspace.run_net(step.criteria_network)
        if step.substep:
            if _run_substeps(workspace, step, path, run):
                return
        for net in step.network:
            workspace.run_net(net)
            if _should_stop(workspace, step):
                return
        iteration += 1


def _run_substeps(workspace: Any, step: ExecutionStep, path: Path, run: _Run) -> bool:
    """Run the substeps once; those with ``run_every_ms`` repeat while the others run. Return whether the step ends."""
    indexed = list(enumerate(step.substep))
    timed = [(index, substep) for index, substep in indexed if substep.run_every_ms]
    others = [(index, substep) for index, substep in indexed if not substep.run_every_ms]
    if not others:  # there is nothing to run at the same time
        timed, others = [], timed
    periodic = [
        PeriodicCall(
            partial(_run_step, workspace, substep, (*path, index), run), substep.run_every_ms / 1000, at_end=True
        )
        for index, substep in timed
    ]
    try:
        ended = _run_others(workspace, step, others, path, run)
    finally:
        for call in periodic:
            call.stop()
    for call in periodic:
        call.check()
    return ended


def _run_others(workspace: Any, step: ExecutionStep, substeps: list[Any], path: Path, run: _Run) -> bool:
    if step.concurrent_substeps and len(substeps) > 1:
        calls = [partial(_run_step, workspace, substep, (*path, index), run) for index, substep in substeps]
        run_concurrently(calls, partial(_stop, workspace, step, run))
        return _should_stop(workspace, step)
    for index, substep in substeps:
        _run_step(workspace, substep, (*path, index), run)
        if _should_stop(workspace, step):
            return True
    return False


def _stop(workspace: Any, step: ExecutionStep, run: _Run, error: BaseException) -> None:
    """Stop what runs at the same time as a failed step: cancel its nets, and close its queues."""
    run.failed.set()
    for name in sorted(_nets_of(step)):
        if name in workspace.nets():
            workspace.net(name).cancel(error)
    for queue in _queues(workspace, step):
        queue.close(error)


def _should_stop(workspace: Any, step: ExecutionStep) -> bool:
    if not step.should_stop_blob:
        return False
    if not workspace.has(step.should_stop_blob):
        raise NetError(
            f"execution step {step.name!r}: should_stop_blob {step.should_stop_blob!r} does not exist; feed it, or "
            "make it in a net of the step"
        )
    what = f"execution step {step.name!r}: should_stop_blob {step.should_stop_blob!r}"
    return truth_of(workspace.fetch(step.should_stop_blob), what)


def _queues(workspace: Any, step: ExecutionStep) -> Iterator[BlobsQueue | RebatchingQueue]:
    """Yield the queues that the nets of a step and of its substeps read or fill."""
    for name in (*step.network, *([step.criteria_network] if step.criteria_network else ())):
        if name in workspace.nets():
            for blob in {blob for op in workspace.net(name).proto.op for blob in op.input}:
                found = workspace.find(blob)
                if found is not None and isinstance(found.buffer, (BlobsQueue, RebatchingQueue)):
                    yield found.buffer
    for substep in step.substep:
        yield from _queues(workspace, substep)
