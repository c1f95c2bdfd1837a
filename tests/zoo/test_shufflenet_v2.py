"""ShuffleNet v2 for images of several sizes."""

import pytest

from netbuilder import ModelHelper
from netbuilder.graph import infer_shapes
from netbuilder.proto import ArgumentError
from netbuilder.zoo import create_shufflenet_v2


@pytest.mark.one_in(3)
@pytest.mark.parametrize("size", [7, 15, 32, 33, 64, 107, 224])
def test_one_value_for_each_channel_is_left(size):
    model = ModelHelper("shuffled")
    create_shufflenet_v2(model, "data", 3, 10, width="0.5x", image_size=size)
    shapes = infer_shapes([model.param_init_net, model.net], {"data": (2, 3, size, size)}).shapes
    assert tuple(shapes["avg_pool"]) == (2, 1024, 1, 1)
    assert tuple(shapes["softmax"]) == (2, 10)


def test_images_that_are_too_small():
    with pytest.raises(ArgumentError, match="at least 7 pixels, got 6"):
        create_shufflenet_v2(ModelHelper("small"), "data", 3, 10, image_size=6)
