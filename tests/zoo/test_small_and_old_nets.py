"""Inception v3, OverFeat, SqueezeNet, ShuffleNet: parameters, shapes, training, refusals."""

import inspect

import numpy as np
import pytest

from netbuilder import zoo
from netbuilder.graph import infer_shapes
from netbuilder.model import ModelHelper
from netbuilder.optimizers import build_sgd
from netbuilder.proto import ArgumentError
from netbuilder.runtime import Workspace
from netbuilder.zoo import create_inception_v3, create_overfeat, create_shufflenet, create_squeezenet
from zoo_models import built, operators, parameter_count

NETS = {
    "inception v3": (create_inception_v3, {"image_size": 75}, 75),
    "overfeat": (create_overfeat, {"image_size": 71, "hidden": (32, 16)}, 71),
    "squeezenet 1.0": (create_squeezenet, {"image_size": 37, "version": "1.0"}, 37),
    "squeezenet 1.1": (create_squeezenet, {"image_size": 31}, 31),
    "shufflenet": (create_shufflenet, {"groups": 2}, 32),
}


@pytest.mark.parametrize(
    ("create", "options", "count"),
    [
        (create_inception_v3, {}, 23_834_568),
        (create_overfeat, {}, 145_920_872),
        (create_squeezenet, {"version": "1.0"}, 1_248_424),
        (create_squeezenet, {"version": "1.1"}, 1_235_496),
        (create_shufflenet, {"groups": 1}, 1_531_936),
        (create_shufflenet, {"groups": 2}, 1_733_848),
        (create_shufflenet, {"groups": 3}, 1_865_728),
        (create_shufflenet, {"groups": 4}, 1_968_344),
        (create_shufflenet, {"groups": 8}, 2_434_768),
    ],
)
def test_they_have_the_known_numbers_of_parameters(create, options, count):
    """Counted with 1,000 classes; the numbers are those of other implementations of the papers' nets."""
    model, softmax = built(create, 3, 1000, **options)
    assert parameter_count(model) == count
    given = inspect.signature(create).parameters.get("image_size")
    size = given.default if given else 224
    shapes = infer_shapes([model.param_init_net, model.net], {"data": (2, 3, size, size)}).shapes
    assert tuple(shapes[str(softmax)]) == (2, 1000)


@pytest.mark.parametrize("name", [name for name in zoo.__all__ if name.startswith("create_")])
def test_builders_make_a_net_for_training_unless_told_otherwise(name):
    options = inspect.signature(getattr(zoo, name)).parameters
    assert [options[each].default for each in ("is_test", "no_loss") if each in options] in ([False], [False, False])


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", NETS)
def test_they_train_and_predict(name):
    create, options, size = NETS[name]
    model = ModelHelper("small")
    _, loss = create(model, "data", 3, 5, label="label", **options)
    model.AddGradientOperators([loss])
    build_sgd(model, 0.005)
    test = ModelHelper("small_test", init_params=False)
    softmax = create(test, "data", 3, 5, is_test=True, **options)
    workspace = Workspace()
    rng = np.random.default_rng(0)
    workspace.feed("data", rng.standard_normal((4, 3, size, size), np.float32))
    workspace.feed("label", np.array([0, 1, 2, 3], np.int32))
    workspace.run_net_once(model.param_init_net)
    workspace.create_net(model.net)
    losses = []
    for _ in range(4):
        workspace.run_net(model.net.Name())
        losses.append(float(workspace.fetch(loss)))
    assert np.isfinite(losses).all()
    assert min(losses[1:]) < losses[0]
    workspace.run_net_once(test.net)
    np.testing.assert_allclose(workspace.fetch(softmax).sum(axis=1), 1, rtol=1e-5)


def test_a_test_net_drops_nothing():
    for create in (create_inception_v3, create_squeezenet):
        model, _ = built(create, 3, 10, is_test=True)
        assert operators(model, "Dropout") == []


def test_the_scores_of_squeezenet_have_two_axes():
    model, scores = built(create_squeezenet, 3, 7, no_loss=True, image_size=31)
    workspace = Workspace()
    workspace.feed("data", np.zeros((2, 3, 31, 31), np.float32))
    workspace.run_net_once(model.param_init_net)
    workspace.run_net_once(model.net)
    assert workspace.fetch(scores).shape == (2, 7)


@pytest.mark.parametrize(
    ("create", "options", "match"),
    [
        (create_inception_v3, {"image_size": 74}, "at least 75 pixels, got 74"),
        (create_overfeat, {"image_size": 70}, "at least 71 pixels, got 70"),
        (create_squeezenet, {"image_size": 30}, "at least 31 pixels, got 30"),
        (create_squeezenet, {"version": "2"}, r"one of \['1.0', '1.1'\], got '2'"),
        (create_shufflenet, {"groups": 5}, r"one of \[1, 2, 3, 4, 8\], got 5"),
    ],
)
def test_refusals(create, options, match):
    model = ModelHelper("refused")
    with pytest.raises(ArgumentError, match=match):
        create(model, "data", 3, 10, **options)
    assert len(model.net.Proto().op) == 0
