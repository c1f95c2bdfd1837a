"""Several processes train what one does: real ones, started by mpiexec; with GPUs, threads."""

import dataclasses

import numpy as np
import pytest

import process_training
from mpi_runs import needs_mpi, run_over_mpi
from netbuilder import parallel
from netbuilder.distributed import Rendezvous
from netbuilder.model import brew
from netbuilder.proto import DistributedError
from netbuilder.runtime import Workspace
from parallel_models import distance
from process_training import (
    CASES,
    CASES_OF_FOUR,
    DEVICES,
    IMAGES,
    SHARED,
    Case,
    build_case,
    results,
    train_built,
    train_case,
    train_steps,
)
from thread_ranks import ThreadCommunicator, on_ranks, use_thread_worlds
from toy_models import scaled_loss

SECONDS = 120  # for all cases of a start


@pytest.fixture(scope="module")
def trained(tmp_path_factory, request):
    """A function that returns what rank 0 of so many processes has after a case; they are started once.

    Only the cases whose tests run are trained.
    """
    folders, names = {}, {}
    for item in request.session.items:
        if "test_processes_get_the_parameters_of_one[" in item.nodeid:
            names.setdefault(item.callspec.params["processes"], []).append(item.callspec.params["name"])

    def start(processes):
        for _ in range(2):  # MPICH's mpiexec itself fails now and then on a busy machine
            folders[processes] = folder = tmp_path_factory.mktemp("trained")
            arguments = str(folder), "cases", *names[processes]
            status, output, _ = run_over_mpi(processes, process_training.__file__, *arguments, timeout=SECONDS)
            if "process manager error" not in output:
                break
        assert status == 0, output
        assert output.count("has finished") == processes

    def load(processes, name):
        if processes not in folders:
            start(processes)
        return dict(np.load(folders[processes] / f"{name}.npz"))

    return load


@pytest.fixture(scope="module")
def alone():
    """A function that returns what one process has after a case."""
    found = {}

    def train(name):
        if name not in found:
            found[name] = train_case(CASES[name], DEVICES)[-1]
        return found[name]

    return train


@pytest.mark.one_in(12)
@needs_mpi
@pytest.mark.parametrize(
    "processes, name",
    [(2, name) for name in CASES] + [pytest.param(4, name, marks=pytest.mark.slow) for name in CASES_OF_FOUR],
    ids=str,
)
def test_processes_get_the_parameters_of_one(processes, name, trained, alone):
    got, want = trained(processes, name), alone(name)
    assert got.keys() == want.keys()
    assert distance([got[each] for each in want], list(want.values())) < 1e-6
    for each, value in want.items():
        if not ("bn_s" in want and each == "conv_b"):  # its gradient is zero, but for rounding
            assert distance([got[each]], [value]) < 1e-6, each


@needs_mpi
def test_processes_of_one_device_have_one_copy_of_the_parameters(tmp_path):
    status, output, _ = run_over_mpi(2, process_training.__file__, str(tmp_path), "shared", timeout=SECONDS)
    assert status == 0, output
    for name, case in SHARED.items():
        got, want = np.load(tmp_path / f"{name}.npz"), train_case(case, 2)[-1]
        assert got.keys() == want.keys()
        assert distance([got[each] for each in want], list(want.values())) < 1e-6, name


@pytest.mark.parametrize("name", ["convnet", "plain normalization", "DiLoCo"])
def test_ranks_whose_kernels_differ_have_the_same_parameters_to_the_bit(name, monkeypatch):
    """As where each has measured for itself which is the fastest: only their shares of the gradients differ."""
    case = CASES[name]
    use_thread_worlds(monkeypatch, 2)

    def train(engines):
        built = [build_case(case, 1, Rendezvous(2, rank)) for rank in range(2)]

        def work(rank):
            model, record = built[rank]
            workspace = Workspace(threads=1, seed=0, engines=engines[rank])
            parallel.RunInitNet(model, workspace=workspace)
            train_steps(case, model, record, workspace, True)
            return b"".join(value.tobytes() for _, value in sorted(results(record, workspace).items()))

        return on_ranks(2, work, timeout=60)

    alike, unlike = train([None, None]), train([None, ()])
    assert alike[0] == alike[1] and unlike[0] == unlike[1]
    assert unlike[0] != alike[0], "the kernels do not differ"


@pytest.mark.emulated
@pytest.mark.parametrize(
    "name", ["normalization over all", "tables inside", "uneven", "weighted means", "DiLoCo, overlapped"]
)
def test_processes_that_exchange_values_of_gpus_through_the_host(name, monkeypatch):
    """Each calls its GPUs 0 and 1; here both have the same ones."""
    case = dataclasses.replace(CASES[name], on_gpus=True)
    use_thread_worlds(monkeypatch, 2)
    built = [build_case(case, 2, Rendezvous(2, rank)) for rank in range(2)]
    workspaces = on_ranks(2, lambda rank: train_built(case, *built[rank], True), timeout=60)
    want = train_case(case, 4)[-1]
    for (_, record), workspace in zip(built, workspaces):
        got = results(record, workspace)
        assert distance([got[each] for each in want], list(want.values())) < 1e-6


def often_normalized(model, loss_scale):
    x = "data"
    for layer in range(20):
        x = brew.spatial_bn(model, x, f"bn{layer}", 3, is_test=False)
    return scaled_loss(model, brew.fc(model, x, "fc", 3 * 64, 4), loss_scale)


def test_calls_of_a_step_do_not_grow_with_running_statistics(monkeypatch):
    """A barrier, a bucket of gradients and the statistics of 20 layers, for which two steps have further headers."""
    calls, exchange = {}, ThreadCommunicator._exchange

    def counted(communicator, what, value):
        calls[communicator.rank] = calls.get(communicator.rank, 0) + 1
        return exchange(communicator, what, value)

    monkeypatch.setattr(ThreadCommunicator, "_exchange", counted)
    use_thread_worlds(monkeypatch, 2)
    case = Case(often_normalized, IMAGES)
    built = [build_case(case, 1, Rendezvous(2, rank)) for rank in range(2)]

    def rank(number):
        workspace = Workspace(threads=1, seed=0)
        parallel.RunInitNet(built[number][0], workspace=workspace)
        before = calls[number]
        train_steps(case, *built[number], workspace, True)
        return results(built[number][1], workspace), calls[number] - before

    want = train_case(case, 2)[-1]
    for got, count in on_ranks(2, rank, timeout=60):
        assert distance([got[each] for each in want], list(want.values())) < 1e-6
        assert 3 * len(case.sizes) <= count <= 3 * len(case.sizes) + 2 * 2


def test_a_process_whose_step_fails_is_named_by_the_others(monkeypatch):
    """They wait in a collective, which raises an error."""
    use_thread_worlds(monkeypatch, 2)
    built = [build_case(Case(), 1, Rendezvous(2, rank)) for rank in range(2)]

    def train(rank):
        model, record = built[rank]
        workspace = Workspace(threads=1, seed=0)
        parallel.RunInitNet(model, workspace=workspace)
        for labels in ([0, 1, 2, 3], [0, 1, 2, 99 if rank else 3]):
            workspace.feed(record.blobs("data")[0], np.ones((4, 6), np.float32))
            workspace.feed(record.blobs("label")[0], np.int32(labels))
            parallel.RunNet(model, workspace=workspace)

    first, second = on_ranks(2, train)
    assert isinstance(first, DistributedError) and "rank 1 of 2 has failed" in str(first) and "99" in str(first)
    assert "99" in str(second) and "rank" not in str(second)
