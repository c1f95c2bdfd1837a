"""A training step with its feed, by DataParallel or by RunNet: ``python -m netbuilder.tools.bench.our_wrapper ...``."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import netbuilder
from netbuilder import DataParallel, ModelHelper, Workspace, parallel
from netbuilder.optimizers import build_sgd
from netbuilder.tools.bench.our_nets import add_scores
from netbuilder.tools.bench.work import Work
from netbuilder.tools.bench.worker import serve

__all__ = ["WAYS", "main", "steps"]

_BATCHES = 8  # different ones, in turn


def _batches(work: Work) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {
            "data": rng.standard_normal(work.shape, np.float32),
            "label": rng.integers(0, work.classes, work.labels).astype(np.int32),
        }
        for _ in range(_BATCHES)
    ]


def _loss(model: ModelHelper, scores: Any, label: Any) -> Any:
    return model.net.SoftmaxWithLoss([scores, label], ["softmax", "loss"])[1]


def _update(model: ModelHelper, work: Work) -> Any:
    return build_sgd(model, work.rate, momentum=work.momentum, nesterov=0)


def _by_wrapper(work: Work) -> tuple[Callable[[], None], Callable[[], float]]:
    net = DataParallel(
        lambda model, data: add_scores(model, work),
        list(range(work.devices)),
        loss=_loss,
        optimizer=lambda model: _update(model, work),
        cpu_device=True,
        workspace=Workspace(threads=work.threads),
    )
    batches, losses = itertools.cycle(_batches(work)), list[Any]()

    def step() -> None:
        batch = next(batches)
        net(batch["data"])
        losses[:] = net.loss(batch["label"])
        net.backward()
        net.step()

    return step, lambda: float(np.mean(losses))


def _by_run_net(work: Work) -> tuple[Callable[[], None], Callable[[], float]]:
    model, workspace = ModelHelper(name=work.net), Workspace(threads=work.threads)

    def forward(model: ModelHelper, scale: float) -> list[Any]:
        return [model.net.Scale(_loss(model, add_scores(model, work), "label"), "scaled_loss", scale=scale)]

    parallel.Parallelize_CPU(
        model,
        input_builder_fun=lambda model: None,
        forward_pass_builder_fun=forward,
        optimizer_builder_fun=lambda model: _update(model, work),
        devices=list(range(work.devices)),
    )
    batches = _batches(work)

    def source() -> Iterator[dict[str, Any]]:
        yield from itertools.cycle(batches)

    fed = parallel.prefetch(model, source(), blobs=["data", "label"], workspace=workspace)
    losses = parallel.loss_reader(model, ["loss"], workspace=workspace)
    parallel.RunInitNet(model, workspace=workspace)

    def step() -> None:
        next(fed)
        parallel.RunNet(model, workspace=workspace)
        losses.read()

    return step, lambda: (losses.last() or {}).get("loss", float("nan"))


WAYS = {"wrapper": _by_wrapper, "prefetch": _by_run_net}
"""Name -> function that returns (a step with its feed, the loss of the last step) for a piece of work."""


def steps(way: str, work: Work) -> tuple[Callable[[], None], Callable[[], float]]:
    """Return a step with its feed, and a function that returns the loss of the last step.

    Args:
        way: "wrapper": ``DataParallel``; "prefetch": ``RunNet`` with ``prefetch`` and ``loss_reader``.
        work: what to train.
    """
    return WAYS[way](work)


def main(arguments: list[str]) -> None:
    """Serve the steps of one piece of work (see ``worker.serve``)."""
    step, loss = steps(arguments[2], Work.from_text(arguments[1]))
    serve(step, warmup=int(arguments[0]), loss=loss, info={"version": netbuilder.__version__})


if __name__ == "__main__":
    main(sys.argv[1:])
