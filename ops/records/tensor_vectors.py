"""Vectors of tensors, collected, counted and concatenated: CreateTensorVector, CollectTensor and others."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from netbuilder.data.blob_values import BlobObject
from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.objects import shared_object
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.records.datasets import _MAX_BLOBS, Arrays, OnHost
from netbuilder.proto import ArgumentError, NetError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["CollectTensor", "ConcatTensorVector", "CreateTensorVector", "TensorVectorSize"]

_seen: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # the number of tensors that an operator has seen


class TensorVector(list[Any], BlobObject):
    """A vector of tensors."""


@register
@dataclass(frozen=True)
class CreateTensorVector(OnHost):
    """Create an empty vector of tensors."""

    signature = "-> vector: object"


@kernel(CreateTensorVector)
def create_tensor_vector(op: CreateTensorVector, ctx: RunContext) -> Arrays:
    return (TensorVector(),)


def _vector(op: Operator, value: Any) -> TensorVector:
    return shared_object(op, value, TensorVector, "CreateTensorVector")


@register
@dataclass(frozen=True)
class TensorVectorSize(OnHost):
    """size = the number of tensors in a vector."""

    signature = "vector: object -> size (): int32"


@kernel(TensorVectorSize)
def tensor_vector_size(op: TensorVectorSize, ctx: RunContext, vector: Any) -> Arrays:
    return (np.array(len(_vector(op, vector)), np.int32),)


@register
@dataclass(frozen=True)
class ConcatTensorVector(OnHost):
    """Y = the tensors of a vector, concatenated along the first axis."""

    signature = "vector: object -> Y (N, ...): any"


@kernel(ConcatTensorVector)
def concat_tensor_vector(op: ConcatTensorVector, ctx: RunContext, vector: Any) -> Arrays:
    tensors = _vector(op, vector)
    if not tensors:
        raise NetError("ConcatTensorVector: the vector must have a tensor, but it is empty")
    return (np.concatenate(tensors),)


@register
@dataclass(frozen=True)
class CollectTensor(OnHost):
    """Keep a uniform random sample of ``num_to_collect`` of the tensors that the operator has seen so far.

    The inputs are vectors of tensors, then as many tensors, which are all stored at the same position of their vectors.
    The vectors are the outputs, in place. A further output is that position, int32, or -1 if the tensors are not kept.
    """

    signature = """
        vector: object
        tensor+ (...): any, further vectors, as objects, then as many tensors
        -> vector+ (...): any, the vectors, then the position, (1), int32
    """
    inplace = tuple((i, i) for i in range(1, _MAX_BLOBS))
    must_inplace = ((0, 0),)
    draws = True
    num_to_collect: int = -1

    def check(self) -> None:
        if self.num_to_collect < 1:
            raise ArgumentError(f"CollectTensor: num_to_collect must be at least 1, got {self.num_to_collect}")


@kernel(CollectTensor)
def collect_tensor(op: CollectTensor, ctx: RunContext, *inputs: Any) -> Arrays:
    count = len(inputs) // 2
    vectors = [_vector(op, vector) for vector in inputs[:count]]
    seen = _seen[ctx] = _seen.get(ctx, 0) + 1
    position = seen - 1
    if seen > op.num_to_collect:
        position = int(ctx.host(ctx.uniform((1,)))[0] * seen)
        position = position if position < op.num_to_collect else -1
    for vector, tensor in zip(vectors, inputs[count:]):
        if position == len(vector):
            vector.append(tensor.copy())
        elif position >= 0:
            vector[position] = tensor.copy()
    more = (np.array(position, np.int32),) if op.n_out > count else ()
    return (*vectors, *more)
