"""What a predictor from a file may do: its init net fills blobs, its predict net computes; no more unless trusted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from netbuilder.ops.control.onnx_node import may_loop
from netbuilder.ops.core.operator import argument_fields
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.proto import NetDef, NetError, OperatorDef, ParseError, files
from netbuilder.proto.arguments import arguments

__all__ = ["FILLS", "UNTRUSTED", "check_fills", "check_harmless"]

FILLS = frozenset({
    "ConstantFill", "DiagonalFill", "Float16ConstantFill", "Float16UniformFill", "GaussianFill", "GivenTensorBoolFill",
    "GivenTensorByteStringToUInt8Fill", "GivenTensorDoubleFill", "GivenTensorFill", "GivenTensorInt16Fill",
    "GivenTensorInt64Fill", "GivenTensorIntFill", "GivenTensorStringFill", "LengthsRangeFill", "MSRAFill", "RangeFill",
    "UniformFill", "UniformIntFill", "UniqueUniformFill", "XavierFill",
    # What exporters put after a fill.
    "Cast", "Concat", "Copy", "EnsureCPUOutput", "ExpandDims", "FloatToHalf", "HalfToFloat", "Reshape", "Shape",
    "Squeeze", "Transpose",
})  # fmt: skip
"""Operators of an init net that are run without trust: they make tensors of their arguments, or of such tensors."""

_FILES = "touches files"
_LOOPS = "runs as often as its own data say"
_WAITS = "waits for another net or thread"
_CODE = "calls Python code"

UNTRUSTED: dict[str, str] = {
    **dict.fromkeys(
        ("Checkpoint", "CreateDB", "CreateTextFileReader", "DBExists", "ImageInput", "Load", "Save", "Snapshot",
         "TensorProtosDBInput", "TextFileReaderRead"), _FILES
    ),
    **dict.fromkeys(("ONNXWhile", "While"), _LOOPS),
    **dict.fromkeys(
        ("CreateBlobsQueueDB", "DequeueBlobs", "DequeueRebatchingQueue", "EnqueueBlobs", "EnqueueRebatchingQueue",
         "SafeDequeueBlobs", "SafeEnqueueBlobs", "WeightedSampleDequeueBlobs"), _WAITS
    ),
    **dict.fromkeys(("Python", "PythonGradient"), _CODE),
}  # fmt: skip
"""Operators that a predict net from a file may not hold without trust, and why."""

_TO_FILE = ("Print", "Summarize")
_REMEDY = "give trusted=True (on a command line: --trusted) if you trust whoever made it"


def check_fills(ops: Iterable[OperatorDef], what: str) -> None:
    """Refuse operators of an init net that do more than fill blobs.

    Args:
        ops: the operators.
        what: what to call the net in errors.

    Raises:
        NetError: one of them is not in ``FILLS``.
    """
    for op in ops:
        if op.type not in FILLS:
            raise NetError(
                f"{what}: holds {op.type} -> {list(op.output)}; an init net from a file fills blobs, and no other "
                f"operators of it are run; {_REMEDY}"
            )


def check_harmless(net: NetDef, what: str) -> None:
    """Refuse a net with operators that touch files, loop, wait or call Python, at any depth.

    Args:
        net: the net.
        what: what to call it in errors.

    Raises:
        NetError: it holds such an operator.
    """
    for op in _all_operators(net.op):
        reason = UNTRUSTED.get(op.type, "")
        if op.type in _TO_FILE and arguments(op).get("to_file"):
            reason = _FILES
        if op.type == "ONNXNode" and may_loop(arguments(op).get("node", b"")):
            reason = _LOOPS
        if reason:
            raise NetError(f"{what}: holds {op.type} -> {list(op.output)}, which {reason}; {_REMEDY}")


def _all_operators(ops: Iterable[OperatorDef]) -> Iterator[OperatorDef]:
    """Yield operators and those of the nets in their arguments."""
    waiting = list(ops)
    while waiting:
        op = waiting.pop()
        yield op
        fields = argument_fields(find(op.type)) if is_registered(op.type) else {}
        for argument in op.arg:
            nets = [*argument.nets, *([argument.n] if argument.HasField("n") else [])]
            if argument.s and argument.name in fields:  # an operator that holds a net takes its bytes, too
                nets += _net_of(argument.s)
            waiting += [inner for net in nets for inner in net.op]


def _net_of(data: bytes) -> list[NetDef]:
    try:
        return [files.parse(data, NetDef, allow_unknown=True)]
    except ParseError:
        return []
