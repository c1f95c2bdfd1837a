"""Batches of images: the same for any number of threads; shards; damaged images; warnings."""

import threading

import numpy as np
import pytest

from image_cases import make_folder
from netbuilder.data import (
    DummyImages,
    ImageLoader,
    ImageSubset,
    ImageTransform,
    decoding_threads,
    image_folder,
    image_libraries,
)
from netbuilder.proto import NetError, ParseError, ShapeError

pytestmark = pytest.mark.skipif(not image_libraries(), reason="needs a library for images")
AUGMENTED = ImageTransform(
    random_scale=(32, 44),
    crop=24,
    mirror=True,
    color_jitter=(0.4, 0.4, 0.4),
    color_lighting=0.1,
    mean=(110,),
    std=(60,),
)


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "images", ("a", "b", "c"), 5)


def everything(loader, size=4, epoch=1, **options):
    found = list(loader.batches(loader.order(epoch), size, epoch=epoch, **options))
    return [np.concatenate(parts) for parts in zip(*found)] + [[len(labels) for _, labels in found]]


def test_batches_do_not_depend_on_the_number_of_threads(folder):
    first = everything(ImageLoader(image_folder(folder), AUGMENTED, seed=3, threads=1))
    assert first[0].shape == (15, 3, 24, 24) and first[2] == [4, 4, 4, 3]
    assert sorted(first[1].tolist()) == [0] * 5 + [1] * 5 + [2] * 5
    for threads in (2, 3, 7):
        again = everything(ImageLoader(image_folder(folder), AUGMENTED, seed=3, threads=threads, ahead=threads))
        for one, other in zip(first, again):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("change", [{"seed": 4}, {"rank": 1}, {"epoch": 2}])
def test_seed_rank_and_epoch_change_what_is_drawn(folder, change):
    epoch = change.pop("epoch", 1)
    order = np.arange(15)
    loaders = (
        ImageLoader(image_folder(folder), AUGMENTED, **{"seed": 3} | change),
        ImageLoader(image_folder(folder), AUGMENTED, seed=3),
    )
    (one, _), (other, _) = (next(x.batches(order, 15, epoch=e)) for x, e in zip(loaders, (epoch, 1)))
    assert all((a != b).any() for a, b in zip(one, other))


def test_what_is_drawn_for_an_image_does_not_depend_on_its_batch(folder):
    loader = ImageLoader(image_folder(folder), AUGMENTED)
    (whole, _), *_ = loader.batches(np.arange(15), 15, epoch=2)
    (part, _), *_ = loader.batches([9, 3], 5, epoch=2)
    np.testing.assert_array_equal(part, whole[[9, 3]])


def test_shards_are_disjoint_and_complete(folder):
    loader = ImageLoader(image_folder(folder), AUGMENTED)
    for count in (1, 2, 4, 15, 20):
        parts = [loader.order(1, num_shards=count, shard_id=k) for k in range(count)]
        assert sorted(np.concatenate(parts)) == list(range(15))
    assert (loader.order(1) != loader.order(2)).any()
    with pytest.raises(NetError, match=r"shard_id must be in \[0, num_shards\), got 2 of 2"):
        loader.order(1, num_shards=2, shard_id=2)


def test_damaged_images_are_refused_or_skipped(folder, caplog):
    for name in ("a/01.jpg", "c/04.jpg"):
        path = folder / name
        path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(ParseError, match=r"(a/01|c/04).jpg: \d+ bytes that begin with ff d8 ff"):
        everything(ImageLoader(image_folder(folder), AUGMENTED))
    loader = ImageLoader(image_folder(folder), AUGMENTED, skip_damaged=True, threads=2)
    images, labels, sizes = everything(loader)
    assert len(images) == len(labels) == sum(sizes) == 13
    assert sorted(loader.damaged) == [1, 14] and "c/04.jpg" in loader.damaged[14]
    assert "skipped (2 so far)" in caplog.text
    full = [
        everything(ImageLoader(image_folder(folder), AUGMENTED, skip_damaged=True, threads=n), replace=True)
        for n in (1, 5)
    ]
    assert full[0][2] == [4, 4, 4, 3]
    for one, other in zip(*full):
        np.testing.assert_array_equal(one, other)


def test_a_set_of_nothing_but_damaged_images(folder):
    for path in folder.rglob("*.jpg"):
        path.write_bytes(b"nothing")
    loader = ImageLoader(image_folder(folder), AUGMENTED, skip_damaged=True)
    with pytest.raises(ParseError, match="cannot be decoded"):
        everything(loader, replace=True)


def test_images_of_several_sizes_need_a_crop(folder):
    from netbuilder.data import encode_jpeg

    (folder / "a" / "00.jpg").write_bytes(encode_jpeg(np.zeros((8, 9, 3), np.uint8)))
    with pytest.raises(ShapeError, match="another image of its batch .* give crop"):
        everything(ImageLoader(image_folder(folder), ImageTransform()), 15)


def test_images_that_look_wrong_are_warned_of(caplog):
    class Flat(DummyImages):
        def __getitem__(self, number):
            self._noise[:] = [0, 7, 9]
            return super().__getitem__(number)

    list(ImageLoader(Flat(16, 4, 4, classes=1), ImageTransform(mean=(1, 2, 3))).batches(range(16), 8))
    assert (
        "8 of 8 images in the first batch have one color only, the first with the values [-1.0, 5.0, 6.0]"
        in caplog.text
    )
    assert "all 8 labels in the first batch are 0" in caplog.text
    caplog.clear()
    list(ImageLoader(DummyImages(16, 4, 4), ImageTransform()).batches(range(16), 8))
    assert not caplog.text


def test_no_thread_is_left(folder):
    before = threading.active_count()
    batches = ImageLoader(image_folder(folder), AUGMENTED, threads=3).batches(range(15), 2)
    next(batches)
    batches.close()
    assert threading.active_count() == before


def test_threads_are_bounded():
    assert 1 <= decoding_threads() <= 16
    for wrong in (0, 65):
        with pytest.raises(NetError, match=rf"threads must be in \[1, 64\], got {wrong}"):
            ImageLoader(DummyImages(1, 1, 1), ImageTransform(), threads=wrong)
    with pytest.raises(NetError, match="seed and rank must be 0 or greater"):
        ImageLoader(DummyImages(1, 1, 1), ImageTransform(), seed=-1)
    with pytest.raises(NetError, match="the batch size must be at least 1"):
        next(ImageLoader(DummyImages(1, 1, 1), ImageTransform()).batches([0], 0))


def test_memory_is_written_again_on_request(folder):
    loader = ImageLoader(image_folder(folder), AUGMENTED)
    fresh = list(loader.batches(range(15), 4))
    places = []
    for (images, labels), (want, same) in zip(loader.batches(range(15), 4, reuse=True), fresh):
        np.testing.assert_array_equal(images, want)
        np.testing.assert_array_equal(labels, same)
        places.append(images.__array_interface__["data"][0])
    assert len(places) == 4 and len(set(places)) == 2


def test_labels_in_order_are_no_surprise_in_test_mode(caplog):
    images = ImageSubset(DummyImages(40, 8, 8, classes=2), np.arange(0, 40, 2))
    for is_test in (True, False):
        caplog.clear()
        list(ImageLoader(images, ImageTransform(is_test=is_test)).batches(np.arange(20), 10))
        assert ("labels in the first batch" in caplog.text) == (not is_test)


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize(
    "options", [{"mirror": True}, {"mirror": True, "random_erasing": 0.7, "color": False}, {"augment": "rand"}]
)
def test_pixels_are_those_that_are_normalized(folder, options, reuse):
    """Normalized afterwards, they have the bits of the batches of floats."""
    transform = ImageTransform(random_scale=(32, 44), crop=24, mean=(110,), std=(60,), **options)
    loaders = [ImageLoader(image_folder(folder), transform, seed=3, pixels=pixels) for pixels in (False, True)]
    order = loaders[0].order(1)
    for (floats, labels), (pixels, same) in zip(
        *(loader.batches(order, 4, epoch=1, reuse=reuse) for loader in loaders)
    ):
        assert (pixels.dtype, pixels.shape) == (np.uint8, (len(floats), 24, 24, transform.channels))
        factors, summands = transform.channel_scales
        np.testing.assert_array_equal((pixels * factors + summands).transpose(0, 3, 1, 2), floats)
        np.testing.assert_array_equal(same, labels)


def test_pixels_of_changed_colors_are_no_bytes(folder):
    with pytest.raises(NetError, match="color_jitter and color_lighting make floats of pixels"):
        ImageLoader(image_folder(folder), AUGMENTED, pixels=True)
