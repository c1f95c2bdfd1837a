"""Start a program in several processes that train together: ``netbuilder-launch -n 4 train.py``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from netbuilder.distributed.launch import Job, launch
from netbuilder.distributed.stores.secret import SECRET, read_secret, secret_in
from netbuilder.proto import NetError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.os_errors import no_such_file, said_of
from netbuilder.tools.options import OptionsParser, argument, engine_option, option, switch
from netbuilder.tools.parser import count, real_number, whole_number
from netbuilder.tools.reporting import reporting

__all__ = ["main"]

_RESTARTS = 10  # of an elastic job, unless a number is given
_STREAMS = {"none": (), "stderr": ("stderr",), "all": ("stdout", "stderr")}


@reporting("netbuilder-launch", output_optional=True)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program that the command line names in several processes; return its exit status."""
    parser = OptionsParser(_Options, prog="netbuilder-launch")
    options, unknown = parser.parse_known(arguments)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}; options of the program come after its name")
    job, program = _job(options), Path(options.program)
    if not options.module:
        _check_program(program, options.program)
    elif not options.program:
        parser.error("program: -m needs the name of a module, got ''")
    return launch(job)


def _check_program(program: Path, given: str) -> None:
    """Raise NetError for a program that Python could not run, or would wait for; said once, not by each process."""
    reason = None
    if not given:
        reason = "is no name of a file"
    elif not program.exists():
        reason = no_such_file(program)
    elif program.is_fifo():
        reason = "is a pipe, which one process could read at most"
    elif program.is_dir() and not (program / "__main__.py").exists():
        reason = "is a folder without __main__.py"
    if reason:
        raise NetError(f"{said_of(given, reason)}; give a Python file, or -m and a module")


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Run a Python program in several processes that train together, over MPI where mpi4py is installed. When one
    fails, all are ended, and the exit status is that of the first one. Ctrl-C and SIGTERM are passed on to all of
    them. docs/launching.md describes the use on several nodes.
    """

    processes: int = option("processes on each node", type=count, default=1, short="-n")
    module: bool = switch("the program is a module, as with python -m", short="-m")
    program: str = argument("a Python file, or a module with -m")
    arguments: tuple[str, ...] = argument("the program's own arguments", nargs=argparse.REMAINDER)
    engine: str | None = engine_option("MPI if it is installed")
    threads: int | None = option("threads of each process (default: its share of the node's cores)", type=count)
    gpus: int | None = option("GPUs of each process, which it sees as 0, 1, ... (default: it sees all)", type=count)
    pin: bool = switch("give each process cores of its own")
    prefix: str = option("streams whose lines begin with the rank", default="stderr", choices=tuple(_STREAMS))
    only_rank_0: bool = switch("leave out the standard output of other ranks")
    grace: float = option(
        "time to write checkpoints after Ctrl-C or SIGTERM", type=real_number(0, 1e9), default=30.0, metavar="SECONDS"
    )
    restarts: int | None = option(
        f"start the job again after a failure, N times at most (default: 0; of an elastic job {_RESTARTS})",
        type=whole_number(),
    )
    collective_timeout: float | None = option(
        "time that a process waits for the others, ten times as long for the first exchange; 0: no limit (default: 60)",
        type=real_number(0, 1e9),
        metavar="SECONDS",
    )
    hosts: str = option(
        "names or addresses of all nodes",
        default="",
        metavar="HOST,HOST",
        group="several nodes: the same command on each, with its own --node-rank",
    )
    node_rank: int = option("which of the hosts this is, from 0 on", type=whole_number(), default=0, metavar="R")
    port: int = option("port on the first host ", type=count, default=Job.port, metavar="PORT")
    secret_file: str | None = option(
        f"file only you can read, of 16 random characters or more (default: {SECRET})", metavar="FILE"
    )
    min: int | None = option(
        "go on after a loss with P processes on all hosts together, or more",
        type=count,
        metavar="P",
        group="elastic jobs: --hosts names the first host alone, or is left out",
    )
    max: int | None = option("let processes join until there are P", type=count, metavar="P")
    join: bool = switch("this is not the first host: its processes join the job at the next epoch")
    start_timeout: float = option(
        "time to wait for the other nodes", type=real_number(0, 1e9), default=60.0, metavar="SECONDS"
    )


def _job(options: _Options) -> Job:
    elastic = options.min is not None or options.max is not None
    return Job(
        [sys.executable, *(["-m"] if options.module else []), options.program, *options.arguments],
        options.processes,
        hosts=tuple(filter(None, options.hosts.split(","))),
        node_rank=options.node_rank,
        engine=options.engine,
        port=options.port,
        secret=read_secret(options.secret_file) if options.secret_file else secret_in(os.environ),
        threads=options.threads,
        gpus=options.gpus,
        pin=options.pin,
        prefix=_STREAMS[options.prefix],
        only_first=options.only_rank_0,
        grace=options.grace,
        restarts=(_RESTARTS if elastic else 0) if options.restarts is None else options.restarts,
        collective_timeout=options.collective_timeout,
        start_timeout=options.start_timeout,
        least=options.min,
        most=options.max,
        join=options.join,
    )


if __name__ == "__main__":
    sys.exit(main())
