"""Caffe2's side of the benchmarks: the nets that netbuilder built, in Caffe2's own executor.

It runs by path in an environment with Caffe2, which the wheels of torch contain up to 1.10 (Python 3.6 to 3.9):
python peer_caffe2.py WARMUP FOLDER THREADS, with the folder as ``ours.Training.write_nets`` writes it
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from caffe2.proto import caffe2_pb2
from caffe2.python import core, workspace
from worker import serve


def net_of(file: Path) -> caffe2_pb2.NetDef:
    """Return the net in a file."""
    net = caffe2_pb2.NetDef()
    net.ParseFromString(file.read_bytes())
    return net


def version() -> str:
    """Return the version of the wheel that contains Caffe2."""
    try:
        import torch
    except ImportError:
        return "unknown"
    return f"of torch {torch.__version__}"


def main(warmup: int, folder: Path, threads: int) -> None:
    """Serve the steps of the net in the folder."""
    core.GlobalInit(["peer_caffe2", "--caffe2_log_level=2", f"--caffe2_omp_num_threads={threads}"])
    workspace.RunNetOnce(net_of(folder / "init.pb"))
    with np.load(folder / "blobs.npz") as blobs:
        for name in blobs.files:
            workspace.FeedBlob(name, blobs[name])
    net = net_of(folder / "net.pb")
    workspace.CreateNet(net)
    serve(
        lambda: workspace.RunNet(net.name),
        warmup=warmup,
        loss=lambda: float(workspace.FetchBlob("loss")),
        info={"version": version()},
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
