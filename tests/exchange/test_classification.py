"""A predictor prepares images as it stores, and names their classes."""

import io

import numpy as np
import pytest

from netbuilder.exchange import ImagePreparation, Predictor, load_predictor, save_predictor
from netbuilder.exchange.classification import Classifier
from netbuilder.exchange.image_preparation import describe_images
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import ArgumentError, NetDef, ParseError, ShapeError
from netbuilder.proto.arguments import make_op

pillow = pytest.importorskip("PIL.Image", reason="needs Pillow")

CLASSES = ["blue", "green", "red"]


def predictor(*, channels_last=False, preparation=True, spec=True):
    """Return a predictor of the strongest color of an image of 4 x 4 pixels."""
    axes = [1, 2] if channels_last else [2, 3]
    net = NetDef(name="colors")
    net.op.append(make_op("ReduceMean", ["data"], ["mean"], axes=axes, keepdims=0))
    net.op.append(make_op("Softmax", ["mean"], ["softmax"]))
    net.external_input.append("data")
    net.external_output.append("softmax")
    images = ImagePreparation(scale=1 / 32, mean=(1.0, 2.0, 3.0), std=(2.0,), channels_last=channels_last)
    describe_images(net, images if preparation else None, CLASSES)
    shape = (1, 4, 4, 3) if channels_last else (1, 3, 4, 4)
    return Predictor(NetDef(), net, specs={"data": TensorSpec(shape, np.dtype("float32"))} if spec else None)


def picture(red, green, blue, size=(9, 7)):
    return np.full((*size, 3), (red, green, blue), np.uint8)


def png(pixels):
    file = io.BytesIO()
    pillow.fromarray(pixels).save(file, "png")
    return file.getvalue()


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_path_bytes_pixels_and_pillow_give_the_same(tmp_path, channels_last):
    pixels = picture(200, 100, 50)
    (tmp_path / "a.png").write_bytes(png(pixels))
    given = [tmp_path / "a.png", str(tmp_path / "a.png"), png(pixels), pixels, pillow.fromarray(pixels)]
    found = predictor(channels_last=channels_last).prepare(given)
    assert found.dtype == np.float32 and found.shape == ((5, 4, 4, 3) if channels_last else (5, 3, 4, 4))
    want = (np.float32([50, 100, 200]) / 32 - [1, 2, 3]) / 2  # blue, green, red
    want = want if channels_last else want[:, None, None]
    np.testing.assert_allclose(found, np.broadcast_to(want, found.shape), rtol=1e-6)


def test_classes_are_named_in_the_order_of_their_scores():
    images = [picture(250, 120, 0), picture(0, 250, 120), picture(120, 0, 250), picture(250, 0, 120)]
    with_batches = predictor().classify(images, 2, batch=3)
    assert [[each.name for each in of_image] for of_image in with_batches] == [
        ["red", "green"], ["green", "blue"], ["blue", "red"], ["red", "blue"],
    ]  # fmt: skip
    for of_image in with_batches:
        assert CLASSES[of_image[0].number] == of_image[0].name and of_image[0].score > of_image[1].score > 0
    (alone,) = predictor().classify(images[0])
    assert len(alone) == 3 and sum(each.score for each in alone) == pytest.approx(1)


@pytest.mark.parametrize("names", [["a", "b"], ["a", "b", "c", "d"]], ids=len)
def test_names_that_are_given_are_as_many_as_the_scores(names):
    classifier = Classifier.of(predictor(), classes=names)
    with pytest.raises(ArgumentError, match=f"'softmax' has scores of 3 classes, got {len(names)} names; give a name"):
        classifier.classify(np.zeros((1, 3, 4, 4), np.float32), 1)


def test_grey_images_and_those_with_transparency():
    net = predictor()
    grey = np.full((6, 6), 90, np.uint8)
    np.testing.assert_array_equal(net.prepare(grey), net.prepare(picture(90, 90, 90, (6, 6))))
    clear = np.dstack([picture(10, 20, 30), np.full((9, 7), 128, np.uint8)])
    np.testing.assert_array_equal(net.prepare(clear), net.prepare(picture(10, 20, 30)))


def test_of_a_predictor_that_was_loaded(tmp_path):
    net = predictor()
    save_predictor(tmp_path / "colors", net.net, {}, shapes={"data": (1, 3, 4, 4)})
    assert load_predictor(tmp_path / "colors").classify(picture(0, 255, 0))[0][0].name == "green"


def test_what_is_no_image(tmp_path):
    net = predictor()
    with pytest.raises(FileNotFoundError, match=r"none\.png"):
        net.classify(tmp_path / "none.png")
    with pytest.raises(IsADirectoryError, match="is a folder; give a list of its files, such as glob.glob"):
        net.classify(tmp_path)
    with pytest.raises(ParseError, match="image"):
        net.prepare(b"no image")
    for wrong in (np.zeros((4, 4, 3), np.float32), np.zeros((2, 4, 4, 3), np.uint8), np.zeros((4, 4, 2), np.uint8), 3):
        with pytest.raises(ArgumentError, match="an image must be a path, the bytes of an image file, or pixels"):
            net.prepare(wrong)
    with pytest.raises(ArgumentError, match="top and batch must be at least 1, got 0"):
        net.classify(picture(1, 2, 3), 0)


def test_predictors_that_take_no_images():
    with pytest.raises(ArgumentError, match="does not state the size of its images"):
        predictor(spec=False).prepare(picture(1, 2, 3))
    two = NetDef(name="two", op=[make_op("Add", ["a", "b"], ["c"])])
    two.external_input.extend(["a", "b"])
    with pytest.raises(ArgumentError, match=r"one input, for the image, and has \['a', 'b'\]"):
        Predictor(NetDef(), two).classify(picture(1, 2, 3))
    net = NetDef(name="rows", op=[make_op("Relu", ["x"], ["y"])])
    net.external_input.append("x")
    with pytest.raises(ShapeError, match="not a batch of images"):
        Predictor(NetDef(), net, specs={"x": TensorSpec((1, 5), np.dtype("float32"))}).prepare(picture(1, 2, 3))
