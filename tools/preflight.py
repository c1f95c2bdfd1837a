"""Check that the processes of a job find one another and agree: ``netbuilder-preflight``."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence

from netbuilder.distributed import ProcessGroup, Rendezvous, preflight, set_collective_timeout
from netbuilder.distributed.preflight_checks import preflight_by
from netbuilder.distributed.transport.launchers import place_in
from netbuilder.proto import DistributedError
from netbuilder.proto.cores import core_count
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.tools.options import OptionsParser, engine_option, option
from netbuilder.tools.parser import real_number
from netbuilder.tools.reporting import reporting

__all__ = ["main"]


@reporting("netbuilder-preflight")
def main(arguments: Sequence[str] | None = None) -> int:
    """Check the processes that the launcher has started; rank 0 prints where they are. Return 1 if they disagree."""
    options = OptionsParser(_Options, prog="netbuilder-preflight").parse(arguments)
    rendezvous = Rendezvous.from_environment(engine=options.engine, store=options.store, run_id=options.run_id)
    launcher = place_in(os.environ).launcher
    if rendezvous.num_shards == 1:
        print(
            f"1 process, started by {launcher}: there is nothing to check; start this as the job will be, for example "
            "by netbuilder-launch -n 4 -m netbuilder.tools.preflight"
        )
        return 0
    store = rendezvous.shared_store()
    if store is not None:
        preflight(rendezvous, store=store, name="command", timeout=options.timeout)
    set_collective_timeout(options.timeout, first=options.timeout)
    if rendezvous.engine == "NCCL":
        rendezvous.see_own_gpus()
    group = ProcessGroup(rendezvous, name="preflight", timeout=options.timeout)
    if store is None:
        preflight_by(group.gather, rendezvous, {}, nets=())
    _check_sum(group)
    places = group.gather(_place(rendezvous))
    if group.is_first:
        by = f"{launcher}, engine {rendezvous.engine}, {f'{store}' if store is not None else 'without a store'}"
        print(f"{group.size} processes, started by {by}")
        for rank, place in enumerate(places):
            print(f"rank {rank}: {place}")
        print("all processes agree and have exchanged values", flush=True)
    group.wait()
    return 0


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Check, in seconds, that the processes of a job find one another, have different ranks, the same number of
    processes and the same versions, and exchange values. Start it as the job: by netbuilder-launch -m
    netbuilder.tools.preflight, mpiexec or srun. All processes end with the same error if something is wrong.
    """

    engine: str | None = engine_option("that of the launcher")
    store: str | None = option("a store that all processes see, such as file:/shared/run7", metavar="ADDRESS")
    run_id: str | None = option("text that other runs in this store do not have", metavar="TEXT")
    timeout: float = option(
        "how long processes wait for one another", type=real_number(0.001, 1e9), default=10.0, metavar="SECONDS"
    )


def _check_sum(group: ProcessGroup) -> None:
    (total,) = group.sum(group.rank + 1)
    want = group.size * (group.size + 1) // 2
    if total != want:
        raise DistributedError(
            f"the ranks from 1 to {group.size} add up to {total:g} over the processes, not to {want}"
        )


def _place(rendezvous: Rendezvous) -> str:
    cores = core_count()
    local = f"{rendezvous.local_rank} of {rendezvous.local_size} there"
    return f"host {socket.gethostname()}, process {os.getpid()}, {local}, may use {cores} core{'s' * (cores != 1)}"


if __name__ == "__main__":
    sys.exit(main())
