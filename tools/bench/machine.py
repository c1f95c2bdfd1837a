"""The machine that a benchmark runs on, and whether it is idle."""

from __future__ import annotations

import platform
import sys
import time
from pathlib import Path

from netbuilder.proto.cores import core_count

__all__ = ["busy_share", "describe_machine", "warn_if_busy"]

_IDLE = 0.05  # share of the cores that other work may use before results are doubtful


def _cpu_times() -> tuple[int, int]:
    fields = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    idle = fields[3] + fields[4]
    return sum(fields), idle


def busy_share(seconds: float = 1.0) -> float:
    """Return the share of all cores that other work used over ``seconds``; 0.0 if the system does not tell."""
    try:
        total, idle = _cpu_times()
        time.sleep(seconds)
        later_total, later_idle = _cpu_times()
    except (OSError, IndexError, ValueError):
        return 0.0
    return 1.0 - (later_idle - idle) / max(later_total - total, 1)


def warn_if_busy(busy: float) -> None:
    """Say on standard error that results are doubtful, if other work uses a share of the cores."""
    if busy > _IDLE:
        print(
            f"the machine is not idle: other work uses {busy:.0%} of its cores, so results are doubtful",
            file=sys.stderr,
        )


def describe_machine() -> str:
    """Return one line about the processor, the cores and the operating system."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return (
        f"{model}, {core_count()} cores, Python {platform.python_version()}, {platform.system()} {platform.release()}"
    )
