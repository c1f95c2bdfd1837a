"""Tensors in a row: what collects them, counts them and joins them."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from netbuilder.ops.contexts import RunContext
from netbuilder.ops.counters import shared_object
from netbuilder.ops.datasets import _MOST, Arrays, OnHost
from netbuilder.ops.declaration import dataclass
from netbuilder.ops.operator import Operator
from netbuilder.ops.registry import kernel, register
from netbuilder.proto import ArgumentError, NetError

__all__ = ["CollectTensor", "ConcatTensorVector", "CreateTensorVector", "TensorVectorSize"]

_seen: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # tensors that an operator has seen


class TensorVector(list[Any]):
    """Tensors in a row."""


@register
@dataclass(frozen=True)
class CreateTensorVector(OnHost):
    """Make an empty row of tensors."""

    outputs = ("vector",)


@kernel(CreateTensorVector)
def create_tensor_vector(op: CreateTensorVector, ctx: RunContext) -> Arrays:
    return (TensorVector(),)


def _vector(op: Operator, value: Any) -> TensorVector:
    return shared_object(op, value, TensorVector, "CreateTensorVector")


@register
@dataclass(frozen=True)
class TensorVectorSize(OnHost):
    """The output, int32, is how many tensors there are."""

    inputs = ("vector",)
    outputs = ("size",)


@kernel(TensorVectorSize)
def tensor_vector_size(op: TensorVectorSize, ctx: RunContext, vector: Any) -> Arrays:
    return (np.array(len(_vector(op, vector)), np.int32),)


@register
@dataclass(frozen=True)
class ConcatTensorVector(OnHost):
    """The output is the tensors one behind the other along the first axis."""

    inputs = ("vector",)
    outputs = ("Y",)


@kernel(ConcatTensorVector)
def concat_tensor_vector(op: ConcatTensorVector, ctx: RunContext, vector: Any) -> Arrays:
    tensors = _vector(op, vector)
    if not tensors:
        raise NetError("ConcatTensorVector: there is no tensor to put behind another one")
    return (np.concatenate(tensors),)


@register
@dataclass(frozen=True)
class CollectTensor(OnHost):
    """Keep ``num_to_collect`` of all the tensors that the operator has seen so far, each with the same chance.

    The inputs are rows of tensors, then as many tensors, which go all to the same place of their rows. The rows are
    the outputs, in place. The last output may be one more, int32: the place, -1 if they are not kept.
    """

    inputs = ("vector", "tensor+")
    outputs = ("vector+",)
    inplace = tuple((i, i) for i in range(1, _MOST))
    must_inplace = ((0, 0),)
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
