"""SendTensor and ReceiveTensor: a tensor from one process of a common world to another."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.data.tensor_records import DATA_TYPES, NUMPY_TYPES
from netbuilder.distributed.transport.communicator import Communicator
from netbuilder.ops.collectives.worlds import OverWorld, world_of
from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.given_numbers import check_extents
from netbuilder.ops.core.operator import STRING, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, ShapeError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ReceiveTensor", "SendTensor"]

_MAX_AXES = 30
_ANY = -1
_MAX_TAG = (1 << 15) - 1  # the least upper bound that MPI may set


@dataclass(frozen=True)
class _BetweenTwo(OverWorld):
    dynamic = True

    def check(self) -> None:
        if self.n_in not in (2, 4):
            raise ArgumentError(
                f"{self.type} takes a common world and a tensor, or these, a rank and a tag; got {self.n_in} inputs"
            )

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        super().infer(*inputs)
        require(inputs[1].dtype != STRING, self, "input 1 must be a tensor of numbers or bools, got strings")
        for name, spec in zip(("rank", "tag"), inputs[2:]):
            require(
                spec.size == 1 and spec.dtype.kind == "i",
                self,
                f"the {name} must hold one integer, got shape {spec.shape} of type {spec.dtype}",
            )
        raise NotImplementedError(f"{self.type}: what comes depends on the sender")


@register
@dataclass(frozen=True)
class SendTensor(_BetweenTwo):
    """Send a tensor to the process with rank ``dst``, which runs ReceiveTensor.

    Inputs in place of the arguments ``dst`` and ``tag`` take precedence. With ``raw_buffer``, only the elements are
    sent: the receiver knows shape and type.
    """

    signature = """
        common_world: object
        X (*S): any, no strings
        dst? (1): int32
        tag? (1): int32
        ->
    """
    dst: int = _ANY
    tag: int = 0
    raw_buffer: bool = False


@register
@dataclass(frozen=True)
class ReceiveTensor(_BetweenTwo):
    """Receive a tensor from the process with rank ``src``; -1: from any. Likewise with its ``tag``.

    Inputs in place of the arguments take precedence. With ``raw_buffer``, Y has the shape and type of what comes.
    """

    signature = """
        common_world: object
        Y (...): any, overwritten
        src? (1): int32
        tag? (1): int32
        -> Y (...): any, as sent
        -> src (1): int32, the rank of the sender
        -> tag (1): int32
    """
    must_inplace = ((1, 0),)
    inplace = ((2, 1), (3, 2))
    src: int = _ANY
    tag: int = _ANY
    raw_buffer: bool = False


def _numbers(ctx: RunContext, given: tuple[Any, ...], rank: int, tag: int) -> tuple[int, int]:
    if given:
        rank, tag = (int(ctx.host(each).item()) for each in given)
    return rank, tag


def _require_in_range(op: Operator, name: str, value: int, end: int, *, may_be_any: bool) -> None:
    if not 0 <= value < end and not (may_be_any and value == _ANY):
        any_too = ", or -1 for any" if may_be_any else ""
        raise ArgumentError(f"{op.type}: {name} must lie in [0, {end}){any_too}, got {value}")


@kernel(SendTensor)
def send_tensor(op: SendTensor, ctx: RunContext, world: Any, x: Any, *given: Any) -> tuple[Any, ...]:
    common = world_of(op, world)
    to, tag = _numbers(ctx, given, op.dst, op.tag)
    _require_in_range(op, "dst", to, common.size, may_be_any=False)
    _require_in_range(op, "tag", tag, _MAX_TAG + 1, may_be_any=False)
    array = np.ascontiguousarray(ctx.host(x))
    if to == common.rank or array.dtype not in DATA_TYPES or array.dtype == STRING or x.ndim > _MAX_AXES:
        raise ShapeError(
            f"SendTensor: sends numbers or bools to another rank than its own, {common.rank}, got a tensor of shape "
            f"{x.shape}, type {array.dtype}, for rank {to}"
        )
    head = np.full(2 + _MAX_AXES, 0, np.int64)
    head[:2] = DATA_TYPES[array.dtype], x.ndim
    head[2 : 2 + x.ndim] = x.shape

    def work(communicator: Communicator) -> None:
        if not op.raw_buffer:
            communicator.send(head, to, tag)
        if array.size:
            communicator.send(array, to, tag)

    call = common.call("SendTensor", ctx.op_def.input[1], f"to rank {to}, tag {tag}", nbytes=array.nbytes)
    common.run_between_two(call, work)
    return ()


@kernel(ReceiveTensor)
def receive_tensor(op: ReceiveTensor, ctx: RunContext, world: Any, y: Any, *given: Any) -> tuple[Any, ...]:
    common = world_of(op, world)
    source, tag = _numbers(ctx, given, op.src, op.tag)
    _require_in_range(op, "src", source, common.size, may_be_any=True)
    _require_in_range(op, "tag", tag, _MAX_TAG + 1, may_be_any=True)

    def work(communicator: Communicator) -> tuple[Any, int, int]:
        known = tuple(None if each == _ANY else each for each in (source, tag))
        if op.raw_buffer:
            array = np.empty(y.shape, y.dtype)
            return (array, *communicator.receive(array, *known))
        head = np.empty(2 + _MAX_AXES, np.int64)
        sender, label = communicator.receive(head, *known)
        shape, dtype = head[2 : 2 + int(head[1])].tolist(), NUMPY_TYPES[int(head[0])]
        check_extents(f"ReceiveTensor: what rank {sender} sends", shape, dtype)
        array = np.empty(shape, dtype)
        if array.size:
            communicator.receive(array, sender, label)
        return array, sender, label

    call = common.call("ReceiveTensor", ctx.op_def.output[0], f"from rank {source}, tag {tag}")
    array, sender, label = common.run_between_two(call, work)
    return array, np.array([sender], np.int32), np.array([label], np.int32)
