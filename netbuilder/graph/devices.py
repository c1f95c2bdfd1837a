"""The devices on which the replicas of a data-parallel net run, and the name scopes of their blobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from netbuilder.graph.blob import device_prefix
from netbuilder.graph.scope import SEPARATOR
from netbuilder.proto import PROTO_CPU, DeviceOption, NetError
from netbuilder.proto.arguments import make_device_option
from netbuilder.proto.call_checks import checked
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Devices", "check_groups"]


_LISTED = 8


@checked()
@dataclass(frozen=True)
class Devices:
    """One device per replica, in the order of the replicas.

    Args:
        device_type: PROTO_CPU or PROTO_CUDA.
        ids: device numbers, all different; gaps and any order are allowed.

    >>> Devices(PROTO_CPU, (0, 3)).scopes
    ('cpu_0/', 'cpu_3/')
    >>> print(Devices(PROTO_CPU, (0, 3)), Devices(PROTO_CPU, (0, *range(16, 32))), sep="; ")
    CPU 0, 3; CPU 0, 16 to 31
    """

    device_type: int
    ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(set(self.ids)) < len(self.ids):
            raise NetError(f"devices must all be different, got {list(self.ids)}")

    def __len__(self) -> int:
        return len(self.ids)

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        return f"{'CPU' if self.is_cpu else 'GPU'} {', '.join(_runs(self.ids))}"

    @property
    def is_cpu(self) -> bool:
        return self.device_type == PROTO_CPU

    @property
    def word(self) -> str:
        """The first part of the scopes: "cpu" or "gpu"."""
        return device_prefix(self.device_type, 0).rpartition("_")[0]

    @cached_property
    def options(self) -> tuple[DeviceOption, ...]:
        """The devices as messages, which must not be changed."""
        return tuple(make_device_option(self.device_type, number) for number in self.ids)

    @cached_property
    def scopes(self) -> tuple[str, ...]:
        """The name scope of each replica, including the final "/"."""
        return tuple(device_prefix(self.device_type, number) + SEPARATOR for number in self.ids)

    @cached_property
    def _replica_of_scope(self) -> dict[str, int]:
        return {scope: replica for replica, scope in enumerate(self.scopes)}

    def replica_of(self, blob: str) -> int | None:
        """Return the replica in whose scope ``blob`` is; None if it is outside all of them.

        >>> Devices(PROTO_CPU, (0, 3)).replica_of("cpu_3/fc_w")
        1
        """
        return self._replica_of_scope.get(blob[: blob.find(SEPARATOR) + 1])

    def short_name(self, blob: str) -> str:
        """Return the name of a blob without its replica's scope; a name outside the scopes is unchanged."""
        scope = blob[: blob.find(SEPARATOR) + 1]
        return blob[len(scope) :] if scope in self._replica_of_scope else blob

    def copies(self, short_name: str) -> tuple[str, ...]:
        """Return the names of a blob's copies, one per device.

        >>> Devices(PROTO_CPU, (0, 3)).copies("fc_w")
        ('cpu_0/fc_w', 'cpu_3/fc_w')
        """
        return tuple([scope + short_name for scope in self.scopes])


def _runs(numbers: Sequence[int]) -> Iterator[str]:
    """Yield the numbers as text, long runs of consecutive ones as "0 to 15": each operator of a reduction has them."""
    start = 0
    for end in range(1, len(numbers) + 1):
        if end < len(numbers) and numbers[end] == numbers[end - 1] + 1:
            continue
        run = numbers[start:end]
        yield from map(str, run) if len(run) <= _LISTED else (f"{run[0]} to {run[-1]}",)
        start = end


def check_groups(groups: Sequence[Sequence[str]], devices: Devices) -> None:
    """Raise NetError unless each group has one blob per device."""
    for group in groups:
        if len(group) != len(devices):
            raise NetError(
                f"group {list(group)} must have one blob for each of the {len(devices)} devices ({devices}), "
                f"got {len(group)}"
            )
