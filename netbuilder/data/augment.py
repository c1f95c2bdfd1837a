"""AutoAugment, RandAugment, TrivialAugment and AugMix: operations on an image, drawn at random; they need Pillow."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from netbuilder.proto import ArgumentError, DeviceError
from netbuilder.proto.extras import how_to_install
from netbuilder.proto.os_errors import is_out_of_memory

__all__ = ["CHANGES", "Augmentation", "Change", "Changes", "Mixture", "apply_changes", "augmentation", "require_pillow"]

Array = np.ndarray[Any, np.dtype[Any]]

_MOST = 30  # largest strength of RandAugment, and number of TrivialAugment's steps
_GRAY = 128  # value of pixels outside of the image


class Change(NamedTuple):
    """An operation on an image: one of ``CHANGES``, and its strength; the sign is the direction.

    1 is RandAugment's greatest strength, of which ``_WIDE`` has multiples.
    """

    name: str
    strength: float


class Mixture(NamedTuple):
    """Operations in several chains, each on the image itself, whose results are mixed with one another and the image.

    The result is ``1 - share`` of the image and ``share`` of the sum of the chains' results, each times its weight.
    """

    chains: tuple[tuple[Change, ...], ...]
    weights: tuple[float, ...]
    share: float


Changes = tuple[Change, ...] | Mixture
"""Operations on an image: applied one after another, or mixed."""

Augmentation = Callable[[np.random.Generator], Changes]
"""Draws the operations for an image."""


def _pillow() -> Any:
    try:
        from PIL import Image, ImageEnhance, ImageOps
    except ImportError as error:
        if is_out_of_memory(error):
            raise MemoryError(str(error)) from error
        raise DeviceError(
            f"AutoAugment, RandAugment, TrivialAugment and AugMix need Pillow, which is not installed; "
            f"{how_to_install('data')}"
        ) from None
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
"""Operations on a Pillow image by name, each with a strength."""

_NAMES = tuple(CHANGES)

_WIDE = {
    "rotate": 4.5, "color": 1.1, "contrast": 1.1, "brightness": 1.1, "sharpness": 1.1, "posterize": 1.5,
    "shear-x": 3.3, "shear-y": 3.3, "translate-x": 32 / 224 / 0.45, "translate-y": 32 / 224 / 0.45,
}  # fmt: skip
"""TrivialAugment's greatest strengths, where they are not 1."""

_LEVELS = 9  # AutoAugment's greatest strength

_AUTO = """
posterize 0.4 8 rotate 0.6 9, solarize 0.6 5 autocontrast 0.6 5, equalize 0.8 8 equalize 0.6 3,
posterize 0.6 7 posterize 0.6 6, equalize 0.4 7 solarize 0.2 4, equalize 0.4 4 rotate 0.8 8,
solarize 0.6 3 equalize 0.6 7, posterize 0.8 5 equalize 1.0 2, rotate 0.2 3 solarize 0.6 8,
equalize 0.6 8 posterize 0.4 6, rotate 0.8 8 color 0.4 0, rotate 0.4 9 equalize 0.6 2,
equalize 0.0 7 equalize 0.8 8, solarize 0.6 9 equalize 1.0 8, color 0.6 4 contrast 1.0 8,
rotate 0.8 8 color 1.0 2, color 0.8 8 solarize 0.8 7, sharpness 0.4 7 solarize 0.6 9,
shear-x 0.6 5 equalize 1.0 9, color 0.4 0 equalize 0.6 3, equalize 0.4 7 solarize 0.2 4,
solarize 0.6 5 autocontrast 0.6 5, solarize 0.6 9 equalize 1.0 8, color 0.6 4 contrast 1.0 8,
equalize 0.8 8 equalize 0.6 3
"""
"""AutoAugment's pairs for ImageNet: operation, probability, strength; what it calls invert is solarize 9."""


@functools.cache
def _auto_pairs() -> list[list[tuple[str, float, float]]]:
    words = [pair.split() for pair in _AUTO.split(",")]
    return [[(pair[i], float(pair[i + 1]), int(pair[i + 2]) / _LEVELS) for i in (0, 3)] for pair in words]


def _signed(rng: np.random.Generator, strength: float) -> float:
    return -strength if rng.random() < 0.5 else strength


def _draw_auto(rng: np.random.Generator) -> tuple[Change, ...]:
    pairs = _auto_pairs()
    pair = pairs[int(rng.random() * len(pairs))]
    drawn = [(rng.random() < share, Change(name, _signed(rng, strength))) for name, share, strength in pair]
    return tuple(change for used, change in drawn if used)


def _draw_trivial(rng: np.random.Generator) -> tuple[Change, ...]:
    name = _NAMES[int(rng.random() * len(_NAMES))]
    strength = int(rng.random() * (_MOST + 1)) / _MOST
    return (Change(name, _signed(rng, _WIDE.get(name, 1.0) * strength)),)


def _draw_rand(rng: np.random.Generator, count: int, strength: float) -> tuple[Change, ...]:
    return tuple(Change(_NAMES[int(rng.random() * len(_NAMES))], _signed(rng, strength / _MOST)) for _ in range(count))


_MIXED = ("autocontrast", "equalize", "posterize", "rotate", "solarize", "shear-x", "shear-y", "translate-x",
          "translate-y")  # fmt: skip
"""AugMix's operations."""

_CHAINS, _LONGEST, _SEVEREST = 3, 3, 10


def _draw_mix(rng: np.random.Generator, severity: float) -> Mixture:
    def change() -> Change:
        name = _MIXED[int(rng.random() * len(_MIXED))]
        return Change(name, _signed(rng, (0.1 + rng.random() * (severity - 0.1)) / _SEVEREST))

    weights = rng.dirichlet(np.ones(_CHAINS))
    chains = tuple(tuple(change() for _ in range(1 + int(rng.random() * _LONGEST))) for _ in range(_CHAINS))
    return Mixture(chains, tuple(map(float, weights)), float(rng.random()))  # Beta(1, 1)


def augmentation(text: str) -> Augmentation:
    """Return what draws the operations for an image.

    Args:
        text: "auto", one of AutoAugment's 25 pairs for ImageNet; "trivial", TrivialAugment, one operation of random
            strength; "rand:COUNT:STRENGTH", RandAugment, so many operations, all with a strength from 0 to 30;
            "rand" is "rand:2:9"; "augmix:SEVERITY", AugMix, the image mixed with three chains of one to three
            operations, each of a strength up to SEVERITY of 10; "augmix" is "augmix:3".

    Raises:
        ArgumentError: it is none of these.

    Sources: Cubuk et al., "AutoAugment", 2018, arXiv:1805.09501, table 9; Cubuk et al., "RandAugment", 2019,
    arXiv:1909.13719; Müller and Hutter, "TrivialAugment", 2021, arXiv:2103.10158 (wide); Hendrycks et al., "AugMix",
    2020, arXiv:1912.02781, algorithm 1, without its loss of consistency.

    >>> augmentation("rand:1:15")(np.random.default_rng(1))
    (Change(name='contrast', strength=0.5),)
    """
    name, *numbers = str(text).split(":")
    if name == "rand":
        try:
            count, strength = (2, 9.0) if not numbers else (int(numbers[0]), float("".join(numbers[1:])))
        except ValueError:
            count, strength = -1, 0.0
        if count >= 0 and 0 <= strength <= _MOST and len(numbers) in (0, 2):
            return functools.partial(_draw_rand, count=count, strength=strength)
    elif name == "augmix" and len(numbers) < 2:
        try:
            severity = float("".join(numbers) or 3)
        except ValueError:
            severity = 0.0
        if 0.1 <= severity <= _SEVEREST:
            return functools.partial(_draw_mix, severity=severity)
    elif text in ("auto", "trivial"):
        return _draw_auto if text == "auto" else _draw_trivial
    raise ArgumentError(
        "augment must be 'auto', 'trivial', 'rand:COUNT:STRENGTH', COUNT operations of a STRENGTH from 0 to "
        f"{_MOST}, or 'augmix:SEVERITY', from 0.1 to {_SEVEREST}; got {text!r}"
    )


def apply_changes(image: Array, changes: Sequence[Change] | Mixture) -> Array:
    """Return an image after these operations, applied one after another or mixed.

    Args:
        image: uint8, (H, W, 3), blue, green, red, or (H, W, 1); left unchanged.
        changes: as an ``Augmentation`` returns them.

    Raises:
        DeviceError: Pillow is not installed.
    """
    if not changes:
        return image
    if isinstance(changes, Mixture):
        mixed = (1 - changes.share) * image.astype(np.float32)
        for chain, weight in zip(changes.chains, changes.weights):
            mixed += changes.share * weight * apply_changes(image, chain).astype(np.float32)
        return np.clip(np.rint(mixed), 0, 255).astype(np.uint8)
    gray = image.shape[2] == 1
    changed = _pillow()[0].fromarray(image[:, :, 0] if gray else np.ascontiguousarray(image[:, :, ::-1]))
    for name, strength in changes:
        changed = CHANGES[name](changed, strength)
    pixels: Array = np.asarray(changed)
    return pixels[:, :, None] if gray else np.ascontiguousarray(pixels[:, :, ::-1])  # OpenCV needs contiguous pixels
