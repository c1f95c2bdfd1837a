"""From the pixels of an image to what a net reads: a box, a size, a crop, colours, mirroring, normalisation."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from netbuilder.data.image_codec import mirror_image, resize_image, split_channels
from netbuilder.data.image_color import jitter, lighting
from netbuilder.data.scratch import Scratch
from netbuilder.proto import ArgumentError, ShapeError

__all__ = ["ImageTransform"]

Array = np.ndarray[Any, np.dtype[Any]]

_TRIES = 10  # of a crop at random before the middle is taken


@dataclass(frozen=True)
class ImageTransform:
    """What is done to an image, in this order; what is drawn at random is left out in test mode.

    Args:
        box: top, left, height and width in pixels; of the image, only this part is taken.
        scale: length that the shorter side gets, in pixels; 0: as it comes.
        minsize: the shorter side is enlarged to this length if it is shorter; not together with ``scale``.
        warp: both sides get the length ``scale``.
        random_scale: shortest and longest length, from which ``scale`` is drawn.
        area_crop: a part of 8 % to 100 % of the area, with sides as 3:4 to 4:3, is brought to the size of the crop.
        pad: width of a black margin around the image, from which a crop is taken at random.
        crop: sides of the square that is taken: at random, in test mode the middle; 0: all is taken.
        crop_first: in training, what becomes the crop is cut out before it is scaled, at whole pixels of the image,
            which is less work and gives other places at random; not together with ``warp`` or ``pad``.
        color_jitter: saturation, brightness and contrast change by up to these shares.
        color_lighting: deviation of the light that is added; 0: none.
        mirror: left and right change places in every second image.
        mean, std: for each channel (blue, green, red), or one for all; a value v becomes (v - mean) / std.
        color: three channels; else one.
        is_test: test mode.
        interpolation: "linear" or "area", see ``resize_image``.
        library: which one decodes and resizes; None: the fastest that is installed.

    Raises:
        ArgumentError: a number is out of range.
    """

    box: tuple[int, int, int, int] | None = None
    scale: int = 0
    minsize: int = 0
    warp: bool = False
    random_scale: tuple[int, int] | None = None
    area_crop: bool = False
    pad: int = 0
    crop: int = 0
    crop_first: bool = False
    color_jitter: tuple[float, float, float] | None = None
    color_lighting: float = 0.0
    mirror: bool = False
    mean: Sequence[float] = (0.0,)
    std: Sequence[float] = (1.0,)
    color: bool = True
    is_test: bool = False
    interpolation: str = "linear"
    library: str | None = None

    def __post_init__(self) -> None:
        if problem := self._problem():
            raise ArgumentError(f"images: {problem}")

    def _problem(self) -> str | None:
        for name in ("scale", "minsize", "pad", "crop", "color_lighting"):
            if getattr(self, name) < 0:
                return f"{name} must not be negative, got {getattr(self, name)}"
        if self.scale and self.minsize:
            return f"scale and minsize exclude each other, got {self.scale} and {self.minsize}"
        if self.random_scale is not None and not 0 < self.random_scale[0] <= self.random_scale[1]:
            return f"random_scale must be two lengths, the shorter one first, got {self.random_scale}"
        if self.area_crop and not self.crop:
            return "area_crop needs crop, the size that parts are brought to"
        if self.crop_first and (self.warp or self.pad):
            return "crop_first excludes warp and pad"
        least = min([n for n in (self.scale, *(self.random_scale or ())) if n], default=self.crop)
        if self.crop > least + 2 * self.pad:
            return f"crop must not be larger than what scale leaves, got {self.crop} and {least}"
        for name in ("mean", "std"):
            if len(getattr(self, name)) not in (1, self.channels):
                return f"{name} must have 1 or {self.channels} values, got {list(getattr(self, name))}"
        if min(self.std) <= 0:
            return f"std must be greater than 0, got {list(self.std)}"
        if not self.color and (self.color_jitter or self.color_lighting):
            return "color_jitter and color_lighting need three channels"
        if self.color_jitter and not all(0 <= x <= 1 for x in self.color_jitter):
            return f"color_jitter changes by shares from 0 to 1, got {list(self.color_jitter)}"
        return None

    @functools.cached_property
    def factors(self) -> Array:
        """What the values of each channel are multiplied with, float32."""
        return (1 / np.broadcast_to(np.asarray(self.std, np.float64), self.channels)).astype(np.float32)

    @functools.cached_property
    def shifts(self) -> Array:
        """What is added then, float32."""
        mean, std = (np.broadcast_to(np.asarray(x, np.float64), self.channels) for x in (self.mean, self.std))
        return (-mean / std).astype(np.float32)

    @property
    def channels(self) -> int:
        """3 or 1."""
        return 3 if self.color else 1

    def pixels(
        self, image: Array, rng: np.random.Generator, where: str = "image", scratch: Scratch | None = None
    ) -> Array:
        """Return the image before it is normalised: (H, W, C), uint8, or float32 where its colours are changed.

        Args:
            image: uint8, (H, W, C).
            rng: what is drawn comes from there; the same numbers give the same image.
            where: what to call the image in errors.
            scratch: memory for an image of another size; None: memory of its own.

        Raises:
            ShapeError: it is smaller than the crop, or the box is not in it.
        """
        image = self._boxed(image, where)
        if self.crop_first and self.crop and not self.area_crop and not self.is_test:
            image = self._cut(image, rng, scratch)
        image = self._cropped(self._sized(image, rng, scratch), rng, where)
        if not self.is_test:
            if self.color_jitter:
                saturation, brightness, contrast = self.color_jitter
                image = jitter(image, rng, saturation=saturation, brightness=brightness, contrast=contrast)
            if self.color_lighting:
                image = lighting(image, rng, self.color_lighting)
            if self.mirror and rng.random() < 0.5:
                image = mirror_image(image, scratch=scratch)
        return image

    def normalise(self, pixels: Array, out: Array) -> None:
        """Write normalised pixels (H, W, C) into ``out`` of shape (C, H, W), float32."""
        for k, plane in enumerate(split_channels(pixels)):
            target = out[k]
            target[...] = plane
            np.multiply(target, self.factors[k], out=target)
            if self.shifts[k]:
                np.add(target, self.shifts[k], out=target)

    def __call__(self, image: Array, rng: np.random.Generator, where: str = "image") -> Array:
        """Return what the net reads, (C, H, W), float32; arguments and errors as of ``pixels``."""
        pixels = self.pixels(image, rng, where)
        out = np.empty((self.channels, *pixels.shape[:2]), np.float32)
        self.normalise(pixels, out)
        return out

    def _boxed(self, image: Array, where: str) -> Array:
        if self.box is None:
            return image
        top, left, height, width = self.box
        if (
            min(top, left) < 0
            or min(height, width) < 1
            or top + height > image.shape[0]
            or left + width > image.shape[1]
        ):
            raise ShapeError(
                f"{where}: the box {self.box} (top, left, height, width) is not in {image.shape[0]} x {image.shape[1]}"
            )
        return image[top : top + height, left : left + width]

    def _length(self, shorter: int, rng: np.random.Generator) -> int:
        """Return what the shorter side is brought to, 0: left as it is."""
        if self.random_scale is not None and not self.is_test:
            return self.random_scale[0] + _drawn(rng, self.random_scale[1] - self.random_scale[0])
        return self.scale or (self.minsize if shorter < self.minsize else 0)

    def _cut(self, image: Array, rng: np.random.Generator, scratch: Scratch | None) -> Array:
        """Return the crop, cut out and scaled; the image as it is, if its size stays."""
        height, width = image.shape[:2]
        scale = self._length(min(height, width), rng)
        if not scale:
            return image
        side = max(1, min(height, width, round(self.crop * min(height, width) / scale)))
        top, left = _drawn(rng, height - side), _drawn(rng, width - side)
        return self._resize(image[top : top + side, left : left + side], self.crop, self.crop, scratch)

    def _sized(self, image: Array, rng: np.random.Generator, scratch: Scratch | None) -> Array:
        height, width = image.shape[:2]
        if self.area_crop and not self.is_test:
            top, left, height, width = _part(height, width, rng)
            return self._resize(image[top : top + height, left : left + width], self.crop, self.crop, scratch)
        shorter = min(height, width)
        if self.crop_first and not self.is_test and (height, width) == (self.crop, self.crop):
            return image
        scale = self._length(shorter, rng)
        if not scale:
            return image
        if self.warp:
            return self._resize(image, scale, scale, scratch)
        return self._resize(image, height * scale // shorter, width * scale // shorter, scratch)

    def _resize(self, image: Array, height: int, width: int, scratch: Scratch | None) -> Array:
        return resize_image(
            image, height, width, interpolation=self.interpolation, scratch=scratch,
            library=None if self.library == "simplejpeg" else self.library,
        )  # fmt: skip

    def _cropped(self, image: Array, rng: np.random.Generator, where: str) -> Array:
        if self.pad and not self.is_test:
            image = np.pad(image, ((self.pad, self.pad), (self.pad, self.pad), (0, 0)))
        height, width = image.shape[:2]
        if not self.crop or (height, width) == (self.crop, self.crop):
            return image
        if min(height, width) < self.crop:
            raise ShapeError(
                f"{where}: of {height} x {width} pixels no square of {self.crop} can be taken; give a smaller crop, "
                "or a scale, which the shorter side is brought to"
            )
        if self.is_test:
            top, left = (height - self.crop) // 2, (width - self.crop) // 2
        else:
            top, left = _drawn(rng, height - self.crop), _drawn(rng, width - self.crop)
        return image[top : top + self.crop, left : left + self.crop]


def _drawn(rng: np.random.Generator, most: int) -> int:
    """Return a whole number from 0 to ``most``; ``integers`` would take ten times as long."""
    return int(rng.random() * (most + 1))


def _part(height: int, width: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Return top, left, height and width of a part drawn by area and ratio; the middle square if none fits.

    Source: Szegedy et al., "Going deeper with convolutions", 2015, section 6.
    """
    for _ in range(_TRIES):
        area, ratio = height * width * rng.uniform(0.08, 1.0), rng.uniform(3 / 4, 4 / 3)
        h, w = round((area / ratio) ** 0.5), round((area * ratio) ** 0.5)
        if rng.random() < 0.5:
            h, w = w, h
        if 0 < h <= height and 0 < w <= width:
            return _drawn(rng, height - h), _drawn(rng, width - w), h, w
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side
