"""Options of the trainer for images that are decoded on demand."""

from __future__ import annotations

import functools
import re

from netbuilder.data import ImageTransform, decoding_threads
from netbuilder.data.image_size import check_resized
from netbuilder.exchange import ImagePreparation
from netbuilder.proto import NetError, ParseError, opened_files
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.os_errors import error_text
from netbuilder.tools.common_options import max_pixels_option, upright_option
from netbuilder.tools.options import POSITIVE, option, switch, values_of
from netbuilder.tools.training.config import config_arguments

__all__ = ["InputOptions"]


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """Preprocessing of images; see ``netbuilder.data.ImageTransform``."""

    test_data: str | None = option(
        "held-out images (default: the test part of the data, or every fifth image)",
        metavar="PATH", group="images from files and databases",
    )  # fmt: skip
    classes: int | None = option("number of classes (default: that of the data)", must=POSITIVE)
    class_names: str | None = option(
        "names of the classes, one on each line, stored in the exported predictor (default: those of the data)",
        metavar="FILE",
    )
    scale: int = option("resize each image so that its shorter side has N pixels", default=0)
    crop: int = option("crop a square of N pixels: at random in training, in the middle in evaluation", default=0)
    mirror: bool | None = option("in training, mirror each image with a probability of 1/2")
    pad: int = option("in training, add a margin of N pixels before the crop", default=0)
    area_crop: float = option(
        "in training, resize to --crop a random part with SHARE of the area or more (without a number: 0.08)",
        default=0.0, metavar="SHARE", nargs="?", const=0.08,
    )  # fmt: skip
    random_scale: tuple[int, int] | None = option(
        "in training, draw --scale at random between these two", metavar=("LEAST", "MOST")
    )
    augment: str | None = option(
        "in training, change each image: auto (AutoAugment), trivial (TrivialAugment), rand:COUNT:STRENGTH "
        "(RandAugment with COUNT operations of a STRENGTH from 0 to 30; rand: rand:2:9), or augmix:SEVERITY (AugMix of "
        "a SEVERITY up to 10; augmix: augmix:3); needs Pillow",
        metavar="POLICY",
    )
    color_jitter: float = option(
        "in training, change saturation, brightness and contrast by up to SHARE, usually 0.4",
        default=0.0, metavar="SHARE",
    )  # fmt: skip
    color_lighting: float = option(
        "in training, shift the colors along their principal components, with standard deviation STD, usually 0.1",
        default=0.0, metavar="STD",
    )  # fmt: skip
    random_erasing: float = option(
        "in training, replace a box of an image by noise with this probability, usually 0.25",
        default=0.0, metavar="SHARE",
    )  # fmt: skip
    mean: tuple[float, ...] = option(
        "subtract this from pixels: one number, or blue, green and red", default=(128.0,), metavar="B,G,R"
    )
    std: tuple[float, ...] = option(
        "divide pixels by this: one number, or blue, green and red", default=(64.0,), metavar="B,G,R"
    )
    gray: bool = switch("read images as one channel, their brightness")
    threads: int | None = option(
        "decode images in N threads (default: one for each core, at most 16)", flag="--decode-threads"
    )
    skip_damaged: bool = switch("skip images that cannot be decoded")
    upright: bool = upright_option()
    max_pixels: int | None = max_pixels_option()

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the classes from 0 on, for the predictor; (): those of the data.

        Raises:
            NetError: their file cannot be read.
        """
        if self.class_names is None:
            return ()
        try:
            lines = opened_files.read_text(self.class_names).splitlines()
        except (OSError, ParseError) as error:
            raise NetError(f"--class-names: {error_text(error)}") from None
        return tuple(line.strip() for line in lines if line.strip())

    def transform(self, *, is_test: bool) -> ImageTransform:
        """Return the transformation of images in training, or in test mode.

        Raises:
            ArgumentError: options contradict each other.
        """
        scale = self.scale
        if not scale and self.crop and is_test and (self.area_crop or self.random_scale):
            scale = round(self.crop * 8 / 7)  # 256 for 224
        return ImageTransform(
            scale=scale, crop=self.crop, pad=self.pad, mirror=bool(self.mirror), area_crop=self.area_crop,
            crop_first=not self.pad, random_scale=self.random_scale,
            augment=self.augment, random_erasing=self.random_erasing,
            color_jitter=(self.color_jitter,) * 3 if self.color_jitter else None,
            color_lighting=self.color_lighting, mean=self.mean, std=self.std, color=not self.gray, is_test=is_test,
            upright=self.upright,
        )  # fmt: skip

    def problem(self) -> str | None:
        """Return the first problem of the options themselves, or None.

        Raises:
            DeviceError: a library that they need is missing.
        """
        try:
            decoding_threads(self.threads)
            for name in ("scale", "crop", "pad"):
                check_resized(getattr(self, name), getattr(self, name))
            for is_test in (False, True):
                self.transform(is_test=is_test)
        except NetError as error:
            return re.sub(r"^images: (\w+)", lambda found: f"--{found[1].replace('_', '-')}", str(error))
        return None

    def arguments(self) -> list[str]:
        """Return the command line that gives these options."""
        return config_arguments(values_of(self))

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
            "augment",
            "color_jitter",
            "color_lighting",
            "random_erasing",
        )
        return any(getattr(self, name) for name in names)
