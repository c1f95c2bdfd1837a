"""A table and its Adagrad's state under a limit on memory: ``sharded_training.py FOLDER MIB``, in some processes.

MIB is what a process may take in addition to what it has when it has started. Rank 0 writes checkpoint and predictor.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder import parallel
from netbuilder.distributed import ProcessGroup, Rendezvous
from netbuilder.exchange import save_checkpoint, save_predictor
from netbuilder.exchange.predictor_exporter import PredictorExportMeta, save_to_db
from netbuilder.graph.net_names import reset_names
from netbuilder.model import Initializer, ModelHelper, brew
from netbuilder.optimizers import build_adagrad
from netbuilder.runtime import Workspace
from parallel_models import no_input
from toy_models import scaled_loss

__all__ = ["COLUMNS", "ROWS", "build", "train"]

ROWS, COLUMNS, SAMPLES, STEPS = 1_500_003, 16, 64, 3
"""92 MiB of table, and as much of state."""


def bags(model: ModelHelper, loss_scale: float) -> list[Any]:
    table = model.create_param("table", [ROWS, COLUMNS], Initializer("UniformFill", min=-0.5, max=0.5))
    sums = model.net.SparseLengthsSum([table, "index", "lengths"], "sums")
    return scaled_loss(model, brew.fc(model, sums, "fc", COLUMNS, 4), loss_scale)


def build(rendezvous: Rendezvous | None, devices: int = 1) -> ModelHelper:
    reset_names()
    model = ModelHelper("bags")
    parallel.Parallelize_CPU(
        model,
        no_input,
        bags,
        optimizer_builder_fun=lambda model: build_adagrad(model, 0.1),
        devices=list(range(devices)),
        rendezvous=rendezvous,
        outside_from_bytes=1 << 20,
        shard_tables=True,
        deterministic=True,
    )
    return model


def train(model: ModelHelper, replicas: int) -> Workspace:
    record, workspace = parallel.Replicas.load(model.net.Proto()), Workspace(threads=1, seed=1)
    rng, first = np.random.default_rng(0), record.world.first_replica
    for step in range(STEPS):
        index = rng.integers(0, ROWS, (replicas, 4 * SAMPLES)).astype(np.int32)
        label = rng.integers(0, 4, (replicas, SAMPLES)).astype(np.int32)
        for replica, scope in enumerate(record.devices.scopes):
            workspace.feed(scope + "index", index[first + replica])
            workspace.feed(scope + "lengths", np.full(SAMPLES, 4, np.int32))
            workspace.feed(scope + "label", label[first + replica])
        if step == 0:
            parallel.RunInitNet(model, workspace=workspace)
        parallel.RunNet(model, workspace=workspace)
    return workspace


def limit_data(mebibytes: int) -> None:
    """Let this process take so much more memory of its own."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    now = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (now + (mebibytes << 20),) * 2)


def main(folder: Path, mebibytes: int) -> None:
    place = Rendezvous.from_environment()
    ProcessGroup(place).wait()  # MPI has started
    np.ones((200, 200)) @ np.ones((200, 200))  # and BLAS has its memory
    limit_data(mebibytes)
    model = build(place)
    workspace = train(model, place.num_shards)
    save_checkpoint(folder / "table.minidb", model, workspace=workspace)
    net, parameters = parallel.ExtractPredictorNet(model, ["index", "lengths"], ["softmax"])
    meta = PredictorExportMeta(net, parameters, ["index", "lengths"], ["softmax"])
    save_to_db("minidb", folder / "predictor.minidb", meta, workspace=workspace)
    save_predictor(folder / "predictor", net, parameters, inputs=["index", "lengths"], workspace=workspace)
    print(f"rank {place.shard_id} of {place.num_shards}: {workspace.spec('table').shape}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
