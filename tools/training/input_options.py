"""Options of the trainer for images that are decoded on demand."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass

from netbuilder.data import ImageTransform, decoding_threads
from netbuilder.data.image_size import check_resized
from netbuilder.exchange import ImagePreparation
from netbuilder.proto import DeviceError, NetError, ParseError, files
from netbuilder.proto.os_errors import error_text
from netbuilder.tools.common_options import IGNORE_ORIENTATION, add_ignore_orientation, add_max_pixels
from netbuilder.tools.parser import add_list, real_number

__all__ = ["InputOptions", "add_input_arguments", "input_options"]


@dataclass(frozen=True)
class InputOptions:
    """Preprocessing of images; see ``netbuilder.data.ImageTransform``.

    Args:
        scale, crop, pad: in pixels; 0: none.
        mirror: mirror half of the images in training.
        area_crop: in training, take random parts with 8 % to 100 % of the area.
        random_scale: smallest and largest ``scale`` in training.
        rand_augment: number and strength of RandAugment's operations in training; None: none.
        color_jitter, color_lighting: share, and standard deviation, of changes of color in training.
        mean, std: one for all channels, or blue, green, red.
        gray: one channel instead of three.
        threads: number of decoding threads; None: one for each core.
        skip_damaged: skip images that cannot be decoded; otherwise they are errors.
        max_pixels: largest image that is decoded, height times width; None: the default of ``decode_image``.
        test_data: held-out images; None: the test part of the data, or every fifth image.
        classes: number of classes; None: that of the data.
        names: of the classes from 0 on, for the predictor; (): those of the data.
        upright: apply the orientation that cameras store.
    """

    scale: int = 0
    crop: int = 0
    pad: int = 0
    mirror: bool = False
    area_crop: bool = False
    random_scale: tuple[int, int] | None = None
    rand_augment: tuple[int, float] | None = None
    color_jitter: float = 0.0
    color_lighting: float = 0.0
    mean: tuple[float, ...] = (128.0,)
    std: tuple[float, ...] = (64.0,)
    gray: bool = False
    threads: int | None = None
    skip_damaged: bool = False
    max_pixels: int | None = None
    test_data: str | None = None
    classes: int | None = None
    names: tuple[str, ...] = ()
    upright: bool = True

    def transform(self, *, is_test: bool) -> ImageTransform:
        """Return the transformation of images in training, or in test mode.

        Raises:
            ArgumentError: options contradict each other.
        """
        scale = self.scale
        if not scale and self.crop and is_test and (self.area_crop or self.random_scale):
            scale = round(self.crop * 8 / 7)  # 256 for 224
        return ImageTransform(
            scale=scale, crop=self.crop, pad=self.pad, mirror=self.mirror, area_crop=self.area_crop,
            crop_first=not self.pad, random_scale=self.random_scale, rand_augment=self.rand_augment,
            color_jitter=(self.color_jitter,) * 3 if self.color_jitter else None,
            color_lighting=self.color_lighting, mean=self.mean, std=self.std, color=not self.gray, is_test=is_test,
            upright=self.upright,
        )  # fmt: skip

    def problem(self) -> str | None:
        """Return the first problem of the options, or None."""
        try:
            decoding_threads(self.threads)
            for name in ("scale", "crop", "pad"):
                check_resized(getattr(self, name), getattr(self, name))
            for is_test in (False, True):
                self.transform(is_test=is_test)
        except (NetError, DeviceError) as error:
            return re.sub(r"^images: (\w+)", lambda found: f"--{found[1].replace('_', '-')}", str(error))
        if self.classes is not None and self.classes < 1:
            return f"--classes: must be positive, got {self.classes}"
        return None

    def arguments(self) -> list[str]:
        """Return the command line that gives these options."""
        found = []
        for name in ("scale", "crop", "pad", "color_jitter", "color_lighting", "threads", "max_pixels", "test_data",
                     "classes"):  # fmt: skip
            value = getattr(self, name)
            found += [f"--{_FLAGS.get(name, name).replace('_', '-')}={value}"] if value else []
        for name in ("mirror", "area_crop", "gray", "skip_damaged"):
            found += [f"--{name.replace('_', '-')}"] if getattr(self, name) else []
        found += [] if self.upright else [IGNORE_ORIENTATION]
        for name in ("random_scale", "rand_augment", "mean", "std"):
            values = getattr(self, name)
            found += [f"--{name.replace('_', '-')}", *map(str, values)] if values else []
        return found

    def preparation(self) -> ImagePreparation:
        """Return the preprocessing in evaluation, which predictors store."""
        found = self.transform(is_test=True)
        return ImagePreparation(
            mean=self.mean, std=self.std, interpolation=found.interpolation,
            resize=found.scale or (0 if self.crop else None),
        )  # fmt: skip

    @property
    def transforms(self) -> bool:
        """Whether an option changes images in another way than normalizing them."""
        names = (
            "scale",
            "crop",
            "pad",
            "mirror",
            "area_crop",
            "random_scale",
            "rand_augment",
            "color_jitter",
            "color_lighting",
        )
        return any(getattr(self, name) for name in names)


_FLAGS = {"threads": "decode_threads"}


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of image input to a command."""
    group = parser.add_argument_group("images from files and databases")
    group.add_argument(
        "--test-data", metavar="PATH", help="held-out images (default: the test part of the data, or every fifth image)"
    )
    group.add_argument("--classes", type=int, metavar="N", help="number of classes (default: that of the data)")
    group.add_argument(
        "--class-names",
        metavar="FILE",
        help="names of the classes, one on each line, stored in the exported predictor (default: those of the data)",
    )
    group.add_argument(
        "--scale", type=int, default=0, metavar="N", help="resize each image so that its shorter side has N pixels"
    )
    group.add_argument(
        "--crop",
        type=int,
        default=0,
        metavar="N",
        help="crop a square of N pixels: at random in training, in the middle in evaluation",
    )
    group.add_argument("--mirror", action="store_true", help="in training, mirror each image with a probability of 1/2")
    group.add_argument(
        "--pad", type=int, default=0, metavar="N", help="in training, add a margin of N pixels before the crop"
    )
    group.add_argument(
        "--area-crop",
        action="store_true",
        help="in training, take a random part with 8 to 100 %% of the area, and resize it to --crop",
    )
    group.add_argument(
        "--random-scale",
        type=int,
        nargs=2,
        metavar=("LEAST", "MOST"),
        help="in training, draw --scale at random between these two",
    )
    group.add_argument(
        "--rand-augment",
        type=real_number(),
        nargs=2,
        metavar=("COUNT", "STRENGTH"),
        help="in training, change each image by COUNT of RandAugment's fourteen operations, with a "
        "strength from 0 to 30; usually 2 9 (needs Pillow)",
    )
    group.add_argument(
        "--color-jitter",
        type=real_number(),
        default=0.0,
        metavar="SHARE",
        help="in training, change saturation, brightness and contrast by up to SHARE, usually 0.4",
    )
    group.add_argument(
        "--color-lighting",
        type=real_number(),
        default=0.0,
        metavar="STD",
        help="in training, shift the colors along their principal components, with standard deviation STD, usually 0.1",
    )
    add_list(
        group,
        "--mean",
        type=real_number(),
        default=[128.0],
        metavar="B,G,R",
        help="subtract this from pixels: one number, or blue, green and red (default: 128)",
    )
    add_list(
        group,
        "--std",
        type=real_number(),
        default=[64.0],
        metavar="B,G,R",
        help="divide pixels by this: one number, or blue, green and red (default: 64)",
    )
    group.add_argument("--gray", action="store_true", help="read images as one channel, their brightness")
    group.add_argument(
        "--decode-threads",
        type=int,
        metavar="N",
        help="decode images in N threads (default: one for each core, at most 16)",
    )
    group.add_argument("--skip-damaged", action="store_true", help="skip images that cannot be decoded")
    add_ignore_orientation(group)
    add_max_pixels(group)


def _names(path: str | None) -> tuple[str, ...]:
    if path is None:
        return ()
    try:
        return tuple(line.strip() for line in files.read_text(path).splitlines() if line.strip())
    except (OSError, ParseError) as error:
        raise NetError(f"--class-names: {error_text(error)}") from None


def input_options(found: argparse.Namespace) -> InputOptions:
    """Return the options that a command line gave.

    Raises:
        NetError: the file of class names cannot be read, or COUNT is not a whole number.
    """
    if found.rand_augment and not found.rand_augment[0].is_integer():
        raise NetError(f"--rand-augment: COUNT must be a whole number, got {found.rand_augment[0]:g}")
    return InputOptions(
        scale=found.scale, crop=found.crop, pad=found.pad, mirror=found.mirror, area_crop=found.area_crop,
        random_scale=(found.random_scale[0], found.random_scale[1]) if found.random_scale else None,
        rand_augment=(int(found.rand_augment[0]), found.rand_augment[1]) if found.rand_augment else None,
        color_jitter=found.color_jitter, color_lighting=found.color_lighting, mean=tuple(found.mean),
        std=tuple(found.std), gray=found.gray, threads=found.decode_threads, skip_damaged=found.skip_damaged,
        max_pixels=found.max_pixels, test_data=found.test_data, classes=found.classes, names=_names(found.class_names),
        upright=not found.ignore_orientation,
    )  # fmt: skip
