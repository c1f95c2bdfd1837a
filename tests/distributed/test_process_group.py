"""ProcessGroup: sums, values of all processes, values of one, and checks; ranks are threads here."""

import math
import re
from unittest import mock

import numpy as np
import pytest

from netbuilder.distributed import ProcessGroup, Rendezvous, process_group, set_collective_timeout
from netbuilder.distributed.transport import time_limits
from netbuilder.proto import DistributedError, NetError
from thread_ranks import on_ranks, thread_worlds


def on_groups(size, function):
    worlds = thread_worlds(size)
    return on_ranks(size, lambda rank: function(ProcessGroup.over(worlds[rank])))


def test_sums_are_the_same_bits_on_all_ranks():
    values = np.random.default_rng(0).normal(size=(3, 50)) * 1e9
    found = on_groups(3, lambda group: group.sum(*values[group.rank]))
    want = (values[0] + values[1]) + values[2]
    assert all(each == want.tolist() for each in found)


def test_values_of_all_and_of_one():
    def exchange(group):
        everything = group.gather("x" * group.rank)
        big = {"blob": np.arange(1000) * (1 + group.rank), "none": None}
        group.wait()
        return everything, group.broadcast(big if group.rank == 2 else None, root=2), repr(group), group.is_first

    for rank, (everything, big, text, first) in enumerate(on_groups(3, exchange)):
        assert everything == ["", "x", "xx"]
        np.testing.assert_array_equal(big["blob"], np.arange(1000) * 3)
        assert text == f"ProcessGroup(rank {rank} of 3)" and first == (rank == 0)


def test_one_process_needs_no_others():
    for group in (ProcessGroup(), ProcessGroup(Rendezvous(1, 0))):
        assert (group.rank, group.size, group.is_first) == (0, 1, True)
        assert group.gather(3) == [3] and group.broadcast("x") == "x" and group.sum(1, 2) == [1.0, 2.0]
        group.wait()
        group.require_equal({"steps": 5})
        group.report_failure(ValueError("not told to anybody"))


def test_differences_are_named():
    facts = [{"steps": 5, "batch": 32}, {"steps": 6, "batch": 32}, {"steps": 5, "batch": 32, "seed": 1}]
    text = "the processes differ in steps (5 on rank 0, 2; 6 on rank 1), seed (nothing on rank 0, 1; 1 on rank 2)"
    for error in on_groups(3, lambda group: group.require_equal(facts[group.rank])):
        assert isinstance(error, DistributedError) and str(error).startswith(text)
    assert on_groups(2, lambda group: group.require_equal({"steps": 5})) == [None, None]


def test_a_failure_reaches_the_others():
    def work(group):
        if group.rank == 1:
            group.report_failure(OSError("no images"))
            return None
        return group.sum(1)

    first, _ = on_groups(2, work)
    assert isinstance(first, DistributedError)
    assert re.search(r"rank 1 of 2 has failed \(OSError: no images\)", str(first))


def test_bad_arguments():
    with pytest.raises(NetError, match=r"root must be in \[0, 1\), got 1"):
        ProcessGroup().broadcast(0, root=1)


def test_it_waits_for_the_limit_that_was_asked_for(monkeypatch):
    limits, patient = [], []

    def create_world(name, size, rank, timeout, *place):
        limits.append(timeout)
        patient.append(mock.Mock())
        return patient[-1]

    monkeypatch.setattr(process_group, "create_world", create_world)
    monkeypatch.setattr(time_limits, "given_limits", None)
    monkeypatch.delenv(time_limits.VARIABLE, raising=False)
    ProcessGroup(Rendezvous(2, 0))
    for seconds in (20, 0):
        set_collective_timeout(seconds)
        ProcessGroup(Rendezvous(2, 0))
    ProcessGroup(Rendezvous(2, 0), timeout=7)
    assert limits == [300, 20, math.inf, 7]
    assert [world.patient for world in patient] == [True, True, True, False]
