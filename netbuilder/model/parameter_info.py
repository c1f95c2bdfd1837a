"""Information about one parameter: its blob, shape and gradient; tags that describe its kind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from netbuilder.graph.blob import BlobReference, GradientSlice

__all__ = ["ParameterInfo", "ParameterTags"]


class ParameterTags:
    """Kinds of parameters: weights (with weight decay), biases, and computed ones (not updated by optimizers)."""

    BIAS = "BIAS"
    WEIGHT = "WEIGHT"
    COMPUTED_PARAM = "COMPUTED_PARAM"


class ParameterInfo:
    """One parameter of a model.

    Args:
        param_id: a number chosen by the caller, or None.
        param: the parameter's blob.
        key: blob of the indices that a sparse update uses, or None.
        shape: extents, in elements; None if unknown.
        length: number of entries of ``param`` per key.
        grad: its gradient, after the backward pass is built.
        blob_copy: data type -> copy of the parameter of that type.

    Raises:
        TypeError: ``param`` is not a blob reference.

    >>> info = ParameterInfo(None, BlobReference("fc_w"), shape=[4, 3])
    >>> info.name, info.size
    ('fc_w', 12)
    """

    def __init__(
        self,
        param_id: Any,
        param: BlobReference,
        key: Any = None,
        shape: Sequence[int] | None = None,
        length: int = 1,
        grad: BlobReference | GradientSlice | None = None,
        blob_copy: Mapping[int, BlobReference] | None = None,
    ) -> None:
        if not isinstance(param, BlobReference):
            raise TypeError(f"a parameter must be a BlobReference, got {param!r} of type {type(param).__name__}")
        self.param_id = param_id
        self.name = str(param)
        self.blob = param
        self.key = key
        self.shape = shape
        self.length = length
        self.grad = grad
        self.blob_copy = blob_copy
        self._optimizer: Any = None

    @property
    def size(self) -> int | None:
        """Number of elements; None if the shape is unknown."""
        return None if self.shape is None else math.prod(self.shape)

    @property
    def parameter(self) -> BlobReference:
        """The parameter's blob."""
        return self.blob

    @property
    def optimizer(self) -> Any:
        """The parameter's own optimizer; None: the optimizer of the whole model."""
        return self._optimizer

    @optimizer.setter
    def optimizer(self, value: Any) -> None:
        if self._optimizer is not None:
            raise ValueError(f"parameter {self.name!r} has its own optimizer already: {self._optimizer!r}")
        self._optimizer = value

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"ParameterInfo({self.name!r}, shape={self.shape})"
