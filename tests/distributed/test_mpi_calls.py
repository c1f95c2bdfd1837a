"""The calls of MPI that an exchange makes."""

from types import SimpleNamespace

import numpy as np
import pytest

from netbuilder.distributed.transport import mpi as over_mpi
from netbuilder.distributed.transport.mpi import MpiCommunicator


class Counted:
    """A communicator of mpi4py, of two ranks, that counts allreduces by their bytes."""

    def __init__(self, lasts=lambda: 0.0, now=lambda: 0.0):
        self.given, self._lasts, self._now = [], lasts, now

    def Get_rank(self):
        return 0

    def Get_size(self):
        return 2

    def Iallreduce(self, place, part, op):
        self.given.append(part.nbytes)
        part *= 2
        ends = self._now() + self._lasts()
        return SimpleNamespace(Test=lambda status: self._now() >= ends)


@pytest.fixture(autouse=True)
def no_mpi(monkeypatch):
    monkeypatch.setattr(over_mpi, "mpi", lambda: SimpleNamespace(IN_PLACE=object(), SUM=object(), MAX=object()))


@pytest.mark.parametrize(("mib", "calls"), [(1, 1), (9, 1), (16, 1), (17, 2), (33, 3)], ids=lambda value: str(value))
def test_a_bucket_is_one_call_and_a_large_array_several(mib, calls):
    """Buckets have 4 MiB, or one layer's; beyond 16 MiB one call is slower than several."""
    raw = Counted()
    array = np.ones((mib << 20) // 4, np.float32)
    MpiCommunicator(raw).allreduce(array)
    assert len(raw.given) == calls and sum(raw.given) == array.nbytes
    assert (array == 2).all()


def test_ranks_that_were_there_are_awaited_without_pauses(monkeypatch):
    """Where nobody has asked, a call begins with pauses only after one for which other ranks were late."""
    clock, pauses, lasts = [0.0], [], [0.0]

    def tick(seconds=1e-5):
        clock[0] += seconds

    monkeypatch.setattr(
        over_mpi,
        "time",
        SimpleNamespace(perf_counter=lambda: clock[0], sleep=lambda seconds: (tick(seconds), pauses.append(seconds))),
    )
    monkeypatch.setattr(over_mpi.os, "sched_yield", tick)
    communicator = MpiCommunicator(Counted(lambda: lasts[0], lambda: clock[0]))

    def pauses_of_one_that_lasts(seconds, unasked):
        pauses.clear()
        lasts[0], communicator.unasked = seconds, unasked
        communicator.allreduce(np.ones(4, np.float32))
        return len(pauses)

    assert pauses_of_one_that_lasts(5e-3, None) == 0, "all ranks have begun it"
    assert pauses_of_one_that_lasts(5e-3, 5e-3) > 10, "nothing is known of the others"
    assert pauses_of_one_that_lasts(5e-3, 5e-3) == 0, "they were there"
    assert pauses_of_one_that_lasts(0.1, 5e-3) > 10, "they come late"
    assert pauses_of_one_that_lasts(5e-3, 5e-3) > 10, "they were late"
