"""netbuilder-train on images that are decoded as they are needed: folders, databases, options, evaluation, export."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from image_cases import make_folder
from netbuilder.data import encode_jpeg, image_libraries
from netbuilder.proto import NetError
from netbuilder.tools import make_db
from netbuilder.tools.imagenet_trainer import _size_note, main
from netbuilder.tools.training.images import load_images
from netbuilder.tools.training.input_options import InputOptions
from netbuilder.tools.training.options import parse
from netbuilder.tools.training.run import Run

pytestmark = pytest.mark.skipif(not image_libraries(), reason="needs a library for images")
SIZES = ["--scale=12", "--crop=8", "--mirror", "--mean", "120", "110", "100", "--std=60"]
QUICK = ["--cpu", "--model=mlp", "--batch=8", "--epochs=2", "--learning-rate=0.05", *SIZES]


def colored(root, each=15):
    """Two classes that are easy to tell apart: dark and bright."""
    for label, name in enumerate(("dark", "bright")):
        (root / name).mkdir(parents=True)
        for k in range(each):
            pixels = np.random.default_rng([label, k]).integers(150 * label, 150 * label + 100, (16, 20, 3), np.uint8)
            (root / name / f"{k:02}.jpg").write_bytes(encode_jpeg(pixels))
    return root


def test_a_folder_trains_evaluates_and_exports(tmp_path, capfd):
    source = str(colored(tmp_path / "images"))
    arguments = [*QUICK, "--data", source, "--devices=0,1", "--export", str(tmp_path / "out"), "--check-export"]
    assert main(arguments) == 0
    text = capfd.readouterr().out
    assert "24 to train, 6 held out; 2 classes (bright, dark); images of" in text
    found = re.findall(r"accuracy on 6 held-out images: (\S+)%", text)
    assert len(found) == 2 and found[0] == found[1]
    assert float(found[0]) > 80


def test_photos_as_they_are_stored(tmp_path, capsys):
    """The net's usual size is named where they are far from it; several sizes are an error that names options."""
    source = colored(tmp_path / "images", each=5)
    given = ["--cpu", "--batch=4", "--epochs=1", "--data", str(source)]
    run = SimpleNamespace(decodes=True, image_shape=load_images(str(source))[0].shape)
    said = _size_note(parse([*given, "--model=squeezenet1.0"]), run)
    assert said.endswith("chooses batch, rate and epochs, or give --scale 256 --crop 224")
    for fine in (["--model=mlp"], ["--model=squeezenet1.0", "--crop=16"]):
        assert not _size_note(parse([*given, *fine]), run)
    (source / "dark" / "00.jpg").write_bytes(encode_jpeg(np.zeros((8, 9, 3), np.uint8)))
    assert main([*given, "--model=mlp"]) == 1
    assert "; give --scale 256 --crop 224, or --recipe, which resizes photos" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["lmdb", "minidb"])
def test_a_database_gives_what_its_folder_gives(tmp_path, kind):
    if kind == "lmdb":
        pytest.importorskip("lmdb")
    source = colored(tmp_path / "images")
    assert make_db.main([str(source), str(tmp_path / "db"), "--type", kind]) == 0
    batches = []
    for data in (source, tmp_path / "db"):
        train, _ = load_images(str(data), parse([*QUICK]).input)
        assert (train.class_count, train.shape, len(train)) == (2, (3, 8, 8), 24)
        batches.append(list(train.batches(8, np.random.default_rng(3))))
    for (one, labels), (other, same) in zip(*batches):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(labels, same)


def test_threads_and_resuming_change_nothing(tmp_path):
    source = str(colored(tmp_path / "images"))
    runs = [
        list(
            load_images(source, parse([*QUICK, f"--decode-threads={n}"]).input)[0].batches(8, np.random.default_rng(3))
        )
        for n in (1, 4)
    ]
    late, _ = load_images(source, parse(QUICK).input)
    runs.append([*runs[0][:2], *late.batches(8, np.random.default_rng(3), 2)])
    for other in runs[1:]:
        assert len(other) == 3
        for one, two in zip(runs[0], other):
            np.testing.assert_array_equal(one[0], two[0])
    again = list(load_images(source, parse(QUICK).input)[0].batches(8, np.random.default_rng(4)))
    assert (again[0][0] != runs[0][0][0]).any()


def test_every_held_out_image_is_evaluated_once(tmp_path):
    source = str(colored(tmp_path / "images"))
    train, test = load_images(source, parse(QUICK).input)
    seen = [labels for _, labels in test.batches(4)]
    assert [len(labels) for labels in seen] == [4, 2]
    run = Run(parse([*QUICK, "--data", source]), train, test)
    assert run.evaluation().top1 in [k / 6 for k in range(7)]


def test_one_class_is_an_error(tmp_path, capsys):
    colored(tmp_path / "images" / "only")
    assert main([*QUICK, "--data", str(tmp_path / "images")]) == 1
    assert "a classifier needs two classes or more, and " in (said := capsys.readouterr().err)
    assert "has one, 'only'; give a folder with a folder of images for each class" in said


@pytest.mark.parametrize("held_out", ["val", "valid", "Validation", "TEST"])
def test_parts_in_folders_of_their_own(tmp_path, held_out):
    colored(tmp_path / "set" / "train", 4)
    colored(tmp_path / "set" / held_out, 3)
    train, test = load_images(str(tmp_path / "set"), InputOptions(crop=8))
    assert (len(train), len(test), test.classes) == (8, 6, ("bright", "dark"))


def test_parts_must_have_the_same_classes(tmp_path):
    colored(tmp_path / "set" / "train", 4)
    colored(tmp_path / "set" / "val", 3)
    apart, other = load_images(
        str(tmp_path / "set" / "train"), InputOptions(crop=8, test_data=str(tmp_path / "set" / "val"))
    )
    assert (len(apart), len(other)) == (8, 6)
    (tmp_path / "set" / "val" / "dark").rename(tmp_path / "set" / "val" / "dim")
    with pytest.raises(NetError, match="must have the same classes; only one of them has dark, dim"):
        load_images(str(tmp_path / "set"), InputOptions(crop=8))


def test_damaged_images(tmp_path, capsys):
    source = colored(tmp_path / "images")
    (source / "dark" / "04.jpg").write_bytes(b"\xff\xd8\xff no more")  # held out
    (source / "dark" / "05.jpg").write_bytes(b"\xff\xd8\xff no more")
    assert main([*QUICK, "--data", str(source)]) == 1
    assert "dark/0" in capsys.readouterr().err
    train, test = load_images(str(source), parse([*QUICK, "--skip-damaged"]).input)
    assert sum(len(labels) for _, labels in test.batches(4)) == 5
    assert sum(len(labels) for _, labels in train.batches(8, np.random.default_rng(0))) == 24
    assert (train.damaged, test.damaged) == (1, 1)


def test_npz_and_dummy(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (10, 8, 8), np.uint8)
    np.savez(tmp_path / "x.npz", x_train=images, y_train=np.arange(10) % 3, x_test=images[:4], y_test=[0, 1, 2, 0])
    train, test = load_images(str(tmp_path / "x.npz"), InputOptions(gray=True))
    assert (len(train), len(test), train.shape, train.class_count) == (10, 4, (1, 8, 8), 3)
    np.savez(tmp_path / "y.npz", images=images, labels=np.arange(10))
    assert [len(part) for part in load_images(str(tmp_path / "y.npz"))] == [8, 2]
    train, test = load_images("dummy", InputOptions(crop=24, classes=7))
    assert (train.shape, train.class_count, len(train) + len(test)) == ((3, 24, 24), 7, 1280)


def test_labels_beyond_the_classes_are_refused(tmp_path):
    source = str(make_folder(tmp_path / "images", ("a", "b", "c")))
    train, _ = load_images(source, InputOptions(crop=8, classes=2))
    with pytest.raises(NetError, match=r"labels must be in \[0, 2\), got 0 to 2; give --classes"):
        list(train.batches(12, np.random.default_rng(0)))


@pytest.mark.parametrize("cropped", [{"area_crop": 0.08}, {"random_scale": (256, 480)}])
def test_images_are_tested_at_the_scale_that_goes_with_random_crops(cropped):
    options = InputOptions(crop=224, **cropped)
    assert options.transform(is_test=True).scale == 256 and options.transform(is_test=False).scale == 0
    assert InputOptions(crop=224, scale=232, **cropped).transform(is_test=True).scale == 232
    assert InputOptions(crop=224).transform(is_test=True).scale == 0


def test_options_survive_the_way_to_another_process():
    options = InputOptions(
        scale=9, crop=8, pad=2, mirror=True, area_crop=0.08, random_scale=(9, 12), color_jitter=0.4, color_lighting=0.1,
        mean=(1.0, 2.0, 3.0), std=(4.0,), gray=False, threads=3, skip_damaged=True, test_data="x", classes=5,
    )  # fmt: skip
    assert parse(["--cpu", *options.arguments()]).input == options
    assert parse(["--cpu", *InputOptions().arguments()]).input == InputOptions()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--crop=20", None),
        ("--decode-threads=0", "the number of decoding threads must be in [1, 64], got 0"),
        ("--std=0", "--std must be positive"),
        ("--classes=0", "--classes must be positive"),
        ("--area-crop", "--area-crop needs crop"),
    ],
)
def test_wrong_options(argument, message, capsys):
    if message is None:
        assert parse(["--cpu", argument]).input.crop == 20
        return
    with pytest.raises(SystemExit):
        parse(["--cpu", argument])
    assert message in capsys.readouterr().err
