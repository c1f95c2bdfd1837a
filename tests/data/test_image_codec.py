"""Decoding and resizing by each library that is installed; damaged bytes, and bytes of other formats."""

import io
import sys

import numpy as np
import pytest

from image_cases import photo
from netbuilder.data import decode_image, encode_jpeg, image_codec, image_libraries, resize_image
from netbuilder.data.scratch import Scratch
from netbuilder.proto import DeviceError, NetError, ParseError

pytest.importorskip("PIL", reason="the fallback of all")
INSTALLED = image_libraries()


def png(pixels):
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels[:, :, ::-1]) if pixels.shape[2] == 3 else pixels[:, :, 0]).save(
        out, "PNG"
    )
    return out.getvalue()


@pytest.mark.parametrize("library", INSTALLED)
def test_all_libraries_see_the_same(library):
    pixels = photo(1)
    exact = decode_image(png(pixels), library=library)
    np.testing.assert_array_equal(exact, pixels)  # blue, green, red
    jpeg = decode_image(encode_jpeg(pixels), library=library)
    assert jpeg.shape == pixels.shape and jpeg.dtype == np.uint8
    assert np.abs(jpeg.astype(int) - pixels).mean() < 4
    gray = decode_image(png(pixels), color=False, library=library)
    assert gray.shape == (40, 52, 1)
    brightness = pixels @ np.array([0.114, 0.587, 0.299])
    assert np.abs(gray[:, :, 0] - brightness).max() <= 1
    np.testing.assert_array_equal(decode_image(png(gray), library=library), np.repeat(gray, 3, axis=2))


@pytest.mark.parametrize("library", INSTALLED)
def test_damaged_images_are_refused(library):
    jpeg, whole = encode_jpeg(photo(2)), png(photo(2))
    for data in (jpeg[: len(jpeg) // 2], jpeg[:20], jpeg[:-200], whole[:-30], b"GIF89a but nothing more", b"text", b""):
        with pytest.raises(ParseError, match="db, record 7:? "):
            decode_image(data, where="db, record 7", library=library)


def test_other_kinds_of_images():
    from PIL import Image

    out = io.BytesIO()
    Image.new("CMYK", (8, 6), (0, 255, 255, 0)).save(out, "JPEG")
    for library in (None, "pillow"):
        pixels = decode_image(out.getvalue(), library=library)
        assert pixels.shape == (6, 8, 3)
        assert pixels[..., 2].min() > 200 > 60 > pixels[..., :2].max()  # red
    out = io.BytesIO()
    Image.fromarray(np.full((6, 8), 40_000, np.uint16)).save(out, "PNG")
    for library in (None, "pillow"):
        assert abs(int(decode_image(out.getvalue(), library=library)[0, 0, 0]) - 156) <= 1


@pytest.mark.parametrize("library", [name for name in INSTALLED if name != "simplejpeg"])
@pytest.mark.parametrize("interpolation", ["area", "linear"])
@pytest.mark.parametrize("channels", [1, 3])
def test_resizing(library, interpolation, channels):
    pixels = photo(3, 64, 96)[:, :, :channels]
    small = resize_image(pixels, 16, 24, interpolation=interpolation, library=library)
    means = pixels.reshape(16, 4, 24, 4, channels).mean(axis=(1, 3))
    assert small.shape == (16, 24, channels)
    assert np.abs(small - means).max() < (1.01 if interpolation == "area" else 12)
    assert resize_image(pixels, 64, 96) is pixels


@pytest.mark.skipif("simplejpeg" not in INSTALLED, reason="needs simplejpeg")
def test_the_size_of_a_jpeg_is_known_before_it_is_decoded():
    data = encode_jpeg(photo(0, 30, 44))
    for content in (data, memoryview(data)):
        assert image_codec.jpeg_size(content) == image_codec.jpeg_size(content, "simplejpeg") == (30, 44)
    assert image_codec.jpeg_size(data, "pillow") is None and image_codec.jpeg_size(data[:40]) is None
    assert image_codec.jpeg_size(b"\x89PNG") is None


def with_tall_blocks():
    """A JPEG with 4:4:1 subsampling, which no library here writes: one with 4:1:1, its blocks read as lying upright."""
    cv2 = pytest.importorskip("cv2")
    flat = np.full((32, 64, 3), (200, 100, 50), np.uint8)
    kind = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411]
    data = bytearray(cv2.imencode(".jpg", flat, kind)[1].tobytes())
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = data[at + 2 : at + 4] + data[at : at + 2]
    assert data[at + 6] == 0x41
    data[at + 6] = 0x14
    return bytes(data)


@pytest.mark.parametrize("library", INSTALLED)
def test_a_subsampling_that_simplejpeg_has_no_name_for(library):
    data, scratch = with_tall_blocks(), Scratch()
    scratch.take("decoded", 10)
    for buffers in (None, scratch):
        pixels = decode_image(data, library=library, scratch=buffers)
        assert pixels.shape == (64, 32, 3) and abs(pixels.astype(int) - (200, 100, 50)).max() <= 2
    assert image_codec.jpeg_size(data) in (None, (64, 32))
    with pytest.raises(ParseError, match="cannot be decoded"):
        decode_image(data[:-100], library=library, scratch=scratch)


def test_what_cannot_be_asked_for(monkeypatch):
    with pytest.raises(NetError, match="unknown library 'vips' for images"):
        decode_image(b"x", library="vips")
    with pytest.raises(NetError, match="must be 'area' or 'linear', got 'cubic'"):
        resize_image(photo(0), 8, 8, interpolation="cubic")


def test_missing_libraries_are_named(monkeypatch):
    for module in ("simplejpeg", "cv2", "PIL.Image"):
        monkeypatch.setitem(sys.modules, module, None)
    image_codec.load.cache_clear()
    try:
        for call in (lambda: decode_image(b"x"), lambda: resize_image(photo(0)[:9], 3, 3)):
            with pytest.raises(DeviceError, match="needs a library for images: pip install pillow"):
                call()
    finally:
        image_codec.load.cache_clear()
