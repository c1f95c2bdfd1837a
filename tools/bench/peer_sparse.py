"""PyTorch's side of the benchmark of sparse sums. Run by path in an environment with torch.

python peer_sparse.py WARMUP WORK FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from sparse_work import arrays
from worker import serve


def main(arguments: list[str]) -> None:
    """Write the result, then serve runs of ``embedding_bag``, with ``backward`` also of its sparse gradient."""
    work, folder = json.loads(arguments[1]), Path(arguments[2])
    torch.set_num_threads(work["threads"])
    made = {name: torch.from_numpy(value) for name, value in arrays(work).items()}
    table, slope = made["table"].requires_grad_(bool(work["backward"])), made["slope"]
    offsets = torch.cumsum(made["lengths"], 0) - made["lengths"]
    indices = made["indices"]

    def step() -> torch.Tensor:
        table.grad = None
        sums = torch.nn.functional.embedding_bag(indices, table, offsets, mode="sum", sparse=True)
        if work["backward"]:
            sums.backward(slope)
        return sums

    found = {"sums": step().detach().numpy()}
    if work["backward"]:
        assert table.grad is not None
        found["values"] = table.grad._values().numpy()
    np.savez(folder / "peer.npz", **found)
    serve(step, warmup=int(arguments[0]), info={"version": torch.__version__})


if __name__ == "__main__":
    main(sys.argv[1:])
