"""netbuilder-predict: images prepared, the likeliest classes printed, refusals."""

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

from netbuilder import ModelHelper, Workspace, brew, save_predictor
from netbuilder.data.image_codec import image_libraries
from netbuilder.engines.arrays import gpu_count
from netbuilder.exchange import classification
from netbuilder.exchange.classification import prepared_image
from netbuilder.exchange.predictor_exporter import PredictorExportMeta, save_to_db
from netbuilder.graph.blob_devices import place_operators
from netbuilder.proto import PROTO_CUDA, ArgumentError, DeviceError, NetDef, ParseError, files
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.tools import evaluate_predictor, predict, profile

if not image_libraries():
    pytest.skip("needs a library for images", allow_module_level=True)

PIL = pytest.importorskip("PIL.Image")
COLORS = {"blue": (0, 0, 255), "green": (0, 255, 0), "red": (255, 0, 0)}


@pytest.fixture
def images(tmp_path):
    """Files of one color each, twice as wide as high."""
    files = []
    for name, color in COLORS.items():
        PIL.new("RGB", (16, 8), color).save(tmp_path / f"{name}.png")
        files.append(str(tmp_path / f"{name}.png"))
    return files


@pytest.fixture
def net(tmp_path):
    """A predictor whose classes are the channels' brightness: blue, green, red."""
    model = ModelHelper("colors")
    brew.average_pool(model, "data", "mean", kernel=4, global_pooling=True)
    model.net.Flatten("mean", "flat")
    brew.softmax(model, "flat", "softmax")
    return model.net


@pytest.fixture
def folder(net, tmp_path):
    save_predictor(
        tmp_path / "net", net, [], inputs=["data"], outputs=["softmax"], shapes={"data": (1, 3, 4, 4)},
        workspace=Workspace(),
    )  # fmt: skip
    return str(tmp_path / "net")


def test_the_likeliest_classes(folder, images, tmp_path, capsys):
    (tmp_path / "names.txt").write_text("blue\ngreen\nred\n")
    assert predict.main([folder, *images, "--classes", str(tmp_path / "names.txt"), "--top", "1", "--batch", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[::2] == images
    assert [line.split() for line in lines[1::2]] == [["100.00%", name] for name in COLORS]


def test_json_and_numbers(folder, images, capsys):
    assert predict.main([folder, images[0], "--json", "--scale", "0.00392156862745098", "--rgb"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["image"] == images[0]
    assert [row["class"] for row in found["classes"]] == [2, 0, 1]
    e = np.exp([1.0, 0, 0])
    np.testing.assert_allclose([row["score"] for row in found["classes"]], e / e.sum(), rtol=1e-5)
    assert predict.main([folder, images[0], "--scores", "--top", "1"]) == 0
    assert capsys.readouterr().out.split()[-3:] == ["1", "class", "0"]


def test_other_forms_of_predictors(net, images, tmp_path, capsys):
    file = str(tmp_path / "net.minidb")
    save_to_db("minidb", file, PredictorExportMeta(net, [], ["data"], ["softmax"]), workspace=Workspace())
    assert predict.main([file, images[2], "--size", "4", "--top", "1"]) == 0
    assert "class 2" in capsys.readouterr().out
    pytest.importorskip("onnx")
    from netbuilder.exchange.onnx import export_onnx

    export_onnx(tmp_path / "net.onnx", net, [], shapes={"data": (1, 3, 4, 4)}, outputs=["softmax"])
    assert predict.main([str(tmp_path / "net.onnx"), images[1], "--top", "1"]) == 0
    assert "class 1" in capsys.readouterr().out


def png(tmp_path, pixels):
    PIL.fromarray(pixels).save(tmp_path / "image.png")
    return (tmp_path / "image.png").read_bytes()


def test_the_middle_is_cut_out(tmp_path):
    pixels = np.zeros((4, 8, 3), np.uint8)
    pixels[:, 2:6] = (10, 20, 30)  # red, green, blue
    data = png(tmp_path, pixels)
    got = prepared_image(data, 4, 4)
    assert got.dtype == np.float32
    assert np.array_equal(got, np.broadcast_to(np.float32([30, 20, 10]), (4, 4, 3)))
    got = prepared_image(data, 4, 4, rgb=True, scale=0.5, mean=[1, 2, 3], std=[2])
    np.testing.assert_allclose(got[0, 0], [2, 4, 6])


def test_brightness(tmp_path):
    got = prepared_image(png(tmp_path, np.full((4, 4), 77, np.uint8)), 4, 4, 1)
    assert np.array_equal(got, np.full((4, 4, 1), 77, np.float32))


def test_the_shorter_side(tmp_path):
    data = png(tmp_path, np.full((6, 20, 3), 9, np.uint8))
    assert prepared_image(data, 4, 4, resize=5).shape == (4, 4, 3)
    with pytest.raises(ArgumentError, match="--resize 3"):
        prepared_image(data, 4, 4, resize=3)
    with pytest.raises(ArgumentError, match="1 or 3 channels"):
        prepared_image(data, 4, 4, 2)
    with pytest.raises(ParseError, match="here"):
        prepared_image(b"no image", 4, 4, where="here")


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["{folder}", "missing.png"], "missing.png"),
        (["missing", "{image}"], "missing"),
        (["{folder}", "{folder}/predict_net.pb"], "predict_net.pb"),
        (["{folder}", "{image}", "--classes", "{names}"], "this is not JSON"),
    ],
)
def test_refusals(folder, images, arguments, match, tmp_path, capsys):
    (tmp_path / "names.json").write_text('["a",')
    names = str(tmp_path / "names.json")
    given = [text.format(folder=folder, image=images[0], names=names) for text in arguments]
    assert predict.main(given) == 1
    said = capsys.readouterr()
    assert match in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    "bad", [["--top", "0"], ["--size", "ax3"], ["--size", "0"], ["--mean", "1,2"], ["--std", "x"], ["--std", "1,0,1"]]
)
def test_options_that_make_no_sense(bad, capsys):
    with pytest.raises(SystemExit):
        predict.main(["net", "image", *bad])
    assert "must " in capsys.readouterr().err


def test_a_mean_for_channels_that_the_input_does_not_have(images):
    data = Path(images[0]).read_bytes()
    with pytest.raises(ArgumentError, match=r"mean must be one number.*has 1; got \[1, 2, 3\]"):
        prepared_image(data, 4, 4, 1, mean=[1, 2, 3])


def test_without_a_library_for_images(folder, images, monkeypatch, capsys):
    monkeypatch.setattr(classification, "decode_image", missing)
    assert predict.main([folder, images[0]]) == 1
    assert "pip install" in capsys.readouterr().err


def missing(*args, **kwargs):
    raise DeviceError("decoding needs a library for images: pip install pillow")


@pytest.fixture
def pair(tmp_path, net):
    """A pair of nets as Caffe2's translator writes it, for a GPU: the image is filled, no output is listed."""
    init_net, predict_net = NetDef(name="init"), NetDef()
    init_net.op.append(make_op("ConstantFill", [], ["data"], shape=[1]))
    predict_net.CopyFrom(net.Proto())
    predict_net.external_input[:] = ["data"]
    del predict_net.external_output[:]
    for each in (init_net, predict_net):
        place_operators(each, make_device_option(PROTO_CUDA, 0))
        files.save(tmp_path / f"{'init' if each is init_net else 'predict'}.pb", each)
    return [str(tmp_path / "predict.pb"), "--init", str(tmp_path / "init.pb"), "--cpu", "--size", "4", "--top", "1"]


def test_a_pair_of_nets_as_other_programs_write_it(pair, images, tmp_path, capsys):
    assert predict.main([*pair, images[2]]) == 0
    assert "class 2" in capsys.readouterr().out
    assert predict.main([*pair, images[2], "--scores", "--rgb", "--inputs", "data", "--outputs", "flat"]) == 0
    assert capsys.readouterr().out.split()[-3:] == ["255", "class", "0"]
    np.save(tmp_path / "mean.npy", np.broadcast_to(np.float32([5, 6, 7])[:, None, None], (3, 8, 8)))
    assert predict.main([*pair, images[2], "--scores", "--outputs", "flat", "--mean", str(tmp_path / "mean.npy")]) == 0
    assert capsys.readouterr().out.split()[-3:] == ["248", "class", "2"]


def test_the_first_of_several_outputs_is_printed_with_a_note(net, images, tmp_path, capsys):
    net.Sqr("flat", "square")
    save_predictor(tmp_path / "net", net, [], inputs=["data"], outputs=["softmax", "square"], workspace=Workspace())
    given = [str(tmp_path / "net"), images[0], "--size=4", "--top=1", "--scores"]
    assert predict.main(given) == 0
    said = capsys.readouterr()
    assert "printing 'softmax', the first of the outputs ['softmax', 'square']; choose another by --outputs" in said.err
    assert predict.main([*given, "--outputs", "square"]) == 0
    said = capsys.readouterr()
    assert said.out.split()[-3] == "65025" and not said.err


def test_a_predictor_without_an_input_for_images(pair, images, tmp_path, capsys):
    assert predict.main([*pair, images[0], "--inputs", "data", "data2"]) == 1
    assert "no operator reads the inputs ['data2']" in capsys.readouterr().err
    assert predict.main([pair[0], images[0]]) == 1
    assert "predict.pb' is a single net; give the folder" in capsys.readouterr().err
    init_net = NetDef(op=[make_op("ConstantFill", [], ["data"], shape=[1, 3, 4, 4], value=1.0)])
    files.save(tmp_path / "init.pb", init_net)
    assert predict.main([*pair, images[0]]) == 1
    said = capsys.readouterr().err
    assert "must have one input, for the image, and has none; name it by --inputs: the net reads ['data']" in said
    assert predict.main([*pair, images[0], "--inputs", "data"]) == 0


@pytest.mark.parametrize(
    ("array", "match"),
    [(np.zeros((2, 4)), r"holds float64 \(2, 4\)"), (np.array(["a"] * 3), "three channels")],
)
def test_a_mean_image_that_is_none(array, match, tmp_path, capsys):
    np.save(tmp_path / "mean.npy", array)
    with pytest.raises(SystemExit):
        predict.main(["net", "image", "--mean", str(tmp_path / "mean.npy")])
    assert re.search(match, capsys.readouterr().err)


def test_no_mean_image(tmp_path, capsys):
    assert predict.main(["net", "image", "--mean", str(tmp_path / "mean.npy")]) == 1
    assert "mean.npy': no such file" in capsys.readouterr().err


def scored(tmp_path, *ops, outputs=("scores",), device=None):
    """A predictor of the mean of each channel (blue, green, red), followed by ``ops`` on the blob ``means``."""
    net = NetDef(name="scored", op=[make_op("AveragePool", ["data"], ["means"], global_pooling=1), *ops])
    if device is not None:
        place_operators(net, device)
    net.external_input.append("data")
    net.external_output.extend(outputs)
    save_predictor(tmp_path / "scored", net, {}, inputs=["data"], shapes={"data": (1, 3, 4, 4)}, workspace=Workspace())
    return str(tmp_path / "scored")


@pytest.mark.parametrize(
    ("op", "options", "shown"),
    [
        (make_op("Squeeze", ["means"], ["scores"], dims=[2, 3]), [], ["255", "class 0"]),  # plain scores
        (make_op("Sigmoid", ["means"], ["scores"]), [], ["1", "class 0"]),
        (make_op("NormalizeL1", ["means"], ["scores"], axis=1), [], ["1", "class 0"]),  # in [0, 1], and their sum is 1
        (make_op("Negative", ["means"], ["scores"]), [], ["-0", "class 1"]),
        (make_op("Softmax", ["means"], ["scores"]), [], ["100.00%", "class 0"]),
        (make_op("Softmax", ["means"], ["scores"]), ["--scores"], ["1", "class 0"]),
        (make_op("Copy", ["data"], ["scores"]), [], ["255", "element (0, 0, 0)"]),  # no classes at all
    ],
)
def test_percent_is_for_a_softmax(op, options, shown, images, tmp_path, capsys):
    assert predict.main([scored(tmp_path, op), images[0], "--top=1", *options]) == 0
    assert capsys.readouterr().out.splitlines() == [
        images[0],
        f"  {shown[0]:>{8 if '%' in shown[0] else 10}}  {shown[1]}",
    ]


def test_percent_is_for_a_softmax_that_is_copied_or_reshaped(images, tmp_path, capsys):
    ops = [
        make_op("Softmax", ["means"], ["probabilities"]),
        make_op("Reshape", ["probabilities"], ["rows", "old_shape"], shape=[-1, 3]),
        make_op("Copy", ["rows"], ["scores"]),
    ]
    folder = scored(tmp_path, *ops)
    assert predict.main([folder, images[0], "--top=1"]) == 0
    assert capsys.readouterr().out.splitlines() == [images[0], "   100.00%  class 0"]
    assert predict.main([folder, images[0], "--top=1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["probabilities"] is True


def test_an_output_without_a_row_for_each_image(images, tmp_path, capsys):
    folder = scored(tmp_path, make_op("SumElements", ["means"], ["scores"]))
    assert predict.main([folder, *images]) == 1
    error = capsys.readouterr().err
    assert "the output 'scores' has shape () for a batch of 3; it must have a row of scores for each image" in error
    assert "choose another by --outputs" in error


@pytest.mark.slow
@pytest.mark.skipif(gpu_count() > 0, reason="is about machines without a GPU")
def test_a_predictor_for_a_gpu_says_how_it_runs_on_the_cpu(images, tmp_path, capsys):
    gpu = make_device_option(PROTO_CUDA, 1)
    folder = scored(tmp_path, make_op("Softmax", ["means"], ["scores"]), device=gpu)
    for command, arguments in ((predict, [images[0]]), (evaluate_predictor, []), (profile, ["--runs=1", "--warmup=1"])):
        assert command.main([folder, *arguments]) == 1
        assert "needs GPU 1: give device=make_device_option(PROTO_CPU, 0) (on a command line: --cpu) to run it on " in (
            capsys.readouterr().err
        )
    assert predict.main([folder, images[0], "--cpu", "--top=1"]) == 0
    assert profile.main([folder, "--runs=1", "--warmup=1", "--cpu"]) == 0
    net = [str(tmp_path / "scored" / "predict_net.pb"), "--input=data=1x3x4x4"]
    assert profile.main([*net, "--runs=1", "--warmup=1", "--cpu"]) == 0


def test_folders_patterns_and_what_cannot_be_read(folder, images, tmp_path, capsys):
    photos = tmp_path / "photos"
    (photos / ".hidden").mkdir(parents=True)
    for number, image in enumerate(images):
        (photos / f"{number}.png").write_bytes(Path(image).read_bytes())
    (photos / ".hidden" / "no.png").write_bytes(b"x")
    (photos / "broken.png").write_bytes(b"no image")
    given = [str(photos), str(photos / "[0-9].png"), "absent.png", str(tmp_path / "*.webp")]
    assert predict.main([folder, *given, "--json", "--batch", "2"]) == 1
    out, err = capsys.readouterr()
    names = [f"{number}.png" for number in range(len(images))]
    assert [Path(row["image"]).name for row in json.loads(out)] == 2 * names
    assert "broken.png" in err and "absent.png" in err and "no file matches the pattern" in err and "no.png" not in err


@pytest.mark.parametrize("size", [(1, 9000), (9000, 1)])
def test_no_shape_of_an_image_makes_a_huge_one(size, monkeypatch):
    """The crop is from the middle, so little else is resized."""
    pixels = np.zeros((*size, 3), np.uint8)
    (pixels[0] if size[0] == 1 else pixels[:, 0])[4498:4502] = 200
    file, sizes, resize = io.BytesIO(), [], classification.resize_image
    pytest.importorskip("PIL.Image").fromarray(pixels).save(file, "png")

    def resized(image, *to, **how):
        sizes.append(to)
        return resize(image, *to, **how)

    monkeypatch.setattr(classification, "resize_image", resized)
    found = prepared_image(file.getvalue(), 8, 8, resize=16)
    assert sizes == [(16, 64) if size[0] == 1 else (64, 16)] and (found == 200).all()
