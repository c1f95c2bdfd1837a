"""Batches that each process reads for itself: the processes agree on the end, or those that have ended take part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from netbuilder.distributed.process_group import ProcessGroup
from netbuilder.parallel.shares import ProcessBatch, count_samples
from netbuilder.proto import DistributedError
from netbuilder.proto.errors import counted

__all__ = ["Agreement", "ProcessBatches", "process_batches"]

T = TypeVar("T")


def process_batches(source: Iterable[Mapping[str, Any]], group: ProcessGroup, *, join: bool = False) -> ProcessBatches:
    """Return the batches of this process, each with the number of samples that all processes have in that step.

    All processes call it and make a step for each batch, in the thread that runs the net. ``prefetch`` takes the result
    as its source: then a thread reads and prepares the batches ahead, and the processes agree as the loop takes them.

    Args:
        source: the samples of this process: mappings from names to arrays with one sample per row. Processes may have
            any numbers of samples; one that has none in a step gives arrays of 0 rows, and takes part with weight 0.
        group: the processes.
        join: processes whose source has ended take part with weight 0 until all have ended, so that the result is that
            of one process with all samples; each must have at least one batch. Otherwise it is an error if some
            processes have a batch more than others.

    Raises:
        DistributedError: as a batch is taken, on all processes: some have no batch for a step, which the message names,
            or none of them has a sample. On the others, if a source has raised an error.
        ShapeError: as a batch is taken: its arrays have different numbers of samples, or there is no array.

    >>> batches = [{"x": np.zeros((3, 2))}, {"x": np.zeros((1, 2))}]
    >>> [(batch.samples, batch.samples_of_all) for batch in process_batches(batches, ProcessGroup())]
    [(3, 3), (1, 1)]
    """
    return ProcessBatches(source, group, join)


class ProcessBatches(Iterator[ProcessBatch]):
    """The batches of a process, as ``process_batches`` describes them.

    Attributes:
        agreement: of the processes, in each step.
    """

    def __init__(self, source: Iterable[Mapping[str, Any]], group: ProcessGroup, join: bool) -> None:
        self.agreement = Agreement(group, join)
        self._source, self._join = source, join
        self._batches = self._agreed()

    def __next__(self) -> ProcessBatch:
        return next(self._batches)

    def own(self) -> Iterator[ProcessBatch]:
        """Yield the batches of this process without asking the others; with ``join``, empty ones without end."""
        last, batches = dict[str, Any](), iter(self._source)
        try:
            for batch in batches:
                own = ProcessBatch(batch, max(count_samples(batch, least=0), 1))
                last = {name: np.array(array[:1]) for name, array in own.items()}
                yield own
        finally:
            if hasattr(batches, "close"):
                batches.close()
        while self._join and last:
            padding = ProcessBatch(last, 1, empty=True)
            padding.ended = True
            yield padding

    def _agreed(self) -> Iterator[ProcessBatch]:
        own = self.own()
        while True:
            batch = self.agreement.next(own.__next__)
            total = self.agreement.total(None if batch is None or batch.ended else batch.samples)
            if batch is None or not total:
                return
            yield ProcessBatch(batch, total, empty=not batch.samples)


class Agreement:
    """How many samples the processes have in each step, and whether one of them has none.

    Args:
        group: the processes.
        join: see ``process_batches``.
    """

    def __init__(self, group: ProcessGroup, join: bool) -> None:
        self._group, self._join, self._steps = group, join, 0

    def next(self, take: Callable[[], T]) -> T | None:
        """Return the next batch of this process, None at its StopIteration; other errors reach the other processes."""
        try:
            return take()
        except StopIteration:
            return None
        except Exception as error:
            self._group.report_failure(error)  # the others wait for this process
            raise

    def total(self, samples: int | None) -> int:
        """Return the number of samples of all processes in a step; 0 if all have ended.

        Args:
            samples: of this process; None: it has ended.

        Raises:
            DistributedError: on all processes: some have ended, and may not, or those that have not have no samples.
        """
        counts = self._group.gather(samples)
        ended = [str(rank) for rank, count in enumerate(counts) if count is None]
        if len(ended) == len(counts):
            return 0
        if ended and not (self._join and self._steps):
            _refuse(ended, self._steps, self._join)
        self._steps += 1
        total = sum(count or 0 for count in counts)
        if not total:
            raise DistributedError(
                f"step {self._steps}: the batches of all processes have 0 rows; give at least one of them a sample"
            )
        return total


def _refuse(ended: list[str], steps: int, join: bool) -> None:
    ranks = f"rank {ended[0]} has" if len(ended) == 1 else f"ranks {', '.join(ended)} have"
    if join:
        raise DistributedError(f"{ranks} no batch at all; join=True needs one on each process")
    raise DistributedError(
        f"{ranks} no batch after {counted(steps, 'step')}, and others have one; give all of them as many "
        "batches, or join=True, with which those that have ended take part with weight 0"
    )
