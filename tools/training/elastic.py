"""A run of an elastic job: its state is kept in memory for the rest after a loss, and others join between epochs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from netbuilder.distributed import ProcessGroup
from netbuilder.distributed.elastic import HostMemory, is_elastic, others_wait_to_join
from netbuilder.distributed.transport.launchers import place_in
from netbuilder.exchange import Checkpoint
from netbuilder.proto import NetError
from netbuilder.tools.training.callbacks import Callback
from netbuilder.tools.training.settings import Options

if TYPE_CHECKING:
    from netbuilder.tools.training.run import EpochResults, Run

__all__ = ["Elastic", "elastic_of"]

_EPOCHS = 1 << 31  # more than there can be


def elastic_of(options: Options) -> Elastic | None:
    """Return the callback of a run in an elastic job; None: the job is not elastic.

    Raises:
        NetError: the options do not go with one.
    """
    if not is_elastic():
        return None
    if options.block is not None:
        raise NetError(
            "--block-steps: each process of an elastic job must have the whole state, and with blocks of steps they "
            "differ; leave out the option, or --min and --max of netbuilder-launch"
        )
    return Elastic(options.memory_every_steps)


class Elastic(Callback):
    """Keeps the state of a run after each step in the memory of each host, and ends the run when others wait to join.

    It comes after the callbacks whose states checkpoints have.

    Args:
        every: steps from one state to the next that is kept.

    Attributes:
        regroups: the run ends so that others can join it.
    """

    name = "elastic"

    def __init__(self, every: int = 1) -> None:
        self._every, self._memory, self.regroups = every, HostMemory(), False
        self._writes = place_in(os.environ).local_rank == 0  # the others of this host have the same state

    def after_step(self, run: Run) -> None:
        if run.steps_done % self._every == 0:
            self._keep(run)

    def after_epoch(self, run: Run, results: EpochResults) -> None:
        self._keep(run)
        if run.epochs_done < run.options.epochs and not run.ends and others_wait_to_join(run.group):
            self.regroups = run.stopped = True

    def _keep(self, run: Run) -> None:
        checkpoint = run.checkpoint()
        if self._writes:
            self._memory.write(_number(checkpoint), checkpoint)

    def newest(self, group: ProcessGroup, stored: tuple[str, Checkpoint] | None) -> tuple[str, Checkpoint] | None:
        """Return the newest state that a host has in memory, or the stored one if that is newer, and where it was.

        Args:
            group: the processes, all of which call it.
            stored: the newest in a file; None: there is none.
        """
        numbers = group.gather(self._memory.newest)
        newest = max(numbers)
        if newest < 0 or stored is not None and _number(stored[1]) > newest:
            return stored
        rank = numbers.index(newest)
        state = group.broadcast(self._memory.read() if group.rank == rank else None, rank)
        assert state is not None  # that rank has one
        return f"the memory of rank {rank}", state


def _number(checkpoint: Checkpoint) -> int:
    """Return how new a state is: after the evaluation of an epoch it is newer than before, at the same step."""
    return checkpoint.step * _EPOCHS + checkpoint.state.get("epochs_done", 0)
