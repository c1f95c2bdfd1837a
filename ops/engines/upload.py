"""Copies between the host and a GPU while the GPU computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.gpu import gpu

__all__ = ["Downloader", "Uploader"]


class Uploader:
    """Fills buffers of one GPU, on a stream of its own; it must be used by one thread only.

    Args:
        number: the GPU.

    Raises:
        DeviceError: there is no such GPU.
    """

    def __init__(self, number: int) -> None:
        self._gpu = gpu(number)
        with self._gpu as here:
            self._stream = here.xp.cuda.Stream(non_blocking=True)

    def new(self, spec: TensorSpec) -> Any:
        """Return a buffer for values of ``spec``."""
        with self._gpu as here, self._stream:
            return here.xp.empty(spec.shape, spec.dtype)

    def fill(self, buffer: Any, value: np.ndarray[Any, Any], after: Any = None) -> None:
        """Copy ``value`` into a buffer, and return when the copy is done.

        Args:
            buffer: from ``new``.
            value: contiguous, of the buffer's dtype.
            after: an event (``GPU.record_event``) to wait for before the buffer is overwritten.
        """
        if after is not None:
            self._stream.wait_event(after)
        with self._gpu, self._stream:
            buffer.set(value)
        self._stream.synchronize()


class Downloader:
    """Reads small values of one GPU without waiting for later work of the GPU.

    Args:
        number: the GPU.

    Raises:
        DeviceError: there is no such GPU.
    """

    def __init__(self, number: int) -> None:
        self._gpu = gpu(number)
        with self._gpu as here:
            self._stream = here.xp.cuda.Stream(non_blocking=True)

    def begin(self, values: Sequence[Any]) -> Callable[[], list[np.ndarray[Any, Any]]]:
        """Queue copies of values, after the work that the GPU has now.

        Returns:
            A function that waits for these copies only, and returns the values.
        """
        with self._gpu:
            copies = [value.copy() for value in values]
        copied = self._gpu.record_event()

        def end() -> list[np.ndarray[Any, Any]]:
            self._stream.wait_event(copied)
            with self._gpu, self._stream:
                return [value.get() for value in copies]

        return end
