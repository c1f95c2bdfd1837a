"""Augmentations: each change, draws that follow from the seed, and their place among the other changes of an image."""

import dataclasses
import sys

import numpy as np
import pytest

from netbuilder.data import ImageArrays, ImageLoader, ImageTransform
from netbuilder.data.augment import CHANGES, Change, Mixture, apply_changes, augmentation
from netbuilder.data.random_erasing import draw_erased
from netbuilder.proto import ArgumentError, DeviceError

pytest.importorskip("PIL")


def photo(channels=3, height=20, width=30):
    rng = np.random.default_rng(0)
    smooth = np.linspace(20, 200, height)[:, None, None] + 40 * rng.random((1, width, channels))
    return smooth.astype(np.uint8)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", CHANGES)
def test_every_change_keeps_size_and_type(name, channels):
    image = photo(channels)
    before = image.copy()
    for strength in (-1, 0.5, 1):
        got = apply_changes(image, [Change(name, strength)])
        assert got.shape == image.shape and got.dtype == np.uint8
        np.testing.assert_array_equal(image, before)
    if name not in ("identity", "color"):  # of gray images color changes nothing
        assert (got != image).any()


@pytest.mark.parametrize("name", [*"rotate shear-x shear-y translate-x translate-y".split(),
                                  *"color contrast brightness sharpness posterize solarize".split()])  # fmt: skip
def test_no_strength_is_no_change(name):
    np.testing.assert_array_equal(apply_changes(photo(), [Change(name, 0.0)]), photo())


def test_what_single_changes_do():
    image = photo()
    np.testing.assert_array_equal(apply_changes(image, [Change("solarize", 1.0)]), 255 - image)
    np.testing.assert_array_equal(apply_changes(image, [Change("posterize", -1.0)]), image & 0xF0)
    np.testing.assert_allclose(apply_changes(image, [Change("brightness", -1.0)]), image * 0.1, atol=1)
    moved = apply_changes(image, [Change("translate-x", 10 / (0.45 * 30))])
    np.testing.assert_allclose(moved[:, :20], image[:, 10:], atol=1)
    assert (moved[:, 21:] == 128).all()
    # Pillow gets the channels in the order RGB; the result has the order of the input.
    only = np.zeros((4, 4, 3), np.uint8)
    only[..., 0] = 200
    assert (apply_changes(only, [Change("brightness", 0.1)])[..., 1:] == 0).all()


def draws(text, count, seed=0):
    draw, rng = augmentation(text), np.random.default_rng(seed)
    return [draw(rng) for _ in range(count)]


def test_rand_augment_draws():
    assert draws("rand:3:9", 2, 5) == draws("rand:3:9", 2, 5)
    assert {abs(change.strength) for change in draws("rand", 1)[0]} == {9 / 30} and len(draws("rand", 1)[0]) == 2
    many = draws("rand:2000:30", 1)[0]
    assert {change.name for change in many} == set(CHANGES)
    assert {change.strength for change in many} == {-1.0, 1.0}
    counts = [sum(change.name == name for change in many) for name in CHANGES]
    assert 90 < min(counts) and max(counts) < 200
    assert draws("rand:0:9", 1) == [()]


def test_trivial_augment_draws_one_change_of_any_strength():
    found = [change for (change,) in draws("trivial", 6000)]
    for name, widest in (("rotate", 135 / 30), ("shear-x", 3.3), ("posterize", 1.5), ("solarize", 1.0)):
        strengths = np.array([change.strength for change in found if change.name == name])
        assert np.abs(strengths).max() == pytest.approx(widest) and abs(strengths.mean()) < 0.2 * widest
        assert len(set(np.abs(strengths))) == 31 and len(strengths) > 300
    widest = max(change.strength for change in found if change.name == "translate-x")
    moved = apply_changes(photo(width=28, height=28), [Change("translate-x", widest)])
    np.testing.assert_allclose(moved[:, :23], photo(width=28, height=28)[:, 4:27], atol=1)  # a seventh of the side
    assert (apply_changes(photo(), [Change("posterize", 1.5)]) == photo() & 0xC0).all()  # two bits are left


def test_auto_augment_draws_pairs():
    found = draws("auto", 20000)
    assert max(map(len, found)) == 2
    # What the table of the paper makes of 25 pairs: the mean number of each change in an image.
    expected = {"equalize": 11.2, "rotate": 3.6, "posterize": 2.8, "solarize": 3.6 + 1.8, "color": 3.8, "contrast": 2.0,
                "autocontrast": 1.2, "shear-x": 0.6, "sharpness": 0.4}  # fmt: skip
    for name in CHANGES:
        share = sum(change.name == name for pair in found for change in pair) / len(found)
        assert share == pytest.approx(expected.get(name, 0.0) / 25, abs=0.012), name
    turned = {abs(change.strength) * 30 for pair in found for change in pair if change.name == "rotate"}
    assert sorted(turned) == pytest.approx([10, 80 / 3, 30])  # degrees of levels 3, 8 and 9


@pytest.mark.parametrize("text", ["", "rnd", "auto:1", "rand:2", "rand:-1:9", "rand:2:31", "rand:2:nan", "rand:1:2:3",
                                  "rand:1.5:3", "augmix:0", "augmix:11", "augmix:x", "augmix:1:2"])  # fmt: skip
def test_refused_texts(text):
    with pytest.raises(
        ArgumentError, match="augment must be 'auto', 'trivial', 'rand:COUNT:STRENGTH'.*'augmix:SEVERITY'.*got"
    ):
        augmentation(text)
    with pytest.raises(ArgumentError, match="images: augment must be"):
        ImageTransform(augment=text)


def test_augmix_draws_chains():
    mixtures = draws("augmix", 400)
    assert {len(each.chains) for each in mixtures} == {3}
    assert {len(chain) for each in mixtures for chain in each.chains} == {1, 2, 3}
    changes = [change for each in mixtures for chain in each.chains for change in chain]
    strengths = np.abs([change.strength for change in changes])
    assert 0.01 <= strengths.min() < 0.02 and 0.29 < strengths.max() <= 0.3
    assert "contrast" not in {change.name for change in changes} and len({change.name for change in changes}) == 9
    np.testing.assert_allclose([sum(each.weights) for each in mixtures], 1)
    assert 0.45 < np.mean([each.share for each in mixtures]) < 0.55
    assert 0.9 < max(change.strength for each in draws("augmix:10", 100) for chain in each.chains for change in chain)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_mixture_is_the_weighted_sum_of_its_chains(channels):
    image = photo(channels)
    chains = ((Change("rotate", 0.3), Change("solarize", 0.5)), (Change("posterize", 1.0),), ())
    got = apply_changes(image, Mixture(chains, (0.5, 0.3, 0.2), 0.8))
    results = [apply_changes(image, chain).astype(np.float64) for chain in chains]
    want = 0.2 * image + 0.8 * (0.5 * results[0] + 0.3 * results[1] + 0.2 * results[2])
    assert got.dtype == np.uint8 and np.abs(got - want).max() <= 0.5 + 1e-4
    np.testing.assert_array_equal(apply_changes(image, Mixture(chains, (0.5, 0.3, 0.2), 0.0)), image)


def test_erased_boxes():
    rng = np.random.default_rng(0)
    boxes = [draw_erased(40, 60, 0.5, rng) for _ in range(4000)]
    found = [box for box in boxes if box is not None]
    assert len(found) == pytest.approx(2000, abs=150)
    for box in found:
        assert 0 <= box.top <= 40 - box.height and 0 <= box.left <= 60 - box.width
    areas = np.array([box.height * box.width / 2400 for box in found])
    assert 0.01 < areas.min() < 0.03 and 0.3 < areas.max() < 0.36 and areas.mean() == pytest.approx(0.165, abs=0.02)
    assert {draw_erased(40, 60, 0.0, rng) for _ in range(20)} == {None} and draw_erased(1, 1, 1.0, rng) is None


@pytest.mark.parametrize("size", [{}, {"crop": 8}, {"crop": 12, "pad": 2}], ids=["whole", "crop", "margin"])
def test_erasing_replaces_a_box_by_noise_and_leaves_the_data(size):
    pixels = np.full((10, 10, 3), 100, np.uint8)
    seen = 0
    for seed in range(40):
        transform = ImageTransform(random_erasing=1.0, mirror=True, **size)
        got = transform(pixels, np.random.default_rng(seed))
        without = dataclasses.replace(transform, random_erasing=0.0)(pixels, np.random.default_rng(seed))
        rows, columns = (np.flatnonzero((got != without).any(axis=(0, axis))) for axis in (2, 1))
        assert len(rows) * len(columns) <= got[0].size * 0.5  # one box, of a third of the image and what rounding adds
        seen += len(rows) > 0
        assert got.min() >= 0 and got.max() <= 255
    assert seen >= 35 and (pixels == 100).all()


def test_colors_are_changed_before_a_box_is_erased():
    transform = ImageTransform(random_erasing=1.0, color_jitter=(0.4, 0.4, 0.4))
    changed = []
    for seed in range(20):
        got = transform(np.full((12, 12, 3), 100, np.uint8), np.random.default_rng(seed))
        usual = np.median(got, axis=(1, 2), keepdims=True)
        changed.append(float(usual[0, 0, 0]))
        assert 0 < (got != usual).any(axis=0).sum() <= 72 and got.max() <= 255
    assert len(set(changed)) > 15


def loaded(threads, epoch, **transform):
    pixels = np.random.default_rng(0).integers(0, 256, (12, 10, 10, 3), np.uint8)
    transform = ImageTransform(crop=8, mirror=True, **transform)
    loader = ImageLoader(ImageArrays(pixels, np.arange(12), "set"), transform, seed=3, threads=threads)
    return np.concatenate([images for images, _ in loader.batches(np.arange(12), 4, epoch=epoch)])


@pytest.mark.parametrize("more", [{}, {"color_jitter": (0.4, 0.4, 0.4)}], ids=["alone", "with colors"])
@pytest.mark.parametrize("changes", [{"augment": "rand:2:15"}, {"augment": "auto"}, {"augment": "trivial"},
                                     {"random_erasing": 0.7}], ids=str)  # fmt: skip
def test_any_number_of_threads_draws_alike(more, changes):
    one = loaded(1, 1, **changes, **more)
    np.testing.assert_array_equal(loaded(4, 1, **changes, **more), one)
    assert (loaded(1, 2, **changes, **more) != one).any()
    assert (loaded(1, 1, **more) != one).any()


def test_test_mode_changes_nothing():
    changed = loaded(1, 1, augment="rand:2:30", random_erasing=1.0, is_test=True)
    np.testing.assert_array_equal(changed, loaded(1, 1, is_test=True))


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan")])
def test_erasing_is_a_probability(wrong):
    with pytest.raises(ArgumentError, match="random_erasing must be a probability from 0 to 1, got"):
        ImageTransform(random_erasing=wrong)


def test_without_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DeviceError, match="RandAugment, TrivialAugment and AugMix need Pillow.*pip install"):
        ImageTransform(augment="auto")
    ImageTransform(augment="auto", is_test=True)
    ImageTransform(random_erasing=0.5)
