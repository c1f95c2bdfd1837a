"""Transformation of images into input of a net: box, size, crop, colors, mirroring, normalization."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from netbuilder.data.augment import Augmentation, Changes, apply_changes, augmentation, require_pillow
from netbuilder.data.image_codec import GRAY_WEIGHTS, mirror_image, resize_image, split_channels
from netbuilder.data.image_size import check_resized
from netbuilder.data.random_erasing import Erased, draw_erased, erase
from netbuilder.data.scratch import Scratch
from netbuilder.proto import ArgumentError, NetError, ShapeError
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "EIGENVALUES",
    "EIGENVECTORS",
    "Geometry",
    "ImageTransform",
    "channel_scales",
    "jitter",
    "lighting",
    "middle_part",
]

Array = np.ndarray[Any, np.dtype[Any]]

EIGENVALUES = (0.2175, 0.0188, 0.0045)
"""Eigenvalues of the covariance of red, green and blue over pixels from 0 to 1."""

EIGENVECTORS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))
"""Its eigenvectors: rows are red, green and blue, columns the components; both for ImageNet's training images."""

_LONGEST = 4  # longer side of what is resized before a crop, in shorter sides
_TRIES = 10  # random crops to try before the middle is used


def channel_scales(mean: Sequence[float], std: Sequence[float], channels: int) -> tuple[Array, Array]:
    """Return factor and summand of each channel, float32: ``(v - mean) / std`` is ``v * factor + summand``.

    Args:
        mean, std: one number, or one for each channel.
        channels: their number.

    >>> channel_scales([1.0, 2.0, 3.0], [2.0], 3)[1]
    array([-0.5, -1. , -1.5], dtype=float32)
    """
    means, stds = (np.broadcast_to(np.asarray(numbers, np.float64), channels) for numbers in (mean, std))
    return (1 / stds).astype(np.float32), (-means / stds).astype(np.float32)


def middle_part(height: int, width: int, ratio: float = 1.0) -> tuple[int, int, int, int]:
    """Return top, left, height and width of the part of an image that is resized before a crop from its middle.

    Its longer side is at most ``_LONGEST`` shorter ones, so that no shape of an image makes a huge one.

    Args:
        height, width: of the image, in pixels.
        ratio: the longer side of the crop, in its shorter ones; the part may be longer by this factor.

    >>> middle_part(300, 200), middle_part(1, 30)
    ((0, 0, 300, 200), (0, 13, 1, 4))
    """
    most = math.ceil(_LONGEST * ratio * min(height, width))
    high, wide = min(height, most), min(width, most)
    return (height - high) // 2, (width - wide) // 2, high, wide


class Geometry(NamedTuple):
    """Geometry of a transformation: which pixels of an image go where.

    Args:
        of: height and width of the original image.
        box: top, left, height and width of the part to use; None: the whole image.
        size: height and width that the part is resized to; None: unchanged.
        corner: top and left of the crop in the resized part with its margins; None: no crop.
        mirrored: whether to mirror; None: drawn later, after the changes of color.
        changes: operations to apply after the crop.
        erased: box to replace by noise at the end; None: none.
    """

    of: tuple[int, int]
    box: tuple[int, int, int, int] | None
    size: tuple[int, int] | None
    corner: tuple[int, int] | None
    mirrored: bool | None
    changes: Changes = ()
    erased: Erased | None = None


@dataclass(frozen=True)
class ImageTransform:
    """Transformation of an image, in the order of the arguments; random steps are skipped in test mode.

    Of an image that is more than four times as long as wide, only a part of that length is resized before a crop: in
    test mode the middle. So no image needs more memory and time than others of its size.

    Args:
        box: top, left, height and width in pixels of the part of the image to use.
        scale: length that the shorter side is resized to, in pixels; 0: unchanged.
        minsize: the shorter side is enlarged to this length if it is shorter; not together with ``scale``.
        warp: resize both sides to ``scale``.
        random_scale: shortest and longest length, from which ``scale`` is drawn.
        area_crop: resize to ``crop`` a random part with this share of the area or more and an aspect ratio of 3:4 to
            4:3; usually 0.08, more for few images; 0: the whole image is resized.
        pad: width of a black margin around the image, from which a crop is taken at random.
        crop: side of the square crop, at a random position, in test mode in the middle; 0: no crop.
        crop_first: in training, crop before resizing, at whole pixels of the original image; that is less work, and the
            random positions differ; not together with ``warp`` or ``pad``.
        augment: AutoAugment, RandAugment, TrivialAugment or AugMix, such as "rand:2:9", see ``augmentation``; None:
            none. Needs Pillow.
        color_jitter: largest relative changes of saturation, brightness and contrast.
        color_lighting: standard deviation of the light that is added; 0: none.
        mirror: mirror each image with a probability of 1/2.
        random_erasing: probability of replacing a box of 2 % to a third of the image by noise, usually 0.25.
        mean, std: for each channel (blue, green, red), or one for all; a value v becomes (v - mean) / std.
        color: three channels; otherwise one, the brightness.
        is_test: test mode.
        interpolation: "linear" or "area", see ``resize_image``.
        library: library that decodes and resizes; None: the fastest that is installed.
        upright: apply the orientation that cameras store, see ``decode_image``, when an image is decoded.

    Raises:
        ArgumentError: a number is out of range.
        DeviceError: ``augment`` needs Pillow, which is not installed.
    """

    box: tuple[int, int, int, int] | None = None
    scale: int = 0
    minsize: int = 0
    warp: bool = False
    random_scale: tuple[int, int] | None = None
    area_crop: float = 0.0
    pad: int = 0
    crop: int = 0
    crop_first: bool = False
    augment: str | None = None
    color_jitter: tuple[float, float, float] | None = None
    color_lighting: float = 0.0
    mirror: bool = False
    random_erasing: float = 0.0
    mean: Sequence[float] = (0.0,)
    std: Sequence[float] = (1.0,)
    color: bool = True
    is_test: bool = False
    interpolation: str = "linear"
    library: str | None = None
    upright: bool = True

    def __post_init__(self) -> None:
        if problem := self._problem():
            raise ArgumentError(f"images: {problem}")
        if self._augmentation is not None and not self.is_test:
            require_pillow()

    def _problem(self) -> str | None:
        for name in ("scale", "minsize", "pad", "crop", "color_lighting"):
            if getattr(self, name) < 0:
                return f"{name} must not be negative, got {getattr(self, name)}"
        if self.scale and self.minsize:
            return f"scale and minsize exclude each other, got {self.scale} and {self.minsize}"
        if self.random_scale is not None and not 0 < self.random_scale[0] <= self.random_scale[1]:
            return f"random_scale must be two lengths, the shorter one first, got {self.random_scale}"
        if isinstance(self.area_crop, bool) or not 0 <= self.area_crop <= 1:
            return f"area_crop must be a share of the area from 0 to 1, usually 0.08, got {self.area_crop}"
        if self.area_crop and not self.crop:
            return "area_crop needs crop, the size to which the part is resized"
        if self.crop_first and (self.warp or self.pad):
            return "crop_first excludes warp and pad"
        least = min([n for n in (self.scale, *(self.random_scale or ())) if n], default=self.crop)
        if self.crop > least + 2 * self.pad:
            return f"crop must not be larger than the image after scale, got {self.crop} and {least}"
        for name in ("mean", "std"):
            if len(getattr(self, name)) not in (1, self.channels):
                return f"{name} must have 1 or {self.channels} values, got {list(getattr(self, name))}"
        if min(self.std) <= 0:
            return f"std must be positive, got {list(self.std)}"
        if not self.color and (self.color_jitter or self.color_lighting):
            return "color_jitter and color_lighting need three channels"
        try:
            _ = self._augmentation
        except ArgumentError as error:
            return str(error)
        if not 0 <= self.random_erasing <= 1:
            return f"random_erasing must be a probability from 0 to 1, got {self.random_erasing}"
        if self.color_jitter and not all(0 <= x <= 1 for x in self.color_jitter):
            return f"color_jitter must be three shares from 0 to 1, got {list(self.color_jitter)}"
        return None

    @functools.cached_property
    def _augmentation(self) -> Augmentation | None:
        return None if self.augment is None else augmentation(self.augment)

    @functools.cached_property
    def channel_scales(self) -> tuple[Array, Array]:
        """Factor and summand of each channel in normalization, float32."""
        return channel_scales(self.mean, self.std, self.channels)

    @property
    def channels(self) -> int:
        """3 or 1."""
        return 3 if self.color else 1

    @functools.cached_property
    def changes_colors(self) -> bool:
        """Whether images are floats before normalization."""
        return bool(self.color_jitter or self.color_lighting) and not self.is_test

    def pixels(
        self, image: Array, rng: np.random.Generator, where: str = "image", scratch: Scratch | None = None
    ) -> Array:
        """Return the image before normalization: (H, W, C), uint8, or float32 if its colors are changed.

        Args:
            image: uint8, (H, W, C).
            rng: source of random numbers.
            where: what to call the image in errors.
            scratch: buffer for an image of another size; None: a new one.

        Raises:
            ShapeError: the image is smaller than the crop, or does not contain the box.
        """
        height, width = image.shape[:2]
        found, mirrored = self.apply_geometry(image, self.geometry(height, width, rng, where), rng, scratch)
        return mirror_image(found, scratch=scratch) if mirrored else found

    def geometry(self, height: int, width: int, rng: np.random.Generator, where: str = "image") -> Geometry:
        """Return the geometry of the transformation, which depends on the size of the image only.

        Args:
            height, width: of the image.
            rng, where: see ``pixels``.

        Raises:
            ShapeError: see ``pixels``.
        """
        of = (height, width)
        if self.box is not None:
            top, left, height, width = self._checked_box(height, width, where)
        else:
            top = left = 0
        size, training = None, not self.is_test
        if self.area_crop and training:
            down, right, height, width = _part(height, width, self.area_crop, rng)
            top, left, size = top + down, left + right, (self.crop, self.crop)
        elif scale := self._length(min(height, width), rng):
            shorter = min(height, width)
            if self.crop_first and self.crop and training:
                side = max(1, min(shorter, round(self.crop * shorter / scale)))
                top, left = top + _drawn(rng, height - side), left + _drawn(rng, width - side)
                height, width, size = side, side, (self.crop, self.crop)
            elif self.warp:
                size = (scale, scale)
            else:
                if self.crop:  # a long, narrow image would become huge
                    down, right, height, width = self._narrowed(height, width, rng)
                    top, left = top + down, left + right
                size = _resized(height, width, scale, where)
        corner = self._corner(*(size or (height, width)), rng, where)
        changes = self._augmentation(rng) if self._augmentation and training else ()
        mirrored = None if self.changes_colors else self._mirrored(rng)
        erased = None
        if self.random_erasing and training:
            erased = draw_erased(*self._final_size(*(size or (height, width))), self.random_erasing, rng)
        box = None if (height, width) == of else (top, left, height, width)
        return Geometry(of, box, size, corner, mirrored, changes, erased)

    def apply_geometry(
        self, image: Array, found: Geometry, rng: np.random.Generator, scratch: Scratch | None = None
    ) -> tuple[Array, bool]:
        """Return the image before normalization and mirroring, and whether to mirror it.

        Args:
            image, scratch: see ``pixels``.
            found: the geometry of the image.
            rng: the generator that the geometry was drawn with; it draws the colors too.
        """
        if found.box is not None:
            top, left, height, width = found.box
            image = image[top : top + height, left : left + width]
        if found.size is not None:
            image = resize_image(
                image, *found.size, interpolation=self.interpolation, scratch=scratch,
                library=None if self.library == "simplejpeg" else self.library,
            )  # fmt: skip
        if self.pad and not self.is_test:
            image = np.pad(image, ((self.pad, self.pad), (self.pad, self.pad), (0, 0)))
        if found.corner is not None:
            top, left = found.corner
            image = image[top : top + self.crop, left : left + self.crop]
        image, mirrored = apply_changes(image, found.changes), found.mirrored
        if mirrored is None:
            image, mirrored = self._colored(image, rng), self._mirrored(rng)
        return erase(image, found.erased), mirrored

    def normalize(self, pixels: Array, out: Array, scratch: Scratch | None = None, *, mirrored: bool = False) -> None:
        """Write normalized pixels (H, W, C), mirrored or not, into ``out`` of shape (C, H, W), float32."""
        planes = split_channels(pixels, mirrored=mirrored, scratch=scratch)
        for target, plane, factor, shift in zip(out, planes, *self.channel_scales):
            target[...] = plane
            np.multiply(target, factor, out=target)
            if shift:
                np.add(target, shift, out=target)

    def __call__(self, image: Array, rng: np.random.Generator, where: str = "image") -> Array:
        """Return the input of the net, (C, H, W), float32; arguments and errors as in ``pixels``."""
        pixels = self.pixels(image, rng, where)
        out = np.empty((self.channels, *pixels.shape[:2]), np.float32)
        self.normalize(pixels, out)
        return out

    def _checked_box(self, height: int, width: int, where: str) -> tuple[int, int, int, int]:
        assert self.box is not None
        top, left, high, wide = self.box
        if min(top, left) < 0 or min(high, wide) < 1 or top + high > height or left + wide > width:
            raise ShapeError(
                f"{where}: the box {self.box} (top, left, height, width) is not inside {height} x {width} pixels"
            )
        return self.box

    def _narrowed(self, height: int, width: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
        """Return top, left, height and width of the part of an image from which to crop, of at most ``_LONGEST``."""
        top, left, high, wide = middle_part(height, width)
        if self.is_test or (high, wide) == (height, width):
            return top, left, high, wide
        return _drawn(rng, height - high), _drawn(rng, width - wide), high, wide

    def _length(self, shorter: int, rng: np.random.Generator) -> int:
        """Return the length that the shorter side is resized to; 0: unchanged."""
        if self.random_scale is not None and not self.is_test:
            return self.random_scale[0] + _drawn(rng, self.random_scale[1] - self.random_scale[0])
        return self.scale or (self.minsize if shorter < self.minsize else 0)

    def _final_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size of the result, given that of the resized part."""
        return (self.crop, self.crop) if self.crop else (height + 2 * self.pad, width + 2 * self.pad)

    def _corner(self, height: int, width: int, rng: np.random.Generator, where: str) -> tuple[int, int] | None:
        """Return the corner of the crop; None: no crop."""
        if self.pad and not self.is_test:
            height, width = height + 2 * self.pad, width + 2 * self.pad
        if not self.crop or (height, width) == (self.crop, self.crop):
            return None
        if min(height, width) < self.crop:
            raise ShapeError(
                f"{where}: an image of {height} x {width} pixels is too small for a crop of {self.crop} x "
                f"{self.crop}; give a smaller crop, or scale, the length that the shorter side is resized to"
            )
        if self.is_test:
            return (height - self.crop) // 2, (width - self.crop) // 2
        return _drawn(rng, height - self.crop), _drawn(rng, width - self.crop)

    def _colored(self, image: Array, rng: np.random.Generator) -> Array:
        if self.color_jitter:
            saturation, brightness, contrast = self.color_jitter
            image = jitter(image, rng, saturation=saturation, brightness=brightness, contrast=contrast)
        return lighting(image, rng, self.color_lighting) if self.color_lighting else image

    def _mirrored(self, rng: np.random.Generator) -> bool:
        return self.mirror and not self.is_test and bool(rng.random() < 0.5)


def _resized(height: int, width: int, scale: int, where: str) -> tuple[int, int]:
    """Return the size of an image whose shorter side is resized to ``scale``.

    Raises:
        ShapeError: it would have more pixels than images may have.
    """
    shorter = min(height, width)
    size = height * scale // shorter, width * scale // shorter
    try:
        check_resized(*size)
    except NetError as error:
        raise ShapeError(f"{where} has {height} x {width} pixels; {error}, crop, or warp") from None
    return size


def _drawn(rng: np.random.Generator, most: int) -> int:
    """Return a whole number from 0 to ``most``; ``integers`` would take ten times as long."""
    return int(rng.random() * (most + 1))


def _part(height: int, width: int, least: float, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Return top, left, height and width of a part drawn by area and ratio; the middle square if none fits.

    Source: Szegedy et al., "Going deeper with convolutions", 2015, section 6.
    """
    for _ in range(_TRIES):
        area, ratio = height * width * rng.uniform(least, 1.0), rng.uniform(3 / 4, 4 / 3)
        h, w = round((area / ratio) ** 0.5), round((area * ratio) ** 0.5)
        if rng.random() < 0.5:
            h, w = w, h
        if 0 < h <= height and 0 < w <= width:
            return _drawn(rng, height - h), _drawn(rng, width - w), h, w
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def jitter(
    image: Array, rng: np.random.Generator, *, saturation: float = 0.4, brightness: float = 0.4, contrast: float = 0.4
) -> Array:
    """Return an image with changed saturation, brightness and contrast, in random order.

    Each is multiplied by a factor drawn from [1 - x, 1 + x]. Values may leave [0, 255]; they are not clipped.

    Args:
        image: (H, W, 3), blue, green, red.

    Source: Howard, "Some improvements on deep convolutional neural network based image classification", 2013,
    arXiv:1312.5402, section 2.2.
    """
    image = image.astype(np.float32)
    shares = (saturation, brightness, contrast)
    for kind in rng.permutation(3):
        factor = np.float32(1 + rng.uniform(-shares[kind], shares[kind]))
        if kind == 1:
            image *= factor
            continue
        gray = (image @ GRAY_WEIGHTS)[:, :, None]
        middle = gray if kind == 0 else gray.mean()
        image = middle + factor * (image - middle)
    return image


def lighting(image: Array, rng: np.random.Generator, std: float = 0.1) -> Array:
    """Return an image with one random color added to all pixels, drawn along the principal components.

    Args:
        image: (H, W, 3), blue, green, red, from 0 to 255.
        std: standard deviation of the factors of the components.

    Source: Krizhevsky, Sutskever and Hinton, "ImageNet classification with deep convolutional neural networks", 2012,
    section 4.1.
    """
    factors = rng.normal(0.0, std, 3) * EIGENVALUES
    added = 255 * (np.array(EIGENVECTORS) @ factors)[::-1]
    return image.astype(np.float32) + added.astype(np.float32)
