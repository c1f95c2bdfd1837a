"""One of several processes that train with a store in a folder: ``same_folder_program.py FOLDER RUN_ID STEPS``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from netbuilder import ModelHelper, Workspace, parallel
from netbuilder.distributed import Rendezvous, require_equal_blobs
from parallel_models import OPTIMIZERS, no_input
from toy_models import mlp


def main(folder: Path, run_id: str, steps: int) -> None:
    place = Rendezvous.from_environment(store=f"file:{folder / 'store'}", run_id=run_id)
    model, workspace = ModelHelper("net"), Workspace(threads=1, seed=steps)
    update = OPTIMIZERS["momentum"]
    parallel.Parallelize_CPU(model, no_input, mlp, optimizer_builder_fun=update, devices=[0], rendezvous=place)
    workspace.feed("cpu_0/data", np.full((4, 6), steps, np.float32))
    workspace.feed("cpu_0/label", np.zeros(4, np.int32))
    (folder / f"{steps}-{place.shard_id}").touch()
    while len(list(folder.glob("*-?"))) < 4:  # both runs meet in the store
        time.sleep(0.01)
    parallel.RunInitNet(model, workspace=workspace)
    parallel.RunNet(model, steps, workspace=workspace)
    require_equal_blobs(model, workspace=workspace)
    print(f"rank {place.shard_id} has finished")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
