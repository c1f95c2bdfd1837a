"""RandAugment: a few of fourteen operations on an image, drawn at random, all with one strength; needs Pillow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from netbuilder.proto import ArgumentError, DeviceError
from netbuilder.proto.extras import how_to_install
from netbuilder.proto.os_errors import is_out_of_memory

__all__ = ["CHANGES", "MOST", "Change", "apply_changes", "draw_changes", "require_pillow"]

Array = np.ndarray[Any, np.dtype[Any]]

MOST = 30
"""The largest strength."""

_GRAY = 128  # value of pixels outside of the image


class Change(NamedTuple):
    """An operation on an image: one of ``CHANGES``, and its strength from -1 to 1; the sign is the direction."""

    name: str
    strength: float


def _pillow() -> Any:
    try:
        from PIL import Image, ImageEnhance, ImageOps
    except ImportError as error:
        if is_out_of_memory(error):
            raise MemoryError(str(error)) from error
        raise DeviceError(f"RandAugment needs Pillow, which is not installed; {how_to_install('data')}") from None
    return Image, ImageEnhance, ImageOps


def require_pillow() -> None:
    """Raise DeviceError, with what to install, unless Pillow is installed."""
    _pillow()


def _moved(coefficients: Callable[[float, tuple[int, int]], Sequence[float]]) -> Callable[[Any, float], Any]:
    """Return an affine operation: pixel (x, y) of the result is pixel (a x + b y + c, d x + e y + f) of the image."""

    def change(image: Any, strength: float) -> Any:
        module = _pillow()[0]
        return image.transform(
            image.size, module.Transform.AFFINE, coefficients(strength, image.size),
            resample=module.Resampling.BILINEAR, fillcolor=(_GRAY,) * len(image.getbands()),
        )  # fmt: skip

    return change


def _rotated(image: Any, strength: float) -> Any:
    module = _pillow()[0]
    fill = (_GRAY,) * len(image.getbands())
    return image.rotate(30 * strength, resample=module.Resampling.BILINEAR, fillcolor=fill)


def _enhanced(kind: str) -> Callable[[Any, float], Any]:
    return lambda image, strength: getattr(_pillow()[1], kind)(image).enhance(1 + 0.9 * strength)


def _posterized(image: Any, strength: float) -> Any:
    return _pillow()[2].posterize(image, 8 - round(4 * abs(strength)))


def _solarized(image: Any, strength: float) -> Any:
    return _pillow()[2].solarize(image, round(256 * (1 - abs(strength))))


CHANGES: dict[str, Callable[[Any, float], Any]] = {
    "identity": lambda image, strength: image,
    "autocontrast": lambda image, strength: _pillow()[2].autocontrast(image),
    "equalize": lambda image, strength: _pillow()[2].equalize(image),
    "rotate": _rotated,  # by up to 30 degrees
    "solarize": _solarized,  # inverts values from a threshold on, which falls from 256 to 0
    "posterize": _posterized,  # keeps 8 to 4 bits of each value
    "color": _enhanced("Color"),  # these four by factors from 0.1 to 1.9
    "contrast": _enhanced("Contrast"),
    "brightness": _enhanced("Brightness"),
    "sharpness": _enhanced("Sharpness"),
    "shear-x": _moved(lambda s, size: (1, 0.3 * s, -0.15 * s * size[1], 0, 1, 0)),
    "shear-y": _moved(lambda s, size: (1, 0, 0, 0.3 * s, 1, -0.15 * s * size[0])),
    "translate-x": _moved(lambda s, size: (1, 0, 0.45 * s * size[0], 0, 1, 0)),  # by up to 45 % of the side
    "translate-y": _moved(lambda s, size: (1, 0, 0, 0, 1, 0.45 * s * size[1])),
}
"""Operations on a Pillow image by name, each with a strength from -1 to 1."""

_NAMES = tuple(CHANGES)


def draw_changes(count: int, strength: float, rng: np.random.Generator) -> tuple[Change, ...]:
    """Return random operations, all equally likely, with random signs.

    Args:
        count: how many, from 0 on.
        strength: from 0 to ``MOST``.
        rng: source of random numbers.

    Raises:
        ArgumentError: a number is out of range.

    Source: Cubuk et al., "RandAugment", 2019, arXiv:1909.13719.
    """
    if count < 0 or not 0 <= strength <= MOST:
        raise ArgumentError(
            f"RandAugment: the number of operations must be 0 or more, and the strength 0 to {MOST}; "
            f"got {count} and {strength}"
        )
    drawn = [(int(rng.random() * len(_NAMES)), rng.random() < 0.5) for _ in range(count)]
    return tuple(Change(_NAMES[number], (-strength if negative else strength) / MOST) for number, negative in drawn)


def apply_changes(image: Array, changes: Sequence[Change]) -> Array:
    """Return an image after these operations, applied one after another.

    Args:
        image: uint8, (H, W, 3), blue, green, red, or (H, W, 1); left unchanged.
        changes: as ``draw_changes`` returns them.

    Raises:
        DeviceError: Pillow is not installed.
    """
    if not changes:
        return image
    gray = image.shape[2] == 1
    changed = _pillow()[0].fromarray(image[:, :, 0] if gray else np.ascontiguousarray(image[:, :, ::-1]))
    for name, strength in changes:
        changed = CHANGES[name](changed, strength)
    pixels: Array = np.asarray(changed)
    return pixels[:, :, None] if gray else np.ascontiguousarray(pixels[:, :, ::-1])  # OpenCV needs contiguous pixels
