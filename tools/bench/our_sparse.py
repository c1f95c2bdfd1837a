"""Our side of the benchmark of sparse sums: ``python -m netbuilder.tools.bench.our_sparse WARMUP WORK FOLDER``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import netbuilder
from netbuilder import Workspace
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.tools.bench.sparse_work import arrays
from netbuilder.tools.bench.worker import serve

__all__ = ["main"]


def main(arguments: list[str]) -> None:
    """Write the result for the same arrays as the peer, then serve runs: sums, and with ``backward`` their gradient."""
    work, folder = json.loads(arguments[1]), Path(arguments[2])
    made = arrays(work)
    workspace = Workspace(threads=work["threads"])
    for name in ("table", "indices", "slope"):
        workspace.feed(name, made[name])
    workspace.feed("lengths", made["lengths"].astype(np.int32))
    net = NetDef(name="sparse")
    net.op.append(make_op("SparseLengthsSum", ["table", "indices", "lengths"], ["sums"]))
    if work["backward"]:
        inputs = ["slope", "lengths", "indices"]
        net.op.append(make_op("SparseLengthsIndicesInGradientSumGradient", inputs, ["table_grad_values"]))
    net.external_input.extend(["table", "indices", "lengths", "slope"])
    workspace.create_net(net)
    workspace.run_net(net.name)
    found = {"sums": workspace.fetch("sums")}
    if work["backward"]:
        found["values"] = workspace.fetch("table_grad_values")
    np.savez(folder / "ours.npz", **found)
    serve(lambda: workspace.run_net(net.name), warmup=int(arguments[0]), info={"version": netbuilder.__version__})


if __name__ == "__main__":
    main(sys.argv[1:])
