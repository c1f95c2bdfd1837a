"""Writes ``data/signatures.json``: which names Caffe2's modules have, and which parameters its functions take.

Needed only when modules are added to the list; run by a Python that has Caffe2 (the one inside PyTorch 1.10 did it),
networkx and matplotlib.
"""

import importlib
import inspect
import json
import os
import pkgutil
import re

MODULES = [
    "attention",
    "brew",
    "cached_reader",
    "checkpoint",
    "cnn",
    "context",
    "control",
    "convnet_benchmarks",
    "core",
    "data_parallel_model",
    "data_workers",
    "dataio",
    "dataset",
    "db_file_reader",
    "device_checker",
    "dyndep",
    "experiment_util",
    "gradient_checker",
    "gru_cell",
    "helpers.algebra",
    "helpers.arg_scope",
    "helpers.array_helpers",
    "helpers.control_ops",
    "helpers.conv",
    "helpers.db_input",
    "helpers.dropout",
    "helpers.fc",
    "helpers.nonlinearity",
    "helpers.normalization",
    "helpers.pooling",
    "helpers.train",
    "hypothesis_test_util",
    "memonger",
    "model_helper",
    "modeling.initializers",
    "modeling.parameter_info",
    "modeling.parameter_sharing",
    "models.resnet",
    "models.seq2seq.beam_search",
    "models.seq2seq.seq2seq_model_helper",
    "models.seq2seq.seq2seq_util",
    "models.seq2seq.train",
    "models.seq2seq.translate",
    "models.shufflenet",
    "modifier_context",
    "muji",
    "net_builder",
    "net_drawer",
    "net_printer",
    "normalizer",
    "normalizer_context",
    "optimizer",
    "optimizer_context",
    "parallel_workers",
    "pipeline",
    "predictor.mobile_exporter",
    "predictor.predictor_exporter",
    "predictor.predictor_py_utils",
    "predictor.serde",
    "predictor_constants",
    "queue_util",
    "record_queue",
    "recurrent",
    "regularizer",
    "regularizer_context",
    "rnn.rnn_cell_test_util",
    "rnn_cell",
    "schema",
    "scope",
    "serialized_test.serialized_test_util",
    "session",
    "task",
    "test_util",
    "text_file_reader",
    "timeout_guard",
    "tt_core",
    "utils",
    "visualize",
    "workspace",
]
PYTHON = "caffe2.python."
EXTENSION = "caffe2.python.caffe2_pybind11_state"
PRIVATE = ["data_parallel_model"]  # scripts call the private functions of these modules
TAKEN_OVER = {"core": ["DeviceScope", "NameScope"]}
SIMPLE = (type(None), bool, int, float, str)


def parameters(function):
    """The signature as text, such as "(net, overwrite=False)"; None where it is not known."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return "({})".format(", ".join(map(shown, found)))


def shown(parameter):
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    if parameter.default is parameter.empty:
        return stars + parameter.name
    simple = isinstance(parameter.default, SIMPLE)
    return f"{parameter.name}={repr(parameter.default) if simple else '...'}"


def members(cls):
    found = {}
    for name, value in vars(cls).items():
        function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if (not name.startswith("_") or name == "__init__") and inspect.isfunction(function):
            found[name] = parameters(function)
        elif not name.startswith("_"):
            found[name] = None
    return found


def facts(module_name, module):
    found = {"functions": {}, "classes": {}, "values": []}
    for name in sorted(vars(module)):
        value = getattr(module, name)
        home = getattr(value, "__module__", None) or ""
        private = name.startswith("_") and not (module_name in PRIVATE and inspect.isfunction(value))
        if private or inspect.ismodule(value):
            continue
        if inspect.isclass(value) or callable(value):
            own = home == module.__name__ or home.startswith(EXTENSION)
            if not own and name not in TAKEN_OVER.get(module_name, []):
                continue
            if inspect.isclass(value) and not issubclass(value, tuple):
                found["classes"][name] = {} if home.startswith(EXTENSION) else members(value)
            elif inspect.isclass(value):
                found["classes"][name] = {}
            else:
                found["functions"][name] = parameters(value)
        elif isinstance(value, SIMPLE):
            found["values"].append(name)
    return found


def helpers(brew):
    registered = brew._registry
    return {"functions": dict.fromkeys(sorted(registered)), "classes": {}, "values": []}


def public_modules():
    """All modules but tests, and those inside packages of which nothing is here."""
    import caffe2.python as root

    names = [found.name[len(PYTHON) :] for found in pkgutil.walk_packages(root.__path__, PYTHON, onerror=str)]
    whole = ("docs", "examples", "fakelowp", "ideep", "layers", "mint", "mkl", "operator_test", "test", "trt")
    kept = [name for name in names if not re.search(r"(^|[._])tests?($|[._])", name) or "test_util" in name]
    kept = [name for name in kept if name.split(".")[0] not in whole or "." not in name]
    return sorted(name for name in kept if not re.search(r"(^|\.)_|pybind11", name))


def main():
    table = {}
    for name in MODULES:
        module = importlib.import_module("caffe2.python." + name)
        table[name] = helpers(module) if name == "brew" else facts(name, module)
    from caffe2.proto import caffe2_pb2, metanet_pb2, predictor_consts_pb2

    protos = {}
    for module in (caffe2_pb2, metanet_pb2, predictor_consts_pb2):
        names = [n for n in vars(module) if not n.startswith("_") and not inspect.ismodule(getattr(module, n))]
        protos[module.__name__.split(".")[-1]] = sorted(names)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "signatures.json")
    with open(path, "w") as file:
        json.dump({"modules": public_modules(), "python": table, "proto": protos}, file, indent=1, sort_keys=True)
        file.write("\n")


if __name__ == "__main__":
    main()
