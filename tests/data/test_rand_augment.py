"""RandAugment: each change, draws that follow from the seed, and its place among the other changes of an image."""

import sys

import numpy as np
import pytest

from netbuilder.data import ImageArrays, ImageLoader, ImageTransform
from netbuilder.data.rand_augment import CHANGES, MOST, Change, apply_changes, draw_changes
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


def test_draws():
    one, two = (draw_changes(3, 9, np.random.default_rng(5)) for _ in range(2))
    assert one == two and len(one) == 3 and {abs(change.strength) for change in one} == {9 / MOST}
    many = draw_changes(2000, 30, np.random.default_rng(1))
    assert {change.name for change in many} == set(CHANGES)
    assert {change.strength for change in many} == {-1.0, 1.0}
    counts = [sum(change.name == name for change in many) for name in CHANGES]
    assert 90 < min(counts) and max(counts) < 200
    assert draw_changes(0, 9, np.random.default_rng(0)) == ()
    for count, strength in ((-1, 9), (2, 31), (2, -1)):
        with pytest.raises(ArgumentError, match="strength 0 to 30; got"):
            draw_changes(count, strength, np.random.default_rng(0))


def loaded(threads, epoch, **transform):
    pixels = np.random.default_rng(0).integers(0, 256, (12, 10, 10, 3), np.uint8)
    transform = ImageTransform(crop=8, mirror=True, **transform)
    loader = ImageLoader(ImageArrays(pixels, np.arange(12), "set"), transform, seed=3, threads=threads)
    return np.concatenate([images for images, _ in loader.batches(np.arange(12), 4, epoch=epoch)])


@pytest.mark.parametrize("more", [{}, {"color_jitter": (0.4, 0.4, 0.4)}], ids=["alone", "with colors"])
def test_any_number_of_threads_draws_alike(more):
    one = loaded(1, 1, rand_augment=(2, 15), **more)
    np.testing.assert_array_equal(loaded(4, 1, rand_augment=(2, 15), **more), one)
    assert (loaded(1, 2, rand_augment=(2, 15), **more) != one).any()
    assert (loaded(1, 1, **more) != one).any()


def test_test_mode_changes_nothing():
    np.testing.assert_array_equal(loaded(1, 1, rand_augment=(2, 30), is_test=True), loaded(1, 1, is_test=True))


@pytest.mark.parametrize("wrong", [(-1, 9), (2, 31), (2, -1)])
def test_refusals(wrong):
    with pytest.raises(ArgumentError, match="a number of operations and a strength from 0 to 30, got"):
        ImageTransform(rand_augment=wrong)


def test_without_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DeviceError, match="RandAugment needs Pillow.*pip install"):
        ImageTransform(rand_augment=(2, 9))
    ImageTransform(rand_augment=(2, 9), is_test=True)
