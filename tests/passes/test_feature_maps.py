"""Feature maps of nets: which blobs they are, and their values in extracted nets against those of the whole net."""

import numpy as np
import pytest

from netbuilder.model import ModelHelper, brew
from netbuilder.passes import extract_predictor, feature_maps
from netbuilder.proto import NetError
from netbuilder.runtime import Workspace
from netbuilder.tools.training.nets import NETS


def built(name, side=224, **options):
    model = ModelHelper(name, arg_scope={"order": "NCHW"})
    NETS[name](model, (3, side, side), 10, **{"is_test": True, **options})
    return model


def found_in(model, side=224, **options):
    return feature_maps([model.param_init_net, model.net], {"data": (2, 3, side, side)}, **options)


@pytest.mark.parametrize(
    ("name", "channels", "order"),
    [
        ("resnet18", [64, 64, 128, 256, 512], "NCHW"),
        ("resnet50", [64, 256, 512, 1024, 2048], "NCHW"),
        ("vgg16-bn", [64, 128, 256, 512, 512, 512], "NCHW"),
        ("densenet121", [64, 128, 256, 512, 1024], "NCHW"),
        ("regnet-y-400mf", [32, 48, 104, 208, 440], "NCHW"),
        ("efficientnet-b0", [96, 144, 240, 672, 1280], "NCHW"),
        ("convnext-tiny", [96, 192, 384, 768], "NCHW"),
        ("swin-tiny", [96, 192, 384, 768], "NHWC"),
    ],
)
def test_maps_of_the_zoo(name, channels, order):
    found = found_in(built(name), order=order)
    assert [each.channels for each in found] == channels
    finest = 32 * 7 // (2 ** (5 - len(found)) * 2) if name != "vgg16-bn" else 224
    assert [each.height for each in found] == [finest >> level for level in range(len(found))]
    assert all(each.height == each.width for each in found)


def test_a_training_net_has_the_same_maps():
    model = built("resnet18", 64, is_test=False, label="label")
    whole = found_in(model, 64)
    model.AddGradientOperators(["loss"])
    assert found_in(model, 64) == whole and len(whole) == 5


def test_extracted_maps_are_those_of_the_whole_net():
    model, workspace = built("resnet8-cifar", 32), Workspace(seed=1)
    workspace.run_net_once(model.param_init_net)
    data = np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32)
    workspace.feed("data", data)
    workspace.run_net_once(model.net)
    maps = found_in(model, 32)
    whole = [workspace.fetch(each.blob) for each in maps]
    net, _ = extract_predictor(model.net, inputs=["data"], outputs=[each.blob for each in maps])
    assert not {"softmax", "last_out_L10"} & {blob for op in net.op for blob in op.output}
    part = Workspace()
    for blob in map(str, model.GetAllParams()):
        part.feed(blob, workspace.fetch(blob))
    part.feed("data", data)
    part.run_net_once(net)
    for each, value in zip(maps, whole):
        assert value.shape == (2, each.channels, each.height, each.width)
        np.testing.assert_allclose(part.fetch(each.blob), value, 1e-5, 1e-6)


def test_every_map_in_order_and_images_of_other_proportions():
    model = ModelHelper("tall")
    x = brew.relu(model, brew.conv(model, "data", "one", 3, 4, 3, pad=1), "one")  # in place: its last version
    left, right = (brew.conv(model, x, side, 4, 4, 3, pad=1) for side in ("left", "right"))
    x = brew.max_pool(model, model.net.Add([left, right], "sum"), "pool", kernel=2, stride=2)
    brew.fc(model, brew.conv(model, x, "two", 4, 6, 3, pad=1), "scores", 6 * 12 * 5, 3)
    nets, inputs = [model.param_init_net, model.net], {"data": (1, 3, 24, 10)}
    maps = feature_maps(nets, inputs, every=True)
    assert [tuple(each) for each in maps] == [
        ("one", 4, 24, 10), ("sum", 4, 24, 10), ("pool", 4, 12, 5), ("two", 6, 12, 5)
    ]  # fmt: skip
    assert feature_maps(nets, inputs) == [maps[1], maps[3]]


def test_nets_without_maps_are_refused():
    with pytest.raises(NetError, match=r"net 'mlp' has no map of images .* from \['data'\]; name blobs of your own"):
        found_in(built("mlp", 32), 32)
