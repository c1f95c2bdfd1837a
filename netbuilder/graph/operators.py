"""Creation of operators: scoped names, the device of the scope, the line of the user's program, checked arguments."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.graph.blob import BlobReference, as_names
from netbuilder.graph.scope import CurrentDeviceScope
from netbuilder.graph.source import user_source
from netbuilder.ops.core.operator import Operator, argument_fields, decode
from netbuilder.ops.core.random_streams import RANDOM_ARGUMENTS, RANDOM_STREAM, draws, stream_of
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.proto import Argument, ArgumentError, DeviceOption, OperatorDef, TensorProto
from netbuilder.proto.arguments import make_op, set_argument
from netbuilder.proto.numbers import check_flags
from netbuilder.proto.suggestions import did_you_mean

__all__ = [
    "LEGACY_ARGUMENTS",
    "CreateOperator",
    "IsOperator",
    "arguments_by_position",
    "build_operator",
    "constant_operator",
    "known_arguments",
    "make_operator",
    "unknown_arguments",
]

LEGACY_ARGUMENTS = frozenset(
    {
        "algo",
        "bwd_data_algo",
        "bwd_filter_algo",
        "cudnn_exhaustive_search",
        "cudnn_ws_nbytes_limit",
        "enable_tensor_core",
        "exhaustive_search",
        "float16_compute",
        "force_algo",
        "force_algo_dgrad",
        "force_algo_fwd",
        "force_algo_wgrad",
        "fwd_algo",
        "is_test",
        "order",
        "shared_buffer",
        "use_cudnn",
        "use_grad_hack",
        "ws_nbytes_limit",
    }
)
"""Arguments that Caffe2's helpers pass to any operator; operators that do not use them store and ignore them."""

_FLAGS = frozenset({"is_test", "use_cudnn", "exhaustive_search", "cudnn_exhaustive_search", "enable_tensor_core"})
_ANY_NUMBER = frozenset({"value", "values"})  # NaN and infinities included
_POSITIVE = frozenset(f"{name}{axis}" for name in ("kernel", "stride", "dilation") for axis in ("", "_h", "_w", "s"))

_LAYERS = {
    "Conv": "conv",
    "ConvTranspose": "conv_transpose",
    "FC": "fc",
    "PRelu": "prelu",
    "SpatialBN": "spatial_bn",
}
"""Operators with parameters among their inputs -> the brew helpers that create these."""

# (class, numbers of blobs, in-place pairs, arguments) -> a valid operator with these arguments, and no blobs. Nets have
# many operators that differ only in their blobs, and storing and checking arguments takes several times as long as this
# lookup.
_templates: dict[tuple[Any, ...], OperatorDef] = {}
_TEMPLATES_LIMIT = 20_000
_LONGEST_LIST = 16
_MOST_PAIRS = 100
_LONGEST_TEXT = 1000


def IsOperator(op_type: str) -> bool:
    """Whether an operator of this type is known."""
    return is_registered(op_type)


def CreateOperator(
    operator_type: str,
    inputs: Any,
    outputs: Any,
    name: str = "",
    control_input: Any = None,
    device_option: DeviceOption | None = None,
    arg: Iterable[Argument] | None = None,
    engine: str | None = None,
    debug_info: str | None = None,
    **kwargs: Any,
) -> OperatorDef:
    """Return an operator. Strings get the current name scope; references already have theirs.

    Args:
        operator_type: its registered type.
        inputs, outputs: a blob (reference or string) or a list of blobs.
        name: the operator's own name, shown in traces.
        control_input: blobs that must be written before it runs.
        device_option: where it runs; None: the current device scope.
        arg: further arguments as messages.
        engine: the library that its kernel should come from.
        debug_info: where it was made; None: the line of the user's program.
        kwargs: its arguments; those that are None are omitted.

    Raises:
        NetError: the operator is unknown, its number of inputs or outputs is wrong, or it overwrites an input that
            it must not.
        ArgumentError: an argument is unknown, of the wrong type, or out of range.
        TypeError: a blob is neither a reference nor a string, or ``device_option`` is not a DeviceOption.

    >>> CreateOperator("Softmax", "x", "y", axis=2).input[0]
    'x'
    """
    return build_operator(
        operator_type,
        as_names(inputs),
        as_names(outputs),
        user_source(2) if debug_info is None else debug_info,
        OperatorDef(),
        name=name,
        control_input=control_input,
        device_option=device_option,
        arg=arg,
        engine=engine,
        **kwargs,
    )


def build_operator(
    op_type: str,
    inputs: list[str],
    outputs: list[str],
    debug_info: str,
    op: OperatorDef,
    /,
    *,
    name: str = "",
    control_input: Any = None,
    device_option: DeviceOption | None = None,
    arg: Iterable[Argument] | None = None,
    engine: str | None = None,
    **kwargs: Any,
) -> OperatorDef:
    """Return the operator that ``CreateOperator`` describes, after all checks; the names have their scopes already.

    It is built in ``op``, an empty message, which may be one of a net's: copies are a tenth of the time that nets take.
    """
    cls = find(op_type)
    key = _key(cls, inputs, outputs, kwargs) if arg is None else None
    template = _templates.get(key) if key is not None else None
    if template is not None:
        op.CopyFrom(template)
        op.input.extend(inputs)
        op.output.extend(outputs)
        _set_fields(op, debug_info, name, control_input, device_option, arg, engine, cls.draws)
        return op
    op.CopyFrom(_with_arguments(op_type, inputs, outputs, kwargs))
    template = OperatorDef(type=op_type, arg=op.arg)
    _set_fields(op, debug_info, name, control_input, device_option, arg, engine, cls.draws)
    _check_argument_names(cls, op)
    _check_values(cls, op_type, kwargs)
    decode(cls, op)
    if key is not None:
        if len(_templates) >= _TEMPLATES_LIMIT:
            _templates.clear()
        _templates[key] = template
    return op


def make_operator(
    op_type: str,
    inputs: list[str],
    outputs: list[str],
    debug_info: str,
    op: OperatorDef,
    /,
    *,
    name: str = "",
    control_input: Any = None,
    device_option: DeviceOption | None = None,
    arg: Iterable[Argument] | None = None,
    engine: str | None = None,
    **kwargs: Any,
) -> OperatorDef:
    """Return the operator that ``CreateOperator`` describes, as ``build_operator`` does, but unchecked."""
    op.CopyFrom(_with_arguments(op_type, inputs, outputs, kwargs))
    _set_fields(op, debug_info, name, control_input, device_option, arg, engine, draws(op))
    return op


def _with_arguments(op_type: str, inputs: list[str], outputs: list[str], kwargs: dict[str, Any]) -> OperatorDef:
    for value in kwargs.values():
        if type(value) not in _PLAIN_TYPES:
            kwargs = {key: _plain(value) for key, value in kwargs.items()}
            break
    return make_op(op_type, inputs, outputs, **kwargs)


def _set_fields(
    op: OperatorDef,
    debug_info: str,
    name: str,
    control_input: Any,
    device_option: DeviceOption | None,
    arg: Iterable[Argument] | None,
    engine: str | None,
    is_random: bool,
) -> None:
    """Set the fields of an operator that are neither its blobs nor arguments of its class."""
    op.debug_info = debug_info
    if name:
        if not isinstance(name, str):
            raise TypeError(f"{op.type}: name must be a string, got {name!r}")
        op.name = name
    if arg is not None:
        op.arg.extend(arg)
    if device_option is None:
        device_option = CurrentDeviceScope()
    if device_option is not None:
        if not isinstance(device_option, DeviceOption):
            raise TypeError(f"{op.type}: device_option must be a DeviceOption, got {device_option!r}")
        op.device_option.CopyFrom(device_option)
    if engine:
        if not isinstance(engine, str):
            raise TypeError(f"{op.type}: engine must be the name of a library, got {engine!r}")
        op.engine = engine
    if control_input is not None:
        op.control_input.extend(as_names(control_input))
    if is_random:
        set_argument(op, RANDOM_STREAM, stream_of(op))


_CONSTANT_FILLS = {"i4": "GivenTensorIntFill", "i8": "GivenTensorInt64Fill", "b1": "GivenTensorBoolFill"}


def constant_operator(array: Any, dtype: Any = None) -> tuple[str, dict[str, Any]]:
    """Return the type and the arguments of an operator that writes ``array``.

    Args:
        array: numbers, bools or strings; a single Python bool becomes a ConstantFill.
        dtype: NumPy type to convert to first.

    Raises:
        ArgumentError: no fill operator has this element type.

    >>> constant_operator([[1, 2]])
    ('GivenTensorInt64Fill', {'shape': (1, 2), 'values': [1, 2]})
    """
    if isinstance(array, bool) and dtype is None:
        return "ConstantFill", {"dtype": TensorProto.BOOL, "value": array}
    try:
        values = np.array(array) if dtype is None else np.array(array, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"Const: cannot make an array of {array!r}: {error}") from None
    kind = values.dtype.kind
    if kind in "SU" or kind == "O" and all(isinstance(v, (str, bytes)) for v in values.ravel()):
        fill = "GivenTensorStringFill"
    elif kind == "f":
        fill = "GivenTensorFill"
    elif kind in "iu" and values.dtype.itemsize < 4:
        fill = "GivenTensorIntFill"
    else:
        fill = _CONSTANT_FILLS.get(values.dtype.str[1:], "")
    if not fill:
        raise ArgumentError(
            f"Const: no operator writes constants of dtype {values.dtype}; use float32, int32, int64, bool or strings"
        )
    return fill, {"shape": values.shape, "values": values.ravel().tolist()}


def arguments_by_position(op_type: str, values: Sequence[Any]) -> ArgumentError:
    """Return the error for an operator called with more positional arguments than its inputs and outputs."""
    layer = _LAYERS.get(op_type)
    return ArgumentError(
        f"{op_type} takes inputs and outputs by position and its arguments by name, got "
        f"{', '.join(map(repr, values))} by position as well"
        + (f"; for the layer with its parameters use brew.{layer}(model, ...) or CNNModelHelper" if layer else "")
    )


_SCALARS = frozenset({int, float, str, bool, bytes})
_PLAIN_TYPES = _SCALARS | {list, tuple}


def _plain(value: Any) -> Any:
    """Return an argument's value, a net as its message and a reference as its name."""
    if isinstance(value, BlobReference):
        return str(value)
    if isinstance(value, Mapping):
        raise ArgumentError(f"an argument cannot be a mapping, got {value!r}; pass its entries as separate arguments")
    proto = getattr(value, "Proto", None)
    return proto() if callable(proto) else value


def _key(cls: type[Operator], inputs: list[str], outputs: list[str], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """Return a key that is equal only for operators with the same arguments and in-place pairs; None: none."""
    items: list[Any] = [cls, len(inputs), len(outputs)]
    if inputs and not set(inputs).isdisjoint(outputs):
        if len(inputs) * len(outputs) > _MOST_PAIRS:
            return None
        items.append(tuple([a == b for b in outputs for a in inputs]))
    for name, value in kwargs.items():
        kind = type(value)
        if kind is list or kind is tuple:
            if len(value) > _LONGEST_LIST or not _SCALARS.issuperset(map(type, value)):
                return None
            value = repr(value)  # 1, 1.0 and True are equal, and so are 0.0 and -0.0
        elif kind not in _SCALARS:
            if value is not None:
                return None
        elif kind is float:
            value = value or repr(value)
        elif (kind is str or kind is bytes) and len(value) > _LONGEST_TEXT:
            return None
        items += (name, kind, value)
    return tuple(items)


def _check_argument_names(cls: type[Operator], op: OperatorDef) -> None:
    for name in unknown_arguments(cls, op):
        raise ArgumentError(f"{op.type}: unknown argument {name!r}{known_arguments(cls, name)}")


def _check_values(cls: type[Operator], op_type: str, kwargs: Mapping[str, Any]) -> None:
    """Raise ArgumentError for values that a loaded net may have, but nobody who builds one can mean.

    These are NaN, except in fills; infinite bounds of random numbers; windows and strides of 0; fractions where whole
    numbers are expected, and flags that are neither true nor false.
    """
    kinds = _kinds_of(cls)  # type: ignore[arg-type]  # mypy looks at the hash of instances
    for name, value in kwargs.items():
        if value is None:
            continue
        if kinds.get(name) == "bool" or name in _FLAGS:
            check_flags(op_type, **{name: value})
        elif isinstance(value, float) and name not in _ANY_NUMBER:
            if value != value or value in (math.inf, -math.inf) and op_type.endswith("Fill"):
                raise ArgumentError(f"{op_type}: argument {name!r} must be a finite number, got {value}")
            if kinds.get(name) == "int" and not value.is_integer():
                raise ArgumentError(f"{op_type}: argument {name!r} must be a whole number, got {value}")
        elif name in _POSITIVE and not kwargs.get("global_pooling") and not _is_positive(value):
            raise ArgumentError(f"{op_type}: argument {name!r} must be at least 1, got {value!r}")


def _is_positive(value: Any) -> bool:
    return all(not isinstance(one, int) or one >= 1 for one in (value if isinstance(value, (list, tuple)) else [value]))


@functools.cache
def _kinds_of(cls: type[Operator]) -> dict[str, str]:
    return {field.name: str(field.type).removesuffix(" | None") for field in dataclasses.fields(cls)}


def unknown_arguments(cls: type[Operator], op: OperatorDef) -> list[str]:
    """Return the names of an operator's arguments that its class does not have, except for ``LEGACY_ARGUMENTS``."""
    known = argument_fields(cls)
    return [
        argument.name
        for argument in op.arg
        if argument.name not in known
        and argument.name not in LEGACY_ARGUMENTS
        and not (cls.draws and argument.name in RANDOM_ARGUMENTS)
        and not (cls.open_arguments and argument.name.startswith(cls.open_arguments))
    ]


def known_arguments(cls: type[Operator], name: str) -> str:
    """Return the end of a message, from "; " on: arguments of similar names, and all that the operator takes."""
    known = argument_fields(cls)
    near = did_you_mean(name, known)
    return f"{near}{' It' if near else '; it'} takes {sorted(known) or 'none'}"
