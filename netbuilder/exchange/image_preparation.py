"""Preprocessing of images for a predictor, and the names of its classes, stored as arguments of its net.

Other readers of nets, such as Caffe2 and Netron, ignore or show these arguments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from netbuilder.proto import ArgumentError, NetDef, ParseError
from netbuilder.proto.arguments import arguments, set_argument
from netbuilder.proto.call_checks import checked
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.numbers import listed
from netbuilder.proto.structured_text import parse_json

__all__ = [
    "ImagePreparation",
    "class_names",
    "copy_texts",
    "describe_images",
    "image_preparation",
    "preparation_texts",
]

_CLASSES, _IMAGE = "class_names", "image_"
_INTERPOLATIONS = ("area", "linear")


@dataclass(frozen=True)
class ImagePreparation:
    """Preprocessing of an image with pixels from 0 to 255: center crop, then ``(pixel * scale - mean) / std``.

    Args:
        scale: factor of pixels.
        mean, std: of scaled pixels; one number, or one for each channel in the order of the input.
        resize: length of the shorter side in pixels before the crop; 0: do not resize; None: the smallest size that
            covers the input.
        interpolation: "linear" or "area"; None: "area" where an image shrinks, else "linear".
        rgb: channels are red, green, blue; else blue, green, red.
        channels_last: the input is (N, H, W, C); else (N, C, H, W).

    Raises:
        ArgumentError: a number is out of range.
    """

    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    resize: int | None = None
    interpolation: str | None = None
    rgb: bool = False
    channels_last: bool = False

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            if len(getattr(self, name)) not in (1, 3):
                raise ArgumentError(f"images: {name} must be one number or three, got {list(getattr(self, name))}")
        if 0 in self.std:
            raise ArgumentError(f"images: std must not be 0, since pixels are divided by it, got {list(self.std)}")
        if self.resize is not None and self.resize < 0:
            raise ArgumentError(f"images: resize must not be negative, got {self.resize}")
        if self.interpolation is not None and self.interpolation not in _INTERPOLATIONS:
            raise ArgumentError(f"images: interpolation must be one of {_INTERPOLATIONS}, got {self.interpolation!r}")


@checked("classes")
def describe_images(net: NetDef, images: ImagePreparation | None = None, classes: Sequence[str] | None = None) -> None:
    """Write the preprocessing of images and the names of classes into the arguments of a net.

    Args:
        net: the predict net; changed.
        images: replaces the net's; None: leave that as it is.
        classes: names from class 0 on, which replace the net's; None: leave those as they are.
    """
    if classes is not None:
        set_argument(net, _CLASSES, [str(name) for name in listed("classes", "names", classes)])
    if images is None:
        return
    kept = [argument for argument in net.arg if not argument.name.startswith(_IMAGE)]
    del net.arg[:]
    net.arg.extend(kept)
    set_argument(net, "image_scale", float(images.scale))
    set_argument(net, "image_mean", [float(number) for number in images.mean])
    set_argument(net, "image_std", [float(number) for number in images.std])
    set_argument(net, "image_channels", "RGB" if images.rgb else "BGR")
    set_argument(net, "image_order", "NHWC" if images.channels_last else "NCHW")
    if images.resize is not None:
        set_argument(net, "image_resize", images.resize)
    if images.interpolation is not None:
        set_argument(net, "image_interpolation", images.interpolation)


def image_preparation(net: NetDef) -> ImagePreparation | None:
    """Return the preprocessing of images that a net stores; None if it stores none.

    Raises:
        ParseError: the arguments are invalid.
    """
    found = {name: value for name, value in arguments(net).items() if name.startswith(_IMAGE)}
    if "image_scale" not in found and "image_mean" not in found:
        return None
    try:
        return ImagePreparation(
            scale=float(found.get("image_scale", 1.0)),
            mean=_numbers(found.get("image_mean", 0.0)),
            std=_numbers(found.get("image_std", 1.0)),
            resize=int(found["image_resize"]) if "image_resize" in found else None,
            interpolation=_text(found["image_interpolation"]) if "image_interpolation" in found else None,
            rgb=_text(found.get("image_channels", b"BGR")) == "RGB",
            channels_last=_text(found.get("image_order", b"NCHW")) == "NHWC",
        )
    except (ArgumentError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ParseError(f"net {net.name!r}: its arguments image_... are invalid: {error}") from error


def class_names(net: NetDef) -> tuple[str, ...]:
    """Return the names of a predictor's classes from 0 on; empty if its net stores none."""
    found = arguments(net).get(_CLASSES)
    try:
        return tuple(_text(name) for name in found) if isinstance(found, (list, tuple)) else ()
    except UnicodeDecodeError as error:
        raise ParseError(f"net {net.name!r}: its argument {_CLASSES!r} is not UTF-8 text: {error}") from error


def preparation_texts(net: NetDef) -> dict[str, str]:
    """Return a net's arguments about images and classes, name -> JSON, for files that store only text (ONNX)."""
    found = {name: value for name, value in arguments(net).items() if name == _CLASSES or name.startswith(_IMAGE)}
    return {name: json.dumps(value, default=_text) for name, value in found.items()}


def copy_texts(net: NetDef, texts: Mapping[str, str]) -> None:
    """Write the result of ``preparation_texts`` into the arguments of a net; other texts are ignored."""
    for name, text in texts.items():
        if name != _CLASSES and not name.startswith(_IMAGE):
            continue
        try:
            set_argument(net, name, parse_json(text))
        except (ValueError, TypeError, OverflowError):
            continue  # written by another program


def _numbers(value: Any) -> tuple[float, ...]:
    return tuple(map(float, value if isinstance(value, (list, tuple)) else [value]))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
