"""Run a predictor on image files and print the most likely classes: ``netbuilder-predict``."""

from __future__ import annotations

import argparse
import dataclasses
import glob
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.data.image_sets import SUFFIXES, visible_files
from netbuilder.exchange import ImagePreparation, Predictor, load_predictor
from netbuilder.exchange.classification import Classifier, ends_with_softmax
from netbuilder.exchange.onnx import read_onnx
from netbuilder.exchange.predictor_exporter import load_predictor_from_db
from netbuilder.exchange.predictor_files import INIT_FILE, PREDICT_FILE
from netbuilder.proto import ArgumentError, ParseError, opened_files
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.os_errors import error_text
from netbuilder.proto.structured_text import parse_json
from netbuilder.runtime.profile.text_table import GAP
from netbuilder.tools.common_options import (
    count,
    cpu_device,
    cpu_option,
    max_pixels_option,
    trusted_option,
)
from netbuilder.tools.options import OptionsParser, argument, option, switch
from netbuilder.tools.reporting import reporting
from netbuilder.tools.terminal import FIGURE, print_cells, print_line

__all__ = ["load", "main"]

Array = np.ndarray[Any, np.dtype[Any]]


@reporting("netbuilder-predict")
def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each image and class; return the exit status: 1 if something could not be read or run."""
    options = OptionsParser(_Options, prog="netbuilder-predict").parse(arguments)
    predictor = load(
        options.predictor,
        options.init,
        inputs=options.inputs,
        outputs=options.outputs,
        device=cpu_device(options.cpu),
        trusted=options.trusted,
    )
    failed: list[str] = []
    results = list(_predict(predictor, options, _class_names(options.classes), failed))
    for message in failed:
        print(f"netbuilder-predict: {message}", file=sys.stderr)
    status = 1 if failed else 0
    if options.json:
        print(json.dumps(results, indent=1))
        return status
    percent = not options.scores and ends_with_softmax(predictor.net, predictor.outputs[0])
    for result in results:
        print_line(result["image"], "bold")
        for row in result["classes"]:
            shown = f"{row['score']:8.2%}" if percent else f"{row['score']:10.5g}"
            print_cells([GAP + shown, row["name"]], [FIGURE, ""])
    return status


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
        raise argparse.ArgumentTypeError(f"must be one number, or three separated by commas, got {text!r}")
    return numbers


def _mean(text: str) -> tuple[float, ...]:
    """Return one number or three, given as text, or the channels' means of a mean image in a file."""
    if not text.endswith(".npy"):
        return _numbers(text)
    try:
        array = np.load(io.BytesIO(opened_files.read_bytes(text)), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise argparse.ArgumentTypeError(f"must be numbers or an .npy file; {text!r}: {error}") from error
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


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Run a predictor on image files, and print the classes with the highest scores for each."""

    predictor: str = argument(
        "a folder with init_net.pb and predict_net.pb, a .minidb file of predictor_exporter, or an .onnx file; "
        "with --init, the file of the predict net"
    )
    images: tuple[str, ...] = argument(
        "an image file, a folder of them, or a pattern such as 'photos/*.jpg'; "
        "what cannot be read is named at the end, and the exit status is 1",
        nargs="+",
        metavar="IMAGE",
    )
    top: int = option("classes to print for each image", type=count, default=5, metavar="K")
    classes: str | None = option(
        "names of the classes, one on each line or as a JSON list (default: those stored in the predictor)",
        metavar="FILE",
    )
    batch: int = option("images in each run", type=count, default=32)
    json: bool = switch("print JSON")
    scores: bool = switch(
        "print the values of a Softmax as numbers instead of percent; other outputs are always printed as numbers"
    )
    init: str | None = option(
        "the init net, if the two files have other names",
        metavar="FILE",
        group="the net, if its files do not name these or name others",
    )
    inputs: tuple[str, ...] | None = option("the blob that takes the images", nargs="+", metavar="BLOB")
    outputs: tuple[str, ...] | None = option(
        "the blob with the scores of the classes; the first one is printed", nargs="+", metavar="BLOB"
    )
    cpu: bool = cpu_option()
    trusted: bool = trusted_option()
    size: tuple[int, int] | None = option(
        "height and width of the input",
        type=_size,
        nargs=None,
        metavar="HxW",
        group=(
            "preparation of images: (pixel * scale - mean) / std",
            "Pixels are 0 to 255. These options override what the predictor stores (netbuilder-train --export stores "
            "it).",
        ),
    )
    resize: int | None = option(
        "resize each image so that its shorter side has N "
        "pixels, or so that it just covers the input (fit), before the center crop",
        type=_length,
        metavar="N|fit",
    )
    interpolation: str | None = option(
        "how pixels are interpolated (default: area to shrink, linear to enlarge)", choices=["area", "linear"]
    )
    scale: float | None = option("factor of pixels (default: 1)", metavar="S")
    mean: tuple[float, ...] | None = option(
        "subtracted after scaling (default: 0): one "
        "number, three, or an array of shape (3,), (3, H, W) or (H, W, 3), such as ilsvrc_2012_mean.npy, "
        "of which each channel's mean is used",
        type=_mean,
        nargs=None,
        metavar="B,G,R|FILE.npy",
    )
    std: tuple[float, ...] | None = option(
        "divisor, after the subtraction (default: 1)", type=_divisors, nargs=None, metavar="B,G,R"
    )
    rgb: bool | None = option("channels, and the numbers above, are in the order red, green, blue")
    channels_last: bool | None = option("the input has the shape (N, H, W, C) instead of (N, C, H, W)")
    max_pixels: int | None = max_pixels_option()


def load(path: str, init: str | None = None, **options: Any) -> Predictor:
    """Load a predictor from a folder, a minidb or an ONNX file, or from a predict net and an init net.

    Args:
        path: the folder or file.
        init: the file of the init net; None: it is in the folder, or ``path`` is a file with both nets.
        options: see ``Predictor``.

    Raises:
        ParseError: the file is damaged, or of another kind.
        FileNotFoundError: ``path`` does not exist.
        ArgumentError: ``path`` is a predict net without init net.
    """
    if init is not None:
        return load_predictor(path, init_net=init, **options)
    if path.endswith(".onnx"):
        return read_onnx(path).predictor(**options)
    if path.endswith((".pb", ".pbtxt", ".prototxt")) and Path(path).is_file():
        raise ArgumentError(
            f"{path!r} is a single net; give the folder with {INIT_FILE} and {PREDICT_FILE}, or also the init net "
            "(--init FILE)"
        )
    return load_predictor_from_db(path, **options) if Path(path).is_file() else load_predictor(path, **options)


def _class_names(path: str | None) -> list[str] | None:
    if path is None:
        return None
    text = opened_files.read_text(path)
    if not text.lstrip().startswith("["):
        return text.rstrip().splitlines()
    found = parse_json(text, f"--classes {path!r}, which begins with '['")
    if wrong := [each for each in found if isinstance(each, (list, dict))]:
        raise ParseError(f"--classes {path!r} must be a list of names, got the item {wrong[0]!r:.80}")
    return [str(name) for name in found]


def _preparation(predictor: Predictor, options: _Options) -> ImagePreparation:
    """Return the preprocessing of images: from the options, else the predictor, else the defaults."""
    names = [field.name for field in dataclasses.fields(ImagePreparation)]
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if given.get("resize") == -1:
        given["resize"] = None
    return dataclasses.replace(predictor.images or ImagePreparation(), **given)


def _image_files(given: Sequence[str], failed: list[str]) -> Iterator[str]:
    """Yield the files that are meant, those of folders and patterns in order; a message for each that has none."""
    for name in given:
        path = Path(name)
        if path.is_dir():
            found = [file for file in visible_files(path)[0] if file.lower().endswith(SUFFIXES)]
            none = f"{name!r}: the folder has no images ({', '.join(SUFFIXES)})"
        elif not path.exists() and glob.has_magic(name):
            found, none = sorted(glob.glob(name, recursive=True)), f"{name!r}: no file matches the pattern"
        else:
            found, none = [name], ""
        if not found:
            failed.append(none)
        yield from found


def _batches(
    names: Iterable[str], size: int, prepare: Callable[[str], Array], failed: list[str]
) -> Iterator[tuple[list[str], list[Array]]]:
    """Yield images in batches; those that cannot be read are left out, with a message for each."""
    batch: tuple[list[str], list[Array]] = ([], [])
    for name in names:
        try:
            batch[1].append(prepare(name))
        except (OSError, ParseError) as error:
            failed.append(error_text(error))
            continue
        batch[0].append(name)
        if len(batch[0]) == size:
            yield batch
            batch = ([], [])
    if batch[0]:
        yield batch


def _predict(
    predictor: Predictor, options: _Options, classes: Sequence[str] | None, failed: list[str]
) -> Iterator[dict[str, Any]]:
    if len(predictor.outputs) > 1 and options.outputs is None:
        print(f"netbuilder-predict: printing {predictor.outputs[0]!r}, the first of the outputs "
              f"{list(predictor.outputs)}; choose another by --outputs", file=sys.stderr)  # fmt: skip
    classifier = Classifier.of(
        predictor, images=_preparation(predictor, options), size=options.size, classes=classes,
        max_pixels=options.max_pixels,
    )  # fmt: skip
    files, prepare = _image_files(options.images, failed), classifier.prepare_to_classify
    for names, arrays in _batches(files, options.batch, prepare, failed):
        for name, found in zip(names, classifier.classify(arrays, options.top)):
            rows = [{"class": each.number, "name": each.name, "score": each.score} for each in found]
            yield {"image": name, "probabilities": classifier.probabilities, "classes": rows}


if __name__ == "__main__":
    sys.exit(main())
