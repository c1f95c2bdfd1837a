"""Memory used again: images decoded, resized and mirrored in it are what they are without, batch after batch."""

import io

import numpy as np
import pytest

from netbuilder.data import ImageLoader, ImageTransform, decode_image, encode_jpeg, image_libraries, resize_image
from netbuilder.data.image_codec import mirror_image, split_channels
from netbuilder.data.image_records import ImageRecord
from netbuilder.data.scratch import Scratch
from netbuilder.proto import ParseError

pytestmark = pytest.mark.skipif(not image_libraries(), reason="needs a library for images")
SIZES = [(20, 30), (31, 17), (8, 9), (40, 40), (20, 30)]


def photo(height, width, channels=3):
    return np.random.default_rng(height * width).integers(0, 256, (height, width, channels), np.uint8)


@pytest.mark.parametrize("color", [True, False])
def test_images_of_many_sizes_in_the_same_memory(color):
    scratch = Scratch()
    for height, width in SIZES:
        data = encode_jpeg(photo(height, width))
        plain = decode_image(data, color=color)
        found = decode_image(data, color=color, scratch=scratch)
        np.testing.assert_array_equal(found, plain)
        np.testing.assert_array_equal(
            mirror_image(resize_image(found, 10, 12, scratch=scratch), scratch=scratch),
            resize_image(plain, 10, 12)[:, ::-1],
        )


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_mirrored(channels, dtype):
    pixels = photo(6, 9, channels).astype(dtype)
    for scratch in (None, Scratch()):
        np.testing.assert_array_equal(mirror_image(pixels, scratch=scratch), pixels[:, ::-1])


def test_memory_grows_and_very_much_is_not_kept():
    scratch = Scratch()
    small = scratch.take("a", 10)
    assert np.shares_memory(small, scratch.take("a", 5)) and not np.shares_memory(small, scratch.take("b", 5))
    assert scratch.take("a", 100).size == 100
    large = scratch.take("c", (64 << 20) + 1)
    assert large.size == (64 << 20) + 1 and not np.shares_memory(large, scratch.take("c", 10))


def test_memory_of_a_shape_is_the_same_object_while_the_shape_stays():
    scratch = Scratch()
    first = scratch.shaped("a", (2, 3, 4))
    planes = scratch.planes("a", (2, 3, 4))
    assert scratch.shaped("a", (2, 3, 4)) is first and scratch.planes("a", (2, 3, 4)) is planes
    assert len(planes) == 2 and all(np.shares_memory(plane, first) for plane in planes)
    other = scratch.planes("a", (3, 2, 2))
    assert [plane.shape for plane in other] == [(2, 2)] * 3 and np.shares_memory(other[0], first)
    assert scratch.shaped("a", (9, 9)).shape == (9, 9)


class Photos:
    classes = ()

    def __init__(self):
        self._files = [encode_jpeg(photo(*SIZES[k % len(SIZES)])) for k in range(20)]

    def __len__(self):
        return len(self._files)

    def __getitem__(self, number):
        return ImageRecord(f"photo {number}", self._files[number], (np.array([number], np.int32),))

    def labels(self):
        return np.arange(len(self), dtype=np.int32)


def test_batches_in_memory_that_is_used_again():
    transform = ImageTransform(scale=12, crop=10, mirror=True, mean=(128,), std=(64,))
    loader = ImageLoader(Photos(), transform, threads=3)
    held = {}  # the memory of batches by its address, kept so that no other gets it
    for epoch in range(3):
        order = loader.order(epoch)
        fresh = list(loader.batches(order, 6, epoch=epoch))
        again = loader.batches(order, 6, epoch=epoch, reuse=True)
        count = 0
        for (images, labels), (wanted, same) in zip(again, fresh, strict=True):
            np.testing.assert_array_equal(images, wanted)
            np.testing.assert_array_equal(labels, same)
            held[images.ctypes.data] = images
            count += 1
        assert count == 4
    assert len(held) <= 3  # what the epochs pass on to each other


def test_batches_skipped_at_the_beginning():
    loader = ImageLoader(Photos(), ImageTransform(scale=12, crop=10, mirror=True))
    order = loader.order(0)
    whole = list(loader.batches(order, 6))
    rest = list(loader.batches(order, 6, skip=2))
    assert len(rest) == 2
    for (one, _), (other, _) in zip(whole[2:], rest, strict=True):
        np.testing.assert_array_equal(one, other)


def test_decoding_makes_room_for_larger_images_and_refuses_damaged_ones():
    scratch = Scratch()
    small, large = (encode_jpeg(photo(*size)) for size in ((8, 9), (40, 50)))
    for data in (small, large, small, large):
        np.testing.assert_array_equal(decode_image(data, scratch=scratch), decode_image(data))
        np.testing.assert_array_equal(decode_image(memoryview(data), scratch=scratch), decode_image(data))
    for bytes_left in (60, len(large) - 200):
        with pytest.raises(ParseError, match="shot: .* cannot be decoded as an image"):
            decode_image(large[:bytes_left], where="shot", scratch=Scratch())


def test_cmyk_does_not_depend_on_what_was_decoded_before():
    Image = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 4), np.uint8), "CMYK").save(out, "JPEG")
    want = decode_image(out.getvalue())
    for before in (None, photo(4, 4), photo(20, 30), photo(90, 90)):
        scratch = Scratch()
        if before is not None:
            decode_image(encode_jpeg(before), scratch=scratch)
        for _ in range(2):
            np.testing.assert_array_equal(decode_image(out.getvalue(), scratch=scratch), want)


@pytest.mark.parametrize("mirrored", [False, True])
def test_channels_are_split_and_mirrored_in_the_same_memory(mirrored):
    scratch = Scratch()
    for height, width in SIZES:
        pixels = photo(height, width)
        want = pixels[:, ::-1] if mirrored else pixels
        for memory in (None, scratch):
            found = split_channels(pixels, mirrored=mirrored, scratch=memory)
            np.testing.assert_array_equal(np.stack(found, axis=2), want)
    flat = photo(5, 6, 1).astype(np.float32)
    np.testing.assert_array_equal(split_channels(flat, mirrored=True, scratch=scratch)[0], flat[:, ::-1, 0])
