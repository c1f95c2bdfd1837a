"""Blobs that are to be equal on all processes, and sums of numbers over them."""

import numpy as np
import pytest

from netbuilder import parallel
from netbuilder.distributed import Rendezvous, require_equal_blobs
from netbuilder.distributed.agreement import sum_over_processes
from netbuilder.graph.net_names import reset_names
from netbuilder.model import Initializer, ModelHelper, brew
from netbuilder.optimizers import reset_optimizer_instance_count
from netbuilder.proto import BlobError, DistributedError
from netbuilder.runtime import Workspace
from parallel_models import OPTIMIZERS, no_input
from thread_ranks import on_ranks, use_thread_worlds
from toy_models import scaled_loss

SIZE = 3


def forward(model, loss_scale, bias):
    x = brew.spatial_bn(model, "data", "bn", 2, is_test=False)
    weights = model.create_param("fc_w", [4, 2], Initializer("XavierFill"))
    x = model.net.FC([brew.average_pool(model, x, "pooled", kernel=4), weights, bias], "scores")
    return scaled_loss(model, x, loss_scale)


@pytest.fixture
def on_models(monkeypatch):
    """Call a function with the number, the model, its record and its workspace of each rank, after its init net."""
    use_thread_worlds(monkeypatch, SIZE)
    models = []
    for rank in range(SIZE):
        reset_names()
        reset_optimizer_instance_count()
        model = ModelHelper("net")
        bias = model.create_param("outside_b", [4], Initializer("ConstantFill"))
        record = parallel.Parallelize_CPU(
            model, no_input, lambda m, scale, bias=bias: forward(m, scale, bias), devices=[0, 1],
            optimizer_builder_fun=OPTIMIZERS["sgd"], rendezvous=Rendezvous(SIZE, rank),
        )  # fmt: skip
        models.append((model, record))

    def run(function):
        def of_rank(rank):
            model, record = models[rank]
            workspace = Workspace(threads=1, seed=rank)
            for scope in record.devices.scopes:
                workspace.feed(scope + "data", np.ones((2, 2, 4, 4), np.float32))
                workspace.feed(scope + "label", np.zeros(2, np.int32))
            parallel.RunInitNet(model, workspace=workspace)
            return function(rank, model, record, workspace)

        return on_ranks(SIZE, of_rank)

    return run


def message(errors):
    """The error of all ranks."""
    assert all(isinstance(error, DistributedError) for error in errors), errors
    (text,) = {str(error) for error in errors}
    return text


def test_what_the_init_net_fills_is_equal(on_models):
    assert on_models(lambda rank, model, record, ws: require_equal_blobs(model, workspace=ws)) == [None] * SIZE


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ["cpu_0/fc_w", "cpu_0/bn_rm", "outside_b"])
def test_parameters_statistics_and_what_is_outside_are_compared(on_models, name):
    def run(rank, model, record, workspace):
        if rank == 1:
            value = workspace.fetch(name).copy()
            value.flat[-1] += 1
            workspace.feed(name, value)
        require_equal_blobs(model, workspace=workspace)

    assert message(on_models(run)).startswith(f"blobs differ from those of rank 0: {name!r} on rank 1; Finalize")


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "own, different",
    [
        (lambda rank: np.float32([1, 2]) if rank != 1 else np.nextafter(np.float32([1, 2]), np.float32(2)), "1"),
        (lambda rank: np.zeros(4, np.float32 if rank == 0 else np.int32), "1, 2"),
        (lambda rank: np.zeros((2, 2) if rank == 2 else (4,), np.float32), "2"),
        (lambda rank: np.array([b"a", b"b" * (1 + rank // 2)], object), "2"),
        (lambda rank: np.full(3, np.nan, np.float32), ""),
        (lambda rank: np.array([b"a", b""], object), ""),
        (lambda rank: np.arange(6.0).reshape(2, 3).T if rank else np.arange(6.0).reshape(2, 3).T.copy(), ""),
    ],
    ids=["a bit", "type", "shape", "strings", "equal NaN", "equal strings", "equal in another order"],
)
def test_values_types_and_shapes_count(on_models, own, different):
    def run(rank, model, record, workspace):
        workspace.feed("x", own(rank))
        require_equal_blobs(model, ["cpu_0/fc_w", "x"], workspace=workspace)

    found = on_models(run)
    if not different:
        assert found == [None] * SIZE
        return
    assert f"rank 0: 'x' on rank {different}; FinalizeAfterCheckpoint(model, blobs) copies" in message(found)


def test_of_many_blobs_some_are_listed(on_models):
    names = [f"x{number}" for number in range(10)]

    def run(rank, model, record, workspace):
        for name in names:
            workspace.feed(name, np.int64([rank]))
        require_equal_blobs(model, names, workspace=workspace)

    text = message(on_models(run))
    assert text.count("on rank 1, 2") == 8 and "'x7' on rank 1, 2, and 2 more; Finalize" in text


def test_a_blob_that_is_not_there(on_models):
    def run(rank, model, record, workspace):
        with pytest.raises(BlobError, match="nothing"):
            require_equal_blobs(model, ["nothing"], workspace=workspace)
        return True

    assert on_models(run) == [True] * SIZE


def test_sums_are_exact(on_models):
    large = 2**60 + 1

    def run(rank, model, record, workspace):
        return [sum_over_processes(model, record, large * (1 - rank) + each, workspace=workspace) for each in (0, 1)]

    assert on_models(run) == [[0, 3]] * SIZE
