"""netbuilder-train in processes with emulated GPUs, which exchange values by NCCL: without MPI.

``nccl_trainer.py GPUS FOLDER``: each process has so many GPUs; rank 0 stores what it has after each case.
``nccl_trainer.py GPUS FAULT RANK STEP OPTIONS...``: after so many steps the rank gets a signal.
``nccl_training.launched`` starts it.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from nccl_training import take_gpus
from netbuilder.distributed import Rendezvous, require_equal_blobs
from netbuilder.tools import imagenet_trainer
from trainer_faults import fault_at
from trainer_processes import results, start

__all__ = ["CASES"]

CASES = ("plain", "micro-batches", "normalization over all")
"""Of trainer_processes."""


def main() -> int:
    count, *arguments = sys.argv[1:]
    take_gpus()
    place = Rendezvous.from_environment()
    assert place.engine == "NCCL"
    if len(arguments) > 1:
        fault, rank, step, *options = arguments
        with fault_at(fault, int(step)) if fault and place.shard_id == int(rank) else nullcontext():
            return imagenet_trainer.main(options)
    for name in CASES:
        run = start(name, int(count), Path(), place, cpu=False)
        found = results(run)
        if run.options.block is None:
            require_equal_blobs(run.model.train, workspace=run.model.workspace)
        if place.shard_id == 0:
            np.savez(Path(arguments[0]) / f"{name}.npz", **found)
    assert "mpi4py" not in sys.modules
    print(f"rank {place.shard_id} has finished")
    return 0


if __name__ == "__main__":
    sys.exit(main())
