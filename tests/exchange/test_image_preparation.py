"""What a predictor says of its images and classes: in a folder, in a minidb, in ONNX."""

import pytest

from netbuilder import ModelHelper, Workspace, brew, load_predictor, save_predictor
from netbuilder.exchange import ImagePreparation, describe_images
from netbuilder.exchange.image_preparation import class_names, image_preparation
from netbuilder.exchange.predictor_exporter import PredictorExportMeta, load_predictor_from_db, save_to_db
from netbuilder.proto import ArgumentError, NetDef, ParseError
from netbuilder.proto.arguments import set_argument

FULL = ImagePreparation(
    scale=0.5, mean=(1.0, 2.0, 3.0), std=(4.0,), resize=8, interpolation="linear", rgb=True, channels_last=True
)
NAMES = ("a cat", "Hünd")


@pytest.fixture
def net():
    model = ModelHelper("net")
    brew.softmax(model, "data", "softmax")
    return model.net


def said(predictor):
    return predictor.images, predictor.classes


@pytest.mark.parametrize("images", [FULL, ImagePreparation(), ImagePreparation(resize=0)])
def test_a_folder(net, tmp_path, images):
    save_predictor(
        tmp_path, net, [], inputs=["data"], outputs=["softmax"], workspace=Workspace(), images=images, classes=NAMES
    )
    assert said(load_predictor(tmp_path)) == (images, NAMES)


def test_nothing_is_said_unasked(net, tmp_path):
    save_predictor(tmp_path, net, [], inputs=["data"], outputs=["softmax"], workspace=Workspace())
    assert said(load_predictor(tmp_path)) == (None, ())


def test_a_value_given_again_replaces_the_first():
    net = NetDef()
    describe_images(net, FULL, NAMES)
    describe_images(net, ImagePreparation())
    assert (image_preparation(net), class_names(net)) == (ImagePreparation(), NAMES)
    describe_images(net, classes=["x"])
    assert (image_preparation(net), class_names(net)) == (ImagePreparation(), ("x",))


@pytest.mark.parametrize("said", [{"scale": 0.5}, {"mean": (3.0,)}, {"mean": (1.0, 2.0, 3.0)}])
def test_what_a_net_leaves_out_is_the_default(said):
    net = NetDef()
    for name, value in said.items():
        set_argument(net, f"image_{name}", value)
    assert image_preparation(net) == ImagePreparation(**said)


def test_one_file_of_predictor_exporter(net, tmp_path):
    describe_images(net.Proto(), FULL, NAMES)
    file = tmp_path / "net.minidb"
    save_to_db("minidb", file, PredictorExportMeta(net, [], ["data"], ["softmax"]), workspace=Workspace())
    assert said(load_predictor_from_db(file)) == (FULL, NAMES)


def test_onnx(net, tmp_path):
    pytest.importorskip("onnx")
    from netbuilder.exchange.onnx import export_onnx, onnx_model, read_onnx

    describe_images(net.Proto(), FULL, NAMES)
    file = tmp_path / "net.onnx"
    export_onnx(file, net, [], shapes={"data": (1, 3)}, outputs=["softmax"])
    assert said(read_onnx(file).predictor()) == (FULL, NAMES)
    foreign = onnx_model(net, [], shapes={"data": (1, 3)}, outputs=["softmax"])
    del foreign.metadata_props[:]
    foreign.metadata_props.add(key="image_mean", value="no JSON")
    assert said(read_onnx(foreign).predictor()) == (None, ())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mean": (1.0, 2.0)}, "mean must be one number or three"),
        ({"std": (0.0,)}, "std must not be 0"),
        ({"resize": -1}, "resize must not be negative"),
        ({"interpolation": "cubic"}, "interpolation must be one of"),
    ],
)
def test_refusals(wrong, message):
    with pytest.raises(ArgumentError, match=message):
        ImagePreparation(**wrong)


def test_a_net_that_says_nonsense():
    net = NetDef(name="net")
    describe_images(net, FULL)
    set_argument(net, "image_std", [0.0])
    with pytest.raises(ParseError, match=r"net 'net': its arguments image_\.\.\. are invalid: images: std"):
        image_preparation(net)
    with pytest.raises(ArgumentError, match="a list of names"):
        describe_images(net, classes="cat")
