"""TensorSpec: shape, element type and layout of a value."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.proto.late_dataclass import dataclass

__all__ = ["STRING", "TensorSpec", "spec_of"]

STRING = np.dtype(object)
"""The dtype of a tensor of strings (bytes objects)."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape, element type and layout of a value.

    Args:
        shape: extents, in elements; () is a scalar.
        dtype: NumPy dtype; ``STRING`` (object) for tensors of strings.
        layout: None for plain row-major; else an engine's layout (hashable, see ``ops.core.contexts.Layout``).
        known: the elements of an integer tensor (extents, a shape) that are known before the net runs; ignored when
            specs are compared.
        inner: what another operator infers its shapes from besides this one: the specs in a subgraph, for its
            gradient. Ignored likewise.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    layout: Any = None
    known: tuple[int, ...] | None = dataclasses.field(default=None, compare=False)
    inner: Any = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        n = 1
        for extent in self.shape:
            n *= extent
        return n

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer that holds the value in its layout."""
        if self.layout is not None:
            return int(self.layout.nbytes)
        return self.size * self.dtype.itemsize

    @property
    def rounds(self) -> bool:
        """Whether the layout stores elements with fewer bits than the dtype has."""
        return self.layout is not None and self.layout.itemsize < self.dtype.itemsize

    @property
    def plain(self) -> TensorSpec:
        return self if self.layout is None else TensorSpec(self.shape, self.dtype)

    def with_layout(self, layout: Any) -> TensorSpec:
        return TensorSpec(self.shape, self.dtype, layout)

    def with_shape(self, shape: Sequence[int]) -> TensorSpec:
        return TensorSpec(tuple(int(n) for n in shape), self.dtype)

    def with_dtype(self, dtype: Any) -> TensorSpec:
        return TensorSpec(self.shape, np.dtype(dtype))


def spec_of(array: Any) -> TensorSpec:
    """Return the plain spec of an array."""
    return TensorSpec(tuple(array.shape), np.dtype(array.dtype))
