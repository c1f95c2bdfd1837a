"""onnxruntime's side of the benchmark of predictors. Run by path in an environment with onnxruntime.

python peer_onnxruntime.py WARMUP FOLDER THREADS, with the folder as ``our_predictor.export`` writes it
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime
from worker import serve


def main(warmup: int, folder: Path, threads: int) -> None:
    """Write the outputs for the batch in the folder, then serve runs of it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    with np.load(folder / "inputs.npz") as stored:
        given = dict(stored)
    began = time.process_time()
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
    found = session.run(None, given)
    whole = time.process_time()
    first = whole - began
    np.savez(folder / "onnxruntime.npz", **dict(zip([output.name for output in session.get_outputs()], found)))
    serve(
        lambda: session.run(None, given),
        warmup=warmup,
        info={"version": onnxruntime.__version__, "name": "onnxruntime", "first": first, "whole": whole},
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
