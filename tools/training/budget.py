"""Training within a memory budget, see ``netbuilder.parallel.build_within_budget``."""

from __future__ import annotations

import dataclasses
from typing import Any

from netbuilder.parallel import build_within_budget
from netbuilder.tools.training.run import Run
from netbuilder.tools.training.settings import Options

__all__ = ["run_within_budget"]


def run_within_budget(options: Options, *data: Any) -> Run:
    """Return a run whose steps keep to the memory budget of the options, with batches split if that is needed.

    Args:
        options: of the run; with a memory budget.
        data: further arguments of ``Run``.

    Raises:
        NetError: the budget cannot be kept; the message says why the batch is not split, or that it does not help.
    """

    def build(steps: int, budget: Any) -> Run:
        return Run(dataclasses.replace(options, accumulate_steps=steps, memory_budget=str(budget)), *data)

    return build_within_budget(
        build,
        options.memory_budget,
        samples=options.batch,
        devices=options.replicas,
        accumulate_steps=options.accumulate_steps,
        plan=lambda run: run.model.plan(run.group).total,
        net=lambda run: run.model.net,
        group=lambda run: run.group,
        why_not_split=_why_not_split(options),
    )


def _why_not_split(options: Options) -> str | None:
    """Return what else, besides the net, forbids micro-batches."""
    if options.block is not None:
        return "steps of blocks (--block-steps) cannot be split"
    if options.mixup or options.cutmix:
        return "--mixup and --cutmix mix the samples of a batch"
    return None
