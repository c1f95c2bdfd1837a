"""Decoding and resizing of images by the fastest library that is installed: simplejpeg and OpenCV, or Pillow.

Pixels are uint8 of shape (height, width, channels), colors in the order blue, green, red, as Caffe2 has them. The
orientation that cameras store (EXIF) is applied, whichever library decodes.
"""

from __future__ import annotations

import functools
import importlib
import io
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from netbuilder.data.image_size import check_image_size, check_resized
from netbuilder.data.orientation import find_orientation, swaps_sides, turned
from netbuilder.data.scratch import Scratch
from netbuilder.proto import DeviceError, NetError, ParseError
from netbuilder.proto.extras import how_to_install
from netbuilder.proto.os_errors import is_out_of_memory

__all__ = [
    "GRAY_WEIGHTS",
    "LIBRARIES",
    "as_channels",
    "decode_image",
    "encode_jpeg",
    "image_libraries",
    "jpeg_size",
    "load",
    "mirror_image",
    "resize_image",
    "split_channels",
]

Array = np.ndarray[Any, np.dtype[Any]]
Bytes = bytes | memoryview

LIBRARIES = {"simplejpeg": "simplejpeg", "opencv": "cv2", "pillow": "PIL.Image"}
"""Library -> its module, in order of preference."""

_QUICK = (None, "simplejpeg")  # values of ``library`` for which simplejpeg decodes JPEG, if it is installed
_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG"
_TAIL = 4096  # bytes at the end of a file that must contain its end marker

GRAY_WEIGHTS = np.array([0.114, 0.587, 0.299], np.float32)
"""Weights of blue, green and red in the brightness."""


@functools.cache
def load(name: str) -> ModuleType | None:
    """Return the module of a library for images; None if it is not installed."""
    first = LIBRARIES[name] not in sys.modules
    try:
        module = importlib.import_module(LIBRARIES[name])
    except ImportError as error:
        if is_out_of_memory(error):
            raise MemoryError(str(error)) from error
        return None
    if (
        name == "opencv" and first
    ):  # the loader has its own threads; if the program imported OpenCV itself, its setting stays
        module.setNumThreads(1)
    return module


def image_libraries() -> list[str]:
    """Return the names of the libraries that are installed, the preferred one first."""
    return [name for name in LIBRARIES if load(name) is not None]


def _library(names: tuple[str, ...], requested: str | None, what: str) -> tuple[str, Any]:
    if requested is not None and requested not in LIBRARIES:
        raise NetError(f"unknown library {requested!r} for images; known: {list(LIBRARIES)}")
    for name in names if requested is None or requested not in names else (requested,):
        if (module := load(name)) is not None:
            return name, module
    raise DeviceError(
        f"{what} needs a library for images: pip install pillow, or, faster, simplejpeg and opencv-python-headless "
        f"({how_to_install('data')} has all)"
    )


def decode_image(
    data: Bytes,
    *,
    color: bool = True,
    where: str = "image",
    library: str | None = None,
    scratch: Scratch | None = None,
    max_pixels: int | None = None,
    upright: bool = True,
) -> Array:
    """Return the pixels of an encoded image, in any format that the library reads.

    Args:
        data: the bytes of the file.
        color: three channels (blue, green, red); otherwise one, the brightness.
        where: what to call the image in errors.
        library: the library to use; None: the fastest that is installed. simplejpeg decodes JPEG only; other
            formats are left to the other libraries.
        scratch: buffer for the pixels, if the library can decode into it; None: a new one.
        max_pixels: largest number of pixels, height times width; None: the number in the variable
            NETBUILDER_MAX_PIXELS, or ``MAX_PIXELS`` of ``image_size``, 2**27.
        upright: apply the orientation that cameras store in JPEG, PNG and WebP files (EXIF); otherwise the pixels are
            returned as they are stored.

    Raises:
        ParseError: the bytes are not an image, or a damaged or truncated one (missing pixels are never made up); or the
            header claims more pixels than are allowed, or than the bytes can hold.
        DeviceError: no library is installed.
    """
    if not data:
        raise ParseError(f"{where} is empty, not an image")
    check_image_size(data, where, max_pixels, None if data[:3] == _JPEG or data[:4] == _PNG else load("pillow"))
    pixels = _as_stored(data, color, where, library, scratch)
    orientation = find_orientation(data) if upright else 1
    return pixels if orientation == 1 else turned(pixels, orientation, load("opencv"))


def _as_stored(data: Bytes, color: bool, where: str, library: str | None, scratch: Scratch | None) -> Array:
    what, jpeg = "decoding", data[:3] == _JPEG
    if jpeg and library in _QUICK and (module := load("simplejpeg")) is not None:
        pixels = _by_simplejpeg(module, data, color, where, scratch)
        if pixels is not None:
            return pixels
        library, what = None, "decoding a JPEG in CMYK"
    names = ("simplejpeg",) if jpeg and library == "simplejpeg" else ("opencv", "pillow")
    name, module = _library(names, library, what)
    return (_by_opencv if name == "opencv" else _by_pillow)(module, data, color, where)


def jpeg_size(data: Bytes, library: str | None = None, *, upright: bool = True) -> tuple[int, int] | None:
    """Return height and width of a JPEG from its header, which is fast; None if only decoding tells.

    Args:
        data: the bytes of the file, of any format.
        library, upright: see ``decode_image``.
    """
    module = load("simplejpeg") if library in _QUICK and data[:3] == _JPEG else None
    if module is None:
        return None
    header = _jpeg_header(module, data)
    if header is None:
        return None
    height, width, _ = header
    return (width, height) if upright and swaps_sides(find_orientation(data)) else (height, width)


def _by_simplejpeg(module: Any, data: Bytes, color: bool, where: str, scratch: Scratch | None) -> Array | None:
    """Return the pixels; None for color spaces that the library does not convert."""

    def decoded(buffer: Array | None) -> Array:
        found: Array = module.decode_jpeg(
            data, colorspace="BGR" if color else "GRAY", fastdct=True, fastupsample=True, buffer=buffer
        )
        return found

    # The buffer of the largest image so far is usually enough, so the header is not read first.
    buffer = None if scratch is None else scratch.all("decoded")
    try:
        return decoded(buffer)
    except ValueError as error:
        first = error
    header = _jpeg_header(module, data)
    try:
        if scratch is not None and buffer is not None:
            if header is None:
                return decoded(None)
            size = header[0] * header[1] * (3 if color else 1)
            if buffer.size < size:
                return decoded(scratch.take("decoded", size))
    except ValueError as error:
        first = error
    if header is not None and header[2] in ("CMYK", "YCCK"):
        return None
    raise _damaged(where, data, first) from None


def _jpeg_header(module: Any, data: Bytes) -> tuple[int, int, str] | None:
    """Return height, width and color space of a JPEG; None if its header is damaged, or the library cannot name it."""
    try:
        height, width, kind = module.decode_jpeg_header(data)[:3]
    except (KeyError, ValueError):  # simplejpeg 1.9 raises KeyError for 4:4:1 subsampling, which it can decode
        return None
    return height, width, str(kind)


def _by_opencv(module: Any, data: Bytes, color: bool, where: str) -> Array:
    tail = bytes(data[-_TAIL:])
    if data[:3] == _JPEG and b"\xff\xd9" not in tail or data[:4] == _PNG and b"IEND" not in tail:
        raise _damaged(where, data, "its end is missing")  # OpenCV would fill the missing part with gray
    flags = (module.IMREAD_COLOR if color else module.IMREAD_GRAYSCALE) | module.IMREAD_IGNORE_ORIENTATION
    try:
        pixels = module.imdecode(np.frombuffer(data, np.uint8), flags)
    except module.error as error:
        raise _damaged(where, data, error) from None
    if pixels is None:
        raise _damaged(where, data, "OpenCV cannot decode it")
    return pixels if color else pixels[:, :, None]


def _by_pillow(module: Any, data: Bytes, color: bool, where: str) -> Array:
    try:
        with module.open(io.BytesIO(data)) as image:
            if image.mode.startswith("I"):  # 16 bits, which convert() would clip
                pixels = as_channels((np.asarray(image) >> 8).astype(np.uint8)[:, :, None], color)
            else:
                pixels = np.asarray(image.convert("RGB" if color else "L"))
    except module.UnidentifiedImageError:
        raise _damaged(where, data, "its format is not known") from None
    except (OSError, ValueError, SyntaxError, module.DecompressionBombError) as error:
        raise _damaged(where, data, error) from None
    if pixels.ndim == 2:
        return pixels[:, :, None]
    return np.ascontiguousarray(pixels[:, :, ::-1])


def _damaged(where: str, data: Bytes, reason: object) -> ParseError:
    return ParseError(
        f"{where}: {len(data)} bytes that begin with {data[:4].hex(' ')} cannot be decoded as an image: {reason}"
    )


def as_channels(pixels: Array, color: bool) -> Array:
    """Return pixels (H, W, C) with three channels, or with one."""
    have = pixels.shape[2]
    if have == (3 if color else 1):
        return pixels
    if color:
        return np.repeat(pixels[:, :, :1], 3, axis=2)
    return np.rint(pixels[:, :, :3] @ GRAY_WEIGHTS).astype(np.uint8)[:, :, None]


def resize_image(
    pixels: Array,
    height: int,
    width: int,
    *,
    interpolation: str = "linear",
    library: str | None = None,
    scratch: Scratch | None = None,
) -> Array:
    """Return resized pixels.

    Args:
        pixels: uint8, (H, W, C).
        height, width: in pixels.
        interpolation: "linear", or "area", the mean of all pixels that are reduced to one.
        library: "opencv" or "pillow" (whose "linear" uses all these pixels, too); None: OpenCV if it is installed.
        scratch: buffer for the result, if the library can write into it; not that of ``pixels``.

    Raises:
        DeviceError: no library is installed.
        NetError: the result would have more pixels than images may have, see ``pixel_limit``.
    """
    if pixels.shape[:2] == (height, width):
        return pixels
    check_resized(height, width)
    if interpolation not in ("area", "linear"):
        raise NetError(f"interpolation must be 'area' or 'linear', got {interpolation!r}")
    name, module = _library(("opencv", "pillow"), library, "resizing")
    if name == "opencv":
        kind = module.INTER_AREA if interpolation == "area" else module.INTER_LINEAR
        shape = (height, width, *pixels.shape[2:]) if pixels.shape[2] > 1 else (height, width)
        out = None if scratch is None else scratch.shaped("resized", shape)
        found = module.resize(pixels, (width, height), dst=out, interpolation=kind)
    else:
        kind = module.Resampling.BOX if interpolation == "area" else module.Resampling.BILINEAR
        image = module.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
        found = np.asarray(image.resize((width, height), kind))
    return found if found.ndim == 3 else found[:, :, None]


def mirror_image(pixels: Array, *, scratch: Scratch | None = None) -> Array:
    """Return mirrored pixels (H, W, C).

    Args:
        pixels: uint8 or float32.
        scratch: buffer for the result; None: a new one.
    """
    module = load("opencv")
    if module is None or pixels.shape[2] not in (1, 3):
        return pixels[:, ::-1]
    flat = pixels if pixels.shape[2] == 3 else pixels[:, :, 0]
    out = None
    if scratch is not None and pixels.dtype == np.uint8:
        out = scratch.shaped("mirrored", flat.shape)
    return module.flip(flat, 1, dst=out).reshape(pixels.shape)


def split_channels(pixels: Array, *, mirrored: bool = False, scratch: Scratch | None = None) -> Sequence[Array]:
    """Return the channels of pixels (H, W, C), each (H, W) and contiguous, which is faster to process.

    Args:
        pixels: uint8 or float32.
        mirrored: mirror them, too.
        scratch: buffer for the result; None: a new one.
    """
    module = load("opencv")
    if module is None or pixels.shape[2] != 3 or scratch is None or pixels.dtype != np.uint8:
        return _split(module, mirror_image(pixels) if mirrored else pixels)
    height, width, channels = pixels.shape
    planes: Sequence[Array] = module.split(pixels, scratch.planes("channels", (channels, height, width)))
    if mirrored:  # takes a third of the time of mirroring interleaved channels
        turned = scratch.planes("mirrored channels", (channels, height, width))
        planes = [module.flip(plane, 1, dst=out) for plane, out in zip(planes, turned)]
    return planes


def _split(module: Any, pixels: Array) -> Sequence[Array]:
    if module is not None and pixels.shape[2] == 3:
        planes: Sequence[Array] = module.split(pixels)
        return planes
    return list(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def encode_jpeg(pixels: Array, quality: int = 95) -> bytes:
    """Return pixels (H, W, C) as a JPEG file.

    Raises:
        DeviceError: no library is installed.
    """
    name, module = _library(tuple(LIBRARIES), None, "encoding")
    if name == "simplejpeg":
        space = "BGR" if pixels.shape[2] == 3 else "GRAY"
        return bytes(module.encode_jpeg(np.ascontiguousarray(pixels), quality=quality, colorspace=space))
    if name == "opencv":
        return bytes(module.imencode(".jpg", pixels, [module.IMWRITE_JPEG_QUALITY, quality])[1])
    image = module.fromarray(np.ascontiguousarray(pixels[:, :, ::-1]) if pixels.shape[2] == 3 else pixels[:, :, 0])
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality)
    return out.getvalue()
