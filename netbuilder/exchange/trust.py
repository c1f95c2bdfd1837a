"""Checks of untrusted predictors: an init net may only fill blobs, a predict net only compute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from netbuilder.ops.control.onnx_node import may_loop
from netbuilder.ops.core.operator import argument_fields
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.proto import NetDef, NetError, OperatorDef, ParseError, files
from netbuilder.proto.arguments import arguments

__all__ = ["FILLS", "check_fills", "check_harmless", "check_not_swapped"]

FILLS = frozenset({
    "ConstantFill", "DiagonalFill", "Float16ConstantFill", "Float16UniformFill", "GaussianFill", "GivenTensorBoolFill",
    "GivenTensorByteStringToUInt8Fill", "GivenTensorDoubleFill", "GivenTensorFill", "GivenTensorInt16Fill",
    "GivenTensorInt64Fill", "GivenTensorIntFill", "GivenTensorStringFill", "LengthsRangeFill", "MSRAFill", "RangeFill",
    "UniformFill", "UniformIntFill", "UniqueUniformFill", "XavierFill",
    # Operators that exporters put after a fill.
    "Cast", "Concat", "Copy", "EnsureCPUOutput", "ExpandDims", "FloatToHalf", "HalfToFloat", "Reshape", "Shape",
    "Squeeze", "Transpose",
})  # fmt: skip
"""Operators that an untrusted init net may hold: they make tensors from their arguments, or from such tensors."""

_TO_FILE = ("Print", "Summarize")
_REMEDY = "give trusted=True (on a command line: --trusted) if you trust its source"


def check_fills(ops: Iterable[OperatorDef], what: str) -> None:
    """Check that the operators of an init net only fill blobs.

    Args:
        ops: the operators.
        what: what to call the net in errors.

    Raises:
        NetError: one of them is not in ``FILLS``.
    """
    for op in ops:
        if op.type not in FILLS:
            raise NetError(
                f"{what} holds {op.type} -> {list(op.output)}; an untrusted init net may hold only operators "
                f"that fill blobs; if this is the predict net, give the init net in its place; else {_REMEDY}"
            )


def check_not_swapped(init_net: NetDef, net: NetDef, init_path: object, path: object) -> None:
    """Raise NetError if the net only fills blobs, and its init net does not: each is in the place of the other."""
    computes, fills = ({op.type for op in proto.op}.difference(FILLS) for proto in (init_net, net))
    if net.op and computes and not fills:
        raise NetError(
            f"{str(init_path)!r} is given as the init net, and {str(path)!r} as the net that computes: the first one "
            f"computes ({sorted(computes)[0]}), and the second one only fills blobs; swap them"
        )


def check_harmless(net: NetDef, what: str) -> None:
    """Check by the declarations of its operators that a net, with its subgraphs, computes in memory and ends by itself.

    An operator without effects is allowed, and one that declares ``effects = ""`` (see ``Operator``); others touch
    files, loop, wait, call Python, talk to other processes, or are not known to do none of this.

    Args:
        net: the net.
        what: what to call it in errors.

    Raises:
        NetError: it holds such an operator.
    """
    for op in _all_operators(net.op):
        reason = find(op.type).outside_effects() if is_registered(op.type) else ""
        if op.type in _TO_FILE and arguments(op).get("to_file"):
            reason = "touches files"
        if op.type == "ONNXNode" and may_loop(arguments(op).get("node", b"")):
            reason = "may loop without end"
        if reason:
            raise NetError(f"{what} holds {op.type} -> {list(op.output)}, which {reason}; {_REMEDY}")


def _all_operators(ops: Iterable[OperatorDef]) -> Iterator[OperatorDef]:
    """Yield operators, and those of the nets in their arguments."""
    waiting = list(ops)
    while waiting:
        op = waiting.pop()
        yield op
        fields = argument_fields(find(op.type)) if is_registered(op.type) else {}
        for argument in op.arg:
            nets = [*argument.nets, *([argument.n] if argument.HasField("n") else [])]
            if argument.s and argument.name in fields:  # operators accept the bytes of a net as well as the message
                nets += _net_of(argument.s)
            waiting += [inner for net in nets for inner in net.op]


def _net_of(data: bytes) -> list[NetDef]:
    try:
        return [files.parse(data, NetDef, allow_unknown=True)]
    except ParseError:
        return []
