"""Runs the calls of ``calls.py`` on Caffe2 and writes the nets they make to ``nets.json.gz``.

Needed only when calls change; run by a Python that has Caffe2 (the one inside PyTorch 1.10 did it).
"""

import gzip
import json
import os

import calls
import calls_half
import calls_sparse
import numpy as np
from caffe2.python import brew, core, model_helper, optimizer
from caffe2.python.modeling.initializers import (
    ExternalInitializer,
    Initializer,
    PseudoFP16Initializer,
    ReversePseudoFP16Initializer,
)
from caffe2.python.modeling.parameter_info import ParameterTags
from caffe2.python.modeling.parameter_sharing import ParameterSharing
from caffe2.python.models import resnet
from google.protobuf import text_format

HERE = os.path.dirname(os.path.abspath(__file__))


def record(code):
    core.Net._net_names_used = set()
    optimizer.reset_optimizer_instance_count()
    model = model_helper.ModelHelper("m")
    names = {
        "ExternalInitializer": ExternalInitializer,
        "Initializer": Initializer,
        "ModelHelper": model_helper.ModelHelper,
        "ParameterSharing": ParameterSharing,
        "ParameterTags": ParameterTags,
        "PseudoFP16Initializer": PseudoFP16Initializer,
        "ReversePseudoFP16Initializer": ReversePseudoFP16Initializer,
        "brew": brew,
        "core": core,
        "model": model,
        "optimizer": optimizer,
        "resnet": resnet,
    }
    exec(code, names)
    return {
        "net": text(model.net),
        "init": text(model.param_init_net),
        "params": [str(p) for p in model.params],
        "weights": [str(p) for p in model.weights],
        "biases": [str(p) for p in model.biases],
        "computed": [str(p) for p in model.GetComputedParams("")],
    }


def text(net):
    message = net.Proto()
    for op in message.op:
        op.debug_info = ""
    return text_format.MessageToString(message, as_one_line=True)


def main():
    np.asscalar = lambda number: number.item()  # Caffe2 calls it, and NumPy has it no longer
    groups = {
        "helpers": calls.HELPERS,
        "optimizers": calls.OPTIMIZERS,
        "zoo": calls.ZOO,
        "half": calls_half.HALF,
        "dense": calls_half.DENSE,
        "sparse": calls_sparse.SPARSE,
    }
    nets = {group: {name: record(code) for name, code in codes.items()} for group, codes in groups.items()}
    path = os.path.join(HERE, "nets.json.gz")
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
        packed.write(json.dumps(nets, indent=0, sort_keys=True).encode())


if __name__ == "__main__":
    main()
