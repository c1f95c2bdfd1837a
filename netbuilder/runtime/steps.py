"""Plans of nets: execution steps, run over a workspace."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from netbuilder.data import BlobsQueue
from netbuilder.proto import ExecutionStep, NetError, PlanDef

__all__ = ["run_plan"]

Path = tuple[int, ...]
"""Where a step lies in its plan: the index of a step, of its substep, and so on."""


def run_plan(workspace: Any, plan: PlanDef) -> None:
    """Create the nets of ``plan`` in ``workspace``, then run its steps in order.

    Raises:
        NetError: a step names a net that does not exist, or an operator failed.
    """
    for net in plan.network:
        workspace.create_net(net, overwrite=True)
    run = _Run()
    for index, step in enumerate(plan.execution_step):
        _run_step(workspace, step, (index,), run)


class _Run:
    """One run of a plan.

    Attributes:
        done: the steps that run only once, and have.
        failed: a step failed beside others, which end.
    """

    def __init__(self) -> None:
        self.done: set[Path] = set()
        self.failed = threading.Event()


def _run_step(workspace: Any, step: ExecutionStep, path: Path, run: _Run) -> None:
    """Run a step, which lies at ``path`` in its plan."""
    if step.substep and step.network:
        raise NetError(f"execution step {step.name!r} has both substeps and nets; give it one of the two")
    if step.only_once:
        if path in run.done:
            return
        run.done.add(path)
    if not (step.report_net and step.report_interval > 0):
        _iterate(workspace, step, path, run)
        return
    reporter = _Reporter(workspace, step)
    try:
        _iterate(workspace, step, path, run)
    finally:
        reporter.stop()
    if reporter.failure is not None:
        raise reporter.failure


def _iterate(workspace: Any, step: ExecutionStep, path: Path, run: _Run) -> None:
    limit = step.num_iter if step.HasField("num_iter") else (None if step.should_stop_blob else 1)
    iteration = 0
    while (limit is None or iteration < limit) and not run.failed.is_set():
        began = time.monotonic()
        if step.criteria_network:
            workspace.run_net(step.criteria_network)
        if step.concurrent_substeps and len(step.substep) > 1:
            _run_together(workspace, step, path, run)
        else:
            for index, substep in enumerate(step.substep):
                _run_step(workspace, substep, (*path, index), run)
                if _says_stop(workspace, step):
                    return
        for net in step.network:
            workspace.run_net(net)
            if _says_stop(workspace, step):
                return
        iteration += 1
        if step.run_every_ms:
            time.sleep(max(0.0, step.run_every_ms / 1000 - (time.monotonic() - began)))


def _says_stop(workspace: Any, step: ExecutionStep) -> bool:
    if not step.should_stop_blob:
        return False
    if not workspace.has(step.should_stop_blob):
        raise NetError(f"execution step {step.name!r}: should_stop_blob {step.should_stop_blob!r} does not exist")
    value = np.asarray(workspace.fetch(step.should_stop_blob))
    if value.size != 1:
        raise NetError(
            f"execution step {step.name!r}: should_stop_blob {step.should_stop_blob!r} must hold one value, "
            f"has shape {value.shape}"
        )
    return bool(value.reshape(-1)[0])


def _run_together(workspace: Any, step: ExecutionStep, path: Path, run: _Run) -> None:
    """Run the substeps, each in a thread of its own; the first error ends all of them."""
    failures: list[BaseException] = []

    def work(index: int, substep: ExecutionStep) -> None:
        try:
            _run_step(workspace, substep, (*path, index), run)
        except BaseException as error:
            failures.append(error)
            run.failed.set()
            for queue in _queues(workspace, step):
                queue.close(error)

    threads = [
        threading.Thread(target=work, args=each, name=f"netbuilder-step-{each[1].name}", daemon=True)
        for each in enumerate(step.substep)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _queues(workspace: Any, step: ExecutionStep) -> Iterator[BlobsQueue]:
    """Yield the queues that the nets of a step and of its substeps read or fill."""
    for name in (*step.network, *([step.criteria_network] if step.criteria_network else ())):
        if name in workspace.nets():
            for blob in {blob for op in workspace.net(name).proto.op for blob in op.input}:
                found = workspace.find(blob)
                if found is not None and isinstance(found.buffer, BlobsQueue):
                    yield found.buffer
    for substep in step.substep:
        yield from _queues(workspace, substep)


class _Reporter:
    """Runs a net every so many seconds beside a step; ``failure`` is what ended it before its time."""

    def __init__(self, workspace: Any, step: ExecutionStep) -> None:
        self._stopped = threading.Event()
        self.failure: Exception | None = None

        def report() -> None:
            try:
                while not self._stopped.wait(step.report_interval):
                    workspace.run_net(step.report_net)
            except Exception as error:
                self.failure = error

        self._thread = threading.Thread(target=report, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
