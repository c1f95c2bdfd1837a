"""Run a predictor on image files and print the likeliest classes: ``netbuilder-predict``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.data.image_codec import decode_image, resize_image
from netbuilder.exchange import ImagePreparation, Predictor, load_predictor
from netbuilder.exchange.onnx import read_onnx
from netbuilder.exchange.predictor_exporter import load_predictor_from_db
from netbuilder.exchange.predictor_files import INIT_FILE, PREDICT_FILE
from netbuilder.graph.defuse import undefined_inputs
from netbuilder.proto import ArgumentError, DeviceError, NetError, OperatorError, ParseError, ShapeError
from netbuilder.tools.common_options import add_cpu, add_max_pixels, add_trusted, count, cpu_device
from netbuilder.tools.parser import Parser

__all__ = ["load", "main", "prepared_image"]

Array = np.ndarray[Any, np.dtype[Any]]
_SHOWN = 8  # names of blobs in a message
_ROUNDING = 0.01  # of a sum of probabilities, which may be float16


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each image and class; returns the exit status: 1 if something could not be read or run."""
    options = _parser().parse_args(arguments)
    try:
        predictor = load(
            options.predictor,
            options.init,
            inputs=options.inputs,
            outputs=options.outputs,
            device=cpu_device(options),
            trusted=options.trusted,
        )
        classes = _class_names(options.classes) or predictor.classes
        results = list(_predict(predictor, options, classes))
    except (NetError, DeviceError, OperatorError, OSError) as error:
        print(f"netbuilder-predict: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(results, indent=1))
        return 0
    percent = not options.scores and all(result["probabilities"] for result in results)
    for result in results:
        print(result["image"])
        for row in result["classes"]:
            shown = f"{row['score']:8.2%}" if percent else f"{row['score']:10.5g}"
            print(f"  {shown}  {row['name']}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="netbuilder-predict",
        description="Run a predictor on image files, and print the classes with the highest scores for each.",
    )
    parser.add_argument(
        "predictor",
        help="a folder with init_net.pb and predict_net.pb, a .minidb file of predictor_exporter, or an .onnx file; "
        "with --init, the file of the predict net",
    )
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="an image file")
    parser.add_argument(
        "--top", type=count, default=5, metavar="K", help="classes to print for each image (default: 5)"
    )
    parser.add_argument(
        "--classes",
        metavar="FILE",
        help="names of the classes, one on each line or as a JSON list (default: those stored in the predictor)",
    )
    parser.add_argument("--batch", type=count, default=32, metavar="N", help="images in each run (default: 32)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--scores",
        action="store_true",
        help="print probabilities as numbers instead of percent; outputs "
        "that are not probabilities are always printed as numbers",
    )
    net = parser.add_argument_group("the net, where its files do not say this or say it wrongly")
    net.add_argument("--init", metavar="FILE", help="the init net, if the two files have names of their own")
    net.add_argument("--inputs", nargs="+", metavar="BLOB", help="the blob that takes the images")
    net.add_argument(
        "--outputs", nargs="+", metavar="BLOB", help="the blob with the scores of the classes; the first one is printed"
    )
    add_cpu(net)
    add_trusted(net)
    image = parser.add_argument_group(
        "preparation of images: (pixel * scale - mean) / std",
        "Pixels are 0 to 255. What is not given here is as the predictor says (netbuilder-train --export stores it).",
    )
    image.add_argument("--size", type=_size, metavar="HxW", help="height and width of the input")
    image.add_argument(
        "--resize",
        type=_length,
        metavar="N|fit",
        help="resize each image so that its shorter side has N "
        "pixels, or so that it just covers the input (fit), before its middle is cut out",
    )
    image.add_argument(
        "--interpolation",
        choices=["area", "linear"],
        help="how pixels are interpolated (default: area to shrink, linear to enlarge)",
    )
    image.add_argument("--scale", type=float, metavar="S", help="factor of pixels (default: 1)")
    image.add_argument(
        "--mean",
        type=_mean,
        metavar="B,G,R|FILE.npy",
        help="subtracted after scaling (default: 0): one "
        "number, three, or an array of shape (3,), (3, H, W) or (H, W, 3), such as ilsvrc_2012_mean.npy, "
        "of which each channel's mean is used",
    )
    image.add_argument("--std", type=_divisors, metavar="B,G,R", help="divisor after that (default: 1)")
    image.add_argument(
        "--rgb",
        action=argparse.BooleanOptionalAction,
        help="channels, and the numbers above, are in the order red, green, blue",
    )
    image.add_argument(
        "--channels-last",
        action=argparse.BooleanOptionalAction,
        help="the input has the shape (N, H, W, C) instead of (N, C, H, W)",
    )
    add_max_pixels(image)
    return parser


def _size(text: str) -> tuple[int, int]:
    parts = text.lower().split("x")
    if len(parts) == 1:
        parts *= 2
    if len(parts) != 2 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"must be HEIGHTxWIDTH in pixels, got {text!r}")
    return int(parts[0]), int(parts[1])


def _length(text: str) -> int:
    """Return a length in pixels; -1 for "fit"."""
    if text == "fit":
        return -1
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"must be a number of pixels, or fit; got {text!r}")
    return int(text)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) not in (1, 3):
        raise argparse.ArgumentTypeError(f"must be one number or three with commas between them, got {text!r}")
    return numbers


def _mean(text: str) -> tuple[float, ...]:
    """Return one number or three, given as such, or as the mean image of a data set."""
    if not text.endswith(".npy"):
        return _numbers(text)
    try:
        array = np.load(text, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise argparse.ArgumentTypeError(f"must be numbers or a file of NumPy; {text!r}: {error}") from error
    if array.dtype.kind in "fiu" and array.ndim in (1, 3) and 3 in (array.shape[0], array.shape[-1]):
        planes = array.astype(np.float64).reshape(3, -1) if array.shape[0] == 3 else array.reshape(-1, 3).T
        return tuple(map(float, planes.mean(axis=1)))
    raise argparse.ArgumentTypeError(
        f"must hold a number or an image for each of three channels, in shape (3,), (3, H, W) or (H, W, 3); {text!r} "
        f"holds {array.dtype} {array.shape}"
    )


def _divisors(text: str) -> tuple[float, ...]:
    numbers = _numbers(text)
    if 0 in numbers:
        raise argparse.ArgumentTypeError(f"must not be 0, since pixels are divided by it, got {text!r}")
    return numbers


def load(path: str, init: str | None = None, **options: Any) -> Predictor:
    """Return the predictor in a folder, a minidb or an ONNX file, or that of a predict net and an init net.

    Args:
        path: the folder or file.
        init: the file of the init net; None: it is in the folder, or the file holds all.
        options: see ``Predictor``.

    Raises:
        ParseError: the file is damaged, or of another kind.
        FileNotFoundError: there is nothing of that name.
        ArgumentError: ``path`` is a predict net alone.
    """
    if init is not None:
        return load_predictor(path, init_net=init, **options)
    if path.endswith(".onnx"):
        return read_onnx(path).predictor(**options)
    if path.endswith((".pb", ".pbtxt", ".prototxt")) and Path(path).is_file():
        raise ArgumentError(
            f"{path!r} is one net; give the folder that holds {INIT_FILE} and {PREDICT_FILE}, or the init net, too: "
            "--init FILE"
        )
    return load_predictor_from_db(path, **options) if Path(path).is_file() else load_predictor(path, **options)


def _class_names(path: str | None) -> list[str] | None:
    if path is None:
        return None
    text = Path(path).read_text(encoding="utf-8")
    if not text.lstrip().startswith("["):
        return text.splitlines()
    try:
        return [str(name) for name in json.loads(text)]
    except json.JSONDecodeError as error:
        raise ParseError(f"--classes {path!r}: begins with '[', but is no JSON list: {error}") from error


def _preparation(predictor: Predictor, options: argparse.Namespace) -> ImagePreparation:
    """Return how images are prepared: as the options say, then the predictor, then as they come."""
    names = [field.name for field in dataclasses.fields(ImagePreparation)]
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if given.get("resize") == -1:
        given["resize"] = None
    return dataclasses.replace(predictor.images or ImagePreparation(), **given)


def _predict(predictor: Predictor, options: argparse.Namespace, classes: Sequence[str]) -> Iterator[dict[str, Any]]:
    if len(predictor.inputs) != 1:
        raise ArgumentError(
            f"an image goes into one input, but the predictor has {list(predictor.inputs) or 'none'}; name it by "
            f"--inputs: the net reads {undefined_inputs(predictor.net.op)[:_SHOWN]}"
        )
    name, output = predictor.inputs[0], predictor.outputs[0]
    if len(predictor.outputs) > 1 and options.outputs is None:
        print(f"netbuilder-predict: the scores are those of {output!r}, the first of the outputs "
              f"{list(predictor.outputs)}; choose another by --outputs", file=sys.stderr)  # fmt: skip
    images = _preparation(predictor, options)
    height, width, channels = _input_size(predictor, options.size, images.channels_last)
    for start in range(0, len(options.images), options.batch):
        files = options.images[start : start + options.batch]
        batch = np.stack([
            prepared_image(
                Path(file).read_bytes(), height, width, channels, where=file, resize=images.resize,
                interpolation=images.interpolation, scale=images.scale, mean=images.mean, std=images.std,
                rgb=images.rgb, max_pixels=options.max_pixels,
            ) for file in files
        ])  # fmt: skip
        if not images.channels_last:
            batch = np.ascontiguousarray(batch.transpose(0, 3, 1, 2))
        scores = np.asarray(predictor.run({name: batch})[output])
        if scores.shape[:1] != (len(files),):
            raise ShapeError(
                f"the output {output!r} has shape {scores.shape} for a batch of {len(files)}; it must have a row of "
                "scores for each image: choose another by --outputs"
            )
        for file, row in zip(files, scores):
            yield {"image": file, "probabilities": _are_probabilities(row), "classes": _best(row, options.top, classes)}


def _are_probabilities(scores: Array) -> bool:
    """Whether numbers are the probabilities of the classes: each in [0, 1], and their sum 1 up to rounding."""
    return bool(np.all((scores >= 0) & (scores <= 1)) and abs(scores.sum(dtype=np.float64) - 1) < _ROUNDING)


def _input_size(predictor: Predictor, size: tuple[int, int] | None, channels_last: bool) -> tuple[int, int, int]:
    """Return height, width and channels of the input."""
    spec = predictor.specs.get(predictor.inputs[0])
    if spec is None:
        if size is None:
            raise ArgumentError("the predictor does not say how large its images are; give --size HxW")
        return (*size, 3)
    if spec.ndim != 4:
        raise ShapeError(f"the predictor's input {predictor.inputs[0]!r} is no batch of images: shape {spec.shape}")
    axes = spec.shape[1:] if channels_last else (*spec.shape[2:], spec.shape[1])
    height, width, channels = axes
    return (*(size or (height, width)), channels)


def prepared_image(
    data: bytes,
    height: int,
    width: int,
    channels: int = 3,
    *,
    where: str = "image",
    resize: int | None = None,
    interpolation: str | None = None,
    scale: float = 1.0,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    rgb: bool = False,
    max_pixels: int | None = None,
) -> Array:
    """Return an image as a predictor takes it: float32, (height, width, channels).

    Args:
        data: the bytes of a file.
        height, width: of the part that is cut out of the middle.
        channels: 3, or 1 for the brightness.
        where: what to call the image in errors.
        resize: length of the shorter side before that, in pixels; 0: as it comes; None: as short as can be.
        interpolation: "linear" or "area"; None: "area" where the image shrinks, else "linear".
        scale, mean, std: ``(pixel * scale - mean) / std``; the latter two are numbers for all channels, or for each.
        rgb: channels are red, green, blue; else blue, green, red.
        max_pixels: as of ``decode_image``.

    Raises:
        ParseError: the bytes are no image.
        ArgumentError: the image is to be smaller than what is cut out of it, or the input has neither 1 nor 3
            channels, or another number of them than mean or std.
        DeviceError: no library for images is installed.
    """
    if channels not in (1, 3):
        raise ArgumentError(f"images have 1 or 3 channels, the predictor's input has {channels}")
    for what, numbers in (("mean", mean), ("std", std)):
        if len(numbers) not in (1, channels):
            raise ArgumentError(
                f"{what} must be one number, or one for each channel of the input, which has {channels}; "
                f"got {list(numbers)}"
            )
    pixels = decode_image(data, color=channels == 3, where=where, max_pixels=max_pixels)
    high, wide = pixels.shape[:2]
    if resize is None:
        factor = max(height / high, width / wide)
        size = max(round(high * factor), height), max(round(wide * factor), width)
    else:  # rounded as in training
        shorter = min(high, wide)
        size = (high * resize // shorter, wide * resize // shorter) if resize else (high, wide)
    if size[0] < height or size[1] < width:
        how = f"with --resize {resize} it has" if resize else "has"
        raise ArgumentError(
            f"{where}: {how} {size} pixels, fewer than ({height}, {width}); give a larger --resize, or --resize fit"
        )
    pixels = resize_image(pixels, *size, interpolation=interpolation or ("area" if size[0] < high else "linear"))
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    part = pixels[top : top + height, left : left + width].astype(np.float32)
    if rgb and channels == 3:
        part = part[:, :, ::-1]
    found: Array = (part * np.float32(scale) - np.array(mean, np.float32)) / np.array(std, np.float32)
    return found


def _best(scores: Array, count: int, classes: Sequence[str]) -> list[dict[str, Any]]:
    """Return the largest scores of an image, the largest first; only a vector of them is named by classes."""
    flat, planes = scores.reshape(-1), sum(extent > 1 for extent in scores.shape) > 1

    def name(number: int) -> str:
        if planes:
            return f"element {tuple(map(int, np.unravel_index(number, scores.shape)))}"
        return classes[number] if number < len(classes) else f"class {number}"

    order = map(int, np.argsort(-flat, kind="stable")[:count])
    return [{"class": number, "name": name(number), "score": float(flat[number])} for number in order]


if __name__ == "__main__":
    sys.exit(main())
