"""Benchmarks against other libraries, on the same machine in the same run: ``netbuilder-benchmark TASK...``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from netbuilder.runtime.plan.optimizations import VARIABLE
from netbuilder.tools.bench.machine import busy_share, describe_machine, warn_if_busy
from netbuilder.tools.bench.options import Options
from netbuilder.tools.bench.report import Line, pairs_table, write_records
from netbuilder.tools.bench.works import WORKS, works_help
from netbuilder.tools.common_options import check_outputs
from netbuilder.tools.options import OptionsParser
from netbuilder.tools.parser import Help
from netbuilder.tools.reporting import reporting
from netbuilder.tools.terminal import WRONG, print_line, print_report

__all__ = ["main"]


class _Help(Help, argparse.RawDescriptionHelpFormatter):
    """Leaves the list of tasks as it is."""


@reporting("netbuilder-benchmark", ValueError, RuntimeError, status=2)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run benchmarks and print a line for each.

    Returns:
        The exit status: 0; 1 if a check failed or a result is invalid; 2 if something is missing or failed.
    """
    options = OptionsParser(Options, prog="netbuilder-benchmark", epilog=works_help(), formatter_class=_Help).parse(
        arguments
    )
    check_outputs(options, "json", "report")
    machine, busy = describe_machine(), busy_share()
    print(machine, flush=True)
    if options.without:
        os.environ[VARIABLE] = ",".join(sorted(options.without))  # inherited by our worker processes
        print(f"without {', '.join(sorted(options.without))}", flush=True)
    if not options.check:
        warn_if_busy(busy)
    lines: list[Line] = []
    for task in options.task:
        for line in WORKS[task].lines(options):
            print_line(line.text, "" if line.good else WRONG)
            lines.append(line)
            if options.json:
                write_records(options.json, machine, busy, lines)
    if len((table := pairs_table(lines)).rows) > 1:
        print_report(["", table])
    return 0 if all(line.good for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
