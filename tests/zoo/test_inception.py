"""Inception v1: parameters, normalizations, auxiliary classifiers, refusals."""

import pytest

from netbuilder.graph import infer_shapes
from netbuilder.model import ModelHelper
from netbuilder.proto import ArgumentError
from netbuilder.proto.arguments import arguments
from netbuilder.zoo import create_inception_v1
from zoo_models import built, operators, parameter_count

CONVOLUTIONS = 3 + 9 * 6
CHANNELS_OF_MODULES = [256, 480, 512, 512, 512, 528, 832, 832, 1024]


def test_it_has_the_published_number_of_parameters():
    """Those of the net published with Caffe."""
    model, _ = built(create_inception_v1, 3, 1000)
    assert parameter_count(model) == 6_998_552
    assert len(operators(model, "Conv")) == CONVOLUTIONS
    model, _ = built(create_inception_v1, 3, 1000, label="label", auxiliary=True)
    assert parameter_count(model) == 13_378_280


def test_modules_join_as_many_channels_as_in_the_paper():
    model, _ = built(create_inception_v1, 3, 1000)
    shapes = infer_shapes([model.param_init_net, model.net], {"data": (1, 3, 224, 224)}).shapes
    joined = [shapes[op.output[0]] for op in operators(model, "Concat")]
    assert [shape[1] for shape in joined] == CHANNELS_OF_MODULES
    assert [shape[2] for shape in joined] == [28] * 2 + [14] * 5 + [7] * 2


def test_one_normalization_at_a_time():
    model, _ = built(create_inception_v1, 3, 10)
    assert [op.input[0] for op in operators(model, "LRN")] == ["pool1", "conv2"]
    assert operators(model, "SpatialBN") == []
    model, _ = built(create_inception_v1, 3, 10, lrn=False)
    assert operators(model, "LRN") == operators(model, "SpatialBN") == []
    model, _ = built(create_inception_v1, 3, 10, batch_norm=True)
    assert operators(model, "LRN") == []
    assert len(operators(model, "SpatialBN")) == CONVOLUTIONS
    assert all(len(op.input) == 2 for op in operators(model, "Conv"))


def test_auxiliary_classifiers_add_to_the_loss():
    model, (softmax, loss) = built(create_inception_v1, 3, 10, label="label", auxiliary=True)
    assert (str(softmax), str(loss)) == ("softmax", "total_loss")
    losses = {op.output[1]: arguments(op).get("scale", 1.0) for op in operators(model, "SoftmaxWithLoss")}
    assert losses == pytest.approx({"loss": 1.0, "auxiliary_4a_loss": 0.3, "auxiliary_4d_loss": 0.3})
    assert list(operators(model, "Sum")[-1].input) == list(losses)
    ratios = {op.output[0]: arguments(op)["ratio"] for op in operators(model, "Dropout")}
    assert ratios == pytest.approx({"drop5": 0.4, "auxiliary_4a_drop": 0.7, "auxiliary_4d_drop": 0.7})


@pytest.mark.parametrize("options", [{"is_test": True}, {"no_loss": True}, {"label": None}])
def test_auxiliary_classifiers_are_for_training_only(options):
    model, _ = built(create_inception_v1, 3, 10, **{"label": "label", "auxiliary": True, **options})
    assert len(operators(model, "FC")) == 1


def test_auxiliary_classifiers_refuse_images_that_are_too_small():
    model = ModelHelper("refused")
    with pytest.raises(ArgumentError, match="at least 65 for auxiliary classifiers, got 64"):
        create_inception_v1(model, "data", 3, 10, label="label", auxiliary=True, image_size=64)
    assert len(model.net.Proto().op) == 0
