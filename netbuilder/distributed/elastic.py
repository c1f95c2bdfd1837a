"""What the program of an elastic job does itself: keep its state for the rest after a loss, and let others join.

netbuilder-launch starts the program of an elastic job again, in another number of processes, after each loss, and when
processes that wait to join may. It goes on from the state that ``HostMemory`` holds.
"""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from netbuilder.distributed.transport.launchers import ATTEMPT, MEMORY, REGROUP, WANTED, job_store
from netbuilder.proto.errors import NetError

if TYPE_CHECKING:
    from netbuilder.distributed.process_group import ProcessGroup

__all__ = ["REGROUP", "HostMemory", "is_elastic", "others_wait_to_join"]

_HEADER = struct.Struct("=2q")  # how new it is, and its bytes; 0 bytes: nothing, or it was not written to its end


def is_elastic(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this is a process of an elastic job."""
    return bool(environment.get(MEMORY))


def others_wait_to_join(group: ProcessGroup) -> bool:
    """Whether processes wait to join the job: if so, save the state, and end with the status ``REGROUP``.

    All processes call it, and get the same answer, between two epochs say.
    """
    waiting = False
    if group.is_first and is_elastic() and (store := job_store(os.environ)) is not None:
        waiting = store.with_prefix(os.environ.get(ATTEMPT, "0")).peek(WANTED) is not None
    return group.broadcast(waiting)


class HostMemory:
    """The last states of an elastic job in the memory of a host, which outlive its processes.

    There are two, so that one is whole while the other is written. They end with the launcher of the host.

    Args:
        environment: of a process of an elastic job.

    Raises:
        NetError: the job is not elastic.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        given = environment.get(MEMORY, "")
        if not given:
            raise NetError(f"HostMemory: {MEMORY} is not set; start the job with netbuilder-launch --min or --max")
        self._files = [int(text) for text in given.split(",")]

    @property
    def newest(self) -> int:
        """How new the newest state is; -1: there is none."""
        return max(map(self._number, self._files))

    def write(self, number: int, state: Any) -> None:
        """Keep a state in place of the older one of two.

        Args:
            number: how new it is, 0 or more: larger than those of earlier states.
            state: what ``pickle`` can store.

        Raises:
            OSError: there is not enough memory; the newest state is kept.
        """
        file = min(self._files, key=self._number)
        data = memoryview(pickle.dumps(state, protocol=5))
        os.pwrite(file, _HEADER.pack(number, 0), 0)
        written = 0
        while written < len(data):
            written += os.pwrite(file, data[written:], _HEADER.size + written)
        os.pwrite(file, _HEADER.pack(number, len(data)), 0)

    def read(self) -> Any:
        """Return the newest state; None: there is none."""
        file = max(self._files, key=self._number)
        if self._number(file) < 0:
            return None
        _, length = _HEADER.unpack(os.pread(file, _HEADER.size, 0))
        data, read = bytearray(length), 0
        while read < length:
            read += os.preadv(file, [memoryview(data)[read:]], _HEADER.size + read)
        return pickle.loads(data)

    def _number(self, file: int) -> int:
        head = os.pread(file, _HEADER.size, 0)
        number, length = _HEADER.unpack(head) if len(head) == _HEADER.size else (-1, 0)
        return number if length else -1
