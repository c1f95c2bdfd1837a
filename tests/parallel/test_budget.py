"""build_within_budget: micro-batches where computing again is not enough, the numbers of the whole batch, refusals."""

import threading

import numpy as np
import pytest

from netbuilder import ModelHelper, Workspace, brew
from netbuilder.graph.memory_budget import MemoryBudgetError
from netbuilder.graph.net_names import reset_names
from netbuilder.optimizers import build_sgd, reset_optimizer_instance_count
from netbuilder.parallel import (
    Parallelize_CPU,
    Replicas,
    RunInitNet,
    RunNet,
    build_within_budget,
    feed_shares,
    planned_step,
)
from netbuilder.proto import DistributedError, NetError
from netbuilder.runtime.execute import default
from thread_ranks import on_ranks, use_thread_worlds
from toy_models import scaled_loss

SAMPLES, WIDTH = 512, 48
RNG = np.random.default_rng(0)
BATCH = {
    "data": RNG.normal(size=(SAMPLES, WIDTH)).astype(np.float32),
    "label": RNG.integers(0, WIDTH, SAMPLES).astype(np.int32),
}


def dense(model, x):
    return x


def normalized(model, x):
    return brew.spatial_bn(model, x, "norm", WIDTH)


def dropped_out(model, x):
    return brew.dropout(model, x, "dropped", ratio=0.5, is_test=0)


class Attempts:
    """Builds the model anew in a workspace of its own for each attempt."""

    def __init__(self, extra=dense, devices=2, samples=SAMPLES):
        self.extra, self.devices, self.given = extra, devices, []
        self.batch = {name: array[:samples] for name, array in BATCH.items()}
        self.workspace = None

    def made(self, accumulate_steps, memory_budget, **options):
        def forward(model, scale):
            x = "data"
            for layer in range(5):  # without a kink, at which rounding would decide
                x = model.net.Tanh(brew.fc(model, x, f"fc{layer}", WIDTH, WIDTH), f"tanh{layer}")
            return scaled_loss(model, self.extra(model, x), scale)

        model = ModelHelper("split")
        Parallelize_CPU(
            model, lambda model: None, forward, optimizer_builder_fun=lambda model: build_sgd(model, 0.1),
            devices=list(range(self.devices)), weighted_shares=True, accumulate_steps=accumulate_steps,
            memory_budget=memory_budget, **options,
        )  # fmt: skip
        return model

    def __call__(self, accumulate_steps, memory_budget):
        self.given.append(accumulate_steps)
        model = self.made(accumulate_steps, memory_budget)
        self.workspace = Workspace(threads=2, seed=1)
        RunInitNet(model, workspace=self.workspace)
        next(feed_shares(model, self.batch, workspace=self.workspace))
        return model

    def plan(self, model):
        return planned_step(model, self.workspace).total

    def within(self, budget, **options):
        samples = len(self.batch["label"])
        return build_within_budget(self, budget, samples=samples, devices=self.devices, plan=self.plan, **options)

    def trained(self, model):
        for _ in range(2):
            for _ in feed_shares(model, self.batch, workspace=self.workspace):
                RunNet(model, workspace=self.workspace)
        return {str(p): self.workspace.fetch(str(p)) for p in model.GetParams()}


def least(attempts):
    """Return the smallest budget of a step with the whole batch."""
    model = attempts(1, 1000)
    with pytest.raises(MemoryBudgetError) as raised:
        attempts.plan(model)
    return int(str(raised.value).split("at least ")[1].split()[0].replace(",", ""))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("devices", [1, 2])
def test_a_batch_is_split_where_computing_again_is_not_enough(devices):
    whole = Attempts(devices=devices)
    want = whole.trained(whole(1, None))
    smallest = least(whole)
    attempts = Attempts(devices=devices)
    assert Replicas.load(attempts.within(smallest).net.Proto()).accumulate_steps == 1 and attempts.given == [1]
    budget = int(0.85 * smallest)
    model = attempts.within(budget)
    steps = Replicas.load(model.net.Proto()).accumulate_steps
    assert steps in (2, 4, 8) and attempts.given[-1] == steps
    assert attempts.plan(model) <= budget
    for name, value in attempts.trained(model).items():
        np.testing.assert_allclose(value, want[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    "attempts, options, reason",
    [
        (
            Attempts(normalized),
            {},
            "not split into micro-batches, since SpatialBN '.*' normalizes with statistics of the whole batch; a "
            r"larger accumulate_steps \(netbuilder-train: --accumulate-steps\) splits it",
        ),
        (
            Attempts(normalized),
            {"accumulate_steps": 4},
            "not split further than into 4 micro-batches, since SpatialBN '.*' .* batch; a larger accumulate_steps",
        ),
        (
            Attempts(dropped_out),
            {},
            "Dropout '.*' draws other random numbers for each micro-batch; a larger accumulate",
        ),
        (Attempts(samples=6), {}, "not split into micro-batches, since it has too few samples for that"),
        (Attempts(), {}, "since 2 or 4 or 8 micro-batches are not enough either"),
        (Attempts(), {"accumulate_steps": 32}, "into 32 micro-batches, since 64 or 128 or 256 micro-batches are not"),
        (Attempts(), {"why_not_split": "of a reason"}, "into micro-batches, since of a reason$"),
    ],
)
@pytest.mark.one_in(6)
def test_why_a_batch_is_not_split(attempts, options, reason):
    with pytest.raises(NetError, match=rf"memory_budget=1,000 bytes is too small: .*{reason}"):
        attempts.within(1000, **options)


def test_a_fraction_in_the_default_workspace(monkeypatch):
    attempts, workspace = Attempts(), Workspace(threads=2)
    monkeypatch.setattr(default, "workspace", lambda: workspace)

    def build(steps, budget):
        model = attempts(steps, budget)
        RunInitNet(model)
        next(feed_shares(model, BATCH))
        return model

    model = build_within_budget(build, 0.9, samples=SAMPLES, devices=2)
    assert attempts.given == [1]
    assert planned_step(model).total <= 0.9 * attempts.plan(attempts(1, None))


SIZES = [416, 96]
"""Samples of each of two processes: their steps take different memory."""


def trained_by_two(monkeypatch, budget, **options):
    """Return for each of two processes, which are threads, steps, bytes of its plan and parameters; or its error."""
    use_thread_worlds(monkeypatch, 2)
    here, making = threading.local(), threading.Lock()
    monkeypatch.setattr(default, "workspace", lambda: here.workspace)

    def run(rank):
        place = {"num_shards": 2, "shard_id": rank, "engine": "MPI"}
        own = {name: rows[SIZES[0] * rank :][: SIZES[rank]] for name, rows in BATCH.items()}

        def feed(model):
            yield from feed_shares(model, own, of_process=True)

        def build(steps, given):
            with making:  # names are counted in the process
                reset_names()
                reset_optimizer_instance_count()
                model = Attempts(devices=1).made(steps, given, rendezvous=place)
            here.workspace = Workspace(threads=1, seed=1)
            RunInitNet(model)
            next(feed(model))
            return model

        def plan(model):
            if options.get("fails") == rank:
                raise OSError("no memory is known here")
            return planned_step(model).total

        model = build_within_budget(build, budget, samples=SAMPLES, devices=2, plan=plan)
        planned = planned_step(model).total
        for _ in range(2):
            for _ in feed(model):
                RunNet(model)
        found = {str(p).partition("/")[2]: here.workspace.fetch(str(p)) for p in model.GetParams()}
        return Replicas.load(model.net.Proto()).accumulate_steps, planned, found

    return on_ranks(2, run, timeout=60)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("budget, split", [(0.9, False), (0.8, False), (0.6, True)])
def test_processes_with_different_needs_decide_the_same(budget, split, monkeypatch):
    """With 0.8 only the one with few samples cannot keep to its fraction: it gets as much as the other needs."""
    whole = Attempts(devices=2)
    want = whole.trained(whole(1, None))
    first, second = trained_by_two(monkeypatch, budget)
    assert first[0] == second[0] and (first[0] > 1) == split, (first[:2], second[:2])
    assert first[1] > second[1]
    for _, _, found in (first, second):
        for name, value in found.items():
            np.testing.assert_allclose(value, want[f"cpu_0/{name}"], rtol=1e-4, atol=1e-6, err_msg=name)


def test_processes_that_cannot_keep_to_it_raise_the_same_error(monkeypatch):
    first, second = trained_by_two(monkeypatch, 1000)
    assert isinstance(first, NetError) and str(first) == str(second)
    assert "rank 0: " in str(first) and "2 or 4 or 8 micro-batches are not enough either" in str(first)


def test_an_error_of_one_process_reaches_the_other(monkeypatch):
    first, second = trained_by_two(monkeypatch, 0.9, fails=1)
    assert isinstance(second, OSError)
    assert isinstance(first, DistributedError) and "rank 1 of 2 has failed (OSError: no memory" in str(first)
