"""What onnx-caffe2 does with ONNX's backend cases of its time: one outcome for each case and direction.

    python onnx_client_cases.py DATA OUTCOMES.json      on Caffe2 itself

On the compatibility layer ``onnx_client`` calls it. It is written in the Python that both have: Caffe2 was run with
Python 3.6, torch 1.10.2, onnx 1.1.2 and onnx-caffe2 1.0.0.
"""

import importlib
import json
import sys
import warnings
from pathlib import Path


def install_shims():
    """Give onnx-caffe2 what it imports and Python, onnx or its own package no longer have."""
    import collections
    import collections.abc
    import types

    import numpy as np
    import onnx

    if not hasattr(collections, "Iterable"):
        collections.Iterable = collections.abc.Iterable
    if not hasattr(onnx, "mapping"):
        helper, kinds = onnx.helper, [kind for _, kind in onnx.TensorProto.DataType.items() if 1 <= kind <= 13]
        mapping = types.ModuleType("onnx.mapping")
        mapping.TENSOR_TYPE_TO_NP_TYPE = {kind: np.dtype(helper.tensor_dtype_to_np_dtype(kind)) for kind in kinds}
        mapping.NP_TYPE_TO_TENSOR_TYPE = {dtype: kind for kind, dtype in mapping.TENSOR_TYPE_TO_NP_TYPE.items()}
        onnx.mapping = sys.modules["onnx.mapping"] = mapping
    forget_todays_operators(onnx)
    try:
        importlib.import_module("onnx_caffe2.version")
    except ImportError:
        version = types.ModuleType("onnx_caffe2.version")
        version.version = "1.0.0"
        sys.modules["onnx_caffe2.version"] = version


def forget_todays_operators(onnx):
    """Have graphs checked by the operators of onnx 1.1, where a later onnx checks them by its newest ones."""
    checker = onnx.checker
    if not hasattr(checker, "DEFAULT_CONTEXT") or onnx.__version__.startswith("1.1."):
        return
    context = type(checker.DEFAULT_CONTEXT)()
    context.ir_version, context.opset_imports = 3, {"": 4}
    check_graph, get_schema = checker.check_graph, onnx.defs.get_schema

    def check_of_that_time(graph):
        if all(each.op_type != "ThresholdedRelu" for each in graph.node):  # experimental then, so not checked
            check_graph(graph, context)

    checker.check_graph = check_of_that_time
    checker.check_model = lambda model, **options: None  # by now it refuses models of that time
    # Only asked what an operator consumes, which these models have no attribute for; some operators are gone.
    onnx.defs.get_schema = lambda kind: get_schema(kind) if onnx.defs.has(kind) else None


def folders(data):
    """The folders of the cases that come with onnx, by name; those of large models are not among them."""
    found = {}
    for kind in ("node", "simple", "pytorch-converted", "pytorch-operator"):
        for folder in sorted(Path(data, kind).iterdir()):
            if (folder / "model.onnx").exists():
                found[kind + "/" + folder.name] = folder
    return found


def values(folder, what):
    """The stored inputs or outputs of a case, one list for each of its sets."""
    import numpy as np
    import onnx
    from onnx import numpy_helper

    def load(path):
        tensor = onnx.TensorProto()
        tensor.ParseFromString(path.read_bytes())
        return numpy_helper.to_array(tensor)

    sets = [list(np.load(str(path), encoding="bytes", allow_pickle=True)[what + "s"])
            for path in sorted(folder.glob("test_data_*.npz"))]  # fmt: skip
    for part in sorted(folder.glob("test_data_set_*")):
        sets.append([load(part / f"{what}_{i}.pb") for i in range(len(list(part.glob(what + "_*.pb"))))])
    return sets


def check(backend, model, folder):
    """Run a model on the inputs of a case, and compare with its outputs."""
    import numpy as np

    prepared = backend.prepare(model, "CPU")
    for inputs, outputs in zip(values(folder, "input"), values(folder, "output")):
        found = list(prepared.run(inputs))
        np.testing.assert_equal(len(found), len(outputs))
        for got, expected in zip(found, outputs):
            np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-7)


def returned(backend, frontend, model):
    """Return the ONNX model that the frontend makes of the nets that the backend makes of a model."""
    import numpy as np

    np.random.seed(0)  # of the inputs that the frontend runs the nets on
    graph = type(model.graph)()
    graph.CopyFrom(model.graph)
    stored = {each.name for each in graph.initializer}
    init_net, net = backend.Caffe2Backend.onnx_graph_to_caffe2_net(graph)
    kept = [op for op in init_net.op if op.output[0] in stored]
    del init_net.op[:]
    init_net.op.extend(kept)
    infos = {}
    for each in graph.input:
        if each.name not in stored:
            kind = each.type.tensor_type
            infos[each.name] = kind.elem_type, tuple(d.dim_value for d in kind.shape.dim)
    return frontend.caffe2_net_to_onnx_model(net, init_net if kept else None, infos)


def outcome(function, *arguments):
    """Return "passed" and what the function returns, or why it failed and None."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return "passed", function(*arguments)
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()] or [""]
        return f"failed: {type(error).__name__}: {lines[0].strip()[:200]}", None


def outcomes(data):
    """Return by case: how its model runs, how its nets become ONNX, and how that model runs."""
    import onnx

    install_shims()
    backend = importlib.import_module("onnx_caffe2.backend")
    frontend = importlib.import_module("onnx_caffe2.frontend").Caffe2Frontend
    frontend._annotate_consumed = staticmethod(lambda graph: None)  # onnx no longer says what an operator consumes
    found = {}
    for name, folder in folders(data).items():
        model = onnx.load(str(folder / "model.onnx"))
        found[name + " backend"], _ = outcome(check, backend, model, folder)
        if found[name + " backend"] == "passed":
            model = onnx.load(str(folder / "model.onnx"))
            found[name + " frontend"], again = outcome(returned, backend, frontend, model)
            if again is not None:
                found[name + " returned"], _ = outcome(check, backend, again, folder)
    return found


if __name__ == "__main__":
    import onnx  # noqa: F401  (before Caffe2: the other order ends in a crash of protobuf's)

    Path(sys.argv[2]).write_text(json.dumps(outcomes(sys.argv[1]), indent=1, sort_keys=True))
