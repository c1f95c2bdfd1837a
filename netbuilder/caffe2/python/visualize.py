"""Shows arrays as images: one, several side by side, or their channels. Needs matplotlib."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from netbuilder.caffe2.missing import names_of
from netbuilder.proto import DeviceError, ShapeError

__all__ = ["NCHW", "NHWC", "ChannelFirst", "ChannelLast", "PatchVisualizer"]

__getattr__ = names_of(__name__)

Array = np.ndarray[Any, np.dtype[Any]]


def ChannelFirst(arr: Array) -> Array:
    """Return a view of one or several images with the channels before rows and columns.

    Args:
        arr: (height, width, channels) or (count, height, width, channels).

    Raises:
        ShapeError: the number of dimensions is wrong.
    """
    return np.moveaxis(_checked("ChannelFirst", arr, 3, 4), -1, -3)


def ChannelLast(arr: Array) -> Array:
    """Return a view of one or several images with the channels after rows and columns.

    Args:
        arr: (channels, height, width) or (count, channels, height, width).

    Raises:
        ShapeError: the number of dimensions is wrong.
    """
    return np.moveaxis(_checked("ChannelLast", arr, 3, 4), -3, -1)


def _checked(what: str, arr: Any, *dimensions: int) -> Array:
    array = np.asarray(arr)
    if array.ndim not in dimensions:
        expected = " or ".join(map(str, dimensions))
        raise ShapeError(f"visualize.{what}: the array must have {expected} dimensions, got the shape {array.shape}")
    return array


class PatchVisualizer:
    """Shows images, channels last, with ``matplotlib.pyplot.imshow``; each method returns its result.

    Args:
        gap: pixels between images side by side.
    """

    def __init__(self, gap: int = 1) -> None:
        self.gap = gap

    def ShowSingle(self, patch: Any, cmap: Any = None) -> Any:
        """Show one image.

        Args:
            patch: (height, width), shown in gray, or (height, width, channels).
            cmap: matplotlib's color map; None: gray for images of one channel.

        Raises:
            ShapeError: the array has the wrong number of dimensions.
            DeviceError: matplotlib is not installed.
        """
        image = _checked("ShowSingle", patch, 2, 3)
        if image.ndim == 3 and image.shape[2] == 1:
            image = image[:, :, 0]
        if cmap is None and image.ndim == 2:
            cmap = "gray"
        plot = _pyplot()
        return plot.imshow(image, cmap=cmap, interpolation="nearest")

    def ShowMultiple(
        self, patches: Any, ncols: int | None = None, cmap: Any = None, bg_func: Callable[..., Any] = np.mean
    ) -> Any:
        """Show images side by side, row by row.

        Args:
            patches: (count, height, width) or (count, height, width, channels).
            ncols: images per row; None: as many as make a square.
            cmap: see ``ShowSingle``.
            bg_func: computes the background value from the values of all images.
        """
        images = _checked("ShowMultiple", patches, 3, 4)
        return self.ShowSingle(self._grid(images, ncols, bg_func), cmap=cmap)

    def _grid(self, images: Array, ncols: int | None, bg_func: Callable[..., Any]) -> Array:
        number, (height, width) = len(images), images.shape[1:3]
        if not number:
            raise ShapeError(f"visualize: there is no image in an array of shape {images.shape}")
        columns = ncols or int(np.ceil(np.sqrt(number)))
        rows = -(-number // columns)
        step_y, step_x = height + self.gap, width + self.gap
        shape = (rows * step_y - self.gap, columns * step_x - self.gap, *images.shape[3:])
        grid = np.full(shape, bg_func(images), images.dtype)
        for index, image in enumerate(images):
            y, x = index // columns * step_y, index % columns * step_x
            grid[y : y + height, x : x + width] = image
        return grid

    def ShowImages(self, patches: Any, *args: Any, **kwargs: Any) -> Any:
        """Show one color image, or several; for the arguments see ``ShowSingle`` and ``ShowMultiple``."""
        images = _checked("ShowImages", patches, 3, 4)
        show = self.ShowSingle if images.ndim == 3 else self.ShowMultiple
        return show(images, *args, **kwargs)

    def ShowChannels(self, patch: Any, cmap: Any = None, bg_func: Callable[..., Any] = np.mean) -> Any:
        """Show the channels of one image, (height, width, channels), side by side in gray."""
        image = _checked("ShowChannels", patch, 3)
        return self.ShowMultiple(np.moveaxis(image, -1, 0), cmap=cmap, bg_func=bg_func)

    def get_patch_shape(self, patch: Any) -> tuple[int, ...]:
        """Return (height, width), and the number of channels if there are any."""
        return tuple(np.asarray(patch).shape)


def _pyplot() -> Any:
    try:
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise DeviceError(
            "caffe2.python.visualize needs matplotlib, which is not installed: pip install 'netbuilder-nn[plot]'"
        ) from error


_default = PatchVisualizer()


class NHWC:
    """The methods of a PatchVisualizer, for images with the channels last."""

    @staticmethod
    def ShowSingle(*args: Any, **kwargs: Any) -> Any:
        """Show one image, (height, width, channels)."""
        return _default.ShowSingle(*args, **kwargs)

    @staticmethod
    def ShowMultiple(*args: Any, **kwargs: Any) -> Any:
        """Show images, (count, height, width, channels), side by side."""
        return _default.ShowMultiple(*args, **kwargs)

    @staticmethod
    def ShowImages(*args: Any, **kwargs: Any) -> Any:
        """Show one image, or several."""
        return _default.ShowImages(*args, **kwargs)

    @staticmethod
    def ShowChannels(*args: Any, **kwargs: Any) -> Any:
        """Show the channels of one image, (height, width, channels)."""
        return _default.ShowChannels(*args, **kwargs)


class NCHW:
    """The methods of a PatchVisualizer, for images with the channels first."""

    @staticmethod
    def ShowSingle(patch: Any, *args: Any, **kwargs: Any) -> Any:
        """Show one image, (channels, height, width)."""
        return _default.ShowSingle(ChannelLast(patch), *args, **kwargs)

    @staticmethod
    def ShowMultiple(patch: Any, *args: Any, **kwargs: Any) -> Any:
        """Show images, (count, channels, height, width), side by side."""
        return _default.ShowMultiple(ChannelLast(patch), *args, **kwargs)

    @staticmethod
    def ShowImages(patch: Any, *args: Any, **kwargs: Any) -> Any:
        """Show one image, or several."""
        return _default.ShowImages(ChannelLast(patch), *args, **kwargs)

    @staticmethod
    def ShowChannels(patch: Any, *args: Any, **kwargs: Any) -> Any:
        """Show the channels of one image, (channels, height, width)."""
        return _default.ShowChannels(ChannelLast(patch), *args, **kwargs)
