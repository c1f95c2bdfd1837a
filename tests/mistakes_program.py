"""One of two processes that train with a mistake: ``mistakes_program.py MISTAKE FOLDER``."""

from __future__ import annotations

import sys

import numpy as np

from netbuilder import ModelHelper, Workspace, parallel
from netbuilder.distributed import Rendezvous
from parallel_models import OPTIMIZERS, no_input
from toy_models import mlp


def main(mistake: str, folder: str) -> None:
    own = Rendezvous.from_environment()
    place = own
    if mistake == "shard_id":
        place = Rendezvous(num_shards=2, shard_id=1)
    if mistake == "shard_id in a store":
        place = Rendezvous(num_shards=2, shard_id=1, store=f"file:{folder}", run_id="run")
    if mistake == "store":
        place = Rendezvous(num_shards=2, shard_id=own.shard_id, store="file:/dev/null/store", run_id="run")
    model, workspace = ModelHelper("net"), Workspace(threads=1, seed=1)
    parallel.Parallelize_CPU(
        model,
        no_input,
        mlp,
        optimizer_builder_fun=OPTIMIZERS["momentum"],
        devices=[0],
        rendezvous=place,
        strategy="topkk:0.01" if mistake == "strategy" else None,
        weighted_shares=mistake in ("weighted batches", "shares"),
    )
    if mistake == "net" and own.shard_id == 1:
        model.net.Proto().op[0].engine = "another"
    parallel.RunInitNet(model, workspace=workspace)
    if mistake == "parameter":
        workspace.feed("cpu_0/fc1_w", np.full((6, 8), own.shard_id, np.float32).T)
    if mistake == "parameter of one rank" and own.shard_id == 1:
        workspace.feed("cpu_0/fc1_w", np.ones((8, 6), np.float32))
    if mistake == "iteration":
        workspace.feed("optimizer_iteration", np.array([7 * own.shard_id], np.int64))
    if mistake == "none":  # the same in all ranks
        workspace.feed("cpu_0/fc1_w", np.ones((8, 6), np.float32))
        workspace.feed("optimizer_iteration", np.array([7], np.int64))
    sizes = [4, 4 + 2 * own.shard_id] if mistake in ("batches", "weighted batches", "shares") else [4, 4]
    batches = [{"data": np.ones((size, 6), np.float32), "label": np.zeros(size, np.int32)} for size in sizes]
    if mistake == "shares":
        for batch in batches:
            for _ in parallel.feed_shares(model, batch, workspace=workspace):
                parallel.RunNet(model, workspace=workspace)
    with parallel.prefetch(model, batches, blobs=["data", "label"], workspace=workspace) as steps:
        for _ in steps:
            parallel.RunNet(model, workspace=workspace)
    parallel.Synchronize(model, workspace=workspace)
    print(f"rank {own.shard_id} has finished", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
