"""Training within a memory budget: where computing again is not enough, batches are split into micro-batches."""

from __future__ import annotations

import dataclasses
from typing import Any

from netbuilder.graph.memory_budget import MemoryBudgetError
from netbuilder.parallel.accumulate import why_micro_batches_differ
from netbuilder.proto import NetError
from netbuilder.tools.common_options import split_problem
from netbuilder.tools.training.run import Run
from netbuilder.tools.training.settings import Options

__all__ = ["run_within_budget"]

_SPLITS = (2, 4, 8)


def run_within_budget(options: Options, *data: Any) -> Run:
    """Return a run whose steps keep to the memory budget of the options, with batches split if that is needed.

    Args:
        options: of the run; with a memory budget.
        data: further arguments of ``Run``.

    Raises:
        NetError: the budget cannot be kept; the message says why the batch is not split, or that it does not help.
    """
    run = Run(options, *data)
    try:
        run.plan()
        return run
    except MemoryBudgetError as error:
        first = error
    if reason := _why_not_split(options, run):
        raise NetError(f"{first}; the batch is not split into micro-batches, since {reason}")
    tried = []
    for parts in _SPLITS:
        steps = parts * options.accumulate_steps
        if split_problem(options.batch, len(options.devices), steps) is None:
            tried.append(str(steps))
            run = Run(dataclasses.replace(options, accumulate_steps=steps, memory_budget=str(first.budget)), *data)
            try:
                planned = run.plan().total
            except MemoryBudgetError:
                continue
            if planned <= first.budget:  # with the update, and the sums of gradients
                return run
    how = f"{' or '.join(tried)} micro-batches are not enough either" if tried else "it has too few samples for that"
    raise NetError(f"{first}; the batch is not split, since {how}")


def _why_not_split(options: Options, run: Run) -> str | None:
    """Return why micro-batches would not give the results of the whole batch; None if they would."""
    if options.block is not None:
        return "steps of blocks (--block-steps) cannot be split"
    if options.mixup or options.cutmix:
        return "--mixup and --cutmix mix the samples of a batch"
    return why_micro_batches_differ(run.training_net)
