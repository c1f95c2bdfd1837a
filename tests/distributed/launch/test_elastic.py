"""Elastic jobs: which processes form the next world, what is left of a state, and jobs that lose and win processes."""

import os
import re
import signal
from types import SimpleNamespace

import numpy as np
import pytest

import elastic_jobs
from elastic_jobs import STEPS, ElasticJob, at_end, worlds_of
from launched import Launched, joining
from netbuilder.distributed import ProcessGroup, elastic
from netbuilder.distributed.elastic import HostMemory
from netbuilder.distributed.launch import elastic_node
from netbuilder.distributed.launch.elastic_node import ElasticNode
from netbuilder.distributed.launch.job import Job
from netbuilder.distributed.launch.node import Part
from netbuilder.distributed.stores import open_store
from netbuilder.distributed.transport.launchers import MEMORY
from netbuilder.proto import NetError
from netbuilder.tools import imagenet_trainer
from parallel_models import distance


def test_a_job_that_loses_a_process_and_is_joined_ends_as_one_that_nothing_happens_to(tmp_path):
    """A process is lost in the first epoch; a host comes meanwhile; all of them make the second one."""
    pytest.importorskip("mpi4py")
    job = ElasticJob(tmp_path, least=1, most=3, processes=2)
    job.happens(0, "SIGKILL", rank=1, step=3)
    job.happens(1, "JOIN", step=2)
    job.start()
    assert job.end() == 0, job.text
    assert re.search(r"rank 1 on \S+ was ended by SIGKILL", job.text) and "the others go on, 1 of 40" in job.text
    (two, zero), (one, begins), (three, epoch) = worlds_of(job.course)
    assert (two, zero, one, three, epoch) == (2, 0, 1, 3, STEPS) and begins in (2, 3), job.text
    alone = ["--cpu", "--model=mlp", "--batch=64", "--learning-rate=0.02", "--mixup=0.2", "--epochs=2"]
    assert imagenet_trainer.main([*alone, f"--checkpoint={tmp_path / 'alone'}"]) == 0
    got, want = at_end(tmp_path / "last", 2), at_end(tmp_path / "alone", 2)
    assert got.keys() == want.keys() and distance([got[each] for each in want], list(want.values())) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_twenty_random_losses_and_joins(seed):
    """The parameters are, to the bit, those of a run that is resumed by hand at the same steps."""
    pytest.importorskip("mpi4py")
    assert elastic_jobs.prove(20, seed) == 0


@pytest.fixture
def memory():
    files = [os.memfd_create("state") for _ in range(2)]
    yield HostMemory({MEMORY: ",".join(map(str, files))}), files
    for file in files:
        os.close(file)


def test_memory_has_the_newest_state(memory):
    held, _ = memory
    assert held.newest == -1 and held.read() is None
    for number in (3, 5, 4):
        held.write(number, {"step": number, "values": np.full(1000, number)})
    assert held.newest == 5 and held.read()["values"].tolist() == [5] * 1000
    held.write(7, "shorter")
    assert held.newest == 7 and held.read() == "shorter"


def test_a_state_that_is_not_written_to_its_end_leaves_the_other_one(memory, monkeypatch):
    held, _ = memory
    held.write(1, "one")
    held.write(2, "two")
    write = os.pwrite

    def fails(file, data, place):
        if place:
            raise OSError("killed here")
        return write(file, data, place)

    monkeypatch.setattr(elastic.os, "pwrite", fails)
    with pytest.raises(OSError, match="killed here"):
        held.write(3, "three")
    assert held.newest == 2 and held.read() == "two"


def test_outside_of_elastic_jobs(monkeypatch):
    monkeypatch.delenv(MEMORY, raising=False)
    assert not elastic.is_elastic() and not elastic.others_wait_to_join(ProcessGroup())
    with pytest.raises(NetError, match="NETBUILDER_MEMORY is not set; start the job with netbuilder-launch --min"):
        HostMemory({})


@pytest.mark.parametrize(
    "offered, resting, most, chosen",
    [
        ({0: 2, 1: 2}, {}, 4, {0: Part(0, 2), 1: Part(2, 2)}),
        ({0: 2, 1: 2}, {1: 1}, 4, {0: Part(0, 2), 1: Part(2, 1)}),
        ({0: 1, 3: 4}, {0: 1, 3: 4}, 4, {0: Part(0, 1), 3: Part(1, 1)}),
        ({1: 3, 0: 2, 2: 1}, {}, 4, {0: Part(0, 2), 1: Part(2, 2)}),
    ],
)
def test_the_processes_of_the_next_world(offered, resting, most, chosen):
    node = object.__new__(ElasticNode)
    node.job = Job(["x"], least=1, most=most)
    assert node._chosen(offered, resting) == chosen


@pytest.mark.parametrize(
    "coming, began",
    [
        ({0: 1, 10: 1, 12: 1}, (13, 3)),
        ({0: 1, 10: 1, 14: 1}, (13, 2)),
        ({0: 1, 10: 1, 11: 2}, (11, 4)),
        ({0: 2}, (3, 2)),
    ],
    ids=str,
)
def test_a_job_waits_a_little_for_more_than_the_fewest(coming, began, tmp_path, monkeypatch):
    """Three seconds from when there are two, unless there are four: the hosts come at some seconds."""
    node, now = object.__new__(ElasticNode), [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(elastic_node, "time", clock)
    monkeypatch.setattr(elastic_node, "say", lambda text: None)
    node.job = Job(["x"], least=2, most=4, hosts=["a"], secret=b"x" * 16)
    node.signals, node._resting, node.store = [], {}, open_store(f"file:{tmp_path}")
    arrivals = list(coming.items())
    node._offered = lambda: {number: count for number, (at, count) in enumerate(arrivals) if at <= now[0] + 1e-6}
    node._host = str
    assert node._form(0) is None
    assert (round(now[0]), node.size) == began


@pytest.mark.parametrize(
    "values, message",
    [
        ({"least": 3, "most": 2}, "least and most must be 1 <= least <= most, got 3 and 2"),
        ({"least": 0}, "1 <= least <= most, got 0 and None"),
        ({"join": True}, "join is for elastic jobs; give least or most"),
        ({"join": True, "most": 2}, "join needs hosts, with the name of the first host"),
        ({"most": 2, "hosts": ["a", "b"], "secret": b"x" * 16}, r"must name the first one alone, got \['a', 'b'\]"),
        ({"most": 2, "hosts": ["a"]}, "the hosts of an elastic job need a secret"),
    ],
)
def test_wrong_values(values, message):
    with pytest.raises(NetError, match=message):
        Job(**{"command": ["true"], **values})


def test_restarts_are_bounded(tmp_path):
    job = Launched(tmp_path, "exit", "-n", "3", "--min", "2", "--restarts", "1", "--engine", "NCCL")
    assert job.end() == 3, job.text
    assert "world 1 has 2 processes" in job.text and "world 2" not in job.text
    assert (
        "the others go on, 1 of 1 restart" in job.text and "more than 1 restart (--restarts): the job ends" in job.text
    )


def test_too_few_processes(tmp_path):
    job = Launched(tmp_path, "end", "-n", "1", "--min", "2", "--engine", "NCCL")
    assert job.end() == 1, job.text
    assert "there are 1 process, and the job needs 2 (--min)" in job.text


def test_a_host_that_leaves_and_one_that_comes(tmp_path):
    """SIGTERM to the launcher of a host that has joined ends its processes alone."""
    start = joining(tmp_path, "until", "--min", "2", "--max", "2", "--engine", "NCCL")
    first, second = start(), start()
    second.read_until("ready 1")
    third = start()
    second.process.send_signal(signal.SIGTERM)
    assert second.end() == 128 + signal.SIGTERM, second.text
    for rank in (0, 1):
        (tmp_path / f"go-{rank}").touch()
    assert [third.end(), first.end()] == [0, 0], first.text + third.text
    assert "has left the job" in first.text and "world 1 has 2 processes" in first.text, first.text
