"""A recommendation model (DLRM), trained on synthetic clicks until it recovers their true probabilities.

Users, items and the items' categories have embeddings; a layer maps the time of day to a vector of the same length.
The logit of a click is a weighted sum of the products of all pairs of these vectors. The clicks are drawn from such a
model, so the best log loss that any model can reach is known, and so is the true logit of each user for each item.

    python examples/dlrm.py --devices 2

Source: Naumov et al., "Deep learning recommendation model for personalization and recommendation systems", 2019,
arXiv:1906.00091.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from netbuilder import optimizers, parallel
from netbuilder.graph import GradientSlice
from netbuilder.model import Initializer, ModelHelper, brew
from netbuilder.runtime import Workspace

Batch = dict[str, Any]

ROW = 8  # width of the embeddings


class Clicks:
    """Synthetic users, items in one to three categories each, and the true logits of clicks, which the model learns."""

    def __init__(self, users: int = 60, items: int = 50, categories: int = 12, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.tastes = rng.normal(size=(users, 2))
        self.traits = rng.normal(size=(items, 2))
        self.appeal = rng.normal(scale=0.5, size=categories)  # of a category, for everybody
        self.lengths = rng.integers(1, 4, items)
        self.categories = [rng.choice(categories, count, replace=False) for count in self.lengths]
        self.counts = (users, items, categories)

    def logits(self, users: Any, items: Any, time: Any) -> Any:
        """Return the true logits of clicks, given indices (N,) and the time of day (N, 2) as cosine and sine."""
        appeal = np.array([self.appeal[which].sum() for which in self.categories])
        return (self.tastes[users] * self.traits[items]).sum(axis=1) + appeal[items] + 0.5 * time[:, 0] - 0.25

    def at(self, rng: Any, users: Any, items: Any) -> Batch:
        """Return the inputs of the model, and clicks drawn from the true probabilities."""
        hour = rng.uniform(0, 2 * np.pi, len(users))
        time = np.stack([np.cos(hour), np.sin(hour)], axis=1)
        probability = 1 / (1 + np.exp(-self.logits(users, items, time)))
        return {
            "user": users.astype(np.int32),
            "item": items.astype(np.int32),
            "category": np.concatenate([self.categories[item] for item in items]).astype(np.int32),
            "category_lengths": self.lengths[items].astype(np.int32),
            "time": time.astype(np.float32),
            "click": (rng.uniform(size=len(users)) < probability).astype(np.float32)[:, None],
        }

    def draw(self, rng: Any, samples: int) -> Batch:
        users, items, _ = self.counts
        return self.at(rng, rng.integers(0, users, samples), rng.integers(0, items, samples))


def shares(batch: Batch, count: int) -> list[Batch]:
    """Split a batch over the replicas; categories follow their samples."""
    parts = [dict(zip(batch, columns)) for columns in zip(*(np.array_split(x, count) for x in batch.values()))]
    ends = np.cumsum([part["category_lengths"].sum() for part in parts])
    for part, categories in zip(parts, np.split(batch["category"], ends[:-1])):
        part["category"] = categories
    return parts


def add_logits(model: ModelHelper, counts: Sequence[int]) -> Any:
    """Add the model of one replica, from its inputs to the logits (N, 1)."""
    small = Initializer("GaussianFill", std=0.3)
    users, items, categories = (
        model.create_param(name, [rows, ROW], small)
        for name, rows in zip(("user_table", "item_table", "category_table"), counts)
    )
    rows = [
        model.net.Gather([users, "user"], "user_row"),
        model.net.Gather([items, "item"], "item_row"),
        model.net.SparseLengthsSum([categories, "category", "category_lengths"], "category_row"),
        brew.fc(model, "time", "time_row", 2, ROW),
    ]
    stacked, _ = model.net.Concat(rows, ["rows", "rows_split"], axis=1, add_axis=1)
    products = model.net.BatchMatMul([stacked, stacked], "products", trans_b=1)
    pairs, _ = model.net.Reshape(products, ["pairs", "products_shape"], shape=[-1, len(rows) ** 2])
    return brew.fc(model, pairs, "logit", len(rows) ** 2, 1)


def add_updates(model: ModelHelper) -> Any:
    """Add Adagrad, row-wise for the tables: gradients of the same row are summed before the update."""
    for_tables = optimizers.AdagradOptimizer(alpha=0.1, rowWise=True)
    for info in model.GetOptimizationParamInfo():
        if isinstance(info.grad, GradientSlice):
            info.optimizer = for_tables
    return optimizers.build_adagrad(model, 0.1)


@dataclass(frozen=True)
class Outcome:
    """Results on clicks that were not used for training.

    Attributes:
        log_loss: the model's, in nats per click.
        best: log loss of the true probabilities.
        correlation: between the model's logits and the true ones.
        tables_outside: names of the tables that the replicas share.
    """

    log_loss: float
    best: float
    correlation: float
    tables_outside: tuple[str, ...]


def train(
    clicks: Clicks, steps: int = 400, batch: int = 1024, devices: int = 1, outside_from_bytes: int | None = None
) -> Outcome:
    """Train on a stream of clicks, and compare with the truth."""

    def forward(model: ModelHelper, loss_scale: float) -> list[Any]:
        logits = add_logits(model, clicks.counts)
        losses = model.net.SigmoidCrossEntropyWithLogits([logits, "click"], "losses")
        return [model.net.Scale(model.net.AveragedLoss(losses, "loss"), "scaled_loss", scale=loss_scale)]

    model = ModelHelper("dlrm")
    record = parallel.Parallelize_CPU(
        model,
        lambda model: None,
        forward,
        optimizer_builder_fun=add_updates,
        devices=list(range(devices)),
        outside_from_bytes=outside_from_bytes,
    )
    workspace, rng = Workspace(), np.random.default_rng(1)
    for step in range(steps):
        feed(workspace, record, clicks.draw(rng, batch))
        if step == 0:
            parallel.RunInitNet(model, workspace=workspace)
        parallel.RunNet(model, workspace=workspace)
    fresh = clicks.draw(rng, 20 * batch)
    feed(workspace, record, fresh)
    parallel.RunNet(model, workspace=workspace)  # its last update does not matter
    found = np.concatenate([workspace.fetch(blob) for blob in record.devices.copies("logit")]).ravel()
    true = clicks.logits(fresh["user"], fresh["item"], fresh["time"])
    clicked = fresh["click"].ravel()
    correlation = float(np.corrcoef(found, true)[0, 1])
    return Outcome(log_loss(found, clicked), log_loss(true, clicked), correlation, record.outside)


def feed(workspace: Workspace, record: parallel.Replicas, batch: Batch) -> None:
    """Feed each replica its share of a batch."""
    for scope, share in zip(record.devices.scopes, shares(batch, len(record))):
        for name, values in share.items():
            workspace.feed(scope + name, values)


def log_loss(logits: Any, clicked: Any) -> float:
    """Return the mean negative log probability of the observed clicks."""
    logits = logits.astype(np.float64)
    return float(np.mean(np.logaddexp(0, logits) - clicked * logits))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train a recommendation model on clicks whose truth is known.")
    parser.add_argument("--steps", type=int, default=400, help="batches to train on (400)")
    parser.add_argument("--batch", type=int, default=1024, help="clicks in a batch (1024)")
    parser.add_argument("--devices", type=int, default=1, help="replicas on the CPU (1)")
    parser.add_argument("--outside-from-bytes", type=int, metavar="N", help="replicas share tables of N bytes or more")
    options = parser.parse_args(arguments)
    outcome = train(Clicks(), options.steps, options.batch, options.devices, options.outside_from_bytes)
    if outcome.tables_outside:
        print(f"tables outside the replicas: {', '.join(outcome.tables_outside)}")
    print(
        f"log loss {outcome.log_loss:.4f}, the best possible is {outcome.best:.4f}; "
        f"correlation of its logits with the true ones {outcome.correlation:.3f}"
    )
    return 0 if outcome.log_loss < outcome.best + 0.02 else 1


if __name__ == "__main__":
    sys.exit(main())
