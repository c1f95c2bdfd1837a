"""Make and read operators and their arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
from google.protobuf.message import Message

from netbuilder.proto.errors import ArgumentError
from netbuilder.proto.netbuilder_pb2 import (
    Argument,
    DeviceOption,
    NetDef,
    OperatorDef,
    QTensorProto,
    TensorProto,
)

__all__ = ["argument_value", "arguments", "made_at", "make_argument", "make_device_option", "make_op", "set_argument"]

_REAL = (float, np.floating)
_WHOLE = (bool, int, np.bool_, np.integer)
_TEXT = (str, bytes)


def make_argument(name: str, value: Any) -> Argument:
    """Return the argument ``name`` that holds ``value``.

    Args:
        name: the argument's name.
        value: a float, an integer or bool, a string or bytes, a NetDef or TensorProto (any other
            message is stored as its bytes), a net, a blob reference (stored as its name), or a list, tuple
            or array of one of these kinds. An empty list makes an argument without a value.

    Raises:
        ArgumentError: ``value`` is of no kind that an argument can hold, or an integer beyond 64 bits.

    >>> argument_value(make_argument("pads", (1, 2)))
    [1, 2]
    """
    argument = Argument(name=name)
    _fill(argument, value)
    return argument


def _fill(argument: Argument, value: Any) -> None:
    try:
        _store(argument, value)
    except ValueError as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"argument {argument.name!r}: {error}; integers are signed, of 64 bits") from None


def _store(argument: Argument, value: Any) -> None:
    # The order follows how often each kind occurs: this runs for every argument of every operator.
    if isinstance(value, _WHOLE):
        argument.i = int(value)
    elif isinstance(value, _REAL):
        argument.f = float(value)
    elif isinstance(value, str):
        argument.s = value.encode()
    elif isinstance(value, bytes):
        argument.s = value
    elif isinstance(value, NetDef):
        argument.n.CopyFrom(value)
    elif isinstance(value, TensorProto):
        argument.t.CopyFrom(value)
    elif isinstance(value, Message):
        argument.s = value.SerializeToString()
    elif isinstance(value, np.ndarray) and value.ndim == 0:
        _store(argument, value[()])
    elif isinstance(value, np.ndarray):
        _fill_array(argument, value)
    elif isinstance(value, Iterable) and not isinstance(value, Mapping | Set):
        _fill_list(argument, list(value), value)
    elif hasattr(value, "GetUnscopedName"):  # a blob reference
        argument.s = str(value).encode()
    elif hasattr(value, "Proto"):
        argument.n.CopyFrom(value.Proto())
    else:
        raise ArgumentError(
            f"argument {argument.name!r}: cannot hold {value!r} of type {type(value).__name__}; "
            "give a number, a string, a net, a tensor message, or a list of one of these"
        )


def _fill_array(argument: Argument, array: np.ndarray) -> None:
    values = array.ravel().tolist()
    if array.dtype.kind in "iu":  # parameters come this way, millions of values at once
        argument.ints.extend(values)
    elif array.dtype.kind == "f":
        argument.floats.extend(values)
    else:
        _fill_list(argument, values, array)


def _fill_list(argument: Argument, values: list[Any], given: Any) -> None:
    if all(isinstance(v, _WHOLE) for v in values):
        argument.ints.extend(int(v) for v in values)
    elif all(isinstance(v, _WHOLE + _REAL) for v in values):
        argument.floats.extend(float(v) for v in values)
    elif all(isinstance(v, _TEXT) for v in values):
        argument.strings.extend(v.encode() if isinstance(v, str) else v for v in values)
    elif all(isinstance(v, NetDef) for v in values):
        argument.nets.extend(values)
    elif all(isinstance(v, TensorProto) for v in values):
        argument.tensors.extend(values)
    elif all(isinstance(v, QTensorProto) for v in values):
        argument.qtensors.extend(values)
    elif all(hasattr(v, "Proto") for v in values):
        argument.nets.extend(v.Proto() for v in values)
    else:
        # Blob references and other objects that stand for their name.
        try:
            argument.strings.extend(str(v).encode() for v in values if _named(v))
        except TypeError:
            raise ArgumentError(
                f"argument {argument.name!r}: the elements of {given!r} are of different or unknown kinds; "
                "a list holds numbers, strings, nets or tensor messages, one kind at a time"
            ) from None


def _named(value: Any) -> bool:
    if isinstance(value, _TEXT) or type(value).__str__ is not object.__str__ and hasattr(value, "GetUnscopedName"):
        return True
    raise TypeError


def argument_value(argument: Argument) -> Any:
    """Return what ``argument`` holds: float, int, bytes, a message, a list of one of these, or None."""
    for field in ("i", "f", "s", "n", "t"):
        if argument.HasField(field):
            return getattr(argument, field)
    for field in ("ints", "floats", "strings", "nets", "tensors", "qtensors"):
        values = getattr(argument, field)
        if values:
            return list(values)
    return None


def arguments(op: OperatorDef | NetDef) -> dict[str, Any]:
    """Return the arguments of an operator or net by name; of two with one name, the first counts."""
    found: dict[str, Any] = {}
    for argument in op.arg:
        found.setdefault(argument.name, argument_value(argument))
    return found


def set_argument(holder: OperatorDef | NetDef, name: str, value: Any) -> None:
    """Give ``holder`` the argument ``name``, in the place of one that it has."""
    for argument in holder.arg:
        if argument.name == name:
            argument.CopyFrom(make_argument(name, value))
            return
    holder.arg.append(make_argument(name, value))


def made_at(op: OperatorDef, end: str = "") -> str:
    """Return where the user's code made an operator, for messages, after a comma; "" if that is not known.

    >>> made_at(OperatorDef(debug_info="train.py:7"), ","), made_at(OperatorDef())
    (', made at train.py:7,', '')
    """
    return f", made at {op.debug_info}{end}" if op.debug_info else ""


def make_device_option(device_type: int = 0, device_id: int = 0, **fields: Any) -> DeviceOption:
    """Return a device option; ``fields`` are the message's further ones (``random_seed``, ``node_name``, ...)."""
    return DeviceOption(device_type=device_type, device_id=device_id, **fields)


def make_op(
    op_type: str,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    *,
    name: str = "",
    engine: str = "",
    device_option: DeviceOption | None = None,
    control_input: Sequence[Any] = (),
    **args: Any,
) -> OperatorDef:
    """Return an operator; every further keyword is one of its arguments (None: left out).

    >>> make_op("Softmax", ["x"], ["y"], axis=2).arg[0].i
    2
    """
    op = OperatorDef(type=op_type, input=[str(b) for b in inputs], output=[str(b) for b in outputs])
    if name:
        op.name = name
    if engine:
        op.engine = engine
    if device_option is not None:
        op.device_option.CopyFrom(device_option)
    if control_input:
        op.control_input.extend(str(b) for b in control_input)
    for key, value in args.items():
        if value is not None:
            argument = op.arg.add()
            argument.name = key
            _fill(argument, value)
    return op
