"""Headers of images: sizes in them are limited before memory is allocated."""

import io

import numpy as np
import pytest

from netbuilder.data import decode_image, encode_jpeg, image_libraries
from netbuilder.data.image_size import MAX_PIXELS, claimed_size, pixel_limit
from netbuilder.proto import NetError, ParseError

Image = pytest.importorskip("PIL.Image")


def encoded(kind, height=5, width=7, **options):
    out = io.BytesIO()
    Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize(
    ("kind", "options"),
    [("JPEG", {}), ("JPEG", {"progressive": True}), ("JPEG", {"comment": b"x" * 300}), ("PNG", {}), ("BMP", {}),
     ("GIF", {})],
)  # fmt: skip
def test_the_header_says_the_size(kind, options):
    assert claimed_size(encoded(kind, **options), Image) == (5, 7)


def claiming(kind, height, width):
    """A file of 5 x 7 pixels whose header claims others."""
    data = bytearray(encoded(kind))
    if kind == "PNG":
        data[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    else:
        at = data.index(b"\xff\xc0") + 5
        data[at : at + 4] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return bytes(data)


@pytest.mark.parametrize("library", image_libraries())
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_claims_are_refused(kind, library):
    with pytest.raises(ParseError, match=r"db, record 3: its header says 65000 x 65000 pixels, and 134,217,728"):
        decode_image(claiming(kind, 65000, 65000), where="db, record 3", library=library)
    with pytest.raises(ParseError, match=r"says 9000 x 9000 pixels, which \d+ bytes cannot hold; it is damaged"):
        decode_image(claiming(kind, 9000, 9000), library=library)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP"])
def test_the_limit_is_an_option(kind, monkeypatch):
    data = encoded(kind)
    assert decode_image(data, max_pixels=35).shape == (5, 7, 3)
    with pytest.raises(
        ParseError,
        match="5 x 7 pixels, and 34 are allowed; if it is right, give max_pixels .on a command line: --max-pixels.",
    ):
        decode_image(data, max_pixels=34)
    monkeypatch.setenv("NETBUILDER_MAX_PIXELS", "34")
    with pytest.raises(ParseError, match="and 34 are allowed"):
        decode_image(data)
    monkeypatch.setenv("NETBUILDER_MAX_PIXELS", "many")
    with pytest.raises(NetError, match="NETBUILDER_MAX_PIXELS must be a whole number, 1 or greater, got 'many'"):
        decode_image(data)
    with pytest.raises(NetError, match="max_pixels must be a whole number, 1 or greater, got 0"):
        decode_image(data, max_pixels=0)
    monkeypatch.delenv("NETBUILDER_MAX_PIXELS")
    assert pixel_limit() == MAX_PIXELS


def test_a_chunk_that_ends_after_the_file_is_refused():
    data = bytearray(encoded("PNG"))
    at = data.index(b"IDAT") - 4
    data[at : at + 4] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(ParseError, match=rf"chunk b'IDAT' of 2147483647 bytes at byte {at}"):
        decode_image(bytes(data))


def test_evenly_colored_images_are_no_claims():
    pixels = np.full((3000, 4000, 3), 255, np.uint8)
    assert decode_image(encode_jpeg(pixels)).shape == pixels.shape
    for options in ({"optimize": True}, {"bits": 1}):
        out = io.BytesIO()
        Image.fromarray(pixels[:, :, 0]).convert("1" if "bits" in options else "L").save(out, "PNG", **options)
        assert decode_image(out.getvalue(), color=False).shape == (3000, 4000, 1)
