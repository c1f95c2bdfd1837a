"""Link: latency and bandwidth of what connects two processes, given as numbers or measured."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Link", "bandwidth_of", "seconds_of"]

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
_RATE = re.compile(r"([0-9.eE+-]+?)\s*([kMGT]|[KMG]i|)(bit|b|B)/s")
_TIME = re.compile(r"([0-9.eE+-]+?)\s*(s|ms|us|ns)")


@dataclass(frozen=True)
class Link:
    """What connects two processes, by the alpha-beta model: a message of n bytes takes latency + n / bandwidth.

    Args:
        latency: seconds of a message of no bytes, 0 or more.
        bandwidth: bytes per second in each direction, for messages that no value of ``curve`` covers.
        curve: measured (bytes of the value that is summed, bandwidth while it is), in ascending order of bytes: values
            that fit in a cache are exchanged faster in the memory of one host. Between two sizes the bandwidth is
            interpolated over the logarithm of the size; beyond the ends it is that of the nearer end.

    Raises:
        ArgumentError: a number is out of range, or the sizes are not ascending.

    Source: Hockney, "The communication challenge for MPP", Parallel Computing 20 (3), 1994.
    """

    latency: float
    bandwidth: float
    curve: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.latency) and self.latency >= 0):
            raise ArgumentError(f"link: the latency must be 0 or more seconds, got {self.latency}")
        for rate in (self.bandwidth, *(rate for _, rate in self.curve)):
            if not rate > 0:
                raise ArgumentError(f"link: a bandwidth must be more than 0 bytes per second, got {rate}")
        sizes = [size for size, _ in self.curve]
        if any(b <= a for a, b in zip([0.0, *sizes], sizes)):
            raise ArgumentError(f"link: the sizes of its curve must be positive and ascending, got {sizes}")

    def bandwidth_at(self, nbytes: float) -> float:
        """Return the bandwidth, in bytes per second, while a value of so many bytes is summed."""
        if not self.curve:
            return self.bandwidth
        sizes, rates = np.array(self.curve).T
        return float(np.interp(np.log(max(nbytes, 1.0)), np.log(sizes), rates))

    @classmethod
    def parse(cls, text: str) -> Link:
        """Return the link that a text gives, such as "20us:50Gbit/s" or "1.5 us : 12 GB/s".

        Raises:
            ArgumentError: the text is not of this form.
        """
        latency, colon, bandwidth = text.partition(":")
        if not colon:
            raise ArgumentError(f"a link must be LATENCY:BANDWIDTH, such as 20us:50Gbit/s, got {text!r}")
        return cls(seconds_of(latency), bandwidth_of(bandwidth))

    def to_dict(self) -> dict[str, Any]:
        """Return the link as a record for JSON, which ``from_dict`` reads."""
        return {"latency": self.latency, "bandwidth": self.bandwidth, "curve": [list(point) for point in self.curve]}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Link:
        """Return the link of a record.

        Raises:
            ArgumentError: the record is of another form.
        """
        try:
            points: Sequence[Any] = record.get("curve", ())
            curve = tuple((float(size), float(rate)) for size, rate in points)
            return cls(float(record["latency"]), float(record["bandwidth"]), curve)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ArgumentError(
                f"a link's record needs 'latency' and 'bandwidth', and may have 'curve': {error!r}"
            ) from None

    def __str__(self) -> str:
        text = f"{1e6 * self.latency:.3g} us, {self.bandwidth / 1e9:.3g} GB/s"
        if not self.curve:
            return text
        rates = [rate for _, rate in self.curve]
        return f"{1e6 * self.latency:.3g} us, {min(rates) / 1e9:.3g} to {max(rates) / 1e9:.3g} GB/s by size"


def seconds_of(text: str) -> float:
    """Return the seconds that a text such as "20us" gives.

    Raises:
        ArgumentError: the text is not a number with one of the units s, ms, us and ns.
    """
    found = _TIME.fullmatch(text.strip())
    value = _number(found[1]) if found else None
    if found is None or value is None:
        raise ArgumentError(f"a time must be a number of s, ms, us or ns, such as 20us, got {text.strip()!r}")
    return value * _SECONDS[found[2]]


def bandwidth_of(text: str) -> float:
    """Return the bytes per second that a text such as "50Gbit/s" or "12GB/s" gives.

    Raises:
        ArgumentError: the text is not a number of bit/s or B/s, with a prefix or without.
    """
    found = _RATE.fullmatch(text.strip())
    value = _number(found[1]) if found else None
    if found is None or not value:
        raise ArgumentError(
            f"a bandwidth must be a number of bit/s or B/s, such as 50Gbit/s or 12GB/s, got {text.strip()!r}"
        )
    return value * _PREFIXES[found[2]] / (1 if found[3] == "B" else 8)


def _number(text: str) -> float | None:
    """Return a finite number that is not negative; None if the text is another one."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
