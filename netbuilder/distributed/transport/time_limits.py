"""How long a process waits for the others in a collective, where the collective itself has no time limit."""

from __future__ import annotations

import functools
import math
import os
from typing import Any

from netbuilder.proto.errors import NetError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["FIRST_VARIABLE", "VARIABLE", "TimeLimits", "given_limits", "set_collective_timeout", "time_limits"]

VARIABLE = "NETBUILDER_COLLECTIVE_TIMEOUT"
"""Seconds that a collective waits for other processes; 0: no limit."""
FIRST_VARIABLE = "NETBUILDER_FIRST_COLLECTIVE_TIMEOUT"
"""Seconds that it waits until the process has exchanged anything; 0: no limit."""

_SECONDS = 60.0
_TIMES_LONGER = 10.0  # before the first step processes load their data, and compile plans
_TIMES_LONGER_BETWEEN = 5.0  # one of them may do what the others do not, such as write a checkpoint


@dataclass(frozen=True)
class TimeLimits:
    """Time limits of collectives.

    Args:
        seconds: how long a collective waits for other processes; None: for ever.
        first: how long one waits until this process has exchanged anything; None: for ever.
        between: how long processes wait for one another between two steps; None: for ever. It is longer than
            ``seconds`` unless that was asked for.
    """

    seconds: float | None
    first: float | None
    between: float | None


given_limits: TimeLimits | None = None


def set_collective_timeout(seconds: float | None, first: float | None = None) -> None:
    """Set how long collectives of this process wait for other processes, in place of what the environment says.

    Args:
        seconds: 0 or None: no limit.
        first: limit until this process has exchanged anything, as processes load their data at different speeds; None:
            ten times as long; 0: no limit.

    Raises:
        NetError: a number is negative or not finite.
    """
    global given_limits
    given_limits = _limits(seconds, first, "set_collective_timeout: ")


def time_limits() -> TimeLimits:
    """Return the time limits of this process.

    Raises:
        NetError: a variable in the environment is no number of seconds.
    """
    if given_limits is not None:
        return given_limits
    given = os.environ
    seconds = given[VARIABLE] if VARIABLE in given else None  # ``get`` takes several times as long for a missing one
    return _in_environment(seconds, given[FIRST_VARIABLE] if FIRST_VARIABLE in given else None)


@functools.lru_cache(maxsize=1)
def _in_environment(seconds: str | None, first: str | None) -> TimeLimits:
    return _limits(seconds or _SECONDS, first or None, f"{VARIABLE}, {FIRST_VARIABLE}: ", asked=bool(seconds))


def _limits(seconds: Any, first: Any, where: str, *, asked: bool = True) -> TimeLimits:
    limit = _limit(seconds, where)
    between = limit if asked or limit is None else _TIMES_LONGER_BETWEEN * limit
    if first is None:
        return TimeLimits(limit, None if limit is None else _TIMES_LONGER * limit, between)
    return TimeLimits(limit, _limit(first, where), between)


def _limit(given: Any, where: str) -> float | None:
    try:
        value = 0.0 if given is None else float(given)
    except (TypeError, ValueError):
        value = -1.0
    if not 0 <= value < math.inf:
        raise NetError(f"{where}a time limit must be a number of seconds, or 0 for none, got {given!r}")
    return value or None
