"""Conversions of arguments, tensors and messages; small helpers of scripts."""

from __future__ import annotations

import functools
import logging
import pdb
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message

from netbuilder.caffe2.caffe_nets import blob_array
from netbuilder.caffe2.gpus import GetGPUMemoryUsageStats
from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.python import workspace
from netbuilder.data import proto_to_tensor, tensor_to_proto
from netbuilder.graph import BlobReference, Net
from netbuilder.optimizers.optimizer import ITERATION, ITERATION_MUTEX, iteration_counter
from netbuilder.proto import Argument, NetError, OperatorDef, TensorProto, files, opened_files
from netbuilder.proto.arguments import argument_value, make_argument

__all__ = [
    "ArgsToDict",
    "BuildUniqueMutexIter",
    "CaffeBlobToNumpyArray",
    "Caffe2TensorToNumpyArray",
    "ConvertProtoToBinary",
    "DebugMode",
    "EnumClassKeyVals",
    "GetContentFromProto",
    "GetContentFromProtoString",
    "GetGPUMemoryUsageStats",
    "MakeArgument",
    "NCHW2NHWC",
    "NHWC2NCHW",
    "NumpyArrayToCaffe2Tensor",
    "OpAlmostEqual",
    "ResetBlobs",
    "TryReadProtoWithClass",
    "debug",
    "raiseIfNotEqual",
]

OPTIMIZER_ITERATION_NAME = ITERATION
ITERATION_MUTEX_NAME = ITERATION_MUTEX

_log = logging.getLogger("netbuilder")

__getattr__ = names_of(__name__)


# Arguments and tensors.


def MakeArgument(key: str, value: Any) -> Argument:
    """Return the argument ``key`` that holds ``value``.

    Raises:
        ArgumentError: an argument cannot hold it.

    >>> MakeArgument("pads", [1, 2]).ints
    [1, 2]
    """
    return make_argument(key, value)


def ArgsToDict(args: Iterable[Argument]) -> dict[str, Any]:
    """Return the values of arguments by name; strings as bytes, None for an argument without a value.

    >>> ArgsToDict([MakeArgument("order", "NCHW")])
    {'order': b'NCHW'}
    """
    return {argument.name: argument_value(argument) for argument in args}


def CaffeBlobToNumpyArray(blob: Any) -> np.ndarray[Any, Any]:
    """Return the values of Caffe's BlobProto, float32.

    Raises:
        NetError: the number of values is not that of the shape.
    """
    return blob_array(blob)


def NumpyArrayToCaffe2Tensor(arr: Any, name: str | None = None) -> TensorProto:
    """Return an array as a message.

    Raises:
        NetError: TensorProto has no such data type.
    """
    return tensor_to_proto(arr, name or "")


def Caffe2TensorToNumpyArray(tensor: TensorProto) -> np.ndarray[Any, Any]:
    """Return the array of a TensorProto.

    Raises:
        ParseError: the message is incomplete or inconsistent.
    """
    return proto_to_tensor(tensor)


def NCHW2NHWC(tensor: Any) -> Any:
    """Return a view of an array with its channels, axis 1, as the last axis.

    >>> NCHW2NHWC(np.zeros((1, 2, 3, 4))).shape
    (1, 3, 4, 2)
    """
    return np.moveaxis(tensor, 1, -1)


def NHWC2NCHW(tensor: Any) -> Any:
    """Return a view of an array with its channels, the last axis, as axis 1.

    >>> NHWC2NCHW(np.zeros((1, 3, 4, 2))).shape
    (1, 2, 3, 4)
    """
    return np.moveaxis(tensor, -1, 1)


# Messages.


def TryReadProtoWithClass(cls: type[Any], s: bytes | str) -> Any:
    """Return the message of class ``cls`` parsed from text format or, if that fails, from binary format.

    Raises:
        ParseError: it is neither.
    """
    data = s if isinstance(s, bytes) else s.encode()
    message = cls()
    try:
        text_format.Parse(data, message)
        return message
    except (text_format.ParseError, UnicodeDecodeError):
        return files.parse(data, cls, allow_unknown=True)


def GetContentFromProto(obj: Message, function_map: Mapping[type[Any], Callable[[Any], Any]]) -> Any:
    """Call the function for a message's class and return its result; None if there is no such function."""
    for cls, function in function_map.items():
        if type(obj) is cls:
            return function(obj)
    return None


def GetContentFromProtoString(s: bytes | str, function_map: Mapping[type[Any], Callable[[Any], Any]]) -> Any:
    """Parse a message as the first class that can read it, and return the result of that class's function.

    Raises:
        DecodeError: no class can read it.
    """
    for cls, function in function_map.items():
        try:
            obj = TryReadProtoWithClass(cls, s)
        except NetError:
            continue
        return function(obj)
    raise DecodeError(f"the bytes must be one of the messages {[cls.__name__ for cls in function_map]}")


def ConvertProtoToBinary(proto_class: type[Any], filename: str, out_filename: str) -> None:
    """Read a message from a text or binary file and write it to a binary one."""
    files.save(out_filename, TryReadProtoWithClass(proto_class, opened_files.read_bytes(filename)))


def OpAlmostEqual(op_a: OperatorDef, op_b: OperatorDef, ignore_fields: Iterable[str] | str | None = None) -> bool:
    """Whether two operators are equal except for some fields.

    Args:
        op_a, op_b: the operators, unchanged.
        ignore_fields: names of fields of OperatorDef; None: ``debug_info``.
    """
    ignored = ["debug_info"] if ignore_fields is None else ignore_fields
    pair = []
    for op in (op_a, op_b):
        copy = OperatorDef()
        copy.CopyFrom(op)
        for field in [ignored] if isinstance(ignored, str) else ignored:
            copy.ClearField(field)
        pair.append(copy)
    return pair[0] == pair[1]


# The rest.


def EnumClassKeyVals(cls: type[Any]) -> dict[str, str]:
    """Return the string attributes of a class."""
    return {k: v for k in dir(cls) if not k.startswith("__") and isinstance(v := getattr(cls, k), str)}


def raiseIfNotEqual(a: Any, b: Any, msg: str) -> None:
    """Raise an error with ``msg`` and both values if they differ."""
    if a != b:
        raise NetError(f"{msg}. {a!r} != {b!r}")


def ResetBlobs(blobs: Iterable[Any]) -> None:
    """Remove the values of blobs in the current workspace.

    Raises:
        BlobError: a blob does not exist.
    """
    for blob in blobs:
        workspace.ResetBlob(blob)


def BuildUniqueMutexIter(
    init_net: Net, net: Net, iter: Any = None, iter_mutex: Any = None, iter_val: int = 0
) -> BlobReference:
    """Return a counter that ``net`` increments once per run, created on the CPU if it does not exist.

    Args:
        init_net: initializes the counter.
        net: increments it.
        iter: the counter's blob; None: that of the optimizers.
        iter_mutex: the blob of its mutex; None: that of the optimizers.
        iter_val: initial value.
    """
    return iteration_counter(
        net,
        init_net,
        iter_val,
        counter=ITERATION if iter is None else iter,
        mutex=ITERATION_MUTEX if iter_mutex is None else iter_mutex,
    )


class DebugMode:
    """Starts Python's debugger where a function raises."""

    @classmethod
    def run(cls, func: Callable[[], Any]) -> Any:
        """Call a function and return what it returns.

        An exception starts the debugger where it was raised, and is then raised again; ``sys.exit`` and Ctrl-C end the
        program as usual.
        """
        try:
            return func()
        except Exception:
            _log.exception("starting the debugger because of")
            pdb.post_mortem(sys.exc_info()[2])
            raise


def debug(f: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function: it runs in ``DebugMode``."""

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        return DebugMode.run(lambda: f(*args, **kwargs))

    return call
