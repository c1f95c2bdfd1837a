"""Images for a predictor, and the classes that its scores name."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from netbuilder.data.image_codec import decode_image, resize_image
from netbuilder.data.image_transform import middle_part
from netbuilder.data.orientation import ORIENTATION_TAG, turned
from netbuilder.exchange.image_preparation import ImagePreparation
from netbuilder.graph.defuse import undefined_inputs
from netbuilder.proto import ArgumentError, NetDef, ShapeError, opened_files
from netbuilder.proto.arguments import arguments
from netbuilder.proto.late_dataclass import dataclass

if TYPE_CHECKING:
    from netbuilder.exchange.predictor import Predictor

__all__ = ["Classifier", "Image", "Prediction", "ends_with_softmax", "prepared_image", "prepared_pixels"]

Array = np.ndarray[Any, np.dtype[Any]]
Image = Any
"""A path, the bytes of an image file, or pixels (``Predictor.prepare``), such as an image of Pillow."""

_SHOWN = 8  # number of blob names in a message
_SAME_VALUES = {
    "Alias", "Copy", "CopyCPUToGPU", "CopyGPUToCPU", "EnsureCPUOutput", "ExpandDims", "Flatten", "FlattenToVec",
    "Reshape", "Squeeze", "StopGradient",
}  # fmt: skip
"""Operators whose first output has the values of the first input."""


class Prediction(NamedTuple):
    """One of the likeliest classes of an image: its number, its name, and its score."""

    number: int
    name: str
    score: float


@dataclass(frozen=True)
class Classifier:
    """How images become a predictor's input, and what its scores mean.

    Args:
        predictor: it has one input, a batch of images, and its first output has a row of scores for each.
        images: the preprocessing.
        size: height, width and channels of the input.
        classes: names from class 0 on; others are called "class 7".
        max_pixels: see ``decode_image``.
        exact: there must be as many names as scores.
    """

    predictor: Predictor
    images: ImagePreparation
    size: tuple[int, int, int]
    classes: Sequence[str]
    max_pixels: int | None = None
    exact: bool = False

    @classmethod
    def of(
        cls,
        predictor: Predictor,
        *,
        images: ImagePreparation | None = None,
        size: tuple[int, int] | None = None,
        classes: Sequence[str] | None = None,
        max_pixels: int | None = None,
    ) -> Classifier:
        """Return the classifier of a predictor.

        Args:
            images: None: what the predictor stores, or else the defaults of ``ImagePreparation``.
            size: height and width; None: that of the predictor's input.
            classes: a name for each score; None: those that the predictor stores.

        Raises:
            ArgumentError: the predictor has no input, or several, or the size is not known.
            ShapeError: its input is no batch of images.
        """
        if len(predictor.inputs) != 1:
            raise ArgumentError(
                "the predictor must have one input, for the image, and has "
                f"{list(predictor.inputs) or 'none'}; name it by --inputs: the net reads "
                f"{undefined_inputs(predictor.net.op)[:_SHOWN]}"
            )
        images = images or predictor.images or ImagePreparation()
        whole = _input_size(predictor, size, images.channels_last)
        names = predictor.classes if classes is None else classes
        return cls(predictor, images, whole, names, max_pixels, exact=classes is not None)

    @property
    def probabilities(self) -> bool:
        """Whether scores are those of a Softmax."""
        return ends_with_softmax(self.predictor.net, self.predictor.outputs[0])

    @functools.cached_property
    def normalization(self) -> dict[str, Any] | None:
        """The arguments of ``Predictor.run_pixels`` for what a GPU normalizes; None: the host does it.

        That is where another device reads the input, or where NormalizeImages has no such numbers.
        """
        images, channels = self.images, self.size[2]
        std = [number / images.scale for number in images.std] if images.scale > 0 else [0.0]
        if not self.predictor.reads_on_gpu(self.predictor.inputs[0]) or min(std) <= 0:
            return None
        _check_numbers(images.mean, images.std, channels)
        mean = tuple(number / images.scale for number in images.mean)
        return {"mean": mean, "std": tuple(std), "channels_last": images.channels_last}

    def prepare(self, image: Image) -> Array:
        """Return an image as the predictor's input takes it, without an axis for the batch: float32.

        Raises:
            OSError: a file cannot be read.
            ParseError: it is no image.
            ArgumentError: pixels are of another kind; see ``prepared_image`` for the rest.
        """
        images, (data, options) = self.images, self._opened(image)
        found = prepared_image(data, *self.size, scale=images.scale, mean=images.mean, std=images.std, **options)
        return found if images.channels_last else np.ascontiguousarray(found.transpose(2, 0, 1))

    def prepare_to_classify(self, image: Image) -> Array:
        """Return an image as ``classify`` takes it: as ``prepare``, or pixels (H, W, C), which a GPU normalizes.

        Raises:
            as ``prepare``.
        """
        if self.normalization is None:
            return self.prepare(image)
        data, options = self._opened(image)
        return prepared_pixels(data, *self.size, **options)

    def _opened(self, image: Image) -> tuple[bytes | Array, dict[str, Any]]:
        """Return an image, read, and how its pixels are prepared: options of ``prepared_pixels``."""
        images = self.images
        options: dict[str, Any] = {
            "resize": images.resize, "interpolation": images.interpolation, "rgb": images.rgb,
            "max_pixels": self.max_pixels, "where": "image",
        }  # fmt: skip
        if isinstance(image, bytes):
            return image, options
        if not isinstance(image, (str, os.PathLike)):
            return _pixels(image, self.size[2]), options
        name = os.fspath(image)
        if os.path.isdir(name):
            raise IsADirectoryError(
                errno.EISDIR, f"is a folder; give a list of its files, such as glob.glob({name + '/*.jpg'!r})", name
            )
        return opened_files.read_bytes(name), {**options, "where": name}

    def classify(self, arrays: Sequence[Array], top: int) -> list[list[Prediction]]:
        """Return the classes with the highest scores of a batch of images, the highest first.

        Args:
            arrays: as ``prepare`` or ``prepare_to_classify`` returns them.
            top: how many classes.

        Raises:
            ShapeError: the first output has no row of scores for each image.
            ArgumentError: there are names for more or fewer classes than it has scores.
        """
        output, batch = self.predictor.outputs[0], np.stack(arrays)
        if batch.dtype == np.uint8 and self.normalization is not None:
            found = self.predictor.run_pixels(batch, **self.normalization)
        else:
            found = self.predictor.run({self.predictor.inputs[0]: batch})
        scores = np.asarray(found[output])
        if scores.shape[:1] != (len(arrays),):
            raise ShapeError(
                f"the output {output!r} has shape {scores.shape} for a batch of {len(arrays)}; it must have a row of "
                "scores for each image: choose another by --outputs"
            )
        if self.exact and scores[0].size == max(scores.shape[1:], default=1) != len(self.classes):
            raise ArgumentError(
                f"the output {output!r} has scores of {scores[0].size} classes, got {len(self.classes)} names; give a "
                "name for each class (--classes FILE)"
            )
        return [list(self._best(row, top)) for row in scores]

    def _best(self, scores: Array, count: int) -> Iterator[Prediction]:
        """Yield the largest scores of an image; only a vector of scores gets names of classes."""
        flat, planes = scores.reshape(-1), sum(extent > 1 for extent in scores.shape) > 1
        for number in map(int, np.argsort(-flat, kind="stable")[:count]):
            name = self.classes[number] if number < len(self.classes) else f"class {number}"
            if planes:
                name = f"element {tuple(map(int, np.unravel_index(number, scores.shape)))}"
            yield Prediction(number, name, float(flat[number]))


def ends_with_softmax(net: NetDef, output: str) -> bool:
    """Whether an output is the result of a Softmax, possibly copied or reshaped after it."""
    for op in reversed(net.op):
        if output not in op.output:
            continue
        if op.type not in _SAME_VALUES:
            return op.type in ("Softmax", "SoftmaxWithLoss") and output == op.output[0]
        output = op.input[0]
    return False


def _input_size(predictor: Predictor, size: tuple[int, int] | None, channels_last: bool) -> tuple[int, int, int]:
    """Return height, width and channels of the input."""
    spec = predictor.specs.get(predictor.inputs[0])
    if spec is None:
        if size is None:
            raise ArgumentError(
                "the predictor does not state the size of its images; give size=(height, width) (--size HxW)"
            )
        return (*size, _channels(predictor, *size))
    if spec.ndim != 4:
        raise ShapeError(f"the predictor's input {predictor.inputs[0]!r} is not a batch of images: shape {spec.shape}")
    axes = spec.shape[1:] if channels_last else (*spec.shape[2:], spec.shape[1])
    height, width, channels = axes
    return (*(size or (height, width)), channels)


def _channels(predictor: Predictor, height: int, width: int) -> int:
    """Return how many channels the first layer with weights takes of images of this size; 3 if it does not tell."""
    blob = predictor.inputs[0]
    for op in predictor.net.op:
        if not op.input or op.input[0] != blob:
            continue
        weights = predictor.workspace.spec(op.input[1]) if op.type in ("Conv", "FC") else None
        if weights is None:
            blob = op.output[0]
            continue
        given = arguments(op)
        if op.type == "FC":
            taken = weights.shape[-1] // (height * width)
        else:
            taken = weights.shape[-1 if given.get("order") in (b"NHWC", "NHWC") else 1] * given.get("group", 1)
        return 1 if taken == 1 else 3
    return 3


def _pixels(image: Any, channels: int) -> Array:
    """Return pixels (H, W, channels) of an array, or of an image of Pillow; for one channel the brightness."""
    pixels = _as_in_its_file(image) if hasattr(image, "getexif") else np.asarray(image)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or pixels.ndim == 3 and pixels.shape[2] not in (1, 3, 4):
        raise ArgumentError(
            f"an image must be a path, the bytes of an image file, or pixels (H, W, 3) or (H, W) of type uint8, red, "
            f"green, blue; got {type(image).__name__} with elements of {pixels.dtype} and shape {pixels.shape}"
        )
    pixels = np.atleast_3d(pixels)[:, :, :3]
    if pixels.shape[2] == channels:
        return pixels
    if channels == 3:
        return np.repeat(pixels, 3, axis=2)
    grey = np.rint(pixels @ np.array([0.299, 0.587, 0.114]))  # ITU-R BT.601
    found: Array = grey.astype(np.uint8)[:, :, None]
    return found


def _as_in_its_file(image: Any) -> Array:
    """Return the pixels of an image of Pillow as those of its file are decoded: red, green, blue, and upright."""
    kept = image.mode in ("L", "RGB", "RGBA") or image.mode[0] in "IF"  # more than 8 bits, which are refused
    orientation = image.getexif().get(ORIENTATION_TAG, 1)
    pixels = np.asarray(image if kept else image.convert("RGB"))
    return turned(pixels, orientation if orientation in range(1, 9) else 1)


def prepared_pixels(
    data: bytes | Array,
    height: int,
    width: int,
    channels: int = 3,
    *,
    where: str = "image",
    resize: int | None = None,
    interpolation: str | None = None,
    rgb: bool = False,
    max_pixels: int | None = None,
) -> Array:
    """Return the pixels of an image that a predictor is given, before they are normalized: uint8, (H, W, channels).

    Args:
        data: the bytes of an image file, or pixels (H, W, 3) or (H, W), uint8; red, green, blue.
        height, width: of the center crop.
        channels: 3, or 1 for the brightness.
        where: name of the image in errors.
        resize: length of the shorter side in pixels, before the crop; 0: unchanged; None: the smallest possible.
        interpolation: "linear" or "area"; None: "area" if the image shrinks, else "linear".
        rgb: channels are red, green, blue; else blue, green, red.
        max_pixels: see ``decode_image``.

    Raises:
        ParseError: the bytes are not an image.
        ArgumentError: the resized image is smaller than the crop, or the number of channels is neither 1 nor 3.
        DeviceError: no image library is installed.
    """
    _check_channels(channels)
    if isinstance(data, bytes):
        pixels = decode_image(data, color=channels == 3, where=where, max_pixels=max_pixels)
    else:
        pixels = data[:, :, ::-1]
    top, left, high, wide = middle_part(pixels.shape[0], pixels.shape[1], ratio=max(height / width, width / height))
    pixels = pixels[top : top + high, left : left + wide]
    if resize is None:
        factor = max(height / high, width / wide)
        size = max(round(high * factor), height), max(round(wide * factor), width)
    else:  # with the same rounding as in training
        shorter = min(high, wide)
        size = (high * resize // shorter, wide * resize // shorter) if resize else (high, wide)
    if size[0] < height or size[1] < width:
        how = f"with --resize {resize} it has" if resize else "has"
        raise ArgumentError(
            f"{where}: {how} {size} pixels, fewer than ({height}, {width}); give a larger --resize, or --resize fit"
        )
    pixels = resize_image(pixels, *size, interpolation=interpolation or ("area" if size[0] < high else "linear"))
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    part = pixels[top : top + height, left : left + width]
    return part[:, :, ::-1] if rgb and channels == 3 else part


def prepared_image(
    data: bytes | Array,
    height: int,
    width: int,
    channels: int = 3,
    *,
    scale: float = 1.0,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    **options: Any,
) -> Array:
    """Return an image as input of a predictor: float32, (height, width, channels).

    Args:
        data, height, width, channels: see ``prepared_pixels``.
        scale, mean, std: ``(pixel * scale - mean) / std``; mean and std have one number, or one for each channel.
        options: of ``prepared_pixels``.

    Raises:
        ArgumentError: the number of channels does not match mean or std.
        ParseError, ArgumentError, DeviceError: see ``prepared_pixels``.
    """
    _check_channels(channels)
    _check_numbers(mean, std, channels)
    part = prepared_pixels(data, height, width, channels, **options).astype(np.float32)
    found: Array = (part * np.float32(scale) - np.array(mean, np.float32)) / np.array(std, np.float32)
    return found


def _check_channels(channels: int) -> None:
    if channels not in (1, 3):
        raise ArgumentError(f"images have 1 or 3 channels, the predictor's input has {channels}")


def _check_numbers(mean: Sequence[float], std: Sequence[float], channels: int) -> None:
    for what, numbers in (("mean", mean), ("std", std)):
        if len(numbers) not in (1, channels):
            raise ArgumentError(
                f"{what} must be one number, or one for each channel of the input, which has {channels}; "
                f"got {list(numbers)}"
            )
