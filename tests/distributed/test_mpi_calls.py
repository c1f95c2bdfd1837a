"""The calls of MPI that an exchange makes."""

from types import SimpleNamespace

import numpy as np
import pytest

from netbuilder.distributed.transport import mpi as over_mpi
from netbuilder.distributed.transport.mpi import MpiCommunicator


class Counted:
    """A communicator of mpi4py, of two ranks, that counts allreduces by their bytes."""

    def __init__(self):
        self.given = []

    def Get_rank(self):
        return 0

    def Get_size(self):
        return 2

    def Iallreduce(self, place, part, op):
        self.given.append(part.nbytes)
        part *= 2
        return SimpleNamespace(Test=lambda status: True)


@pytest.mark.parametrize(("mib", "calls"), [(1, 1), (9, 1), (16, 1), (17, 2), (33, 3)], ids=lambda value: str(value))
def test_a_bucket_is_one_call_and_a_large_array_several(monkeypatch, mib, calls):
    """Buckets have 4 MiB, or one layer's; beyond 16 MiB one call is slower than several."""
    monkeypatch.setattr(over_mpi, "mpi", lambda: SimpleNamespace(IN_PLACE=object(), SUM=object(), MAX=object()))
    raw = Counted()
    array = np.ones((mib << 20) // 4, np.float32)
    MpiCommunicator(raw).allreduce(array)
    assert len(raw.given) == calls and sum(raw.given) == array.nbytes
    assert (array == 2).all()
