"""OpenVINO's side of the benchmark of predictors. Run by path in an environment with openvino.

python peer_openvino.py WARMUP FOLDER THREADS, with the folder as ``our_predictor.export`` writes it
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import openvino
from worker import serve


def main(warmup: int, folder: Path, threads: int) -> None:
    """Write the outputs for the batch in the folder, then serve runs of it."""
    with np.load(folder / "inputs.npz") as stored:
        given = dict(stored)
    began = time.process_time()
    core = openvino.Core()
    net = core.read_model(folder / "model.onnx")
    net.reshape({name: value.shape for name, value in given.items()})
    # Without the hint of the precision it computes in bfloat16 where the processor can.
    hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    request = core.compile_model(net, "CPU", hints).create_infer_request()

    def step() -> list[np.ndarray]:
        found = request.infer(given, share_inputs=True)
        return [found[i] for i in range(len(net.outputs))]

    names = [output.get_any_name() for output in net.outputs]
    found = step()
    whole = time.process_time()
    first = whole - began
    np.savez(folder / "openvino.npz", **dict(zip(names, found)))
    version = openvino.__version__.partition("-")[0]
    serve(step, warmup=warmup, info={"version": version, "name": "openvino", "first": first, "whole": whole})


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
