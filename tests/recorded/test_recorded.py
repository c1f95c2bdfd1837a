"""The recorded calls make the nets here that they made on Caffe2, but for the differences listed."""

import functools
import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from google.protobuf import text_format

from netbuilder import graph, optimizers, zoo
from netbuilder.caffe2.python.model_helper import ModelHelper as CompatibleModel
from netbuilder.graph.net_names import reset_names
from netbuilder.model import ExternalInitializer, Initializer, ParameterSharing, ParameterTags, brew
from netbuilder.model.initializers import PseudoFP16Initializer, ReversePseudoFP16Initializer
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_device_option
from recorded import calls, calls_half, calls_sparse
from structure import differences

# What differs, in how many operators, and why.
_ONCE = "the scaled rate is computed once a device, not once a parameter"
_SEED = "the seed of the backward pass is made where its loss is, not on the default device"
_UPHILL = "without momentum, what adds its step gets a rate of the other sign; Caffe2's goes uphill"
_WIDE = "squares of float16 gradients are summed in float32, where Caffe2's overflow; and " + _ONCE
JUSTIFIED = {
    "injection": (_ONCE, 6),
    "clipping": (_ONCE, 6),
    "clipping_sparse": (_ONCE, 4),
    "clipping_and_injection": (_ONCE, 6),
    "multi_precision_plain": (_UPHILL, 5),
    "multi_precision_clipping": (_WIDE, 22),
    "sgd_lars_clipping": (_ONCE, 2),
    "gpus_sgd": (_SEED, 4),
    "cpus_adam": (_SEED, 2),
    "gpus_adagrad_and_a_table": (_SEED, 2),
}
_LINES = {
    _ONCE: ("-CopyFromCPUInput(", "-Mul("),
    _SEED: ("-ConstantFill(", "+ConstantFill("),
    _WIDE: ("-CopyFromCPUInput(", "-Mul(", "+HalfToFloat(", "-SumSqrElements(", "+SumSqrElements("),
    _UPHILL: ("-WeightedSum(bn1_", "+WeightedSum(bn1_", "+LearningRate("),
}

GROUPS = {
    "helpers": calls.HELPERS,
    "optimizers": calls.OPTIMIZERS,
    "zoo": calls.ZOO,
    "half": calls_half.HALF,
    "dense": calls_half.DENSE,
    "sparse": calls_sparse.SPARSE,
}
TWICE = pytest.mark.filterwarnings("ignore:.*have an update already:UserWarning")  # sgd_twice means it
CASES = [(group, name) for group, codes in GROUPS.items() for name in codes]


@functools.cache
def recorded():
    return json.loads(gzip.decompress((Path(__file__).parent / "nets.json.gz").read_bytes()))


def run(code):
    reset_names()
    optimizers.reset_optimizer_instance_count()
    model = CompatibleModel("m")  # keeps rows of one index separate, as Caffe2 does
    names = {
        "ExternalInitializer": ExternalInitializer,
        "Initializer": Initializer,
        "ModelHelper": CompatibleModel,
        "ParameterSharing": ParameterSharing,
        "ParameterTags": ParameterTags,
        "PseudoFP16Initializer": PseudoFP16Initializer,
        "ReversePseudoFP16Initializer": ReversePseudoFP16Initializer,
        "brew": brew,
        "core": SimpleNamespace(DeviceOption=make_device_option, **vars(graph)),
        "model": model,
        "optimizer": optimizers,
        "resnet": zoo,
    }
    exec(code, names)
    return model


def test_every_call_is_recorded():
    assert {group: sorted(codes) for group, codes in GROUPS.items()} == {g: sorted(c) for g, c in recorded().items()}


@pytest.mark.one_in(3)
@TWICE
@pytest.mark.parametrize("group, name", CASES)
def test_same_nets(group, name):
    want = recorded()[group][name]
    model = run(GROUPS[group][name])
    different = differences(model.net.Proto(), text_format.Parse(want["net"], NetDef()))
    if name in JUSTIFIED:
        reason, count = JUSTIFIED[name]
        assert len(different) == count, different
        assert all(line.startswith(_LINES[reason]) for line in different), different
        assert reason is not _SEED or all("_autogen_grad" in line for line in different)
    else:
        assert different == []
    assert differences(model.param_init_net.Proto(), text_format.Parse(want["init"], NetDef())) == []


@TWICE
@pytest.mark.parametrize("group, name", CASES)
def test_same_parameters(group, name):
    want = recorded()[group][name]
    model = run(GROUPS[group][name])
    assert [str(p) for p in model.params] == want["params"]
    assert [str(p) for p in model.weights] == want["weights"]
    assert [str(p) for p in model.biases] == want["biases"]
    assert [str(p) for p in model.GetComputedParams("")] == want["computed"]
