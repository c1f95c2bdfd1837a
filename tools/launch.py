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
from netbuilder.proto.os_errors import no_such_file
from netbuilder.tools.parser import Parser, count, real_number, whole_number
from netbuilder.tools.reporting import reporting

__all__ = ["main"]

_STREAMS = {"none": (), "stderr": ("stderr",), "all": ("stdout", "stderr")}


@reporting("netbuilder-launch", output_optional=True)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program that the command line names in several processes; return its exit status."""
    parser = _parser()
    options, unknown = parser.parse_known_args(arguments)
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
        raise NetError(f"{given!r}: {reason}; give a Python file, or -m and a module")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="netbuilder-launch",
        description="Run a Python program in several processes that train together, over MPI where mpi4py is "
        "installed. When one fails, all are ended, and the exit status is that of the first one. Ctrl-C and SIGTERM "
        "are passed on to all of them. docs/distributed.md describes the use on several nodes.",
    )
    parser.add_argument("-n", "--processes", type=count, default=1, metavar="N", help="processes on each node")
    parser.add_argument("-m", "--module", action="store_true", help="the program is a module, as with python -m")
    parser.add_argument("program", help="a Python file, or a module with -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own arguments")
    parser.add_argument("--engine", type=str.upper, choices=("MPI", "NCCL"), help="default: MPI if it is installed")
    parser.add_argument("--threads", type=count, metavar="N",
                        help="threads of each process (default: its share of the node's cores)")  # fmt: skip
    parser.add_argument("--gpus", type=count, metavar="N",
                        help="GPUs of each process, which it sees as 0, 1, ... (default: it sees all)")  # fmt: skip
    parser.add_argument("--pin", action="store_true", help="give each process cores of its own")
    parser.add_argument("--prefix", choices=tuple(_STREAMS), default="stderr",
                        help="streams whose lines begin with the rank (default: stderr)")  # fmt: skip
    parser.add_argument("--only-rank-0", action="store_true", help="leave out the standard output of other ranks")
    parser.add_argument("--grace", type=real_number(0, 1e9), default=30.0, metavar="SECONDS",
                        help="time to write checkpoints after Ctrl-C or SIGTERM (default: 30)")  # fmt: skip
    parser.add_argument("--restarts", type=whole_number(), default=0, metavar="N",
                        help="start the job again after a failure, N times at most")  # fmt: skip
    parser.add_argument("--collective-timeout", type=real_number(0, 1e9), metavar="SECONDS",
                        help="time that a collective waits for other processes, ten times as long the first time; 0: "
                        "no limit (default: 60)")  # fmt: skip
    nodes = parser.add_argument_group("several nodes: the same command on each, with its own --node-rank")
    nodes.add_argument("--hosts", default="", metavar="HOST,HOST", help="names or addresses of all nodes")
    nodes.add_argument(
        "--node-rank", type=whole_number(), default=0, metavar="R", help="which of the hosts this is, from 0 on"
    )
    nodes.add_argument("--port", type=count, default=Job.port, help="port on the first host (default: %(default)s)")
    nodes.add_argument("--secret-file", metavar="FILE",
                       help=f"file only you can read, of 16 random characters or more (default: {SECRET})")  # fmt: skip
    nodes.add_argument("--start-timeout", type=real_number(0, 1e9), default=60.0, metavar="SECONDS",
                       help="time to wait for the other nodes (default: 60)")  # fmt: skip
    return parser


def _job(options: argparse.Namespace) -> Job:
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
        restarts=options.restarts,
        collective_timeout=options.collective_timeout,
        start_timeout=options.start_timeout,
    )


if __name__ == "__main__":
    sys.exit(main())
