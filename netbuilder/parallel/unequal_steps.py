"""Batches that each process reads for itself: the processes agree on the end, or those that have ended take part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from netbuilder.parallel.distributed.process_group import ProcessGroup
from netbuilder.parallel.shares import ProcessBatch, count_samples
from netbuilder.proto import DistributedError

__all__ = ["process_batches"]


def process_batches(
    source: Iterable[Mapping[str, Any]], group: ProcessGroup, *, join: bool = False
) -> Iterator[ProcessBatch]:
    """Yield the batches of this process, each with the number of samples that all processes have in that step.

    All processes call it, in the thread that runs the net, and make a step for each batch that it yields.

    Args:
        source: the samples of this process: mappings from names to arrays with one sample per row. Processes may have
            any numbers of samples.
        group: the processes.
        join: processes whose source has ended take part with weight 0 until all have ended, so that the result is that
            of one process with all samples; each must have at least one batch. Otherwise it is an error if some
            processes have a batch more than others.

    Raises:
        DistributedError: on all processes: some have no batch for a step; the message names them. On the others, if a
            source has raised an error.
        ShapeError: the arrays of a batch have different numbers of samples, or none.

    >>> batches = [{"x": np.zeros((3, 2))}, {"x": np.zeros((1, 2))}]
    >>> [(batch.samples, batch.samples_of_all) for batch in process_batches(batches, ProcessGroup())]
    [(3, 3), (1, 1)]
    """
    steps, last, batches = 0, dict[str, Any](), iter(source)
    while True:
        try:
            batch = next(batches, None)
            count = 0 if batch is None else count_samples(batch)
        except Exception as error:
            group.report_failure(error)  # the others wait for this process
            raise
        counts = group.gather(count)
        if not any(counts):
            return
        ended = [str(rank) for rank, count in enumerate(counts) if not count]
        if ended and not (join and steps):
            _refuse(ended, steps, join)
        if batch is not None:
            last = {name: np.array(array[:1]) for name, array in batch.items()}
        yield ProcessBatch(last if batch is None else batch, sum(counts), empty=batch is None)
        steps += 1


def _refuse(ended: list[str], steps: int, join: bool) -> None:
    ranks = f"{'rank' if len(ended) == 1 else 'ranks'} {', '.join(ended)}"
    if join:
        raise DistributedError(f"{ranks} of the processes have no batch at all; join=True needs one on each of them")
    raise DistributedError(
        f"{ranks} of the processes have no batch after {steps} steps, and others have; give all of them as many "
        "batches, or join=True, with which those that have ended take part with weight 0"
    )
