"""VGG: layers, parameters, normalization, refusals."""

import pytest

from netbuilder.model import ModelHelper
from netbuilder.proto import ArgumentError
from netbuilder.proto.arguments import arguments
from netbuilder.zoo import create_vgg
from zoo_models import built, operators, parameter_count

PARAMETERS = {11: 132_863_336, 13: 133_047_848, 16: 138_357_544, 19: 143_667_240}
NORMALIZED = {11: 132_868_840, 13: 133_053_736, 16: 138_365_992, 19: 143_678_248}


@pytest.mark.parametrize("layers", PARAMETERS)
def test_it_has_as_many_layers_and_parameters_as_published(layers):
    model, _ = built(create_vgg, 3, 1000, layers)
    assert len(operators(model, "Conv")) + len(operators(model, "FC")) == layers
    assert parameter_count(model) == PARAMETERS[layers]


@pytest.mark.parametrize("layers", NORMALIZED)
def test_a_normalized_net_has_the_published_parameters(layers):
    model, _ = built(create_vgg, 3, 1000, layers, batch_norm=True)
    convolutions = operators(model, "Conv")
    assert parameter_count(model) == NORMALIZED[layers]
    assert len(operators(model, "SpatialBN")) == len(convolutions)


def test_a_test_net_drops_nothing_and_normalizes_by_running_averages():
    model, _ = built(create_vgg, 3, 10, 11, is_test=True, batch_norm=True, bn_epsilon=0.25)
    assert operators(model, "Dropout") == []
    assert {(arguments(op)["is_test"], arguments(op)["epsilon"]) for op in operators(model, "SpatialBN")} == {(1, 0.25)}


@pytest.mark.parametrize(
    "layers, options, match",
    [
        (12, {}, r"num_layers must be one of \[11, 13, 16, 19\], got 12"),
        (16, {"image_size": 31}, "at least 32 pixels, got 31"),
    ],
)
def test_refusals(layers, options, match):
    model = ModelHelper("refused")
    with pytest.raises(ArgumentError, match=match):
        create_vgg(model, "data", 3, 10, layers, **options)
    assert len(model.net.Proto().op) == 0
