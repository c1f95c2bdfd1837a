"""Images for a predictor, and the classes that its scores name."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from netbuilder.data.image_codec import decode_image, resize_image
from netbuilder.data.image_transform import middle_part
from netbuilder.exchange.image_preparation import ImagePreparation
from netbuilder.graph.defuse import undefined_inputs
from netbuilder.proto import ArgumentError, NetDef, ShapeError, opened_files
from netbuilder.proto.late_dataclass import dataclass

if TYPE_CHECKING:
    from netbuilder.exchange.predictor import Predictor

__all__ = ["Classifier", "Image", "Prediction", "ends_with_softmax", "prepared_image"]

Array = np.ndarray[Any, np.dtype[Any]]
Image = Any
"""A path, the bytes of an image file, or pixels (``prepared_pixels``), such as an image of Pillow."""

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

    def prepare(self, image: Image) -> Array:
        """Return an image as the predictor's input takes it, without an axis for the batch: float32.

        Raises:
            OSError: a file cannot be read.
            ParseError: it is no image.
            ArgumentError: pixels are of another kind; see ``prepared_image`` for the rest.
        """
        images, (height, width, channels) = self.images, self.size
        options: dict[str, Any] = {
            "resize": images.resize, "interpolation": images.interpolation, "scale": images.scale,
            "mean": images.mean, "std": images.std, "rgb": images.rgb,
        }  # fmt: skip
        if isinstance(image, (str, os.PathLike)):
            name = os.fspath(image)
            if os.path.isdir(name):
                raise IsADirectoryError(
                    errno.EISDIR, f"is a folder; give a list of its files, such as glob.glob({name + '/*.jpg'!r})", name
                )
            data: bytes | Array = opened_files.read_bytes(name)
        else:
            name, data = "image", image if isinstance(image, bytes) else _pixels(image, channels)
        found = prepared_image(
            data, height, width, channels, where=name, max_pixels=self.max_pixels, **options
        )  # fmt: skip
        return found if images.channels_last else np.ascontiguousarray(found.transpose(2, 0, 1))

    def classify(self, arrays: Sequence[Array], top: int) -> list[list[Prediction]]:
        """Return the classes with the highest scores of a batch of prepared images, the highest first.

        Raises:
            ShapeError: the first output has no row of scores for each image.
            ArgumentError: there are names for more or fewer classes than it has scores.
        """
        output = self.predictor.outputs[0]
        scores = np.asarray(self.predictor.run({self.predictor.inputs[0]: np.stack(arrays)})[output])
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
        return (*size, 3)
    if spec.ndim != 4:
        raise ShapeError(f"the predictor's input {predictor.inputs[0]!r} is not a batch of images: shape {spec.shape}")
    axes = spec.shape[1:] if channels_last else (*spec.shape[2:], spec.shape[1])
    height, width, channels = axes
    return (*(size or (height, width)), channels)


def _pixels(image: Any, channels: int) -> Array:
    """Return pixels (H, W, channels) of an array, or of an image of Pillow; for one channel the brightness."""
    pixels = np.asarray(image)
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


def prepared_image(
    data: bytes | Array,
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
    """Return an image as input of a predictor: float32, (height, width, channels).

    Args:
        data: the bytes of an image file, or pixels (H, W, 3) or (H, W), uint8; red, green, blue.
        height, width: of the center crop.
        channels: 3, or 1 for the brightness.
        where: name of the image in errors.
        resize: length of the shorter side in pixels, before the crop; 0: unchanged; None: the smallest possible.
        interpolation: "linear" or "area"; None: "area" if the image shrinks, else "linear".
        scale, mean, std: ``(pixel * scale - mean) / std``; mean and std have one number, or one for each channel.
        rgb: channels are red, green, blue; else blue, green, red.
        max_pixels: see ``decode_image``.

    Raises:
        ParseError: the bytes are not an image.
        ArgumentError: the resized image is smaller than the crop, the number of channels is neither 1 nor 3, or it
            does not match mean or std.
        DeviceError: no image library is installed.
    """
    if channels not in (1, 3):
        raise ArgumentError(f"images have 1 or 3 channels, the predictor's input has {channels}")
    for what, numbers in (("mean", mean), ("std", std)):
        if len(numbers) not in (1, channels):
            raise ArgumentError(
                f"{what} must be one number, or one for each channel of the input, which has {channels}; "
                f"got {list(numbers)}"
            )
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
    part = pixels[top : top + height, left : left + width].astype(np.float32)
    if rgb and channels == 3:
        part = part[:, :, ::-1]
    found: Array = (part * np.float32(scale) - np.array(mean, np.float32)) / np.array(std, np.float32)
    return found
