"""The memory that a run of a net may take: an argument of the net, in bytes or as a fraction of what it would take."""

from __future__ import annotations

import math
import re
from typing import Any

from netbuilder.proto import NetDef, NetError
from netbuilder.proto.arguments import set_argument
from netbuilder.proto.call_checks import is_whole
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.suggestions import did_you_mean

__all__ = [
    "BUDGET_ARGUMENT",
    "MemoryBudgetError",
    "Shortfall",
    "clear_stored_budget",
    "parse_budget",
    "set_stored_budget",
]

BUDGET_ARGUMENT = "memory_budget"
"""The argument of a net that has its budget."""

_TEXT = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%|[a-z]*)\s*", re.IGNORECASE)

_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
          "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}  # fmt: skip


class MemoryBudgetError(NetError):
    """A budget is too small whatever is computed again.

    Args:
        message: says so.
        budget: in bytes, also where it was given as a fraction.
    """

    def __init__(self, message: str, budget: int = 0) -> None:
        super().__init__(message)
        self.budget = budget


@dataclass(frozen=True)
class Shortfall:
    """A budget that a net cannot keep to, and what it needs.

    Args:
        net: its name.
        budget: in bytes.
        least: the bytes of a run that needs as few as possible.
        fixed: those of them that are for parameters, inputs and blobs that can be fetched.
        whole: the bytes of a run that computes nothing again.
        share: a budget that was given as a fraction, and the bytes that it is of; None: it was given in bytes.
    """

    net: str
    budget: int
    least: int
    fixed: int
    whole: int
    share: tuple[float, int] | None = None

    def __str__(self) -> str:
        what, as_fraction = f"{self.budget:,} bytes", ""
        if self.share is not None:
            fraction, reference = self.share
            what = f"{fraction:.4g} ({what})"
            as_fraction = f" (a fraction of {math.ceil(1e4 * self.least / reference) / 1e4:.4g})"
        no_less = "; nothing in it can be computed again to need less" if self.least >= self.whole else ""
        return (
            f"net {self.net!r}: memory_budget={what} is too small: a run needs at least {self.least:,} bytes"
            f"{as_fraction}, {self.fixed:,} of them for parameters, inputs and blobs that can be fetched "
            f"({self.whole:,} with nothing computed again{no_less}); give a larger budget, or feed smaller batches"
        )

    @property
    def error(self) -> MemoryBudgetError:
        """The error that says so."""
        return MemoryBudgetError(str(self), self.budget)


def parse_budget(value: Any, where: str) -> int | float:
    """Return a budget as a whole number of bytes, or as a fraction above 0 and at most 1.

    Args:
        value: a whole number of bytes; a fraction; or a string with either, such as "4GiB", "600 MB", "0.6" or "60%".
        where: who gives it, for the message.

    Raises:
        NetError: it is none of these, or a number of bytes from 2 to 100 without unit, which is meant as a percentage.

    >>> parse_budget("1.5GiB", "net 'train'"), parse_budget("60%", "net 'train'")
    (1610612736, 0.6)
    """
    if is_whole(value) and value > 0:
        return _bytes(int(value), where)
    if isinstance(value, float) and 0 < value <= 1:
        return value
    found = _TEXT.fullmatch(value) if isinstance(value, str) else None
    if found is not None:
        number, unit = float(found[1]), found[2].lower()
        if unit == "%" and 0 < number <= 100:
            return number / 100
        if unit == "" and 0 < number <= 1:
            return number
        if unit in _UNITS and number * _UNITS[unit] >= 1 and (unit or number.is_integer()):
            return int(number * _UNITS[unit]) if unit else _bytes(int(number), where)
    raise NetError(
        f"{where}: memory_budget must be a number of bytes, such as 4294967296 or '4GiB', or a fraction above 0 and at "
        f"most 1 of what a run would take, such as 0.6 or '60%'; got {value!r}"
    )


def _bytes(number: int, where: str) -> int:
    if 1 < number <= 100:
        raise NetError(
            f"{where}: memory_budget={number} is a number of bytes, which no net fits in"
            f"{did_you_mean(str(number), [f'{number}%'])}"
        )
    return number


def set_stored_budget(net: NetDef, value: Any) -> None:
    """Store a budget in a net.

    Raises:
        NetError: it is no budget, see ``parse_budget``.
    """
    parse_budget(value, f"net {net.name!r}")
    set_argument(net, BUDGET_ARGUMENT, str(value))


def clear_stored_budget(net: NetDef) -> None:
    """Remove the budget that a net stores, if any."""
    kept = [argument for argument in net.arg if argument.name != BUDGET_ARGUMENT]
    del net.arg[:]
    net.arg.extend(kept)
