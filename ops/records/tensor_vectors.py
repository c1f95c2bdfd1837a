"""Tensors in a row: what collects them, counts them and joins them."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from netbuilder.data.blob_values import BlobObject
from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.objects import shared_object
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.records.datasets import _MOST, Arrays, OnHost
from netbuilder.proto import ArgumentError, NetError

__all__ = ["CollectTensor", "ConcatTensorVector", "CreateTensorVector", "TensorVectorSize"]

_seen: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # tensors that an operator has seen


class TensorVector(list[Any], BlobObject):
    """Tensors in a row."""


@register
@operator_class(frozen=True)
class CreateTensorVector(OnHost):
    """Make an empty row of tensors.

    Outputs:
        vector: object
    """

    outputs = ("vector",)


@kernel(CreateTensorVector)
def create_tensor_vector(op: CreateTensorVector, ctx: RunContext) -> Arrays:
    return (TensorVector(),)


def _vector(op: Operator, value: Any) -> TensorVector:
    return shared_object(op, value, TensorVector, "CreateTensorVector")


@register
@operator_class(frozen=True)
class TensorVectorSize(OnHost):
    """The output, int32, is how many tensors there are.

    Inputs:
        vector: object
    Outputs:
        size (): int32
    """

    inputs = ("vector",)
    outputs = ("size",)


@kernel(TensorVectorSize)
def tensor_vector_size(op: TensorVectorSize, ctx: RunContext, vector: Any) -> Arrays:
    return (np.array(len(_vector(op, vector)), np.int32),)


@register
@operator_class(frozen=True)
class ConcatTensorVector(OnHost):
    """The output is the tensors one after another along the first axis.

    Inputs:
        vector: object
    Outputs:
        Y (N, ...): any
    """

    inputs = ("vector",)
    outputs = ("Y",)


@kernel(ConcatTensorVector)
def concat_tensor_vector(op: ConcatTensorVector, ctx: RunContext, vector: Any) -> Arrays:
    tensors = _vector(op, vector)
    if not tensors:
        raise NetError("ConcatTensorVector: there is no tensor to put after another one")
    return (np.concatenate(tensors),)


@register
@operator_class(frozen=True)
class CollectTensor(OnHost):
    """Keep ``num_to_collect`` of all the tensors that the operator has seen so far, each with the same chance.

    The inputs are rows of tensors, then as many tensors, which go all to the same position of their rows. The rows are
    the outputs, in place. The last output may be one more, int32: the position, -1 if they are not kept.

    Inputs:
        vector: object
        tensor+ (...): any, rows of tensors as objects, then as many tensors
    Outputs:
        vector+ (...): any, the rows, then the position that was chosen, (1), int32
    """

    inputs = ("vector", "tensor+")
    outputs = ("vector+",)
    inplace = tuple((i, i) for i in range(1, _MOST))
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
    place = seen - 1
    if seen > op.num_to_collect:
        place = int(ctx.host(ctx.uniform((1,)))[0] * seen)
        place = place if place < op.num_to_collect else -1
    for vector, tensor in zip(vectors, inputs[count:]):
        if place == len(vector):
            vector.append(tensor.copy())
        elif place >= 0:
            vector[place] = tensor.copy()
    more = (np.array(place, np.int32),) if op.n_out > count else ()
    return (*vectors, *more)
