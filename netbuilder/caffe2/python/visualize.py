"""Arrays drawn as pictures: one, several side by side, or their channels. Needs matplotlib."""

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
    """Return one picture, or several, with the channels before rows and columns, as a view.

    Args:
        arr: (height, width, channels) or (number, height, width, channels).

    Raises:
        ShapeError: it has another number of dimensions.
    """
    return np.moveaxis(_checked("ChannelFirst", arr, 3, 4), -1, -3)


def ChannelLast(arr: Array) -> Array:
    """Return one picture, or several, with the channels after rows and columns, as a view.

    Args:
        arr: (channels, height, width) or (number, channels, height, width).

    Raises:
        ShapeError: it has another number of dimensions.
    """
    return np.moveaxis(_checked("ChannelLast", arr, 3, 4), -3, -1)


def _checked(what: str, arr: Any, *dimensions: int) -> Array:
    array = np.asarray(arr)
    if array.ndim not in dimensions:
        expected = " or ".join(map(str, dimensions))
        raise ShapeError(f"visualize.{what}: the array must have {expected} dimensions, got the shape {array.shape}")
    return array


class PatchVisualizer:
    """Draws pictures, channels last, by ``matplotlib.pyplot.imshow``; each method returns the axes' image.

    Args:
        gap: pixels between pictures that are drawn side by side.
    """

    def __init__(self, gap: int = 1) -> None:
        self.gap = gap

    def ShowSingle(self, patch: Any, cmap: Any = None) -> Any:
        """Draw one picture.

        Args:
            patch: (height, width), which is drawn in grey, or (height, width, channels).
            cmap: matplotlib's colors for numbers; None: grey for pictures of one channel.

        Raises:
            ShapeError: the array is no picture.
            DeviceError: matplotlib is not there.
        """
        picture = _checked("ShowSingle", patch, 2, 3)
        if picture.ndim == 3 and picture.shape[2] == 1:
            picture = picture[:, :, 0]
        if cmap is None and picture.ndim == 2:
            cmap = "gray"
        plot = _pyplot()
        return plot.imshow(picture, cmap=cmap, interpolation="nearest")

    def ShowMultiple(
        self, patches: Any, ncols: int | None = None, cmap: Any = None, bg_func: Callable[..., Any] = np.mean
    ) -> Any:
        """Draw pictures side by side, row by row.

        Args:
            patches: (number, height, width) or (number, height, width, channels).
            ncols: pictures a row; None: as many as make a square.
            cmap: as of ``ShowSingle``.
            bg_func: what gives the value between pictures, from all their values.
        """
        pictures = _checked("ShowMultiple", patches, 3, 4)
        return self.ShowSingle(self._grid(pictures, ncols, bg_func), cmap=cmap)

    def _grid(self, pictures: Array, ncols: int | None, bg_func: Callable[..., Any]) -> Array:
        number, (height, width) = len(pictures), pictures.shape[1:3]
        if not number:
            raise ShapeError(f"visualize: there is no picture in an array of shape {pictures.shape}")
        columns = ncols or int(np.ceil(np.sqrt(number)))
        rows = -(-number // columns)
        step_y, step_x = height + self.gap, width + self.gap
        shape = (rows * step_y - self.gap, columns * step_x - self.gap, *pictures.shape[3:])
        grid = np.full(shape, bg_func(pictures), pictures.dtype)
        for index, picture in enumerate(pictures):
            y, x = index // columns * step_y, index % columns * step_x
            grid[y : y + height, x : x + width] = picture
        return grid

    def ShowImages(self, patches: Any, *args: Any, **kwargs: Any) -> Any:
        """Draw one picture in colors, or several; the arguments are as of ``ShowSingle`` and ``ShowMultiple``."""
        pictures = _checked("ShowImages", patches, 3, 4)
        show = self.ShowSingle if pictures.ndim == 3 else self.ShowMultiple
        return show(pictures, *args, **kwargs)

    def ShowChannels(self, patch: Any, cmap: Any = None, bg_func: Callable[..., Any] = np.mean) -> Any:
        """Draw the channels of one picture, (height, width, channels), side by side in grey."""
        picture = _checked("ShowChannels", patch, 3)
        return self.ShowMultiple(np.moveaxis(picture, -1, 0), cmap=cmap, bg_func=bg_func)

    def get_patch_shape(self, patch: Any) -> tuple[int, ...]:
        """Return (height, width), and the number of channels if there are any."""
        return tuple(np.asarray(patch).shape)


def _pyplot() -> Any:
    try:
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise DeviceError("caffe2.python.visualize draws by matplotlib; install it: pip install matplotlib") from error


_default = PatchVisualizer()


class NHWC:
    """The methods of a PatchVisualizer, for pictures with the channels last."""

    @staticmethod
    def ShowSingle(*args: Any, **kwargs: Any) -> Any:
        """Draw one picture, (height, width, channels)."""
        return _default.ShowSingle(*args, **kwargs)

    @staticmethod
    def ShowMultiple(*args: Any, **kwargs: Any) -> Any:
        """Draw pictures, (number, height, width, channels), side by side."""
        return _default.ShowMultiple(*args, **kwargs)

    @staticmethod
    def ShowImages(*args: Any, **kwargs: Any) -> Any:
        """Draw one picture, or several."""
        return _default.ShowImages(*args, **kwargs)

    @staticmethod
    def ShowChannels(*args: Any, **kwargs: Any) -> Any:
        """Draw the channels of one picture, (height, width, channels)."""
        return _default.ShowChannels(*args, **kwargs)


class NCHW:
    """The methods of a PatchVisualizer, for pictures with the channels first."""

    @staticmethod
    def ShowSingle(patch: Any, *args: Any, **kwargs: Any) -> Any:
        """Draw one picture, (channels, height, width)."""
        return _default.ShowSingle(ChannelLast(patch), *args, **kwargs)

    @staticmethod
    def ShowMultiple(patch: Any, *args: Any, **kwargs: Any) -> Any:
        """Draw pictures, (number, channels, height, width), side by side."""
        return _default.ShowMultiple(ChannelLast(patch), *args, **kwargs)

    @staticmethod
    def ShowImages(patch: Any, *args: Any, **kwargs: Any) -> Any:
        """Draw one picture, or several."""
        return _default.ShowImages(ChannelLast(patch), *args, **kwargs)

    @staticmethod
    def ShowChannels(patch: Any, *args: Any, **kwargs: Any) -> Any:
        """Draw the channels of one picture, (channels, height, width)."""
        return _default.ShowChannels(ChannelLast(patch), *args, **kwargs)
