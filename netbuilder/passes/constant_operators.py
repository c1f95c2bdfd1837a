"""Which operators of a predict net compute the same values in each run: those that read only its parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from netbuilder.graph.versions import reads_of
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.ops.core.renaming import subgraphs
from netbuilder.proto import NetDef, OperatorDef
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ConstantPart", "constant_part"]


@dataclass(frozen=True)
class ConstantPart:
    """The operators that need to run only once.

    Args:
        once: these operators.
        rest: the net without them.
        made: what they make and the rest reads, in order; these become parameters.
        between: what they make and only they read.
    """

    once: NetDef
    rest: NetDef
    made: tuple[str, ...]
    between: frozenset[str]


def constant_part(net: NetDef, parameters: Collection[str], kept: Collection[str]) -> ConstantPart | None:
    """Return the operators of a net that read only parameters, and the rest; None if there are none.

    Left as they are: operators that draw random numbers or have other effects, those that hold nets, and those of which
    a blob is written more than once.

    Args:
        net: any.
        parameters: blobs that no operator changes.
        kept: blobs that operators of the net must make: outputs, and what is observed.
    """
    writes = Counter(blob for op in net.op for blob in op.output)
    fixed = {blob for blob in parameters if blob not in writes}
    once, rest = NetDef(), NetDef()
    for each in (once, rest):
        each.CopyFrom(net)
        del each.op[:]
    for op in net.op:
        if fixed.issuperset(op.input) and all(writes[blob] == 1 for blob in op.output) and _is_pure(op, kept):
            fixed.update(op.output)
            once.op.append(op)
        else:
            rest.op.append(op)
    if not once.op:
        return None
    read = {blob for op in rest.op for blob in reads_of(op)}
    results = [blob for op in once.op for blob in op.output]
    made = tuple(blob for blob in results if blob in read)
    once.name = f"{net.name}_once"
    once.external_output[:] = made
    return ConstantPart(once, rest, made, frozenset(results).difference(made))


def _is_pure(op: OperatorDef, kept: Collection[str]) -> bool:
    if not op.input or not op.output or not is_registered(op.type) or find(op.type).stateful:
        return False
    return not any(blob in kept for blob in op.output) and next(subgraphs(op), None) is None
