"""Step nets that reshape blobs in place, rewritten so that each shape has a name of its own."""

from __future__ import annotations

from collections.abc import Iterable

from netbuilder.proto import OperatorDef

__all__ = ["rename_reshaped"]

_RESHAPING = frozenset(["ExpandDims", "Flatten", "FlattenToVec", "MergeDim", "PrependDim", "Reshape", "Squeeze"])


def rename_reshaped(ops: Iterable[OperatorDef]) -> list[OperatorDef]:
    """Return the operators, with blobs renamed so that none is reshaped in place.

    A blob that the net writes has its own name in the end, one from outside in the beginning; the names in between have
    the suffix "#" and a number.

    >>> from netbuilder.proto.arguments import make_op
    >>> ops = [make_op("Relu", ["x"], ["y"]), make_op("Squeeze", ["y"], ["y"], dims=[0])]
    >>> [(list(op.input), list(op.output)) for op in rename_reshaped(ops)]
    [(['x'], ['y#1']), (['y#1'], ['y'])]
    """
    made: list[OperatorDef] = []
    written: set[str] = set()
    current: dict[str, str] = {}  # the present names of blobs from outside that were reshaped
    count = 0
    for given in ops:
        op = OperatorDef()
        op.CopyFrom(given)
        _rename(op, current)
        changed = [name for name in op.output if name in op.input] if op.type in _RESHAPING else []
        for name in changed:
            count += 1
            fresh = f"{name.partition('#')[0]}#{count}"
            if name in written:
                for earlier in made:
                    _rename(earlier, {name: fresh})
                op.input[:] = [fresh if blob == name else blob for blob in op.input]
            else:
                current[name] = fresh
                op.output[:] = [fresh if blob == name else blob for blob in op.output]
        written.update(op.output)
        made.append(op)
    return made


def _rename(op: OperatorDef, names: dict[str, str]) -> None:
    if not names:
        return
    op.input[:] = [names.get(blob, blob) for blob in op.input]
    op.output[:] = [names.get(blob, blob) for blob in op.output]
