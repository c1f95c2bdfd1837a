"""Copies between the host and a GPU beside what the GPU computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.gpu import gpu

__all__ = ["Downloader", "Uploader"]


class Uploader:
    """Fills buffers of one GPU, on a stream of its own; it serves one thread.

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
        """Copy ``value``, contiguous and of the buffer's dtype; the call returns when it is there.

        Args:
            after: an event (``GPU.mark``), when the GPU has come to which the buffer may be overwritten.
        """
        if after is not None:
            self._stream.wait_event(after)
        with self._gpu, self._stream:
            buffer.set(value)
        self._stream.synchronize()


class Downloader:
    """Reads small values of one GPU without waiting for what it is given meanwhile.

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
        """Have values kept as they are when the GPU is through with all it has been given up to now.

        Returns:
            A function that waits for that, and for nothing else, and returns the values.
        """
        with self._gpu:
            kept = [value.copy() for value in values]
        there = self._gpu.mark()

        def end() -> list[np.ndarray[Any, Any]]:
            self._stream.wait_event(there)
            with self._gpu, self._stream:
                return [value.get() for value in kept]

        return end
