"""Runs of netbuilder-train that are the same in one process and in several: ``trainer_processes.py FOLDER CASE...``."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from netbuilder.distributed import Rendezvous, require_equal_blobs
from netbuilder.exchange.divided import give_divided, taken
from netbuilder.proto import DistributedError, NetError
from netbuilder.tools import imagenet_trainer
from netbuilder.tools.training.budget import run_within_budget
from netbuilder.tools.training.images import Images, load_images
from netbuilder.tools.training.options import parse
from netbuilder.tools.training.run import Run
from small_training import BASE, images
from trainer_faults import OPTIONS, fault_at, resumable

__all__ = ["CASES", "results", "start"]

DEVICES = 2
"""Devices of all processes together."""

CONVOLUTIONS = ["--model=resnet8-cifar", "--batch=8", "--epochs=1"]

CASES: dict[str, list[str]] = {
    "plain": ["--find-nan"],
    "soft labels": ["--mixup=0.4", "--cutmix=1", "--label-smoothing=0.1", "--strategy=topk:1"],
    "micro-batches": ["--mixup=0.4", "--accumulate-steps=3", "--ema=0.9"],
    "blocks": [
        "--block-steps=2",
        "--block-warmup-steps=1",
        "--accumulate-steps=2",
        "--optimizer=adam",
        "--learning-rate=0.01",
    ],
    "owners": ["--strategy=zero:1", "--optimizer=adam", "--learning-rate=0.01", "--ema=0.9"],
    "a memory budget": ["--model=lenet", "--batch=256", "--epochs=1", "--memory-budget=0.6"],
    "normalization over all": [*CONVOLUTIONS, "--combine-bn"],
    "decoded": ["--crop=6", "--pad=1", "--mirror", "--gray", "--mixup=0.2"],
}
"""Name -> options; the last batch of an epoch has 5 samples, of 12, or one, of 8."""


def start(name: str, devices: int, data: Path, rendezvous: Rendezvous | None = None, *, cpu: bool = True) -> Run:
    """Return the run of a case, before its first step; on GPUs if not on the CPU."""
    base = [option for option in BASE if cpu or option != "--cpu"]
    arguments = [*base, f"--devices={','.join(map(str, range(devices)))}", *CASES[name]]
    options = parse([*arguments, f"--data={data}"], rendezvous=rendezvous)
    if options.memory_budget:
        return run_within_budget(options, large_images(300), large_images(9))
    if name == "decoded":
        return Run(options, *load_images(options.data, options.input))
    return Run(options, images(17 if CASES[name][: len(CONVOLUTIONS)] == CONVOLUTIONS else 41), images(13))


def large_images(count: int) -> Images:
    rng = np.random.default_rng(count)
    return Images(rng.normal(size=(count, 1, 16, 16)).astype(np.float32), rng.integers(0, 10, count).astype(np.int32))


def results(run: Run) -> dict[str, Any]:
    """Train to the end; return losses, accuracies and the values of the checkpoint."""
    measures = []
    for number in range(run.epochs_done + 1, run.options.epochs + 1):
        epoch, found = run.train_epoch(number), run.evaluation()
        assert epoch is not None
        measures += [epoch.loss, epoch.accuracy, found.loss, found.top1, found.top5, found.samples]
    blobs = dict(run.checkpoint().blobs)
    if not give_divided(blobs):
        with taken(blobs) as pieces:
            blobs |= {name: blobs[name].whole(of_value) for name, of_value in pieces.items()}
    return {"measures": np.array(measures, np.float64), **blobs}


def main() -> None:
    folder = Path(sys.argv[1])
    place = Rendezvous.from_environment()
    for name in sys.argv[2:]:
        run = start(name, DEVICES // place.num_shards, folder / "set.npz", place)
        found = results(run)
        if run.options.block is None:
            require_equal_blobs(run.model.train, workspace=run.model.workspace)
        if place.shard_id == 0:
            np.savez(folder / f"{name}.npz", **found)
    check_disagreement(place)
    for fault, status in (("SIGTERM", 128 + signal.SIGTERM), ("ERROR", 1)):
        with fault_at(fault, 7) if place.shard_id == 1 else nullcontext():
            more = ["--measure-speed-up"] if fault == "SIGTERM" else []
            assert imagenet_trainer.main([*OPTIONS, *resumable(folder / fault), *more]) == status
    with slow_images(0.03) if place.shard_id == 1 else nullcontext():
        assert imagenet_trainer.main([*OPTIONS, "--epochs=1", f"--trace={folder / 'trace.json'}"]) == 0
    print(f"rank {place.shard_id} has finished")


def slow_images(seconds: float) -> AbstractContextManager[Any]:
    """Return a context in which each batch takes so long to read."""
    batches = Images.batches

    def slow(images: Images, *arguments: Any, **options: Any) -> Any:
        for batch in batches(images, *arguments, **options):
            time.sleep(seconds)
            yield batch

    return mock.patch.object(Images, "batches", slow)


def check_disagreement(place: Rendezvous) -> None:
    """Other data or options on one rank are an error on all."""
    try:
        Run(parse([*BASE, f"--seed={place.shard_id}"], rendezvous=place), images(30 + place.shard_id), images(13))
    except (DistributedError, NetError) as error:
        seeds, samples = "--seed (0 on rank 0; 1 on rank 1)", "training samples (30 on rank 0; 31 on rank 1)"
        assert str(error).startswith(f"the processes differ in {seeds}, {samples}"), error
    else:
        raise AssertionError("no error")


if __name__ == "__main__":
    main()
