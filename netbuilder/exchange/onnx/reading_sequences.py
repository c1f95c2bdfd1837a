"""Import of ONNX's operators on sequences of tensors: which tensors a sequence has is known while reading."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.exchange.onnx.reading import Reader, reads
from netbuilder.proto import OperatorError

__all__: list[str] = []


def _sequence(r: Reader, name: str) -> list[str]:
    """Return the tensors in a sequence.

    Raises:
        OperatorError: it was not made by an operator that is followed.
    """
    if name not in r.sequences:
        raise OperatorError(f"the tensors in the sequence {name!r} are not known")
    return r.sequences[name]


@reads("SequenceEmpty", "SequenceConstruct")
def _construct(r: Reader, node: Any) -> None:
    _make(r, node, [name for name in node.input if name])


def _make(r: Reader, node: Any, tensors: list[str]) -> None:
    if node.output[0] in r.outputs:
        raise OperatorError("a sequence cannot be an output")
    r.sequences[node.output[0]] = tensors


def _position(r: Reader, node: Any, at: int, count: int) -> int:
    position = int(r.elements(node.input[at], "position").item())
    if not -count <= position <= count:
        raise OperatorError(f"position {position} is not in a sequence of {count} tensors")
    return position % count if position < 0 else position


@reads("SequenceInsert")
def _insert(r: Reader, node: Any) -> None:
    tensors = list(_sequence(r, node.input[0]))
    given = len(node.input) > 2 and node.input[2]
    tensors.insert(_position(r, node, 2, len(tensors)) if given else len(tensors), node.input[1])
    _make(r, node, tensors)


@reads("SequenceErase")
def _erase(r: Reader, node: Any) -> None:
    tensors = list(_sequence(r, node.input[0]))
    del tensors[_position(r, node, 1, len(tensors)) if len(node.input) > 1 and node.input[1] else -1]
    _make(r, node, tensors)


@reads("SequenceAt")
def _at(r: Reader, node: Any) -> None:
    tensors = _sequence(r, node.input[0])
    r.same(tensors[_position(r, node, 1, len(tensors))], node.output[0])


@reads("SequenceLength")
def _length(r: Reader, node: Any) -> None:
    length = r.constant(node.output[0], np.array(len(_sequence(r, node.input[0])), np.int64))
    r.same(length, node.output[0])


@reads("ConcatFromSequence")
def _concat(r: Reader, node: Any) -> None:
    found, tensors = r.attributes(node), _sequence(r, node.input[0])
    if not tensors:
        raise OperatorError("a sequence without tensors cannot be concatenated")
    axis, rank = found["axis"], r.rank(tensors[0])
    if found.get("new_axis", 0):
        axis %= rank + 1
        tensors = [r.add("ExpandDims", [name], [r.between(node.output[0])], dims=[axis]) for name in tensors]
    else:
        axis %= rank
    r.add("Concat", tensors, [node.output[0], r.between(node.output[0])], axis=axis)


@reads("SplitToSequence")
def _split(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    axis = found.get("axis", 0) % r.rank(node.input[0])
    extent = r.extent(node.input[0], axis)
    if len(node.input) > 1 and node.input[1]:
        given = r.elements(node.input[1], "split")
        each = int(given) if given.ndim == 0 else 0
        extents = [min(each, extent - i) for i in range(0, extent, each)] if each else [int(n) for n in given]
    else:
        extents = [1] * extent
    parts = [r.between(node.output[0]) for _ in extents]
    r.add("Split", node.input[:1], parts, axis=axis, split=extents)
    if not (len(node.input) > 1 and node.input[1]) and not found.get("keepdims", 1):
        parts = [r.add("Squeeze", [part], [r.between(node.output[0])], dims=[axis]) for part in parts]
    _make(r, node, parts)
