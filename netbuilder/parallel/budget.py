"""Training within a memory budget: where computing again is not enough, batches are split into micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from netbuilder.graph.memory_budget import MemoryBudgetError
from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.parallel.accumulate import net_names, why_micro_batches_differ
from netbuilder.proto import NetDef, NetError
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute import default
from netbuilder.runtime.profile.memory import Memory, planned_memory

__all__ = ["build_within_budget", "planned_step"]

Built = TypeVar("Built")

_SPLITS = (2, 4, 8)


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


def _planned(model: Any) -> int:
    return planned_step(model).total


def _net_of(model: Any) -> NetDef:
    net: NetDef = model.net.Proto()
    return net


def build_within_budget(
    build: Callable[[int, Any], Built],
    budget: Any,
    *,
    samples: int,
    devices: int,
    accumulate_steps: int = 1,
    plan: Callable[[Built], int] = _planned,
    net: Callable[[Built], NetDef] = _net_of,
    why_not_split: str | None = None,
) -> Built:
    """Return a model whose steps keep to a memory budget, with batches split into micro-batches if that is needed.

    Splitting is tried where computing activations again is not enough, into 2, 4 and 8 micro-batches. The results then
    agree with those of the whole batch within rounding. Nets to which that does not apply are not split.

    Args:
        build: ``build(accumulate_steps, memory_budget)`` makes a model by ``Parallelize`` with these arguments, creates
            its nets, and feeds ``samples / accumulate_steps`` samples. It is called for each attempt, so it must not
            rely on what an earlier call has made (``Workspace.reset``, or another workspace).
        budget: see ``Parallelize``; a fraction is of what a step with the whole batch would take.
        samples: of a batch, over all devices.
        devices: number of devices that share it.
        accumulate_steps: micro-batches in any case; the others are multiples.
        plan: returns the bytes that a step of what ``build`` has made will take; by default ``planned_step`` of a
            model in the current default workspace.
        net: returns the net for training of what ``build`` has made; by default that of a model.
        why_not_split: why batches must not be split, for the message; None: they may be.

    Raises:
        NetError: the budget cannot be kept; the message says why the batch is not split, or that it does not help.
    """
    built = build(accumulate_steps, budget)
    try:
        plan(built)
        return built
    except MemoryBudgetError as error:
        first = error
    if reason := why_not_split or why_micro_batches_differ(net(built)):
        raise NetError(f"{first}; the batch is not split into micro-batches, since {reason}")
    tried = []
    for steps in (parts * accumulate_steps for parts in _SPLITS):
        if samples % (devices * steps) == 0:
            tried.append(str(steps))
            built = build(steps, first.budget)
            try:
                planned = plan(built)
            except MemoryBudgetError:
                continue
            if planned <= first.budget:  # with the update, and the sums of gradients
                return built
    how = f"{' or '.join(tried)} micro-batches are not enough either" if tried else "it has too few samples for that"
    raise NetError(f"{first}; the batch is not split, since {how}")
