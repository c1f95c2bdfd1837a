"""Numbers that the host computes for each run, such as the key of random numbers: kernels read them from GPU memory.

So the arguments of a launch are the same in each run, and a CUDA graph can repeat it. By itself a kernel uploads its
numbers before each launch. A graph reads those of all of its kernels from one table, which is uploaded, by one copy
from pinned memory, before the graph is launched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from netbuilder.engines.gpu import GPU
from netbuilder.engines.upload import PinnedRing

__all__ = ["NumberTable", "RunNumbers", "noting"]

_WORD = np.dtype(np.uint64)


class _OfThread(threading.local):
    """What a thread's launches do about their numbers."""

    table: NumberTable | None = None
    noted: dict[RunNumbers, None] | None = None


_of_thread = _OfThread()


class RunNumbers:
    """The numbers of a kernel, of 64 bits each.

    Args:
        here: the GPU.
        count: how many.
        compute: returns their present values: NumPy's float64, int64 or uint64, or an array of a type of 64 bits.
    """

    def __init__(self, here: GPU, count: int, compute: Callable[[], Any]) -> None:
        self.count, self.compute = count, compute
        self._own = _Upload(here, count)

    def write(self, words: Any) -> None:
        """Write the present values into an array of uint64."""
        found = self.compute()
        if isinstance(found, np.ndarray):
            words[...] = found.view(_WORD)
            return
        for k, number in enumerate(found):
            words[k] = number.view(_WORD)

    def words(self) -> Any:
        """Return the array on the GPU that a launch now has to read."""
        if _of_thread.table is not None:
            return _of_thread.table[self]
        if _of_thread.noted is not None:
            _of_thread.noted[self] = None
        self.write(self._own.host)
        self._own.begin()
        return self._own.array


class _Upload:
    """Words of the host and their copy on a GPU."""

    def __init__(self, here: GPU, count: int) -> None:
        self._here = here
        self.host = np.zeros(count, _WORD)
        with here:
            self.array = here.xp.empty(count, _WORD)
        self._ring = PinnedRing(here, self.host.nbytes)

    def begin(self) -> None:
        """Begin to copy the words, after what the GPU computes now."""
        with self._here:
            self._ring.upload(self.host, self.array, self._here.stream().raw)


class NumberTable:
    """The numbers of several kernels in one array.

    Args:
        here: the GPU.
        members: the numbers, at least one.
    """

    def __init__(self, here: GPU, members: Sequence[RunNumbers]) -> None:
        ends = np.cumsum([each.count for each in members]).tolist()
        self._upload = _Upload(here, ends[-1])
        parts = [slice(end - each.count, end) for each, end in zip(members, ends)]
        self._host = {each: self._upload.host[part] for each, part in zip(members, parts)}
        self._views = {each: self._upload.array[part] for each, part in zip(members, parts)}

    def __getitem__(self, member: RunNumbers) -> Any:
        return self._views[member]

    def upload(self) -> None:
        """Begin to copy the present values to the GPU, after what it computes now."""
        for member, words in self._host.items():
            member.write(words)
        self._upload.begin()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Inside, launches of this thread read the table's numbers and upload none."""
        _of_thread.table = self
        try:
            yield
        finally:
            _of_thread.table = None


@contextmanager
def noting() -> Iterator[list[RunNumbers]]:
    """Inside, the numbers of this thread's launches are noted; the list has them afterwards."""
    found: list[RunNumbers] = []
    _of_thread.noted = {}
    try:
        yield found
    finally:
        found += _of_thread.noted
        _of_thread.noted = None
