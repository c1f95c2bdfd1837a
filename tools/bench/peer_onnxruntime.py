"""onnxruntime's side of the benchmark of predictors. Run by path in an environment with onnx and onnxruntime.

python peer_onnxruntime.py WARMUP FOLDER THREADS, with the folder as ``our_predictor.export`` writes it
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime
from peer_onnx_model import model_of
from worker import serve


def main(warmup: int, folder: Path, threads: int) -> None:
    """Write the outputs for the batch in the folder, then serve runs of it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    model = model_of(folder)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    given = {session.get_inputs()[0].name: np.load(folder / "batch.npy")}
    names = [output.name for output in session.get_outputs()]
    np.savez(folder / "onnxruntime.npz", **dict(zip(names, session.run(None, given))))
    serve(
        lambda: session.run(None, given),
        warmup=warmup,
        info={"version": onnxruntime.__version__, "name": "onnxruntime"},
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
