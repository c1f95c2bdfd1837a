"""build_within_budget: micro-batches where computing again is not enough, the numbers of the whole batch, refusals."""

import numpy as np
import pytest

from netbuilder import ModelHelper, Workspace, brew
from netbuilder.graph.memory_budget import MemoryBudgetError
from netbuilder.optimizers import build_sgd
from netbuilder.parallel import (
    Parallelize_CPU,
    Replicas,
    RunInitNet,
    RunNet,
    build_within_budget,
    feed_shares,
    planned_step,
)
from netbuilder.proto import NetError
from netbuilder.runtime.execute import default

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

    def __call__(self, accumulate_steps, memory_budget):
        self.given.append(accumulate_steps)

        def forward(model, scale):
            x = "data"
            for layer in range(5):  # without a kink, at which rounding would decide
                x = model.net.Tanh(brew.fc(model, x, f"fc{layer}", WIDTH, WIDTH), f"tanh{layer}")
            _, loss = model.net.SoftmaxWithLoss([self.extra(model, x), "label"], ["softmax", "loss"])
            return [model.Scale(loss, scale=scale)]

        model = ModelHelper("split")
        Parallelize_CPU(
            model, lambda model: None, forward, optimizer_builder_fun=lambda model: build_sgd(model, 0.1),
            devices=list(range(self.devices)), weighted_shares=True, accumulate_steps=accumulate_steps,
            memory_budget=memory_budget,
        )  # fmt: skip
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
        (Attempts(normalized), {}, "SpatialBN '.*' normalizes with statistics of the whole batch"),
        (Attempts(dropped_out), {}, "Dropout '.*' draws other random numbers for each micro-batch"),
        (Attempts(samples=6), {}, "the batch is not split, since it has too few samples for that"),
        (Attempts(), {}, "since 2 or 4 or 8 micro-batches are not enough either"),
        (Attempts(), {"accumulate_steps": 32}, "since 64 or 128 or 256 micro-batches are not enough either"),
        (Attempts(), {"why_not_split": "of a reason"}, "into micro-batches, since of a reason"),
    ],
)
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
