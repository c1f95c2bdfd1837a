"""The orientation that cameras store: the same upright pixels of every format, by every library."""

import io
import struct

import numpy as np
import pytest

from image_cases import photo
from netbuilder.data import (
    ImageFiles,
    ImageLoader,
    ImageTransform,
    decode_image,
    image_codec,
    image_libraries,
    open_records,
    read_image_record,
)
from netbuilder.data.image_codec import jpeg_size
from netbuilder.data.orientation import find_orientation, turned
from netbuilder.data.scratch import Scratch
from netbuilder.tools import make_db
from netbuilder.tools.training.images import load_images
from netbuilder.tools.training.input_options import InputOptions

Image = pytest.importorskip("PIL.Image", reason="makes the files")
ImageOps = pytest.importorskip("PIL.ImageOps")

LIBRARIES = image_libraries()
FORMATS = {"JPEG": {"quality": 95, "subsampling": 0}, "PNG": {}, "WEBP": {"lossless": True}, "TIFF": {}}


def file_of(pixels, kind, orientation, **more):
    """Return an image file of pixels (H, W, C), as a camera that is held in this way stores them."""
    exif = Image.Exif()
    exif[0x010F] = "a camera"
    exif[0x0112] = orientation
    out, image = io.BytesIO(), Image.fromarray(np.ascontiguousarray(pixels[:, :, ::-1]))
    image.save(out, kind, exif=exif, **{**FORMATS[kind], **more})
    return out.getvalue()


def upright(pixels, orientation):
    """What Pillow makes of it, blue, green, red."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels[:, :, ::-1])).save(out, "PNG", exif=exif)
    return np.asarray(ImageOps.exif_transpose(Image.open(out)).convert("RGB"))[:, :, ::-1]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_orientation_format_and_library(library, kind, orientation):
    pixels = photo(3, 20, 28)
    data, want = file_of(pixels, kind, orientation), upright(pixels, orientation)
    assert want.shape == ((28, 20, 3) if orientation > 4 else (20, 28, 3))
    for color in (True, False):
        got = decode_image(data, color=color, library=library, scratch=Scratch())
        expected = want if color else np.rint(want @ [0.114, 0.587, 0.299])[:, :, None]
        assert got.shape == expected.shape
        assert got.flags.c_contiguous
        assert np.abs(got.astype(float) - expected).max() <= (16 if kind == "JPEG" else 1)
    if kind != "TIFF":  # whose decoders always turn it
        stored = decode_image(data, library=library, upright=False)
        assert stored.shape == pixels.shape
        assert np.abs(stored.astype(float) - pixels).max() <= (16 if kind == "JPEG" else 0)
    if kind == "JPEG" and library == "simplejpeg":
        assert jpeg_size(data, library) == want.shape[:2]
        assert jpeg_size(data, library, upright=False) == (20, 28)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("channels", [1, 3])
def test_opencv_turns_as_numpy_does(orientation, channels):
    cv2 = pytest.importorskip("cv2")
    pixels = photo(5, 6, 9)[:, :, :channels]
    np.testing.assert_array_equal(turned(pixels, orientation, cv2), turned(pixels, orientation))
    if channels == 3:
        np.testing.assert_array_equal(turned(pixels, orientation), upright(pixels, orientation))


@pytest.mark.parametrize("order", "<>")
def test_both_byte_orders(order):
    header = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HIH", 42, 8, 1)
    exif = header + struct.pack(f"{order}HHIHH", 0x0112, 3, 1, 6, 0)
    data = b"\xff\xd8\xff\xe0\0\4ab\xff\xe1" + struct.pack(">H", len(exif) + 8) + b"Exif\0\0" + exif + b"\xff\xda"
    assert find_orientation(data) == 6
    for place in range(len(exif)):  # damaged: any orientation, but no error
        for byte in (0, 255):
            changed = bytearray(exif)
            changed[place] = byte
            assert 1 <= find_orientation(data.replace(exif, bytes(changed))) <= 8
    for size in range(len(data)):
        assert find_orientation(data[:size]) in (1, 6)


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff", b"\x89PNG", b"RIFF\0\0\0\0WEBP", b"GIF89a", b"II*\0"])
def test_other_files_are_upright(data):
    assert find_orientation(data) == 1


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("is_test", [True, False])
def test_loaded_images_are_upright(tmp_path, kind, is_test):
    """The size that the header says is turned, too: the same part is cropped as of an image that was stored upright."""
    pixels, files = photo(3, 40, 60), []
    for name, of, orientation in (("turned", pixels, 6), ("upright", upright(pixels, 6), 1)):
        (tmp_path / name).write_bytes(file_of(of, kind, orientation))
        files.append(str(tmp_path / name))
    transform = ImageTransform(scale=32, crop=24, crop_first=True, is_test=is_test)
    loaded = [next(ImageLoader(ImageFiles([file], [0]), transform, seed=4).batches([0], 1))[0] for file in files]
    assert np.abs(loaded[0] - loaded[1]).max() <= 12
    ignored = ImageLoader(ImageFiles(files[:1], [0]), ImageTransform(is_test=is_test, upright=False))
    assert next(ignored.batches([0], 1))[0].shape == (1, 3, 40, 60)


def test_a_database_holds_upright_images(tmp_path, capsys):
    pixels = photo(3, 20, 28)
    (tmp_path / "set" / "cat").mkdir(parents=True)
    files = {
        "a.jpg": file_of(pixels, "JPEG", 6),
        "b.png": file_of(pixels, "PNG", 8),
        "c.png": file_of(pixels, "PNG", 1),
    }
    for name, data in files.items():
        (tmp_path / "set" / "cat" / name).write_bytes(data)
    for more, shapes in (([], [(28, 20), (28, 20), (20, 28)]), (["--ignore-orientation"], [(20, 28)] * 3)):
        path = str(tmp_path / f"{len(more)}.minidb")
        assert make_db.main([str(tmp_path / "set"), path, *more]) == 0
        found = [read_image_record(value, "") for _, value in open_records(path)]
        assert [record.pixels(upright=False).shape[:2] for record in found] == shapes
        kept = [record.image in files.values() for record in found]
        assert kept == ([True] * 3 if more else [False, False, True])
    np.testing.assert_allclose(
        found[0].pixels(), upright(pixels, 6), atol=16
    )  # one that was kept is turned when it is read


def test_the_trainer_turns_images_unless_told_not_to(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for k in range(4):
            (tmp_path / name / f"{k}.jpg").write_bytes(file_of(photo(k, 20, 28), "JPEG", 6))
    shapes = [load_images(str(tmp_path), InputOptions(upright=of))[0].shape for of in (True, False)]
    assert shapes == [(3, 28, 20), (3, 20, 28)]
    assert "--ignore-orientation" in InputOptions(upright=False).arguments()


def test_the_fastest_library_turns_without_opencv(monkeypatch):
    monkeypatch.setattr(
        image_codec, "load", lambda name, real=image_codec.load: None if name == "opencv" else real(name)
    )
    pixels = photo(3, 20, 28)
    np.testing.assert_allclose(decode_image(file_of(pixels, "PNG", 7)), upright(pixels, 7))
