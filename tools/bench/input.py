"""Image input, compared with bare calls of the same image libraries: images per second on one core."""

from __future__ import annotations

import importlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.data import (
    ImageDatabase,
    ImageLoader,
    ImageTransform,
    encode_jpeg,
    image_libraries,
    image_record,
    resize_image,
    write_minidb,
)
from netbuilder.data.image_codec import LIBRARIES, decode_image, mirror_image, split_channels
from netbuilder.proto import DeviceError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.tools.bench.report import Line

__all__ = ["Inputs", "input_rates"]

_HEIGHT, _WIDTH, _SCALE, _CROP = 375, 500, 256, 224
_MEAN, _STD = (103.53, 116.28, 123.675), (57.375, 57.12, 58.395)
_GOAL = 0.9


@dataclass(frozen=True)
class Inputs:
    """What is measured.

    Args:
        images: JPEG files of 500 x 375 pixels.
        batch: images per batch.
        pairs: number of ratios.
        turns: passes over all files of each side in a pair, alternating with the other's; their median counts.
    """

    images: int = 64
    batch: int = 64
    pairs: int = 9
    turns: int = 5


def input_rates(inputs: Inputs) -> Iterator[Line]:
    """Yield a line for each kind of resizing: our input with one thread, and the same libraries in a bare loop.

    netbuilder reads records of a database, decodes, takes a random crop that becomes 224 x 224 pixels of an image whose
    shorter side is 256, scales, mirrors, and normalizes into batches of float32, as ``netbuilder-train`` does. The loop
    calls the libraries directly for the same pixels, with files in memory and a single random generator: it has no
    database, records, labels, threads, random numbers that can be reproduced for each image, or error messages. CPU
    time is measured, in short turns, so that other load on the machine matters less.

    Raises:
        DeviceError: no library for images is installed.
    """
    if not image_libraries():
        raise DeviceError(
            "netbuilder-benchmark input needs image libraries: pip install simplejpeg opencv-python-headless, or pillow"
        )
    files = [_photo(number) for number in range(inputs.images)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.minidb"
        write_minidb(path, ((f"{k:08}", image_record(data, k % 10)) for k, data in enumerate(files)))
        for interpolation in ("linear", "area"):
            yield _pairs(path, files, interpolation, inputs)


def _photo(number: int) -> bytes:
    """Return a JPEG file of smooth colors with some noise, about as large as a photograph."""
    rng = np.random.default_rng(number)
    smooth = resize_image(rng.integers(0, 256, (24, 32, 3), np.uint8), _HEIGHT, _WIDTH)
    noise = resize_image(rng.integers(0, 24, (_HEIGHT // 2, _WIDTH // 2, 3), np.uint8), _HEIGHT, _WIDTH)
    return encode_jpeg(np.clip(smooth.astype(np.int16) + noise - 12, 0, 255).astype(np.uint8), 90)


def _pairs(path: Path, files: list[bytes], interpolation: str, inputs: Inputs) -> Line:
    transform = ImageTransform(
        scale=_SCALE, crop=_CROP, crop_first=True, mirror=True, mean=_MEAN, std=_STD, interpolation=interpolation
    )
    loader = ImageLoader(ImageDatabase(path), transform, threads=1)
    order = np.arange(len(files))

    def ours() -> None:
        for _ in loader.batches(order, inputs.batch, reuse=True):
            pass

    out = np.zeros((inputs.batch, 3, _CROP, _CROP), np.float32)
    sides = (ours, *_bare_loops(files, interpolation, out))
    rates: tuple[list[float], ...] = ([], [], [])
    for side in sides:
        side()
    for _ in range(inputs.pairs):
        seconds: tuple[list[float], ...] = ([], [], [])
        for turn in range(inputs.turns):  # short turns: other load on the machine affects all sides equally
            for k in (0, 1, 2) if turn % 2 else (2, 1, 0):
                seconds[k].append(_seconds(sides[k]))
        for rate, each in zip(rates, seconds):
            rate.append(len(files) / statistics.median(each))
    ratios = [a / b for a, b in zip(rates[0], rates[1])]
    ratio, fewer = statistics.median(ratios), statistics.median(a / b for a, b in zip(rates[0], rates[2]))
    libraries = " and ".join(image_libraries()[:2])
    size = sum(map(len, files)) // len(files) // 1000
    text = (
        f"input, JPEG of {_WIDTH} x {_HEIGHT} ({size} kB), {interpolation}, one core, {inputs.pairs} pairs: netbuilder "
        f"{statistics.median(rates[0]):.0f} images/s, {libraries} alone {statistics.median(rates[1]):.0f} images/s; "
        f"{ratio:.2f} of their rate (pairs {min(ratios):.2f} to {max(ratios):.2f}, goal {_GOAL}); {fewer:.2f} of their "
        "rate without mirroring and normalizing"
    )
    record = {"kind": "input", "interpolation": interpolation, "libraries": image_libraries(), "ours": rates[0],
              "bare": rates[1], "decoded": rates[2], "ratio": ratio}  # fmt: skip
    return Line(text, record)


def _bare_loops(
    files: list[bytes], interpolation: str, out: np.ndarray[Any, Any]
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return two functions that call the libraries: one fills the batch ``out``, one only decodes and resizes."""
    side = round(_CROP * _HEIGHT / _SCALE)
    factors = [np.float32(1 / std) for std in _STD]
    shifts = [np.float32(-mean / std) for mean, std in zip(_MEAN, _STD)]
    decode, resize, flip, split = _calls(interpolation)
    rng = np.random.default_rng(0)

    def cut(data: bytes) -> Any:
        top, left = int(rng.random() * (_HEIGHT - side + 1)), int(rng.random() * (_WIDTH - side + 1))
        return resize(decode(data)[top : top + side, left : left + side])

    def whole() -> None:
        for number, data in enumerate(files):
            pixels = cut(data)
            if rng.random() < 0.5:
                pixels = flip(pixels)
            for plane, target, factor, shift in zip(split(pixels), out[number % len(out)], factors, shifts):
                target[...] = plane
                target *= factor
                target += shift

    def decoded() -> None:
        for data in files:
            cut(data)

    return whole, decoded


def _calls(interpolation: str) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Return functions to decode, resize, mirror and split channels: the fast libraries', or those installed."""
    if not {"simplejpeg", "opencv"} <= set(image_libraries()):

        def resized(pixels: Any) -> Any:
            return resize_image(pixels, _CROP, _CROP, interpolation=interpolation)

        return decode_image, resized, mirror_image, split_channels
    jpeg, cv = (importlib.import_module(LIBRARIES[name]) for name in ("simplejpeg", "opencv"))
    kind = cv.INTER_AREA if interpolation == "area" else cv.INTER_LINEAR
    return (
        lambda data: jpeg.decode_jpeg(data, colorspace="BGR", fastdct=True, fastupsample=True),
        lambda pixels: cv.resize(pixels, (_CROP, _CROP), interpolation=kind),
        lambda pixels: cv.flip(pixels, 1),
        cv.split,
    )


def _seconds(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
