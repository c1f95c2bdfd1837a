"""Processes that have different numbers of batches: an error on all, or the result of all samples in one process."""

import numpy as np
import pytest

from netbuilder import ModelHelper, Workspace, parallel
from netbuilder.distributed import ProcessGroup
from netbuilder.graph.devices import Devices
from netbuilder.graph.net_names import reset_names
from netbuilder.graph.replicas import Replicas, World
from netbuilder.optimizers import reset_optimizer_instance_count
from netbuilder.parallel import ProcessBatch, process_batches
from netbuilder.parallel.shares import SHARE_WEIGHT, own_samples, split_batch
from netbuilder.proto import PROTO_CPU, DistributedError, NetError, ShapeError
from parallel_models import OPTIMIZERS, no_input
from process_training import weighted
from thread_ranks import on_ranks, thread_worlds, use_thread_worlds
from toy_models import mlp


def batches(rank, sizes):
    return [{"x": np.full((size, 2), 10 * rank + step)} for step, size in enumerate(sizes)]


def read(sizes, **options):
    """Return for each rank the batches that it gets, or its error."""
    worlds = thread_worlds(len(sizes))

    def run(rank):
        return list(process_batches(batches(rank, sizes[rank]), ProcessGroup.over(worlds[rank]), **options))

    return on_ranks(len(sizes), run)


def test_numbers_of_samples_are_added():
    found = read([[3, 2], [1, 4], [2, 2]])
    assert [[(batch.samples, batch.samples_of_all) for batch in each] for each in found] == [
        [(3, 6), (2, 8)],
        [(1, 6), (4, 8)],
        [(2, 6), (2, 8)],
    ]


def test_an_error_on_all_processes_at_once():
    text = "ranks 0, 2 have no batch after 1 step, and others have one"
    for error in read([[3], [1, 4], [2]]):
        assert isinstance(error, DistributedError) and str(error).startswith(text)
    for error in read([[3], []], join=True):
        assert isinstance(error, DistributedError) and "rank 1 has no batch at all" in str(error)


def test_an_error_of_a_source_reaches_the_others():
    worlds = thread_worlds(2)

    def failing(rank):
        yield from batches(rank, [2])
        if rank == 1:
            raise OSError("no more images")
        yield from batches(rank, [2])

    first, second = on_ranks(2, lambda rank: list(process_batches(failing(rank), ProcessGroup.over(worlds[rank]))))
    assert isinstance(second, OSError)
    assert isinstance(first, DistributedError) and "rank 1 of 2 has failed (OSError: no more images)" in str(first)


def test_those_that_have_ended_take_part_with_weight_0():
    found = read([[3], [1, 4, 5], [2, 2]], join=True)
    assert [len(each) for each in found] == [3, 3, 3]
    for step, total in enumerate((6, 6, 5)):
        assert all(each[step].samples_of_all == total for each in found)
        weights = []
        for rank, each in enumerate(found):
            record = Replicas(Devices(PROTO_CPU, (0, 1)), losses=(("a",), ("b",)), world=World(6, 2 * rank, rank))
            (share,) = split_batch(each[step], ["x"], record)
            assert len(share["x"]) == max(share.samples, 2) or share.samples == 1
            weights.append(share[SHARE_WEIGHT])
            if not each[step].samples:
                assert (share["x"] == each[step]["x"][0]).all() and share["x"][0, 0] // 10 == rank
                assert not share[SHARE_WEIGHT].any() and not len(share.given["x"])
        np.testing.assert_allclose(np.concatenate(weights).sum(), 6, rtol=1e-6)


@pytest.mark.parametrize("steps", (1, 2, 3))
@pytest.mark.parametrize("samples", (1, 2, 5, 7, 12))
def test_own_samples_are_split_as_those_of_the_whole_batch(samples, steps):
    whole = {"x": np.arange(samples)}
    for rank in range(3):
        record = Replicas(
            Devices(PROTO_CPU, (0, 1)), losses=(("a",), ("b",)), accumulate_steps=steps, world=World(6, 2 * rank, rank)
        )
        own = own_samples(samples, record)
        given = own if len(own) else np.arange(1)
        parts = split_batch(ProcessBatch({"x": given}, samples, empty=not len(own)), ["x"], record)
        for part, want in zip(parts, split_batch(whole, ["x"], record), strict=True):
            np.testing.assert_array_equal(part.given["x"], want.given["x"])
            np.testing.assert_array_equal(part[SHARE_WEIGHT], want[SHARE_WEIGHT])
            assert part["x"].shape == want["x"].shape


def test_bad_batches():
    with pytest.raises(NetError, match="samples_of_all must be the number of samples of all processes, got 2"):
        ProcessBatch({"x": np.zeros(3)}, 2)
    for wrong in ({}, {"x": np.float32(2)}):
        with pytest.raises(ShapeError, match="at least one sample"):
            ProcessBatch(wrong, 2)
    with pytest.raises(ShapeError, match=r"same number of samples, got {'x': 0, 'y': 2}"):
        list(process_batches([{"x": np.zeros((0, 2)), "y": np.zeros(2)}], ProcessGroup()))


def test_a_share_without_rows():
    part = ProcessBatch({"x": np.ones((0, 2), np.float16)}, 2)
    assert part.samples == 0 and part["x"].shape == (1, 2) and part["x"].dtype == np.float16
    for join in (False, True):
        found = read([[0, 3, 0], [2, 0, 1]], join=join)
        assert [[batch.samples for batch in each] for each in found] == [[0, 3, 0], [2, 0, 1]]
        assert [batch.samples_of_all for batch in found[0]] == [2, 3, 1]
    found = read([[3, 0, 0], [2]], join=True)
    assert [str(error) for error in found] == [
        "step 2: the batches of all processes have 0 rows; give at least one of them a sample"
    ] * 2


SAMPLES = {0: [[3, 2], [4]], 1: [[1, 4], [1, 2, 2]], 2: [[2, 2, 5, 1], [3, 1]], 3: [[0, 3], [2, 0, 4]]}
"""Numbers of samples in the batches of each of two processes."""


def own_batches(rank, sizes):
    rng = np.random.default_rng(rank)
    for size in sizes:
        yield {
            "data": rng.normal(size=(size, 6)).astype(np.float32),
            "label": rng.integers(0, 4, size).astype(np.int32),
            "weight": rng.normal(size=size).astype(np.float32),
        }


def joined(each):
    """The batches of one process that has all samples, those of the first process first."""
    sources = [list(own_batches(rank, sizes)) for rank, sizes in enumerate(each)]
    for step in range(max(map(len, sources))):
        parts = [source[step] for source in sources if step < len(source)]
        yield {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def built(rendezvous=None, forward=mlp, **options):
    reset_names()
    reset_optimizer_instance_count()
    model = ModelHelper("net")
    options = {"weighted_shares": True, "optimizer_builder_fun": OPTIMIZERS["momentum"], "devices": [0], **options}
    return model, parallel.Parallelize_CPU(model, no_input, forward, rendezvous=rendezvous, **options)


def parameters(model, record, workspace):
    return {name: workspace.fetch(record.blobs(name)[0]) for name in record.parameters}


def trained_alone(each, **options):
    model, record = built(devices=[0, 1], **options)
    workspace = Workspace(threads=1, seed=0)
    parallel.RunInitNet(model, workspace=workspace)
    for batch in joined(each):
        for _ in parallel.feed_shares(model, batch, workspace=workspace):
            parallel.RunNet(model, workspace=workspace)
    return parameters(model, record, workspace)


def trained_by_two(monkeypatch, source_of, after=lambda *of_rank: None, **options):
    """Return for each rank its parameters, and the samples of each of its iterations; or its error."""
    use_thread_worlds(monkeypatch, 2)
    models = [built({"num_shards": 2, "shard_id": rank, "engine": "MPI"}, **options) for rank in range(2)]

    def run(rank):
        (model, record), workspace, samples = models[rank], Workspace(threads=1, seed=rank), []
        parallel.RunInitNet(model, workspace=workspace)
        group = ProcessGroup.over(np.asarray(workspace.fetch(record.world.common[0])).item())
        source = source_of(rank, group)
        losses = parallel.loss_reader(model, ["loss"], workspace=workspace)
        inputs = ["data", "label", *(["weight"] if options.get("forward") else [])]
        with parallel.prefetch(model, source, blobs=inputs, workspace=workspace) as input:
            for given in input:
                samples.append(len(given["label"]))
                parallel.RunNet(model, workspace=workspace)
                losses.read()
                after(rank, workspace, record)
            assert next(input, None) is None, "it has ended"
        return parameters(model, record, workspace), samples

    return on_ranks(2, run)


@pytest.mark.parametrize("each", SAMPLES.values(), ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"accumulate_steps": 2}, {"forward": weighted}, {"forward": weighted, "accumulate_steps": 2}],
    ids=["plain", "plain, micro-batches", "weighted", "weighted, micro-batches"],
)
@pytest.mark.one_in(6)
def test_under_prefetch_it_is_the_result_of_one_process_with_all_samples(each, options, monkeypatch):
    def source_of(rank, group):
        return process_batches(own_batches(rank, each[rank]), group, join=True)

    results = trained_by_two(monkeypatch, source_of, **options)
    want = trained_alone(each, **options)
    steps = max(map(len, each))
    micro = options.get("accumulate_steps", 1)
    for (got, samples), sizes in zip(results, each):
        assert len(samples) == micro * steps and sum(samples) == sum(sizes)
        assert [sum(samples[k : k + micro]) for k in range(0, len(samples), micro)][: len(sizes)] == sizes
        for name, value in want.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-7, err_msg=name)


def test_under_prefetch_weights_are_those_of_all_samples(monkeypatch):
    seen = {0: [], 1: []}

    def after(rank, workspace, record):
        seen[rank].append(float(workspace.fetch(record.blobs(SHARE_WEIGHT)[0])[0]))

    def source_of(rank, group):
        return process_batches(own_batches(rank, [[3, 2], [1]][rank]), group, join=True)

    trained_by_two(monkeypatch, source_of, after)
    assert seen == {0: [1.5, 2.0], 1: [0.5, 0.0]}


def test_under_prefetch_errors_reach_all_processes(monkeypatch):
    def unequal(rank, group):
        return process_batches(own_batches(rank, [[3, 2], [1]][rank]), group)

    for error in trained_by_two(monkeypatch, unequal):
        assert isinstance(error, DistributedError)
        assert str(error).startswith("rank 1 has no batch after 1 step, and others have one")

    def none_at_all(rank, group):
        return process_batches(own_batches(rank, [[], [1]][rank]), group, join=True)

    for error in trained_by_two(monkeypatch, none_at_all):
        assert isinstance(error, DistributedError) and "rank 0 has no batch at all" in str(error)

    def failing(rank, group):
        def batches():
            yield from own_batches(rank, [2])
            if rank == 0:
                raise OSError("no more images")
            yield from own_batches(rank, [2])

        return process_batches(batches(), group, join=True)

    first, second = trained_by_two(monkeypatch, failing)
    assert isinstance(first, OSError)
    assert isinstance(second, DistributedError) and "rank 0 of 2 has failed (OSError: no more images)" in str(second)

    with pytest.raises(NetError, match="ProcessBatch is for models that .*weighted_shares=True"):
        model, _ = built(weighted_shares=False)
        parallel.prefetch(model, process_batches([], ProcessGroup()), blobs=["data"], workspace=Workspace())
