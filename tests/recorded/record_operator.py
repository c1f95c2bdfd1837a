"""Runs an operator on Caffe2 and writes what it computed as golden cases: ``record_operator.py CASES.py FOLDER``.

``CASES.py`` defines ``OPERATOR``, its type, and ``CASES``, a list of dictionaries: ``inputs``, arrays by the names of
the blobs; ``outputs``, the names of these; and what is not as usual of ``args``, ``label``, ``gradient`` (True),
``check`` ("close"), ``rtol``, ``atol``, ``grad_rtol`` and ``grad_atol``. ``OPERATOR.npz`` in FOLDER must not exist.
Run by a Python that has Caffe2 (the one inside PyTorch 1.10).
"""

import json
import os
import runpy
import sys

import numpy as np
from caffe2.python import core, workspace

TOLERANCES = {"check": "close", "rtol": 1e-4, "atol": 1e-5, "grad_rtol": 1e-3, "grad_atol": 1e-4}


def message(op):
    op.debug_info = ""
    return np.frombuffer(op.SerializeToString(), np.uint8)


def run(op):
    assert workspace.RunOperatorOnce(op), "Caffe2 refuses this operator"


def under(part, blobs):
    """Return the values of blobs in the workspace, by their names in the file."""
    return {part + name: np.array(workspace.FetchBlob(name)) for name in blobs}


def record(operator, inputs, outputs, args=None, label="", gradient=True, **tolerances):
    """Run a case; return its arrays by their names in the file."""
    workspace.ResetWorkspace()
    op = core.CreateOperator(operator, list(inputs), list(outputs), **(args or {}))
    for name, value in inputs.items():
        workspace.FeedBlob(name, value)
    found = {"op": message(op), **under("in/", inputs)}
    run(op)
    found.update(under("out/", outputs))
    meta = {
        "op": operator, "label": label, "args": args or {}, "inputs": list(inputs), "outputs": list(outputs),
        "inplace": [name for name in outputs if name in inputs], "has_gradient": gradient, **TOLERANCES, **tolerances,
    }  # fmt: skip
    if gradient:
        found.update(record_gradient(op, meta))
    return {**found, "meta": np.frombuffer(json.dumps(meta).encode(), np.uint8)}


def record_gradient(op, meta):
    """Differentiate a net of the operator alone on random gradients of its outputs; complete the notes."""
    net = core.Net("case")
    net.Proto().op.extend([op])
    given = {name: name + "_grad" for name in op.output}
    random = np.random.RandomState(0)
    for name, seed in given.items():
        value = workspace.FetchBlob(name)
        workspace.FeedBlob(seed, np.asarray(random.randn(*value.shape), value.dtype))
    found = under("gin/", given.values())
    gradients = net.AddGradientOperators(given)
    backward = list(net.Proto().op)[1:]
    for number, each in enumerate(backward):
        found[f"gop/{number}"] = message(each)
        run(each)
    of_inputs = {str(name): described(blob) for name, blob in gradients.items() if str(name) in op.input}
    parts = {how[part] for how in of_inputs.values() for part in how if part != "kind"}
    found.update(under("gout/", parts.union(*(each.output for each in backward))))
    meta.update(
        grad_of_outputs=given, num_grad_ops=len(backward), grad_op_types=[each.type for each in backward],
        input_grads=of_inputs,
    )  # fmt: skip
    return found


def described(gradient):
    if isinstance(gradient, core.GradientSlice):
        return {"kind": "sparse", "indices": str(gradient.indices), "values": str(gradient.values)}
    return {"kind": "dense", "blob": str(gradient)}


def main(cases, folder):
    given = runpy.run_path(cases)
    arrays = {}
    for number, case in enumerate(given["CASES"]):
        found = record(given["OPERATOR"], **case)
        arrays.update((f"c{number}/{name}", value) for name, value in found.items())
    path = os.path.join(folder, given["OPERATOR"] + ".npz")
    assert not os.path.exists(path), path + " has cases already"
    np.savez_compressed(path, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
