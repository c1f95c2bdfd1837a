"""A net made ready to be planned: its operators decoded and checked, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import netbuilder.ops.all  # noqa: F401  (fills the registry)
from netbuilder.ops.engines.layouts import HOST, Location
from netbuilder.ops.fused import as_fused
from netbuilder.ops.operator import Operator, decode
from netbuilder.ops.registry import find, plain_kernel, prepared_kernels
from netbuilder.proto import (
    PROTO_CPU,
    PROTO_CUDA,
    DeviceError,
    DeviceOption,
    NetDef,
    NetError,
    OperatorDef,
    OperatorError,
)

__all__ = ["Instruction", "PartFailed", "located", "read_program"]


@dataclass(slots=True, eq=False)
class Instruction:
    """One operator of a net: its message, its arguments decoded, the device it runs on."""

    index: int
    op_def: OperatorDef
    op: Operator
    device: tuple[int, int]  # (device type, id): on the CPU the id is that of a replica
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    control: tuple[str, ...]

    @property
    def location(self) -> Location:
        return HOST if self.device[0] == PROTO_CPU else self.device


class PartFailed(Exception):
    """One of the operators that a call was joined from failed; the cause says how."""

    def __init__(self, part: Instruction) -> None:
        super().__init__(f"operator {part.index}, {part.op_def.type}, failed")
        self.part = part


_KINDS: dict[int, str] = {PROTO_CPU: "CPU", PROTO_CUDA: "GPU"}


def describe(net_name: str, instruction: Instruction) -> str:
    """Return where an operator stands: net, position, type, blobs, device, and the user's line that made it."""
    return _describe(net_name, instruction.index, instruction.op_def)


def _describe(net_name: str, index: int, op: OperatorDef) -> str:
    text = f"net {net_name!r}, operator {index}: {op.type} {list(op.input)} -> {list(op.output)}"
    if op.HasField("device_option"):
        option = op.device_option
        text += f" on {_KINDS.get(option.device_type, f'device type {option.device_type},')} {option.device_id}"
    if op.name:
        text += f", named {op.name!r}"
    if op.debug_info:
        text += f", made at {op.debug_info}"
    return text


def located(where: str, error: BaseException) -> BaseException:
    """Return ``error`` with the place in front of its message; errors of other kinds become OperatorErrors, too."""
    if getattr(error, "_located", False) or not isinstance(error, Exception):
        return error
    if isinstance(error, (NetError, DeviceError, OperatorError, NotImplementedError)):
        made: Exception = type(error)(f"{where}: {error}")
    else:
        made = _operator_error(type(error), f"{where}: {type(error).__name__}: {error}")
    made._located = True  # type: ignore[attr-defined]
    made.__cause__ = error
    return made


def _operator_error(kind: type[Exception], text: str) -> OperatorError:
    """Return an OperatorError that is caught as ``kind``, too: what a Python operator raises, its user expects."""
    try:
        members = {"__module__": OperatorError.__module__, "__str__": OperatorError.__str__}
        cls: Any = type("OperatorError", (OperatorError, kind), members)
        made: OperatorError = kind.__new__(cls, text)
        made.args = (text,)
    except TypeError:  # a class that cannot be a second base, or that asks for arguments of its own
        return OperatorError(text)
    return made


def read_program(net: NetDef, is_known: Callable[[str], bool] | None = None) -> list[Instruction]:
    """Decode and check the operators of a net.

    Args:
        net: the net; its device option is the default of its operators.
        is_known: whether a blob exists already; None: inputs are not checked.

    Raises:
        NetError: an operator or argument is unknown or wrong, or reads a blob that nothing has made.
        DeviceError: no kernel serves an operator on its device.
    """
    default = net.device_option if net.HasField("device_option") else None
    made: set[str] = set(net.external_input)
    program: list[Instruction] = []
    for index, op_def in enumerate(net.op):
        try:
            op_def = as_fused(op_def)
            cls = find(op_def.type)
            op = decode(cls, op_def)
            device = _device(op_def, default)
            _check_kernel(op_def.type, device[0])
            if is_known is not None:
                for blob in op_def.input:
                    if blob not in made and not is_known(blob):
                        raise NetError(
                            f"input blob {blob!r} is made by no earlier operator, is no external input of the net and "
                            "is not in the workspace; feed it, or add it with AddExternalInput"
                        )
        except (NetError, DeviceError) as error:
            raise located(_describe(net.name, index, op_def), error) from error
        made.update(op_def.output)
        program.append(
            Instruction(
                index, op_def, op, device, tuple(op_def.input), tuple(op_def.output), tuple(op_def.control_input)
            )
        )
    return program


def _device(op_def: OperatorDef, default: DeviceOption | None) -> tuple[int, int]:
    option: Any = op_def.device_option if op_def.HasField("device_option") else default
    if option is None:
        return (PROTO_CPU, 0)
    if option.device_type not in (PROTO_CPU, PROTO_CUDA):
        # Caffe2's CPU variants (MKLDNN, IDEEP) name a library for the host's own memory: ours is chosen by the plan.
        if option.device_type in (2, 5):
            return (PROTO_CPU, option.device_id)
        raise DeviceError(f"device type {option.device_type} is not supported; use CPU (0) or CUDA (1)")
    return (option.device_type, option.device_id)


def _check_kernel(op_type: str, device_type: int) -> None:
    if plain_kernel(op_type, device_type) is None and not prepared_kernels(op_type, device_type):
        kind = "CPU" if device_type == PROTO_CPU else "GPU"
        raise DeviceError(
            f"operator {op_type!r} has no kernel for the {kind}; give it a device option of the other kind "
            "(DeviceScope), the plan copies its inputs and outputs"
        )
