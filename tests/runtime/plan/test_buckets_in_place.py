"""Gradients of a bucket next to each other: bit-identical to copies of them, and which ones are stored so."""

from dataclasses import dataclass

import numpy as np
import pytest

from netbuilder import ModelHelper, Workspace, brew, parallel
from netbuilder.engines.buffer_rows import order_in_row
from netbuilder.graph.net_names import reset_names
from netbuilder.ops.collectives.allreduce_bucket import AllreduceBucket
from netbuilder.optimizers import reset_optimizer_instance_count
from netbuilder.runtime.plan.values import StepKind
from parallel_models import OPTIMIZERS, no_input
from switches import single
from thread_ranks import on_ranks, use_thread_worlds
from toy_models import scaled_loss

WITHOUT = single("buckets_in_place")


@dataclass(frozen=True)
class Stored:
    """Where a rank has its gradients.

    Args:
        buckets: whether those of a bucket, on the first device, are next to each other, for each one of several.
        arena: which of them are in the arena, without scopes.
    """

    buckets: list[bool]
    arena: set[str]


def stored(plans):
    steps = [step for plan in plans for step in plan.steps]
    sums = [s for s in steps if s.kind is StepKind.COMPUTE and isinstance(s.node.first.op, AllreduceBucket)]
    buffers = [[value.buffer for value in s.outputs][:: s.node.first.op.devices] for s in sums]
    names = {placed.what.rpartition("/")[2] for plan in plans for placed in plan.memory.placed}
    return Stored(
        [order_in_row(each) is not None for each in buffers if len(each) > 1],
        {name for name in names if name.endswith("_grad")},
    )


def forward(model, loss_scale):
    """Gradients in oneDNN's layouts, some with padding, and plain ones, small and large: data (N, 3, 8, 8)."""
    x = brew.relu(model, brew.conv(model, "data", "conv1", 3, 20, kernel=3, pad=1), "relu1")
    x = brew.relu(model, brew.spatial_bn(model, x, "bn", 20, is_test=False), "relu2")
    x = brew.relu(model, brew.conv(model, x, "conv2", 20, 32, kernel=3, pad=1), "relu3")
    x = brew.fc(model, brew.average_pool(model, x, "pooled", kernel=8), "fc1", 32, 300)
    return scaled_loss(model, brew.fc(model, x, "fc2", 300, 4), loss_scale)


def trained(
    monkeypatch, *, size=2, devices=(0,), observable=None, without=((),), fill=False, budget=None,
    optimizer="momentum", steps=3, **options,
):  # fmt: skip
    """Train on ranks that are threads; return for each the parameters after each step, and ``Stored``.

    Args:
        observable: further blobs that can be fetched, by rank; None: all but gradients that nobody reads.
        without: optimizations that are off, by rank.
        fill: the arena is NaN before each step.
    """
    use_thread_worlds(monkeypatch, size)
    models = []
    for rank in range(size):
        reset_names()
        reset_optimizer_instance_count()
        model, place = ModelHelper("net"), {"num_shards": size, "shard_id": rank, "engine": "MPI"}
        given = {"optimizer_builder_fun": OPTIMIZERS[optimizer], "bucket_bytes": 20_000, **options}
        record = parallel.Parallelize_CPU(model, no_input, forward, devices=list(devices), rendezvous=place, **given)
        if observable is not None:
            model.net.set_observable("outputs", observable[rank % len(observable)])
        if budget is not None:
            model.net.set_memory_budget(budget)
        models.append((model, record))

    def run(rank):
        (model, record), workspace = models[rank], Workspace(threads=1, seed=3, without=without[rank % len(without)])
        rng, found = np.random.default_rng(rank), []
        for scope in record.devices.scopes:
            workspace.feed(scope + "data", rng.normal(size=(4, 3, 8, 8)).astype(np.float32))
            workspace.feed(scope + "label", rng.integers(0, 4, 4).astype(np.int32))
        parallel.RunInitNet(model, workspace=workspace)
        names = [blob for name in record.parameters for blob in record.blobs(name)]
        for _ in range(steps):
            for plan in workspace.net(model.net).plan_ahead() if fill else ():
                for location, nbytes in plan.memory.arenas.items():
                    plan.arena.memory(nbytes, location).fill(255)
            parallel.RunNet(model, workspace=workspace)
            found.append({name: workspace.fetch(name) for name in names})
        nets = [workspace.net(name) for name in workspace.nets() if name.startswith(model.net.Name())]
        return found, stored([plan for net in nets for plan in net.plans])

    results = on_ranks(size, run, timeout=60)
    for each in results:
        if isinstance(each, Exception):
            raise each
    return results


def same(results, others):
    for (found, _), (want, _) in zip(results, others):
        for mine, theirs in zip(found, want):
            assert mine.keys() == theirs.keys()
            for name, value in theirs.items():
                np.testing.assert_array_equal(mine[name], value, err_msg=name)
        assert any(not np.array_equal(found[0][name], found[-1][name]) for name in found[0])


GRADIENTS = {"conv1_w_grad", "conv1_b_grad", "bn_s_grad", "bn_b_grad", "conv2_w_grad", "fc1_w_grad", "fc2_w_grad"}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("observable", [None, [()]], ids=["blobs", "arena"])
def test_same_to_the_bit(observable, deterministic, monkeypatch):
    options = {"observable": observable, "deterministic": deterministic}
    got, want = trained(monkeypatch, **options), trained(monkeypatch, **options, without=[WITHOUT])
    same(got, want)
    for (_, now), (_, before) in zip(got, want):
        assert all(now.buckets) and len(now.buckets) > 1 and not all(before.buckets)
        assert now.arena & GRADIENTS == (set() if observable is None else GRADIENTS)


@pytest.mark.parametrize("size", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_several_ranks(size, monkeypatch):
    options = {"size": size, "observable": [()], "deterministic": True}
    same(trained(monkeypatch, **options), trained(monkeypatch, **options, without=[WITHOUT]))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "devices, optimizer",
    [
        ((0,), "sgd"),
        ((0, 1), "adam"),
        pytest.param((0,), "adam", marks=pytest.mark.slow),
        pytest.param((0, 1), "sgd", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_devices_and_optimizers(devices, optimizer, monkeypatch):
    options = {"observable": [()], "devices": devices, "optimizer": optimizer}
    got = trained(monkeypatch, **options)
    same(got, trained(monkeypatch, **options, without=[WITHOUT]))
    assert all(all(found.buckets) for _, found in got)


def test_what_was_in_the_arena_before_does_not_matter(monkeypatch):
    got = trained(monkeypatch, observable=[()], fill=True)
    same(got, trained(monkeypatch, observable=[()], without=[WITHOUT]))
    assert all(all(found.buckets) for _, found in got)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "differs",
    [{"without": [(), WITHOUT]}, {"observable": [(), ["cpu_0/fc1_w_grad"]]}],
    ids=["switched off", "kept for a fetch"],
)
def test_one_rank_that_stores_them_apart(differs, monkeypatch):
    got = trained(monkeypatch, **{"observable": [()], **differs})
    same(got, trained(monkeypatch, observable=[()]))
    assert [all(found.buckets) for _, found in got] == [True, False]


def test_one_rank_with_plain_layouts(monkeypatch):
    want = trained(monkeypatch, observable=[()], without=[single("blocked_layouts")])
    for (found, _), (others, _) in zip(
        trained(monkeypatch, observable=[()], without=[(), single("blocked_layouts")]), want
    ):
        for name, value in others[-1].items():
            np.testing.assert_allclose(found[-1][name], value, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("budget", [0.95, 1 << 30])
def test_with_a_memory_budget_the_arena_has_no_rows(budget, monkeypatch):
    got = trained(monkeypatch, observable=[()], budget=budget)
    same(got, trained(monkeypatch, observable=[()]))
    assert not any(all(found.buckets) for _, found in got)


def test_accumulated_gradients(monkeypatch):
    options = {"observable": [()], "accumulate_steps": 2, "steps": 4}
    same(trained(monkeypatch, **options), trained(monkeypatch, **options, without=[WITHOUT]))
