"""Step nets whose blobs change their shape in place: each shape gets a name of its own."""

from __future__ import annotations

from collections.abc import Iterable

from netbuilder.proto import OperatorDef

__all__ = ["one_shape_a_name"]

_RESHAPING = frozenset(["ExpandDims", "Flatten", "FlattenToVec", "MergeDim", "PrependDim", "Reshape", "Squeeze"])


def one_shape_a_name(ops: Iterable[OperatorDef]) -> list[OperatorDef]:
    """Return the operators with names in which no operator gives a blob another shape in place.

    What the net writes keeps its name at the end, what it reads from outside at the beginning; names between them have
    the suffix "#" and a number.

    >>> from netbuilder.proto.arguments import make_op
    >>> ops = [make_op("Relu", ["x"], ["y"]), make_op("Squeeze", ["y"], ["y"], dims=[0])]
    >>> [(list(op.input), list(op.output)) for op in one_shape_a_name(ops)]
    [(['x'], ['y#1']), (['y#1'], ['y'])]
    """
    made: list[OperatorDef] = []
    written: set[str] = set()
    later: dict[str, str] = {}  # names of blobs from outside that were reshaped
    count = 0
    for given in ops:
        op = OperatorDef()
        op.CopyFrom(given)
        _rename(op, later)
        changed = [name for name in op.output if name in op.input] if op.type in _RESHAPING else []
        for name in changed:
            count += 1
            fresh = f"{name.partition('#')[0]}#{count}"
            if name in written:
                for earlier in made:
                    _rename(earlier, {name: fresh})
                op.input[:] = [fresh if blob == name else blob for blob in op.input]
            else:
                later[name] = fresh
                op.output[:] = [fresh if blob == name else blob for blob in op.output]
        written.update(op.output)
        made.append(op)
    return made


def _rename(op: OperatorDef, names: dict[str, str]) -> None:
    if not names:
        return
    op.input[:] = [names.get(blob, blob) for blob in op.input]
    op.output[:] = [names.get(blob, blob) for blob in op.output]
