"""AlexNet: parameters, groups, normalization, dropout, refusals."""

import numpy as np
import pytest

from netbuilder.model import ModelHelper
from netbuilder.proto import ArgumentError
from netbuilder.proto.arguments import arguments
from netbuilder.runtime import Workspace
from netbuilder.zoo import create_alexnet
from zoo_models import built, operators, parameter_count


@pytest.mark.parametrize("towers, parameters", [(2, 60_965_224), (1, 61_100_840)])
def test_it_has_the_published_number_of_parameters(towers, parameters):
    """That of the net published with Caffe, and that of one tower in other libraries."""
    model, _ = built(create_alexnet, 3, 1000, towers=towers)
    assert parameter_count(model) == parameters


def test_towers_are_apart_where_the_paper_has_them_apart():
    model, _ = built(create_alexnet, 3, 10)
    groups = {op.output[0]: arguments(op).get("group", 1) for op in operators(model, "Conv")}
    assert groups == {"conv1": 1, "conv2": 2, "conv3": 1, "conv4": 2, "conv5": 2}
    model, _ = built(create_alexnet, 3, 10, towers=1)
    assert all("group" not in arguments(op) for op in operators(model, "Conv"))


def test_the_order_of_the_first_two_layers_is_relu_normalization_pooling():
    model, _ = built(create_alexnet, 3, 10)
    assert [op.type for op in model.net.Proto().op[:8]] == ["Conv", "Relu", "LRN", "MaxPool"] * 2
    model, _ = built(create_alexnet, 3, 10, towers=1)
    assert operators(model, "LRN") == []


def test_hidden_layers_are_dropped_in_training_only():
    model, _ = built(create_alexnet, 3, 10, dropout=0.25)
    assert [(op.input[0], arguments(op)["ratio"]) for op in operators(model, "Dropout")] == [
        ("fc6", 0.25),
        ("fc7", 0.25),
    ]
    for options in ({"is_test": True}, {"dropout": 0.0}):
        model, _ = built(create_alexnet, 3, 10, **options)
        assert operators(model, "Dropout") == []


@pytest.mark.parametrize("size, left", [(224, 6), (227, 6), (63, 1)])
def test_the_plane_that_is_left_fits_the_first_fully_connected_layer(size, left):
    model, scores = built(create_alexnet, 1, 3, hidden=4, image_size=size, no_loss=True, is_test=True)
    workspace = Workspace(threads=1)
    workspace.run_net_once(model.param_init_net)
    workspace.feed("data", np.ones((1, 1, size, size), np.float32))
    workspace.run_net_once(model.net)
    assert workspace.fetch("pool5").shape == (1, 256, left, left)
    assert workspace.fetch(scores).shape == (1, 3)


@pytest.mark.parametrize(
    "options, match",
    [({"towers": 3}, "towers must be 1 or 2, got 3"), ({"image_size": 62}, "at least 63 pixels, got 62")],
)
def test_refusals(options, match):
    model = ModelHelper("refused")
    with pytest.raises(ArgumentError, match=match):
        create_alexnet(model, "data", 3, 10, **options)
    assert len(model.net.Proto().op) == 0
