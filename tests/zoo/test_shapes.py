"""Inferred shapes and types are those that blobs have at run time, for every net of the zoo."""

import numpy as np
import pytest

from netbuilder.graph import infer_shapes
from netbuilder.model import ModelHelper
from netbuilder.optimizers import add_weight_decay, build_sgd
from netbuilder.runtime import Workspace
from netbuilder.zoo import (
    create_alexnet,
    create_inception_v1,
    create_inception_v3,
    create_lenet,
    create_mlp,
    create_overfeat,
    create_resnet,
    create_resnet50,
    create_resnet_32x32,
    create_resnext,
    create_shufflenet,
    create_squeezenet,
    create_vgg,
)

BATCH = 2
IMAGES = (BATCH, 3, 32, 32)
LEAST = {"alexnet": 63, "auxiliary": 65}  # pixels a side


def alexnet(model, towers):
    return create_alexnet(model, "data", 3, 10, label="label", towers=towers, hidden=16, image_size=LEAST["alexnet"])


def vgg(model, layers, batch_norm):
    return create_vgg(
        model, "data", 3, 10, layers, label="label", batch_norm=batch_norm, hidden=16, image_size=IMAGES[-1]
    )


def inception(model, **options):
    return create_inception_v1(model, "data", 3, 10, label="label", **options)


TRAINED = {
    "mlp": ((BATCH, 6), lambda m: create_mlp(m, "data", [6, 5, 4], label="label")),
    "lenet": ((BATCH, 1, 28, 28), lambda m: create_lenet(m, "data", label="label")),
    "resnet18": (IMAGES, lambda m: create_resnet(m, "data", 3, 10, 18, label="label")),
    "resnet34": (IMAGES, lambda m: create_resnet(m, "data", 3, 10, 34, label="label")),
    "resnet50": (IMAGES, lambda m: create_resnet50(m, "data", 3, 10, label="label")),
    "resnext50": (IMAGES, lambda m: create_resnext(m, "data", 3, 10, 50, 4, 8, label="label")),
    "alexnet": ((BATCH, 3, LEAST["alexnet"], LEAST["alexnet"]), lambda m: alexnet(m, 2)),
    "alexnet of one tower": ((BATCH, 3, LEAST["alexnet"], LEAST["alexnet"]), lambda m: alexnet(m, 1)),
    "vgg11": (IMAGES, lambda m: vgg(m, 11, False)),
    "vgg19-bn": (IMAGES, lambda m: vgg(m, 19, True)),
    "inception_v1": (IMAGES, inception),
    "inception_v1-bn": (IMAGES, lambda m: inception(m, batch_norm=True)),
    "inception_v1 with auxiliary classifiers": (
        (BATCH, 3, LEAST["auxiliary"], LEAST["auxiliary"]),
        lambda m: inception(m, auxiliary=True, image_size=LEAST["auxiliary"]),
    ),
    "inception_v3": (
        (BATCH, 3, 75, 75),
        lambda m: create_inception_v3(m, "data", 3, 10, label="label", image_size=75),
    ),
    "overfeat": (
        (BATCH, 3, 71, 71),
        lambda m: create_overfeat(m, "data", 3, 10, label="label", image_size=71, hidden=(16, 16)),
    ),
    "squeezenet": (IMAGES, lambda m: create_squeezenet(m, "data", 3, 10, label="label", image_size=32)),
    "shufflenet": (IMAGES, lambda m: create_shufflenet(m, "data", 3, 10, 3, label="label")),
}
FORWARD = {
    "resnet_32x32": (IMAGES, lambda m: create_resnet_32x32(m, "data", 3, 1, 10)),
    "resnet101": (IMAGES, lambda m: create_resnet(m, "data", 3, 10, 101, is_test=True)),
    "resnet152": (IMAGES, lambda m: create_resnet(m, "data", 3, 10, 152, is_test=True)),
    "resnext18": (IMAGES, lambda m: create_resnext(m, "data", 3, 10, 18, 2, 8, is_test=True)),
}


def differing(model, shape):
    """Feed zeros for parameters, run the main net, and return the blobs that are not as inferred."""
    given = {"data": np.zeros(shape, np.float32), "label": np.zeros(BATCH, np.int32)}
    inferred = infer_shapes([model.param_init_net, model.net], given)
    unknown = set(inferred.unknown) - {"iteration_mutex"}
    workspace = Workspace(threads=1)
    for op in model.param_init_net.Proto().op:
        if op.type == "CreateMutex":
            workspace.run_operator_once(op)
            continue
        spec = inferred.spec(op.output[0])
        workspace.feed(op.output[0], np.zeros(spec.shape, spec.dtype))
    for name, value in given.items():
        workspace.feed(name, value)
    workspace.create_net(model.net, observable="all")
    workspace.run_net(model.net.Name())
    wrong = dict.fromkeys(unknown, "unknown")
    for blob in dict.fromkeys(name for op in model.net.Proto().op for name in op.output):
        spec, value = inferred.spec(blob), workspace.fetch(blob)
        if spec is not None and (spec.shape, spec.dtype) != (value.shape, value.dtype):
            wrong[blob] = f"inferred {spec.shape} {spec.dtype}, found {value.shape} {value.dtype}"
    return wrong


# Deeper or wider than others that have the same blocks; that of Inception v3 runs in test_small_and_old_nets.py.
LARGE = {"resnet34", "resnet50", "vgg19-bn", "inception_v1", "inception_v3", "resnet101", "resnet152"}


def nets(names):
    return [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in names]


@pytest.mark.parametrize("name", nets(TRAINED))
@pytest.mark.one_in(8)
def test_training_net(name):
    shape, create = TRAINED[name]
    model = ModelHelper(name)
    _, loss = create(model)
    model.AddGradientOperators([loss])
    add_weight_decay(model, 1e-4)
    build_sgd(model, 0.1, momentum=0.9)
    assert differing(model, shape) == {}


@pytest.mark.parametrize("name", nets(FORWARD))
def test_forward_net(name):
    shape, create = FORWARD[name]
    model = ModelHelper(name)
    create(model)
    assert differing(model, shape) == {}


@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet_32x32"])
def test_init_net(name):
    _, create = {**TRAINED, **FORWARD}[name]
    model = ModelHelper(name)
    create(model)
    inferred = infer_shapes([model.param_init_net])
    workspace = Workspace(threads=1)
    workspace.run_net_once(model.param_init_net)
    assert inferred.unknown == []
    assert sorted(inferred.shapes) == workspace.blobs()
    for blob in workspace.blobs():
        value = workspace.fetch(blob)
        assert (inferred.shapes[blob], inferred.dtypes[blob]) == (value.shape, value.dtype), blob
