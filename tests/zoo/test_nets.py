"""Nets of the zoo: layers, results, parameters, refusals."""

import numpy as np
import pytest

from netbuilder.graph import NameScope
from netbuilder.model import ModelHelper
from netbuilder.proto import ArgumentError
from netbuilder.proto.arguments import arguments
from netbuilder.runtime import Workspace
from netbuilder.zoo import (
    ResNetBuilder,
    create_alexnet,
    create_inception_v1,
    create_lenet,
    create_mlp,
    create_resnet,
    create_resnet50,
    create_resnext,
    create_vgg,
)
from zoo_models import built, operators, parameter_count


def counted(model, op_type):
    return len(operators(model, op_type))


@pytest.mark.parametrize("layers", [18, 34, 50, 101, 152])
def test_resnets_have_as_many_layers_as_they_say(layers):
    """Convolutions and the last layer count, the shortcuts' projections do not."""
    model, _ = built(create_resnet, 3, 10, layers)
    convolutions = [op for op in model.net.Proto().op if op.type == "Conv"]
    projections = [op for op in convolutions if op.output[0].startswith("shortcut_projection_")]
    assert len(convolutions) - len(projections) + counted(model, "FC") == layers
    assert len(projections) == (3 if layers < 50 else 4)


@pytest.mark.parametrize("layers, millions", [(18, 11.690), (34, 21.798), (50, 25.557), (101, 44.549), (152, 60.193)])
def test_resnets_have_the_papers_number_of_parameters(layers, millions):
    """Counted with 1,000 classes; the numbers are those of other implementations of the paper's nets."""
    model, _ = built(create_resnet, 3, 1000, layers)
    assert parameter_count(model) / 1e6 == pytest.approx(millions, abs=1e-3)


def test_resnext50_has_the_papers_number_of_parameters():
    model, _ = built(create_resnext, 3, 1000, 50, 32, 4)
    assert parameter_count(model) / 1e6 == pytest.approx(25.029, abs=1e-3)


def test_a_convolution_before_a_normalization_has_no_bias():
    model, _ = built(create_resnet, 3, 10, 18)
    assert all(len(op.input) == 2 for op in model.net.Proto().op if op.type == "Conv")
    model, _ = built(create_resnet50, 3, 10)  # as in Caffe2's function: biases by default
    assert all(len(op.input) == 3 for op in model.net.Proto().op if op.type == "Conv")


@pytest.mark.parametrize(
    "create, args",
    [
        (create_mlp, ([8, 4, 3],)),
        (create_lenet, ()),
        (create_resnet50, (3, 5)),
        (create_resnext, (3, 5, 18, 1, 4)),
        (create_alexnet, (3, 5)),
        (create_vgg, (3, 5, 11)),
        (create_inception_v1, (3, 5)),
    ],
)
def test_results(create, args):
    model, softmax = built(create, *args)
    assert (str(softmax), counted(model, "Softmax"), counted(model, "SoftmaxWithLoss")) == ("softmax", 1, 0)
    model, (softmax, loss) = built(create, *args, label="label")
    assert (str(softmax), str(loss), counted(model, "SoftmaxWithLoss")) == ("softmax", "loss", 1)
    model, scores = built(create, *args, label="label", no_loss=True)
    assert model.net.Proto().op[-1].type == "FC"
    assert str(scores) == model.net.Proto().op[-1].output[0]


@pytest.mark.parametrize(
    "create, args", [(create_resnet, (18,)), (create_alexnet, ()), (create_vgg, ()), (create_inception_v1, ())]
)
def test_nets_are_made_under_the_name_scope(create, args):
    model = ModelHelper("scoped")
    with NameScope("gpu_1"):
        create(model, "data", 3, 10, *args, no_loss=True)
    assert all(blob.startswith("gpu_1/") for op in model.net.Proto().op for blob in [*op.input, *op.output])


def test_a_test_net_normalizes_by_running_averages():
    model, _ = built(create_resnet, 3, 10, 18, is_test=True)
    normalizations = [op for op in model.net.Proto().op if op.type == "SpatialBN"]
    assert all(arguments(op)["is_test"] == 1 and len(op.output) == 1 for op in normalizations)


def test_normalization_arguments_reach_every_layer():
    model, _ = built(create_resnext, 3, 10, 18, 1, 4, bn_epsilon=0.25, bn_momentum=0.5)
    found = {
        (arguments(op)["epsilon"], arguments(op)["momentum"]) for op in model.net.Proto().op if op.type == "SpatialBN"
    }
    assert found == {(0.25, 0.5)}


def test_blocks_without_normalization():
    model = ModelHelper("plain")
    builder = ResNetBuilder(model, "data", no_bias=False, is_test=False)
    builder.add_simple_block(4, 8, down_sampling=True, spatial_batch_norm=False)
    builder.add_bottleneck(8, 4, 8, spatial_batch_norm=False)
    assert counted(model, "SpatialBN") == 0
    workspace = Workspace(threads=1)
    workspace.run_net_once(model.param_init_net)
    workspace.feed("data", np.ones((1, 4, 8, 8), np.float32))
    workspace.run_net_once(model.net)
    assert workspace.fetch(builder.prev_blob).shape == (1, 8, 4, 4)


@pytest.mark.parametrize(
    "create, args, match",
    [
        (create_resnet, (3, 10, 51), r"must be one of \[18, 34, 50, 101, 152, 200\], got 51"),
        (create_resnext, (3, 10, 50, 0, 4), "must be positive, got 0 and 4"),
        (create_mlp, ([3],), r"must have at least two lengths, input and output, got \[3\]"),
    ],
)
def test_refusals(create, args, match):
    model = ModelHelper("refused")
    with pytest.raises(ArgumentError, match=match):
        create(model, "data", *args)
    assert len(model.net.Proto().op) == 0


def test_lenet_refuses_images_that_are_too_small():
    with pytest.raises(ArgumentError, match="at least 16 pixels, got 15"):
        create_lenet(ModelHelper("small"), "data", image_size=15)
