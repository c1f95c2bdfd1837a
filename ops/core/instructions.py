"""Instructions: the decoded operators of a net; and errors that name an operator's position."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from operator import length_hint
from types import BuiltinMethodType
from typing import Any

from netbuilder.ops.core.given_numbers import check_extents
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.ops.core.registry import find, plain_kernel, prepared_kernels
from netbuilder.ops.core.shared_operators import shared_operator
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, DeviceError, DeviceOption, NetError, OperatorDef, OperatorError
from netbuilder.proto.arguments import made_at
from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "Instruction",
    "PartFailed",
    "Role",
    "check_kernel",
    "describe",
    "describe_operator",
    "device_of",
    "infer_outputs",
    "located",
    "read_instruction",
    "run_in_order",
]


class Role(enum.Enum):
    """The purpose of an operator; role and device determine the lane that runs it."""

    COMPUTE = "compute"
    EXCHANGE = "exchange"  #: of values between devices


@dataclass(slots=True, eq=False)
class Instruction:
    """One operator of a net: its message, its decoded arguments, its device and its role."""

    index: int
    op_def: OperatorDef
    op: Operator
    device: tuple[int, int]  # (device type, id); on the CPU the id is the number of a replica
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    control: tuple[str, ...]
    role: Role = Role.COMPUTE

    @property
    def location(self) -> tuple[int, int]:
        """The location of its buffers, see ``netbuilder.engines.engine.Location``."""
        return (PROTO_CPU, 0) if self.device[0] == PROTO_CPU else self.device


class PartFailed(Exception):
    """One of several operators fused into a call failed; the cause is its error."""

    def __init__(self, part: Instruction) -> None:
        super().__init__(f"operator {part.index}, {part.op_def.type}, failed")
        self.part = part


def read_instruction(index: int, op_def: OperatorDef, device: tuple[int, int] = (PROTO_CPU, 0)) -> Instruction:
    """Decode an operator.

    Args:
        index: its position in the net.
        op_def: the operator.
        device: the device it runs on.

    Raises:
        NetError: the operator or one of its arguments is unknown or wrong.
    """
    op = shared_operator(find(op_def.type), op_def)
    return Instruction(
        index, op_def, op, device, tuple(op_def.input), tuple(op_def.output), tuple(op_def.control_input)
    )


def infer_outputs(instruction: Instruction, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...] | None:
    """Return the specs of an operator's outputs; None if they are not known before it runs.

    Raises:
        ShapeError, NetError: the specs are not valid for the operator, an output is too large for memory, or an output
            has no spec.
    """
    if not instruction.op.static_for(*inputs):
        return None
    try:
        outs = tuple(instruction.op.infer(*inputs))
    except NotImplementedError:
        return None
    if instruction.device[0] == PROTO_CPU:
        for name, spec in zip(instruction.outputs, outs):
            check_extents(f"output {name!r}", spec.shape, spec.dtype)
    if len(outs) < len(instruction.outputs):
        raise NetError(f"infer gives shapes for {len(outs)} of its {counted(len(instruction.outputs), 'output')}")
    return outs


_KINDS: dict[int, str] = {PROTO_CPU: "CPU", PROTO_CUDA: "GPU"}


def describe(net_name: str, instruction: Instruction) -> str:
    """Return an operator's position for messages: net, index, type, blobs, device, and the user's line of code."""
    return describe_operator(net_name, instruction.index, instruction.op_def)


def describe_operator(net_name: str, index: int, op: OperatorDef) -> str:
    """Return the same as ``describe``, for an operator that is not decoded."""
    text = f"net {net_name!r}, operator {index}: {op.type} {list(op.input)} -> {list(op.output)}"
    if op.HasField("device_option"):
        option = op.device_option
        text += f" on {_KINDS.get(option.device_type, f'device type {option.device_type},')} {option.device_id}"
    if op.name:
        text += f", named {op.name!r}"
    return text + made_at(op)


def located(where: str, error: BaseException, *, in_subgraph: bool = False) -> BaseException:
    """Return ``error`` with a position before its message; an error of another type becomes an OperatorError as well.

    Args:
        where: the position, see ``describe``.
        error: the error; if it has a position already, it is returned unchanged.
        in_subgraph: the position is in a subgraph; the position of the operator with the subgraph will be added.
    """
    if getattr(error, "_located", False) or not isinstance(error, Exception):
        return error
    if isinstance(error, (NetError, DeviceError, OperatorError, NotImplementedError)):
        made: Exception = type(error)(f"{where}: {error}")
    else:
        made = _operator_error(type(error), f"{where}: {type(error).__name__}: {error}")
    made._located = not in_subgraph  # type: ignore[attr-defined]
    made.__cause__ = error
    return made


def _operator_error(kind: type[Exception], text: str) -> OperatorError:
    """Return an OperatorError that ``except kind`` catches too: users expect the errors that their functions raise."""
    try:
        members = {"__module__": OperatorError.__module__, "__str__": OperatorError.__str__}
        cls: Any = type("OperatorError", (OperatorError, kind), members)
        made: OperatorError = _maker(kind)(cls, text)
        made.args = (text,)
    except TypeError:  # a class that cannot be a second base, or whose constructor has other arguments
        return OperatorError(text)
    return made


def _maker(kind: type[Exception]) -> Callable[..., Any]:
    """Return the constructor of an exception's class.

    Of several built-in bases, as StoreTimeoutError has, only that with the largest objects can make one: OSError.
    """
    by_c = isinstance(kind.__new__, BuiltinMethodType)
    return OSError.__new__ if by_c and issubclass(kind, OSError) else kind.__new__


def run_in_order(calls: Sequence[Callable[[], object]], failed: Callable[[int, Exception], BaseException]) -> None:
    """Run all calls.

    Args:
        calls: the calls.
        failed: is given the index of a call that failed and its error; returns the error to raise.
    """
    due = iter(calls)
    try:
        for call in due:
            call()
    except Exception as error:
        instead = failed(len(calls) - length_hint(due) - 1, error)
        if instead is error:
            raise
        raise instead from error


def device_of(op_def: OperatorDef, default: DeviceOption | None = None) -> tuple[int, int]:
    """Return type and id of the device that an operator runs on.

    Args:
        op_def: the operator.
        default: the device of its net; None: CPU 0.

    Raises:
        DeviceError: the type is not supported.
    """
    option = op_def.device_option if op_def.HasField("device_option") else default
    if option is None:
        return (PROTO_CPU, 0)
    if option.device_type not in (PROTO_CPU, PROTO_CUDA):
        # Caffe2's device types MKLDNN and IDEEP are the CPU with a certain library; here the plan chooses the library.
        if option.device_type in (2, 5):
            return (PROTO_CPU, option.device_id)
        raise DeviceError(f"device type {option.device_type} is not supported; use CPU (0) or CUDA (1)")
    return (option.device_type, option.device_id)


def check_kernel(op_type: str, device_type: int) -> None:
    """Raise DeviceError unless an operator has a kernel for a type of device."""
    if plain_kernel(op_type, device_type) is None and not prepared_kernels(op_type, device_type):
        kind, other = ("CPU", "GPU") if device_type == PROTO_CPU else ("GPU", "CPU")
        device = PROTO_CUDA if device_type == PROTO_CPU else PROTO_CPU
        if plain_kernel(op_type, device) is None and not prepared_kernels(op_type, device):
            raise DeviceError(
                f"operator {op_type!r} is declared without a kernel; write one, under @kernel({op_type}), in the "
                "module that declares it"
            )
        raise DeviceError(
            f"operator {op_type!r} has no kernel for the {kind}; place it on the {other} by a DeviceScope, and the "
            "plan copies its inputs and outputs"
        )
