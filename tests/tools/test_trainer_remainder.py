"""netbuilder-train on decoded images: the last batch, of any size, is used, and devices change nothing."""

import numpy as np
import pytest

from netbuilder.data import image_libraries
from netbuilder.tools import make_db
from netbuilder.tools.training.images import load_images
from netbuilder.tools.training.options import parse
from netbuilder.tools.training.run import Run

pytestmark = pytest.mark.skipif(not image_libraries(), reason="needs a library for images")
BATCH = 6
BASE = ["--cpu", "--model=mlp", f"--batch={BATCH}", "--epochs=1", "--learning-rate=0.05", "--crop=6", "--pad=1",
        "--mirror", "--gray"]  # fmt: skip


def arrays(path, count):
    rng = np.random.default_rng(count)
    pixels = rng.integers(0, 256, (count, 6, 6), np.uint8)
    labels = np.arange(count) % 3
    np.savez(path, x_train=pixels, y_train=labels, x_test=pixels[:3], y_test=labels[:3])
    return str(path)


def trained(source, *arguments):
    options = parse([*BASE, "--data", source, *arguments])
    run = Run(options, *load_images(source, options.input))
    epoch = run.train_epoch(1)
    return [run.model.workspace.fetch(f"cpu_0/fc{k}_{part}") for k in range(3) for part in "wb"], epoch.loss, run.steps


def assert_same(one, other):
    for got, want in zip(other[0], one[0]):
        assert np.linalg.norm(got - want) <= 1e-5 * max(np.linalg.norm(want), 1e-6 * want.size**0.5)
    np.testing.assert_allclose(other[1], one[1], rtol=1e-5)


@pytest.mark.parametrize("last", range(1, BATCH + 1))
@pytest.mark.one_in(6)
def test_every_size_of_the_last_batch(tmp_path, last):
    source = arrays(tmp_path / "set.npz", BATCH + last)
    one = trained(source, "--devices=0")
    assert one[2] == 2
    assert_same(one, trained(source, "--devices=0,1,2"))
    assert_same(one, trained(source, "--devices=0,1", "--accumulate-steps=3"))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", [["--devices=0,1,2"], ["--devices=0,1", "--accumulate-steps=3"]])
@pytest.mark.parametrize("batch", [2, 7])
def test_a_batch_that_the_devices_do_not_divide(tmp_path, batch, options, capfd):
    """Of 7 samples the devices have 3, 2 and 2, of 2 samples one has none."""
    source = arrays(tmp_path / "set.npz", 2 * batch + 1)
    one = trained(source, "--devices=0", f"--batch={batch}")
    assert one[2] == 3
    assert_same(one, trained(source, f"--batch={batch}", *options))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ["minidb", "lmdb"])
def test_from_a_database(tmp_path, kind):
    if kind == "lmdb":
        pytest.importorskip("lmdb")
    source, database = arrays(tmp_path / "set.npz", 2 * BATCH + 1), str(tmp_path / f"set.{kind}")
    assert make_db.main([source, database]) == 0
    one = trained(database, "--test-data", database)
    assert one[2] == 3  # 6, 6 and 1 samples
    assert_same(one, trained(database, "--test-data", database, "--devices=0,1,2"))


@pytest.mark.slow
def test_normalization_over_all_devices(tmp_path):
    """The last batch has one sample: two of the devices have none."""
    source = arrays(tmp_path / "set.npz", 2 * BATCH + 1)

    def normalized(*arguments):
        options = parse([*BASE, "--model=resnet8-cifar", "--data", source, *arguments])
        run = Run(options, *load_images(source, options.input))
        epoch = run.train_epoch(1)
        names = (*run.model.train.params, *run.model.train.GetComputedParams(""))
        chosen = [str(name) for name in names if str(name).startswith("cpu_0/")]
        return [run.model.workspace.fetch(name) for name in chosen], epoch.loss, run.steps

    def distance(one, other):
        each = [np.concatenate([np.ravel(array) for array in values]) for values in (one, other)]
        return np.linalg.norm(each[0] - each[1]) / np.linalg.norm(each[1])

    one, two, apart = (
        normalized("--devices=0", "--combine-bn"),
        normalized("--devices=0,1,2", "--combine-bn"),
        normalized("--devices=0,1,2"),
    )
    assert distance(two[0], one[0]) < 1e-4 < 1e-3 < distance(apart[0], one[0])
    np.testing.assert_allclose(two[1], one[1], rtol=1e-4)
