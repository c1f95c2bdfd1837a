"""netbuilder-train on GPUs is fed decoded images as bytes, which its net normalizes: what comes out is the CPU's."""

from dataclasses import replace

import numpy as np
import pytest

from netbuilder.data import ImageArrays
from netbuilder.exchange import load_predictor
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.tools.training.batches import images_to_feed
from netbuilder.tools.training.decoded import decoded_arrays
from netbuilder.tools.training.images import Images
from netbuilder.tools.training.options import parse
from netbuilder.tools.training.run import Run
from on_gpu import with_cudnn

MEAN, STD = ["--mean", "120", "110", "100"], ["--std", "60", "57", "50"]
OPTIONS = ["--model=lenet", "--batch=6", "--epochs=1", "--learning-rate=0.02", "--crop=16", *MEAN, *STD]
AUGMENTED = ["--pad=2", "--mirror", "--random-erasing=0.5", "--cutmix=1"]


def sets(options, count=14):
    rng = np.random.default_rng(4)
    images, labels = rng.integers(0, 256, (count, 16, 16, 3), np.uint8), np.arange(count) % 3
    parts = [ImageArrays(images[part], labels[part]) for part in (slice(0, -5), slice(-5, None))]
    return decoded_arrays(*parts, options.input)


def trained(arguments):
    """The parameters, the results, and the specs of the images that training and evaluation were fed."""
    options = parse(arguments)
    run = Run(options, *sets(options))
    found = run.train()
    workspace, scope = run.model.workspace, "cpu_0/" if options.cpu else "gpu_0/"
    specs = [workspace.spec(scope + given.blob) for given in (run.model.train_images, run.model.test_images)]
    values = {str(p).removeprefix(scope): workspace.fetch(str(p)) for p in run.model.train.GetParams()
              if str(p).startswith(scope)}  # fmt: skip
    return values, found, specs, run


@pytest.mark.emulated
def test_bytes_train_the_parameters_of_the_cpu(tmp_path):
    """Two devices, the last batch of three samples."""
    with with_cudnn(2):
        values, found, specs, run = trained([*OPTIONS, *AUGMENTED, "--devices=0,1"])
        nets = [model.net.Proto() for model in (run.model.train, run.model.test)]
        assert [net.op[0].type for net in nets] == ["NormalizeImages"] * 2
        run.model.export(tmp_path, None, ())
    assert [(spec.dtype, spec.shape[1:]) for spec in specs] == [(np.uint8, (16, 16, 3))] * 2
    wanted, same, others, _ = trained([*OPTIONS, *AUGMENTED, "--cpu", "--devices=0,1"])
    assert [(spec.dtype, spec.shape[1:]) for spec in others] == [(np.float32, (3, 16, 16))] * 2
    assert values.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    assert found.loss == pytest.approx(same.loss, rel=1e-4)
    predictor = load_predictor(tmp_path)  # for normalized images, as one of the CPU
    assert predictor.specs["data"] == TensorSpec((1, 3, 16, 16), np.dtype(np.float32))
    assert "NormalizeImages" not in {op.type for op in predictor.net.op}


@pytest.mark.parametrize(
    ("more", "train", "test"),
    [
        ([], "pixels", "pixels"),
        (["--cutmix=1", "--random-erasing=0.5", "--label-smoothing=0.1"], "pixels", "pixels"),
        (["--mixup=0.2"], "data", "pixels"),
        (["--color-jitter=0.4"], "data", "pixels"),
        (["--color-lighting=0.1"], "data", "pixels"),
        (["--cpu"], "data", "data"),
    ],
)
def test_what_the_host_has_to_compute_in_floats_is_fed_as_such(more, train, test):
    options = replace(parse([*OPTIONS, *{"--cpu", *more}]), cpu="--cpu" in more)  # which needs no GPU
    found = [images_to_feed(options, images, trains=k == 0) for k, images in enumerate(sets(options))]
    assert [images.fed.blob for images in found] == [train, test]
    for images, blob in zip(found, (train, test)):
        batch, _ = next(images.batches(4, np.random.default_rng(0)))
        assert (batch.dtype, batch.shape[1:]) == (
            (np.uint8, (16, 16, 3)) if blob == "pixels" else (np.float32, (3, 16, 16))
        )
        assert images.shape == (3, 16, 16)


def test_images_in_memory_are_fed_as_they_are():
    options = replace(parse(["--model=mlp", "--cpu"]), cpu=False)
    images = Images(np.zeros((4, 1, 8, 8), np.float32), np.zeros(4, np.int32))
    assert images_to_feed(options, images, trains=True) is images and images.fed.blob == "data"
