"""A predictor prepares images as it stores, and names their classes."""

import io
from dataclasses import replace

import numpy as np
import pytest

from netbuilder.data import ImageTransform
from netbuilder.exchange import ImagePreparation, Predictor, load_predictor, save_predictor
from netbuilder.exchange.classification import Classifier, Prediction
from netbuilder.exchange.image_preparation import describe_images
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import ArgumentError, NetDef, ParseError, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.tools import evaluate_predictor, predict
from on_gpu import ON_GPU, with_cudnn

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


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB"])
def test_images_of_pillow_in_all_modes(mode):
    """A palette's indices are no brightness, nor are four colours of ink the first three of light."""
    rng = np.random.default_rng(0)
    image = pillow.fromarray(rng.integers(0, 256, (4, 4, 3), np.uint8))
    image = image.convert("L").convert(mode) if mode in ("LA", "PA") else image.convert(mode)
    shown = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(predictor().prepare([image]), predictor().prepare([shown]))


@pytest.mark.parametrize("orientation", [1, 3, 6, 8, 99])
def test_images_of_pillow_are_upright_like_their_files(orientation):
    pixels = np.zeros((4, 4, 3), np.uint8)
    pixels[0], pixels[:, 0] = (250, 0, 0), (0, 0, 250)
    exif, file = pillow.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    pillow.fromarray(pixels).save(file, "png", exif=exif)
    opened = pillow.open(file)
    np.testing.assert_array_equal(predictor().prepare([opened]), predictor().prepare([file.getvalue()]))


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


@pytest.mark.parametrize("layer", ["Conv", "FC", "Conv last"])
@pytest.mark.parametrize("channels", [1, 3])
def test_channels_of_a_net_that_states_no_shapes(layer, channels):
    """As Caffe2 wrote nets: the first layer tells whether images are gray."""
    order, shape = ("NHWC", (2, 4, 4, channels)) if "last" in layer else ("NCHW", (2, channels, 4, 4))
    shape = (2, 16 * channels) if layer == "FC" else shape
    init = NetDef(op=[make_op("ConstantFill", [], ["w"], shape=shape), make_op("ConstantFill", [], ["b"], shape=[2])])
    given = {} if layer == "FC" else {"kernel": 4, "order": order}
    ops = [make_op("Scale", ["data"], ["x"], scale=0.5), make_op(layer.split()[0], ["x", "w", "b"], ["y"], **given)]
    net = NetDef(name="net", op=ops, external_input=["data", "w", "b"], external_output=["y"])
    images = ImagePreparation(channels_last="last" in layer)
    found = Classifier.of(Predictor(init, net), size=(4, 4), images=images)
    assert found.size == (4, 4, channels)
    assert len(found.classify([found.prepare(picture(1, 2, 3))], 1)) == 1


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


@pytest.mark.parametrize("channels_last", [False, True])
def test_pixels_that_the_net_normalizes(channels_last):
    """The bits are those of the host's transformation; another call may have other numbers."""
    net, pixels = predictor(channels_last=channels_last), np.random.default_rng(3).integers(0, 256, (5, 4, 4, 3), "u1")
    for mean, std in (((120.0, 110.0, 100.0), (60.0,)), ((3.0,), (1.0, 2.0, 3.0))):
        factors, summands = ImageTransform(crop=4, mean=mean, std=std).channel_scales
        images = pixels.astype(np.float32) * factors + summands
        wanted = net.run(data=images if channels_last else np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
        for part in (slice(None), slice(2)):
            found = net.run_pixels(pixels[part], mean=mean, std=std, channels_last=channels_last)
            np.testing.assert_array_equal(found["softmax"], wanted["softmax"][part])


def test_pixels_of_another_kind():
    net = predictor()
    for wrong in (np.zeros((1, 4, 4, 3), np.float32), np.zeros((4, 4, 3), np.uint8), [[[[1]]]]):
        with pytest.raises(ShapeError, match=r"run_pixels: pixels must be an array \(N, H, W, C\) of uint8, got"):
            net.run_pixels(wrong)
    with pytest.raises(ShapeError, match=r"must have the shape \(batch, 3, 4, 4\), got \(1, 3, 5, 4\)"):
        net.run_pixels(np.zeros((1, 5, 4, 3), np.uint8))
    with pytest.raises(ArgumentError, match="std must be positive"):
        net.run_pixels(np.zeros((1, 4, 4, 3), np.uint8), std=(0.0,))
    two = NetDef(name="two", op=[make_op("Add", ["a", "b"], ["c"])])
    two.external_input.extend(["a", "b"])
    with pytest.raises(ArgumentError, match="run_pixels needs one input, for the images; the predictor has"):
        Predictor(NetDef(), two).run_pixels(np.zeros((1, 4, 4, 3), np.uint8))


def convolution(images, device=None):
    """Return the nets of a classifier with a convolution, which cuDNN computes on a GPU."""
    rng = np.random.default_rng(8)
    net = NetDef(name="convolution")
    net.op.append(make_op("Conv", ["data", "w"], ["y"], kernel=3))
    net.op.append(make_op("ReduceMean", ["y"], ["scores"], axes=[2, 3], keepdims=0))
    net.external_input.extend(["data", "w"])
    net.external_output.append("scores")
    if device is not None:
        net.device_option.CopyFrom(device)
    describe_images(net, images, CLASSES)
    return net, {"w": rng.standard_normal((3, 3, 3, 3)).astype(np.float32)}


USUAL = ImagePreparation(scale=1 / 32, mean=(1.0, 2.0, 3.0), std=(2.0,), rgb=True)


@pytest.mark.emulated
@pytest.mark.parametrize(
    ("images", "size"),
    [(USUAL, 1), (ImagePreparation(std=(-1.0,)), 4), (ImagePreparation(scale=-1.0), 4)],
    ids=["as bytes", "a negative deviation", "a negative factor"],
)
def test_images_go_to_a_gpu_as_bytes(tmp_path, capsys, images, size):
    """Where NormalizeImages has such numbers; the scores are those of the CPU in any case."""
    rng, spec = np.random.default_rng(4), {"data": TensorSpec((1, 3, 8, 8), np.dtype(np.float32))}
    given = [rng.integers(0, 256, (11, 9, 3), np.uint8) for _ in range(4)]
    net, weights = convolution(images)
    wanted = Predictor(NetDef(), net, parameters=weights, specs=spec).classify(given)
    net, weights = convolution(images, ON_GPU)
    save_predictor(tmp_path / "net", net, weights, shapes={"data": (1, 3, 8, 8)})
    (tmp_path / "0.png").write_bytes(png(given[0]))
    with with_cudnn() as (machine, _):
        on_gpu = Predictor(NetDef(), net, parameters=weights, specs=spec)
        on_gpu.classify(given)
        machine.transfers.clear()
        found = on_gpu.classify(given)
        sizes = {transfer.nbytes for transfer in machine.transfers}
        assert predict.main([str(tmp_path / "net"), str(tmp_path / "0.png"), "--top=3"]) == 0
    assert max(sizes) == 4 * 3 * 8 * 8 * size
    for ours, theirs in zip([*found, _printed(capsys)], [*wanted, wanted[0]], strict=True):
        assert [each.name for each in ours] == [each.name for each in theirs]
        scores = [[each.score for each in row] for row in (ours, theirs)]
        np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-4)


def _printed(capsys):
    """What netbuilder-predict has printed about one image."""
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    return [Prediction(CLASSES.index(name), name, float(score)) for score, name in rows]


def test_evaluation_resizes_as_the_predictor_does(tmp_path, capsys):
    rng, printed = np.random.default_rng(5), []
    for number in range(30):
        folder = tmp_path / "photos" / CLASSES[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.png").write_bytes(png(rng.integers(0, 256, (9 + number, 12, 3), np.uint8)))
    net, weights = convolution(replace(USUAL, resize=10))
    save_predictor(tmp_path / "net", net, weights, shapes={"data": (1, 3, 8, 8)})
    for size in ([], ["--scale=10", "--crop=8"]):
        assert evaluate_predictor.main([str(tmp_path / "net"), f"--data={tmp_path / 'photos'}", *size]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] and "on 6 held-out images" in printed[0]


@pytest.mark.emulated
def test_evaluation_on_a_gpu(tmp_path, capsys):
    """The same accuracy as on the CPU, of images that are decoded and go there as bytes."""
    rng = np.random.default_rng(6)
    for number in range(30):
        folder = tmp_path / "photos" / CLASSES[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.png").write_bytes(png(rng.integers(0, 256, (8, 8, 3), np.uint8)))
    net, weights = convolution(USUAL, ON_GPU)
    save_predictor(tmp_path / "net", net, weights, shapes={"data": (1, 3, 8, 8)})
    options = [str(tmp_path / "net"), f"--data={tmp_path / 'photos'}", "--mean", "120", "110", "100", "--std=64"]
    assert evaluate_predictor.main([*options, "--cpu"]) == 0
    wanted = capsys.readouterr().out
    with with_cudnn() as (machine, _):
        assert evaluate_predictor.main(options) == 0
        assert 6 * 3 * 8 * 8 in {transfer.nbytes for transfer in machine.transfers}
    assert capsys.readouterr().out == wanted and "on 6 held-out images" in wanted
