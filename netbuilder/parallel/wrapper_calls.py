"""A call of a wrapper, and the outputs that it returns before they are computed."""

from __future__ import annotations

import enum
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.input.batches import Batch

if TYPE_CHECKING:
    from netbuilder.parallel.data_parallel import DataParallel

__all__ = ["Call", "Output", "Stage"]

T = TypeVar("T")


class Output:
    """An array that the devices compute, read when it is needed.

    ``np.asarray(output)`` and ``output.numpy()`` return it, ``float(output)`` a single number. It keeps its value
    when the wrapper is called again.

    Attributes:
        wrapper: the wrapper that was called.
    """

    __slots__ = ("__weakref__", "_read", "_value", "call", "of_losses", "wrapper")

    def __init__(self, call: Call, read: Callable[[], Any], losses: bool) -> None:
        self.wrapper: DataParallel = call.wrapper
        self.call: Call | None = call
        self._read = read
        self.of_losses = losses  # it needs the losses' part of the forward pass too
        self._value: Any = None

    def numpy(self) -> Any:
        """Return the array; it is computed and copied to the host at the first call.

        Raises:
            NetError: it cannot be computed any more.
        """
        call = self.call
        if call is not None:
            self.wrapper.take(call, self)
        return self._value

    def fetch(self) -> None:
        if self.call is not None:
            self._value, self.call = self._read(), None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        value = np.asarray(self.numpy(), dtype)
        return value.copy() if copy else value

    def __float__(self) -> float:
        return float(self.numpy())

    def __len__(self) -> int:
        return len(self.numpy())

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the array, which is computed for them."""
        found: tuple[int, ...] = np.shape(self.numpy())
        return found

    def __repr__(self) -> str:
        return f"Output({self._value!r})" if self.call is None else "Output(not read yet)"


class Stage(enum.Enum):
    """How far a call is."""

    CALLED = "called"
    LOSS = "loss"
    BACKWARD = "backward"
    DONE = "done"


@dataclass(eq=False)
class Call:
    """One call of a wrapper, with its arrays in buffers of the blobs until they are presented."""

    wrapper: DataParallel
    batches: list[Batch]
    training: bool
    samples: int
    sizes: list[int]
    owner: threading.Thread | None  # whose steps it belongs to; None: to those of all threads
    stage: Stage = Stage.CALLED
    parts_run: int = 0  # of the three parts that make a step
    summed: bool = False  # its gradients are in the sums
    lost: str = ""  # why it cannot be continued
    outputs: weakref.WeakSet[Output] = field(default_factory=weakref.WeakSet)  # that have been returned

    def __del__(self) -> None:
        for batch in self.batches:
            batch.release()

    def active(self, of_devices: Sequence[T]) -> list[T]:
        """Return the items of the devices that have samples; all, if no array is split."""
        return [item for item, size in zip(of_devices, self.sizes) if size or not self.samples]

    @property
    def count(self) -> int:
        """The number of samples, by which the mean of several calls is weighted; 1 if no array is split."""
        return self.samples or 1

    @property
    def weights(self) -> list[float]:
        """The share of the batch that each device has."""
        return [size / self.samples if self.samples else 1 / len(self.sizes) for size in self.sizes]
