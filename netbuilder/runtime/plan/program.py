"""Decoding and checking the operators of a net."""

from __future__ import annotations

from collections.abc import Callable

from netbuilder.ops.core.instructions import (
    Instruction,
    check_kernel,
    describe_operator,
    device_of,
    located,
    read_instruction,
)
from netbuilder.ops.windows.fused import as_fused
from netbuilder.proto import DeviceError, NetDef, NetError
from netbuilder.runtime.plan.roles import assign_roles

__all__ = ["read_program"]


def read_program(net: NetDef, is_known: Callable[[str], bool] | None = None) -> list[Instruction]:
    """Decode and check the operators of a net.

    Args:
        net: the net; its device option is the default of its operators.
        is_known: whether the workspace has a blob; None: inputs are not checked.

    Raises:
        NetError: an operator or argument is unknown or wrong, or an input is made by no operator and does not exist.
        DeviceError: an operator has no kernel for its device.
    """
    default = net.device_option if net.HasField("device_option") else None
    made: set[str] = set(net.external_input)
    program: list[Instruction] = []
    for index, op_def in enumerate(net.op):
        try:
            op_def = as_fused(op_def)
            instruction = read_instruction(index, op_def, device_of(op_def, default))
            check_kernel(op_def.type, instruction.device[0])
            if is_known is not None:
                for blob in op_def.input:
                    if blob not in made and not is_known(blob):
                        raise NetError(
                            f"input blob {blob!r} is made by no earlier operator, is not an external input of the net "
                            "and is not in the workspace; feed it, or add it with AddExternalInput"
                        )
        except (NetError, DeviceError) as error:
            raise located(describe_operator(net.name, index, op_def), error) from error
        made.update(op_def.output)
        program.append(instruction)
    assign_roles(program)
    return program
