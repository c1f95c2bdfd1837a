"""Why tests may be skipped: a run ends with the reasons and their counts, and ``--complete`` allows few of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["ALLOWED", "not_allowed", "reasons_of", "report_lines"]

# What a machine with all tools and extras may lack: GPUs, other processors, libraries of gigabytes. The last ones are
# cases of a table that have nothing to test.
ALLOWED = (
    r"needs CuPy and NVIDIA GPUs, \d or more; found \d",
    r"needs emulated GPUs \(make test-emulated\)",
    r"needs CuPy and the wheel nvidia-nccl-cu12",
    r"needs cuDNN's wheels: .*",
    r"could not import 'cudnn': .*",
    r"NVRTC is not installed; .*",
    r"this MPI starts over any store",
    r"PEER_PYTHON names no interpreter with torch",
    r"RAY_PYTHON names no interpreter with Ray",
    r"no Slurm cluster here",
    r"ranks read one another's memory only on Linux on x86",
    r"needs a CPU with AVX512_BF16; others may compute in float32",
    r"kernels may choose float32 on a CPU without AVX512_BF16",
    r"this CPU has no more than .*",
    r"the library has (only its reference|no quick product) .*",
    r"for AMX the library has such a kernel",
    r"the kernel is for blocks of 16 channels",
    # cases of a table that have nothing to test
    r"FC always has a bias",
    r"a table outside the replicas is made by the caller",
    r"got empty parameter set for .*",
    r"everything is done at once",
    r"it names no row",
    r"its tests draw no arrays.*",
)


def reasons_of(reports: Iterable[Any]) -> Counter[str]:
    """Return how many tests were skipped for each reason, given pytest's reports of skipped tests."""
    found: Counter[str] = Counter()
    for report in reports:
        place = report.longrepr
        reason = place[2] if isinstance(place, tuple) else str(place)
        found[reason.removeprefix("Skipped: ")] += 1
    return found


def report_lines(reasons: Counter[str]) -> Iterator[str]:
    """Yield a line for each reason, the most frequent one first."""
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        yield f"{count:6}  {reason}"


def not_allowed(reasons: Iterable[str]) -> list[str]:
    """Return the reasons that a machine with all tools and extras does not give."""
    return sorted(each for each in reasons if not any(re.fullmatch(allowed, each) for allowed in ALLOWED))
