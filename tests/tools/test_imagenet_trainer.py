"""netbuilder-train: data, options, a short run, its export, and wrong options."""

import gzip
import re
import struct
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from netbuilder import ModelHelper
from netbuilder.tools import evaluate_predictor
from netbuilder.tools.imagenet_trainer import main
from netbuilder.tools.training import option_checks
from netbuilder.tools.training.images import Images, load_images
from netbuilder.tools.training.nets import NETS, add_net
from netbuilder.tools.training.options import parse
from netbuilder.tools.training.run import Run

LEAST = {"inception-v3": 75, "overfeat": 71}  # nets that take no images of 64 pixels
QUICK = ["--cpu", "--model=mlp", "--batch=64", "--epochs=2"]


def accuracies(text):
    return [float(x) for x in re.findall(r"held-out (?:accuracy|images:) ?(?:accuracy: )?(\d+\.\d+)%", text)]


def test_a_run_learns_and_its_export_gives_the_same_accuracy(tmp_path, capfd):
    folder = str(tmp_path / "predictor")
    assert main([*QUICK, "--devices=0,1", "--export", folder, "--check-export"]) == 0
    text = capfd.readouterr().out
    assert "batches of 64, 32 on each device (the last batch has 30)" in text
    assert "loss scale 1/2 (the mean over 2 devices); learning rate 0.1 (fixed)" in text
    assert "1438 to train, 359 held out" in text
    found = re.findall(r"accuracy on 359 held-out images: (\S+)%", text)
    assert len(found) == 2, text
    assert found[0] == found[1]
    assert float(found[0]) > 85


def test_the_demo_in_short(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["--demo", "--epochs=2"]) == 0
    found = re.findall(r"accuracy on 359 held-out images: (\S+)%", capfd.readouterr().out)
    assert len(found) == 2 and found[0] == found[1] and float(found[0]) > 50
    assert (tmp_path / "out" / "digits" / "predict_net.pb").is_file()


@pytest.mark.slow
def test_the_demo_reaches_what_the_readme_promises(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["--demo"]) == 0
    found = re.findall(r"accuracy on 359 held-out images: (\S+)%", capfd.readouterr().out)
    assert len(found) == 2
    assert found[0] == found[1]
    assert float(found[0]) >= 97
    assert (tmp_path / "out" / "digits" / "predict_net.pb").is_file()


@pytest.mark.one_in(4)
@pytest.mark.parametrize("devices", ["0", "0,1", "0,1,2,3"])
def test_the_same_seed_gives_the_same_net_on_any_number_of_devices(devices):
    """An MLP has no statistics over the batch, so its parameters do not depend on how the batch is shared."""
    states = []
    for ids in ("0", devices):
        options = parse([*QUICK, "--devices", ids, "--epochs=1", "--learning-rate=0.02"])
        run = Run(options, *load_images("digits"))
        run.train_epoch(1)
        states.append(
            {
                b: run.model.workspace.fetch(b)
                for b in run.model.workspace.blobs()
                if re.fullmatch(r"cpu_0/fc\d_[wb]", b)
            }
        )
    assert len(states[0]) == 6
    for name, value in states[0].items():
        difference = np.linalg.norm(states[1][name] - value) / max(np.linalg.norm(value), 1e-6 * value.size**0.5)
        assert difference < 1e-5, name


def test_net_type_and_workers_reach_the_net():
    images = Images(np.zeros((4, 1, 8, 8), np.float32), np.int32([0, 1, 2, 1]))
    options = parse(["--cpu", "--model=mlp", "--batch=2", "--devices=0,1", "--net-type=simple", "--device-workers=3"])
    net = Run(options, images, images).model.train.net.Proto()
    assert net.type == "simple"
    assert net.num_workers == 6


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("name", "size", "devices"),  # the deep ones on one device: for the time
    [
        ("mlp", 8, "0,1"),
        ("lenet", 28, "0,1"),
        ("resnet8-cifar", 8, "0,1"),
        pytest.param("resnet18", 32, "0,1", marks=pytest.mark.slow),
        pytest.param("resnext50", 32, "0", marks=pytest.mark.slow),
        ("inception-v1", 32, "0"),
    ],
)
def test_a_net_of_each_kind_trains_and_evaluates(name, size, devices):
    rng = np.random.default_rng(0)
    images = Images(rng.standard_normal((4, 1, size, size)).astype(np.float32), np.int32([0, 1, 2, 1]))
    run = Run(parse(["--cpu", f"--model={name}", "--batch=2", f"--devices={devices}"]), images, images)
    assert np.isfinite(run.train_epoch(1).loss)
    assert 0 <= run.evaluation().top1 <= 1


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", NETS)
def test_every_name_builds_a_net(name):
    model = ModelHelper(name=name, arg_scope={"order": "NCHW"})
    side = 224 if name.startswith("swin") else LEAST.get(name, 64)
    softmax, _ = add_net(model, name, (3, side, side), 10, is_test=False, label="label")
    assert str(softmax) == "softmax"


def test_every_sample_comes_once_in_training_and_in_evaluation():
    images = Images(np.zeros((10, 1, 2, 2), np.float32), np.arange(10, dtype=np.int32))
    seen = [label for _, labels in images.batches(4) for label in labels]
    assert seen == list(range(10))
    shuffled = [labels for _, labels in images.batches(4, np.random.default_rng(0))]
    assert [len(labels) for labels in shuffled] == [4, 4, 2]
    assert sorted(int(label) for labels in shuffled for label in labels) == list(range(10))


def write_idx(path, array):
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wb") as file:
        file.write(head + array.astype(np.uint8).tobytes())


def test_a_folder_of_idx_files(tmp_path):
    rng = np.random.default_rng(0)
    for part, count in (("train", 12), ("t10k", 5)):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", rng.integers(0, 256, (count, 6, 7)))
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte", rng.integers(0, 3, count))
    train, test = load_images(str(tmp_path))
    assert train.images.shape == (12, 1, 6, 7)
    assert len(test) == 5
    np.testing.assert_allclose(train.images.mean(), 0, atol=1e-5)
    np.testing.assert_allclose(train.images.std(), 1, atol=1e-4)


def test_dummy_images_need_no_data_set():
    train, test = load_images("dummy")
    assert train.shape == (3, 32, 32)
    assert set(test.labels) == set(train.labels) == set(range(10)) and len(train) == 4 * len(test)
    epoch = Run(parse([*QUICK, "--data=dummy", "--epochs=1"]), train, test).train_epoch(1)
    assert np.isfinite(epoch.loss) and epoch.wait >= 0


def test_a_folder_that_lacks_a_file(tmp_path, capsys):
    (tmp_path / "t10k-images-idx3-ubyte").touch()
    assert main([*QUICK, "--data", str(tmp_path)]) == 1
    message = capsys.readouterr().err
    assert "train-images-idx3-ubyte" in message
    assert "or 'digits'" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model=resnet19"], "; did you mean 'resnet18'"),
        (["--batch=0"], "--batch must be positive, got 0"),
        (["--devices=0,0"], "without repetition"),
        (["--devices=a"], "argument --devices: must be numbers of devices, such as 0,1,2; got 'a'"),
        (["--epochs=0"], "must be positive"),
        (["--net-type=fast"], "unknown type 'fast'; the types are simple"),
        (["--device-workers=0"], "must be a whole number from 1 to 1000, got '0'"),
        (["--policy=stepp"], "unknown policy 'stepp'"),
        (["--policy=step"], "--step-epochs"),
        (["--policy-arg=gamma"], "KEY=VALUE"),
        (["--check-export"], "--export"),
        (["--strategy=topk:2"], "--strategy: TopK: fraction must lie in (0, 1], got 2"),
        (["--strategy=local_sgd:8"], "lets processes train on their own; use --block-steps for that"),
        (["--strategy=partial:8"], "lets processes train on their own; use Parallelize(strategy=) for that"),
        (["--strategy=zero:2"], "--strategy: Zero: stage must be 1"),
        (["--bucket-bytes=fast"], "must be a number of bytes, such as 25MiB, got 'fast'; or auto"),
        (["--bucket-bytes=auto", "--block-steps=2"], "--bucket-bytes: with --block-steps no gradients are exchanged"),
        (["--strategy=half", "--block-steps=2"], "--strategy: half cannot be combined with --block-steps"),
    ],
)
def test_wrong_options_end_the_program_before_anything_is_built(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--cpu", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_batch_larger_than_the_data(capsys):
    assert main(["--cpu", "--model=mlp", "--batch=5000"]) == 1
    said = capsys.readouterr().err
    assert "--batch 5000 is more than the 1438 samples there are to train on; give --batch 1438 or less" in said


@pytest.mark.parametrize("recipe", [[], ["--recipe", "--no-mirror", "--crop=8"]], ids=["", "recipe"])
def test_fewer_samples_than_a_batch(recipe, tmp_path, capsys):
    rng = np.random.default_rng(0)
    for name in "ab":
        for number in range(6):
            file = tmp_path / "data" / name / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(file)
    given = [
        "--cpu", "--model=mlp", "--epochs=1", "--devices=0,1", f"--data={tmp_path / 'data'}",
        f"--out={tmp_path / 'out'}", *recipe,
    ]  # fmt: skip
    assert main(given) == 0
    said = capsys.readouterr().out
    assert "there are 10 samples to train on, fewer than the usual batch of " in said
    assert "batches of 10, 5 on each device;" in said
    assert main(["--cpu", f"--config={tmp_path / 'out' / 'options.json'}"]) == 0
    assert main([*given, "--batch=11"]) == 1
    assert "--batch 11 is more than the 10 samples" in capsys.readouterr().err


def test_gpus_that_are_not_there(capsys, monkeypatch):
    assert main(["--model=mlp", "--devices=99"]) == 1
    assert "there is no GPU 99" in capsys.readouterr().err
    monkeypatch.setattr(option_checks, "gpu_count", lambda: 0)
    assert main(["--model=mlp"]) == 1
    assert capsys.readouterr().err.startswith("netbuilder-train: there is no GPU 0 (0 found")


def test_an_export_that_cannot_be_written_ends_the_program_before_it_trains(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main([*QUICK, "--export", str(tmp_path / "file")]) == 1
    assert "is a file; give a folder" in capsys.readouterr().err
    for name in ("net.onx", "net.pth"):
        assert main([*QUICK, "--export", str(tmp_path / name)]) == 1
        assert "would be a folder; give FILE.onnx for an ONNX model" in capsys.readouterr().err
    assert main([*QUICK, "--export", str(tmp_path / "file" / "below")]) == 1
    said = capsys.readouterr()
    assert "file" in said.err
    assert "epoch" not in said.out


def test_evaluating_what_is_no_predictor(tmp_path, capsys):
    assert evaluate_predictor.main([str(tmp_path)]) == 1
    assert str(tmp_path) in capsys.readouterr().err


def test_the_program_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "netbuilder.tools.imagenet_trainer", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    for group in ("net and data", "devices", "optimization", "result"):
        assert group in done.stdout
