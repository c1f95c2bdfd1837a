"""Predictors of netbuilder-train tell netbuilder-predict how to prepare images, and the names of classes."""

import gzip
import struct

import numpy as np
import pytest

from netbuilder import load_predictor
from netbuilder.data import digits, encode_jpeg, image_libraries
from netbuilder.exchange import ImagePreparation
from netbuilder.proto import NetError
from netbuilder.tools import extract_predictor_net, predict
from netbuilder.tools.imagenet_trainer import main
from netbuilder.tools.training.images import load_images
from netbuilder.tools.training.options import parse

pytestmark = pytest.mark.skipif(not image_libraries(), reason="needs a library for images")


def stripes(root, each=10):
    """Two classes: a bright left half, a bright right half; images of 20 x 28 pixels."""
    for label, name in enumerate(("left", "right")):
        (root / name).mkdir(parents=True)
        for k in range(each):
            rng = np.random.default_rng([label, k])
            pixels = rng.integers(0, 80, (20, 28, 3), np.uint8)
            pixels[:, 14 * label : 14 * label + 14] += 150
            (root / name / f"{k}.jpg").write_bytes(encode_jpeg(pixels))
    return root


def scores(text):
    return {line.split(maxsplit=1)[1]: float(line.split()[0]) for line in text.splitlines() if line.startswith("  ")}


def test_a_folder_of_class_folders(tmp_path, capsys):
    source, out = stripes(tmp_path / "images"), str(tmp_path / "net")
    arguments = ["--cpu", "--model=mlp", "--batch=8", "--epochs=3", "--learning-rate=0.02", "--scale=12", "--crop=10",
                 "--mean", "120", "110", "100", "--std=50", "--data", str(source)]  # fmt: skip
    assert main([*arguments, "--export", out]) == 0
    predictor = load_predictor(out)
    assert predictor.classes == ("left", "right")
    assert predictor.images == ImagePreparation(
        mean=(120.0, 110.0, 100.0), std=(50.0,), resize=12, interpolation="linear"
    )
    _, test = load_images(str(source), parse(arguments).input)
    images, _ = next(test.batches(4))
    wanted = predictor.run(data=images[:1])["softmax"][0]
    capsys.readouterr()
    held_out = str(source / "left" / "4.jpg")
    assert predict.main([out, held_out, "--scores"]) == 0
    found = scores(capsys.readouterr().out)
    np.testing.assert_allclose([found["left"], found["right"]], wanted, rtol=1e-4)
    assert predict.main([out, held_out, "--scores", "--mean", "0", "--std", "255"]) == 0
    assert scores(capsys.readouterr().out) != found


def test_what_is_said_survives_another_extraction(tmp_path):
    out = tmp_path / "net"
    assert main(["--cpu", "--model=mlp", "--epochs=1", "--data=digits", "--export", str(out)]) == 0
    again = str(tmp_path / "again")
    assert extract_predictor_net.main(
        [str(out / "predict_net.pb"), "--parameters", str(out / "init_net.pb"), "--inputs", "data", "--outputs",
         "softmax", "--output-dir", again]
    ) == 0  # fmt: skip
    one, other = load_predictor(out), load_predictor(again)
    assert one.images is not None and (one.images, one.classes) == (other.images, other.classes)


def test_digits_need_no_options(tmp_path, capsys):
    PIL = pytest.importorskip("PIL.Image")
    out = str(tmp_path / "net")
    assert main(["--cpu", "--model=mlp", "--epochs=2", "--data=digits", "--export", out]) == 0
    images, labels = digits()
    files = []
    for k in range(20):
        files.append(str(tmp_path / f"{k}.png"))
        PIL.fromarray(np.rint(images[k, 0] * 255).astype(np.uint8)).save(files[-1])
    capsys.readouterr()
    assert predict.main([out, *files, "--top", "1"]) == 0
    found = [line.split()[1] for line in capsys.readouterr().out.splitlines()[1::2]]
    assert np.mean(np.array(found) == labels[:20].astype(str)) > 0.7


def idx_folder(folder, count=40):
    folder.mkdir()
    rng = np.random.default_rng(0)
    for part, n in (("train", count), ("t10k", 10)):
        pixels, labels = rng.integers(0, 256, (n, 8, 8), np.uint8), (np.arange(n) % 4).astype(np.uint8)
        for name, array in ((f"{part}-images-idx3-ubyte", pixels), (f"{part}-labels-idx1-ubyte", labels)):
            header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            with gzip.open(folder / f"{name}.gz", "wb") as file:
                file.write(header + array.tobytes())
    return str(folder)


def test_idx_files_are_changed_if_options_say_so_and_classes_can_be_named(tmp_path, capsys):
    source, names = idx_folder(tmp_path / "set"), tmp_path / "names.txt"
    names.write_text("up\ndown\nleft\nright\n")
    arguments = ["--cpu", "--model=mlp", "--batch=8", "--epochs=1", "--crop=6", "--mirror", "--data", source]
    train, test = load_images(source, parse(arguments).input)
    assert (train.shape, test.shape, len(train), len(test)) == ((1, 6, 6), (1, 6, 6), 40, 10)
    batches = [next(train.batches(8, np.random.default_rng(k)))[0] for k in (1, 1, 2)]
    assert (batches[0] == batches[1]).all() and (batches[0] != batches[2]).any()
    out = str(tmp_path / "net")
    assert main([*arguments, "--class-names", str(names), "--export", out]) == 0
    predictor = load_predictor(out)
    assert predictor.classes == ("up", "down", "left", "right")
    assert predictor.images == ImagePreparation(mean=(128.0,), std=(64.0,), resize=0, interpolation="linear")
    names.write_text("up\ndown\n")
    assert main([*arguments, "--class-names", str(names)]) == 1
    assert "2 names for 4 classes" in capsys.readouterr().err


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--data", "nowhere"],
            "--data: 'nowhere' does not exist; give digits, dummy, a folder with one",
        ),
        (["--resume", "nowhere"], "--resume: the checkpoint 'nowhere' does not exist"),
        (["--export", "/proc/nowhere/net"], "--export: no file can be written in '/proc/nowhere/net'"),
        (["--checkpoint", "/proc/nowhere"], "--checkpoint: no file can be written"),
        (["--out", "/proc/nowhere"], "--out: no file can be written"),
        (["--crop", "9"], "give a smaller crop"),
    ],
)
def test_what_cannot_be(arguments, message, capsys):
    assert main(["--cpu", "--model=mlp", "--epochs=1", *arguments]) == 1
    said = capsys.readouterr().err
    assert message in said and "Errno" not in said and "minsize" not in said


def test_names_that_cannot_be_read():
    with pytest.raises(NetError, match="--class-names: 'nowhere': no such file"):
        parse(["--cpu", "--class-names", "nowhere"])
