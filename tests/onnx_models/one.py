"""One model: exported; or read, run and compared. Each is called in a process of its own."""

from __future__ import annotations

import resource
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from onnx_models.models import Case

__all__ = ["compare", "export"]


def export(case: Case, path: Path) -> dict[str, Any]:
    """Write a model, and next to it example inputs (.npz)."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    module, inputs = case.build()
    module.eval()
    names = [f"input_{i}" for i in range(len(inputs))]
    part = path.with_suffix(".part")
    with torch.no_grad():
        if case.dynamo:
            made = torch.onnx.export(
                module, inputs, None, dynamo=True, opset_version=case.opset, input_names=names, verbose=False
            )
            made.save(part)
        else:
            torch.onnx.export(module, inputs, part, dynamo=False, opset_version=case.opset, input_names=names)
    np.savez(path.with_suffix(".npz"), **{name: value.numpy() for name, value in zip(names, inputs)})
    part.rename(path)
    return {"bytes": path.stat().st_size}


def compare(path: Path) -> dict[str, Any]:
    """Read a model, run it, and compare its outputs with those of onnxruntime."""
    import onnx

    from netbuilder.exchange.onnx import ReferenceNodeWarning, read_onnx

    found: dict[str, Any] = {"bytes": path.stat().st_size}
    given = dict(np.load(path.with_suffix(".npz")))
    _forget_peak()
    before, start = _resident(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReferenceNodeWarning)
        try:
            read = read_onnx(path)
        except Exception as error:
            return found | {"refused": f"{type(error).__name__}: {error}"}
    found["seconds"] = round(time.process_time() - start, 2)
    found["memory"] = _peak() - before
    reference = [op for op in read.net.op if op.type == "ONNXNode"]
    kinds = Counter(onnx.NodeProto.FromString(_argument(op, "node")).op_type for op in reference)
    found |= {"nodes": len(read.net.op), "reference": dict(kinds.most_common())}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            ours = read.predictor(trusted=True).run({name: given[name] for name in read.inputs})
    except Exception as error:
        return found | {"failed": f"{type(error).__name__}: {error}"}
    theirs = _onnxruntime(path, given)
    worst = 0.0
    for name, expected in theirs.items():
        if np.shape(ours[name]) != expected.shape:
            return found | {"failed": f"output {name!r} has shape {np.shape(ours[name])}, expected {expected.shape}"}
        if expected.size:
            scale = max(float(np.abs(expected.astype(np.float64)).max()), 1e-6)
            worst = max(worst, float(np.abs(ours[name].astype(np.float64) - expected).max()) / scale)
    return found | {"difference": worst}


def _argument(op: Any, name: str) -> bytes:
    return next(bytes(each.s) for each in op.arg if each.name == name)


def _onnxruntime(path: Path, given: dict[str, Any]) -> dict[str, Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    inputs = {each.name for each in session.get_inputs()}
    return dict(zip(names, session.run(names, {name: value for name, value in given.items() if name in inputs})))


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _forget_peak() -> None:
    """Make the peak of this process's resident memory what it is now."""
    Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10
