"""Training within a memory budget: where computing again is not enough, batches are split into micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from netbuilder.distributed.process_group import ProcessGroup
from netbuilder.graph.memory_budget import MemoryBudgetError
from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.parallel.accumulate import net_names, why_micro_batches_differ
from netbuilder.proto import NetDef, NetError
from netbuilder.proto.call_checks import checked
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute import default
from netbuilder.runtime.profile.memory import Memory, planned_memory

__all__ = ["build_within_budget", "planned_step"]

Built = TypeVar("Built")

_SPLITS = (2, 4, 8)


@checked()
def planned_step(model: ModelHelper, workspace: Workspace | None = None) -> Memory:
    """Return the memory that a step will take: with ``accumulate_steps``, all of its micro-batches and the update.

    Args:
        model: made by ``Parallelize``, with its nets created and a batch, or a micro-batch, fed.
        workspace: where that was done; None: the current default one.

    Raises:
        NetError: the model is not data-parallel, or a step cannot be planned.
        MemoryBudgetError: it cannot keep to its budget.
    """
    record = Replicas.load(model.net.Proto())
    return planned_memory(workspace or default.workspace(), net_names(model.net.Name(), record), model.GetParams())


def _processes(model: Any) -> ProcessGroup:
    """Return the processes that train a model, whose init net has run in the current default workspace."""
    world = Replicas.load(model.net.Proto()).world
    if not world.common:
        return ProcessGroup()
    return ProcessGroup.over(np.asarray(default.workspace().fetch(world.common[0])).item())


def _planned(model: Any) -> int:
    return planned_step(model).total


def _net_of(model: Any) -> NetDef:
    net: NetDef = model.net.Proto()
    return net


@dataclass(frozen=True)
class _Need:
    """What a step needs in the process that needs the most.

    Args:
        planned: its bytes.
        budget: 0: all processes keep to theirs; else the bytes of the largest budget that one cannot keep to, or that
            another keeps to.
        problem: what that process says.
        elsewhere: whether another process keeps to its own budget, which is larger.
    """

    planned: int
    budget: int = 0
    problem: str = ""
    elsewhere: bool = False


def build_within_budget(
    build: Callable[[int, Any], Built],
    budget: Any,
    *,
    samples: int,
    devices: int,
    accumulate_steps: int = 1,
    plan: Callable[[Built], int] = _planned,
    net: Callable[[Built], NetDef] = _net_of,
    group: Callable[[Built], ProcessGroup] = _processes,
    why_not_split: str | None = None,
) -> Built:
    """Return a model whose steps keep to a memory budget, with batches split into micro-batches if that is needed.

    Splitting is tried where computing activations again is not enough, into 2, 4 and 8 micro-batches. The results then
    agree with those of the whole batch within rounding. Nets to which that does not apply are not split.

    Of several processes all call it, and decide the same: the budget is kept where each of them keeps it.

    Args:
        build: ``build(accumulate_steps, memory_budget)`` makes a model by ``Parallelize`` with these arguments, creates
            its nets, and feeds ``samples / accumulate_steps`` samples. It is called for each attempt, so it must not
            rely on what an earlier call has made (``Workspace.reset``, or another workspace).
        budget: see ``Parallelize``; a fraction is of what a step with the whole batch would take, in the process that
            needs the most.
        samples: of a batch, over all devices.
        devices: number of devices that share it.
        accumulate_steps: micro-batches in any case; the others are multiples.
        plan: returns the bytes that a step of what ``build`` has made will take; by default ``planned_step`` of a
            model in the current default workspace.
        net: returns the net for training of what ``build`` has made; by default that of a model.
        group: returns the processes that train what ``build`` has made; by default those of a model whose init net has
            run in the current default workspace.
        why_not_split: why batches must not be split, for the message; None: they may be.

    Raises:
        NetError: on all processes: the budget cannot be kept; the message says why the batch is not split, or that it
            does not help.
    """
    built = build(accumulate_steps, budget)
    need = _need(plan, built, group(built))
    if need.elsewhere:  # a fraction of less than the process needs that needs the most
        built = build(accumulate_steps, need.budget)
        need = _need(plan, built, group(built))
    if not need.problem:
        return built
    limit = need.budget
    split = "into micro-batches" if accumulate_steps == 1 else f"further than into {accumulate_steps} micro-batches"
    unsplit = f"{need.problem}; the batch is not split {split}, since"
    if why_not_split:
        raise NetError(f"{unsplit} {why_not_split}")
    if reason := why_micro_batches_differ(net(built)):
        raise NetError(
            f"{unsplit} {reason}; a larger accumulate_steps (netbuilder-train: --accumulate-steps) splits it all the "
            "same, with other results"
        )
    tried = []
    for steps in (parts * accumulate_steps for parts in _SPLITS):
        if samples % (devices * steps) == 0:
            tried.append(str(steps))
            built = build(steps, limit)
            found = _need(plan, built, group(built))
            if not found.problem and found.planned <= limit:  # with the update, and the sums of gradients
                return built
    how = f"{' or '.join(tried)} micro-batches are not enough either" if tried else "it has too few samples for that"
    raise NetError(f"{unsplit} {how}")


def _need(plan: Callable[[Built], int], built: Built, group: ProcessGroup) -> _Need:
    """Return what a step needs, which is the same on all processes."""
    planned, problem = 0, None
    try:
        planned = plan(built)
    except MemoryBudgetError as error:
        problem = str(error), error.budget
    except Exception as error:
        group.report_failure(error)  # the others wait for this process
        raise
    everywhere = group.gather((planned, problem))
    most = max(planned for planned, _ in everywhere)
    problems = {rank: problem for rank, (_, problem) in enumerate(everywhere) if problem is not None}
    if not problems:
        return _Need(most)
    rank, (text, budget) = max(problems.items(), key=lambda item: item[1][1])
    said = f"rank {rank}: {text}" if group.size > 1 else text
    return _Need(most, max(budget, most), said, elsewhere=most > budget)
