"""Transformations of images: sizes, crops, mirroring, colors, normalization."""

import numpy as np
import pytest

from image_cases import photo
from netbuilder.data import ImageTransform, image_libraries, resize_image
from netbuilder.data.image_transform import EIGENVALUES, EIGENVECTORS, jitter, lighting
from netbuilder.proto import ArgumentError, ShapeError

pytestmark = pytest.mark.skipif(not {"opencv", "pillow"} & set(image_libraries()), reason="needs OpenCV or Pillow")


def rng(seed=0):
    return np.random.default_rng(seed)


def counted(height=10, width=12):
    """An image in which each pixel says where it was: (row, column, 0)."""
    rows, columns = np.indices((height, width))
    return np.stack([rows, columns, 0 * rows], axis=2).astype(np.uint8)


def test_normalization_is_that_of_each_channel():
    image = photo(0)
    got = ImageTransform(mean=(10, 20, 30), std=(2, 4, 5))(image, rng())
    want = (image.astype(np.float64) - [10, 20, 30]) / [2, 4, 5]
    np.testing.assert_allclose(got, want.transpose(2, 0, 1), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(ImageTransform()(image, rng()), image.transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"scale": 20}, (20, 26)),
        ({"scale": 20, "warp": True}, (20, 20)),
        ({"minsize": 80}, (80, 104)),
        ({"minsize": 30}, (40, 52)),
        ({"scale": 24, "crop": 16}, (16, 16)),
        ({"box": (5, 7, 30, 20)}, (30, 20)),
        ({"area_crop": 0.08, "crop": 24}, (24, 24)),
        ({"pad": 4, "crop": 40}, (40, 40)),
        ({"random_scale": (20, 20), "crop": 20}, (20, 20)),
    ],
)
def test_sizes(options, shape):
    assert ImageTransform(**options)(photo(1), rng()).shape == (3, *shape)
    assert ImageTransform(**options, color=False)(photo(1)[:, :, :1], rng()).shape == (1, *shape)


def test_crops_are_parts_and_reach_every_place():
    places = set()
    for seed in range(300):
        part = ImageTransform(crop=8).pixels(counted(), rng(seed))
        top, left = part[0, 0, :2]
        np.testing.assert_array_equal(part, counted()[top : top + 8, left : left + 8])
        places.add((int(top), int(left)))
    assert places == {(y, x) for y in range(3) for x in range(5)}
    part = ImageTransform(crop=8, is_test=True, mirror=True).pixels(counted(), rng())
    np.testing.assert_array_equal(part, counted()[1:9, 2:10])


def test_padding_moves_the_image_by_as_much_at_most():
    image, corners = counted(8, 8) + 1, set()
    for seed in range(300):
        part = ImageTransform(crop=8, pad=2).pixels(image, rng(seed))
        rows, columns = (np.flatnonzero(part[:, :, 2].any(axis=axis)) for axis in (1, 0))
        corners.add(
            (int(rows[0]), int(columns[0]), int(part[rows[0], columns[0], 0]), int(part[rows[0], columns[0], 1]))
        )
    assert len(corners) == 25
    np.testing.assert_array_equal(ImageTransform(crop=8, pad=2, is_test=True).pixels(image, rng()), image)


@pytest.mark.parametrize("options", [{"crop_first": True}, {"pad": 2}, {"area_crop": 0.08}, {"box": (3, 4, 30, 40)}])
def test_the_geometry_needs_no_pixels(options):
    transform = ImageTransform(scale=24, crop=20, mirror=True, **options)
    image = photo(3)
    for seed in range(8):
        found = transform.geometry(*image.shape[:2], rng(seed))
        ready, mirrored = transform.apply_geometry(image, found, rng(99))  # nothing more is drawn
        want = transform.pixels(image, rng(seed))
        np.testing.assert_array_equal(ready[:, ::-1] if mirrored else ready, want)
        out, plain = (np.empty((3, 20, 20), np.float32) for _ in range(2))
        transform.normalize(ready, out, mirrored=mirrored)
        transform.normalize(want, plain)
        np.testing.assert_array_equal(out, plain)
    assert transform.geometry(*image.shape[:2], rng(0)).mirrored is not None
    assert ImageTransform(color_lighting=0.1, mirror=True).geometry(4, 5, rng()).mirrored is None


def test_every_second_image_is_mirrored():
    turned = [ImageTransform(mirror=True).pixels(counted(), rng(seed))[0, 0, 1] == 11 for seed in range(400)]
    assert 150 < sum(turned) < 250


def test_parts_by_area_lie_within_the_limits():
    from netbuilder.data.image_transform import _part

    for seed in range(200):
        top, left, height, width = _part(60, 100, 0.08, rng(seed))
        assert 0 <= top <= 60 - height and 0 <= left <= 100 - width
        assert 0.07 < height * width / 6000 <= 1 and 0.7 < height / width < 1.4
    assert _part(2, 400, 0.08, rng())[2:] == (2, 2)


def test_jitter_and_lighting():
    image = photo(2)
    np.testing.assert_allclose(jitter(image, rng(), saturation=0, brightness=0, contrast=0), image, atol=1e-3)
    brighter = jitter(image, rng(), saturation=0, brightness=0.5, contrast=0)
    factors = brighter / np.maximum(image, 1).astype(np.float64)
    assert np.ptp(factors[image > 0]) < 1e-4 and 0.5 <= factors[image > 0].mean() <= 1.5
    gray = np.repeat(image[:, :, :1], 3, axis=2)
    np.testing.assert_allclose(jitter(gray, rng(), saturation=0.9, brightness=0, contrast=0), gray, atol=1e-3)
    flat = np.full((4, 4, 3), 80, np.uint8)
    np.testing.assert_allclose(jitter(flat, rng(), saturation=0, brightness=0, contrast=0.9), flat, atol=1e-3)
    added = lighting(image, rng(3), 0.1) - image
    assert np.ptp(added.reshape(-1, 3), axis=0).max() < 1e-3
    want = 255 * np.array(EIGENVECTORS) @ (rng(3).normal(0, 0.1, 3) * EIGENVALUES)
    np.testing.assert_allclose(added[0, 0, ::-1], want, atol=1e-3)


def test_colors_stay_in_test_mode():
    options = ImageTransform(color_jitter=(0.4, 0.4, 0.4), color_lighting=0.1, is_test=True)
    np.testing.assert_array_equal(options.pixels(photo(1), rng()), photo(1))


@pytest.mark.parametrize("least", [0.08, 0.5, 1.0])
def test_a_part_has_its_share_of_the_area(least):
    transform, draw = ImageTransform(area_crop=least, crop=8), rng()
    boxes = [transform.geometry(120, 120, draw).box or (0, 0, 120, 120) for _ in range(300)]
    shares = np.array([height * width / 120**2 for _, _, height, width in boxes])
    assert shares.min() >= least - 0.02 and (least == 1 or shares.min() < least + 0.1) and shares.max() > 0.9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": -1}, "scale must not be negative, got -1"),
        ({"scale": 2, "minsize": 3}, "scale and minsize exclude each other"),
        ({"scale": 20, "crop": 30}, "crop must not be larger than the image after scale, got 30 and 20"),
        ({"random_scale": (30, 20)}, "the shorter one first"),
        ({"mean": (1, 2)}, "mean must have 1 or 3 values"),
        ({"std": (0,)}, "std must be positive"),
        ({"area_crop": 0.08}, "area_crop needs crop"),
        ({"area_crop": True, "crop": 8}, "area_crop must be a share of the area from 0 to 1, usually 0.08, got True"),
        ({"area_crop": 1.1, "crop": 8}, "usually 0.08, got 1.1"),
        ({"color": False, "color_lighting": 0.1}, "need three channels"),
        ({"color_jitter": (2, 0, 0)}, "shares from 0 to 1"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ArgumentError, match=message):
        ImageTransform(**options)


def test_images_that_do_not_fit_are_named():
    with pytest.raises(ShapeError, match="dog.jpg: an image of 40 x 52 pixels is too small for a crop of 48"):
        ImageTransform(crop=48)(photo(0), rng(), "dog.jpg")
    with pytest.raises(ShapeError, match=r"dog.jpg: the box \(0, 0, 41, 5\)"):
        ImageTransform(box=(0, 0, 41, 5))(photo(0), rng(), "dog.jpg")


def test_cut_before_it_is_scaled():
    """A crop of a ramp has the values of its position, in steps of the scale; every position occurs."""
    ramp = np.repeat(np.indices((60, 100)).transpose(1, 2, 0), [2, 1], axis=2).astype(np.uint8)  # rows, rows, columns
    options, places = ImageTransform(scale=30, crop=20, crop_first=True), set()
    for seed in range(200):
        part = options.pixels(ramp, rng(seed)).astype(float)
        assert part.shape == (20, 20, 3)
        np.testing.assert_allclose(np.diff(part[..., 0], axis=0), 2, atol=1.01)
        np.testing.assert_allclose(np.diff(part[..., 2], axis=1), 2, atol=1.01)
        places.add((int(part[0, 0, 0]) // 2, int(part[0, 0, 2]) // 2))
    assert {y for y, _ in places} >= set(range(1, 10)) and max(x for _, x in places) >= 28
    drawn = ImageTransform(random_scale=(20, 40), crop=20, crop_first=True, mirror=True)
    assert drawn(photo(0), rng()).shape == (3, 20, 20)
    assert ImageTransform(crop=20, crop_first=True)(photo(0), rng()).shape == (3, 20, 20)
    small = ImageTransform(scale=30, crop=20, crop_first=True, is_test=True).pixels(ramp, rng())
    np.testing.assert_array_equal(small, ImageTransform(scale=30, crop=20, is_test=True).pixels(ramp, rng()))
    with pytest.raises(ArgumentError, match="crop_first excludes warp and pad"):
        ImageTransform(crop=8, crop_first=True, pad=2)


@pytest.mark.parametrize("shape", [(1, 30_000), (30_000, 1), (2, 20_000), (40, 4000)])
@pytest.mark.parametrize("options", [{}, {"crop_first": True}, {"pad": 2}, {"minsize": 64, "scale": 0}])
@pytest.mark.parametrize("is_test", [True, False])
def test_no_shape_makes_a_huge_image(monkeypatch, shape, options, is_test):
    sizes = []

    def resized(pixels, height, width, **more):
        sizes.append(height * width)
        return resize_image(pixels, height, width, **more)

    monkeypatch.setattr("netbuilder.data.image_transform.resize_image", resized)
    transform = ImageTransform(**{"scale": 64, "crop": 56, "is_test": is_test, **options})
    image = np.zeros((*shape, 3), np.uint8)
    assert transform.pixels(image, rng(1)).shape == (56, 56, 3)
    assert max(sizes) <= 4 * 64 * 64


@pytest.mark.parametrize("transposed", [False, True])
def test_the_middle_of_a_long_image_is_evaluated(transposed):
    image = np.zeros((20, 2000, 3), np.uint8)
    image[:, 990:1010] = 200
    image = image.transpose(1, 0, 2).copy() if transposed else image
    found = ImageTransform(scale=20, crop=20, is_test=True).pixels(image, rng())
    assert (found == 200).all()


def test_an_image_that_would_be_too_large_is_named():
    with pytest.raises(ShapeError, match=r"^a.jpg has 1 x 30000 pixels; an image cannot be resized to 256 x 7680000"):
        ImageTransform(scale=256).pixels(np.zeros((1, 30_000, 3), np.uint8), rng(), "a.jpg")
