"""The check of what a pass returns: conftest has it called after every pass that a test runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from netbuilder.graph.defuse import undefined_inputs
from netbuilder.graph.message import message_of
from netbuilder.graph.versions import number_versions
from netbuilder.ops.core.operator import decode
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.ops.windows.fused import as_fused
from netbuilder.passes.device_check import device_faults
from netbuilder.passes.net_pass import NetPass, PassContext, PassResult
from netbuilder.proto import NetDef, NetError, OperatorDef

__all__ = ["checked_call"]

_call = NetPass.__call__


def checked_call(self: Any, net: Any, context: PassContext | None = None, **options: Any) -> PassResult:
    """Call a pass, in the place of ``NetPass.__call__``, and check its result."""
    net, before = message_of(net), NetDef()
    before.CopyFrom(net)
    result = _call(self, net, context, **options)
    _check(self.__name__, before, net, context or PassContext(), result)
    return result


def _check(name: str, before: NetDef, net: NetDef, context: PassContext, result: PassResult) -> None:
    """Raise AssertionError, with all faults, if a pass changed the net that it was given or returned a wrong one.

    A fault that the net had before is not the pass's.
    """
    faults = [] if net == before else ["it changed the net that it was given"]
    after = result.net
    faults += _operators(before, after)
    faults += _inputs(before, after, context)
    faults += _order_of_writes(before, after)
    faults += _reads(before, after)
    faults += _devices(before, after, context)
    assert not faults, f"pass {name}, net {before.name!r}: " + "; ".join(faults)


def _operators(before: NetDef, after: NetDef) -> Iterator[str]:
    """Operators that the pass made are known, have arguments of the declared types, and write each blob once."""
    types = {op.type for op in before.op}
    for index, op in _new(before, after):
        if not is_registered(op.type):
            if op.type not in types:
                yield f"operator {index} is of the unknown type {op.type!r}"
            continue
        try:
            fused = as_fused(op)
            decode(find(fused.type), fused)
        except NetError as error:
            if not _was_refused(before, op):
                yield f"operator {index}: {error}"
        if twice := [blob for blob, count in Counter(filter(None, op.output)).items() if count > 1]:
            yield f"operator {index} {op.type} writes {twice} twice"


def _new(before: NetDef, after: NetDef) -> list[tuple[int, OperatorDef]]:
    known = set(_texts(before))
    return [(index, op) for (index, op), text in zip(enumerate(after.op), _texts(after)) if text not in known]


def _texts(net: NetDef) -> list[bytes]:
    return [op.SerializeToString(deterministic=True) for op in net.op]


def _was_refused(before: NetDef, op: OperatorDef) -> bool:
    """Whether an operator of this type was wrong already."""
    for other in before.op:
        if other.type == op.type:
            try:
                decode(find(other.type), as_fused(other))
            except NetError:
                return True
    return False


def _inputs(before: NetDef, after: NetDef, context: PassContext) -> Iterator[str]:
    """What operators read is made by an earlier one, is an external input, or was missing already."""
    known = {*after.external_input, *undefined_inputs(before.op), *context.available}
    for blob in undefined_inputs(after.op):
        if blob not in known:
            yield f"{blob!r} is read before an operator makes it, and is no external input"


def _order_of_writes(before: NetDef, after: NetDef) -> Iterator[str]:
    """Operators that the pass did not change write each blob in the same order as before."""
    old, new = _writers(before), _writers(after)
    for blob, texts in new.items():
        kept, had = [text for text in texts if text in old.get(blob, ())], old.get(blob, [])
        if kept != [text for text in had if text in texts] and Counter(kept) == Counter(had):
            yield f"the operators that write {blob!r} have changed their order"


def _writers(net: NetDef) -> dict[str, list[bytes]]:
    writers: dict[str, list[bytes]] = {}
    for op, text in zip(net.op, _texts(net)):
        for blob in op.output:
            writers.setdefault(blob, []).append(text)
    return writers


def _reads(before: NetDef, after: NetDef) -> Iterator[str]:
    """Operators that the pass did not change read the same versions as before.

    If it left all types, it may have renamed blobs: then operators whose arguments it left are compared by their
    positions. One that has other arguments is a new operator.
    """
    was, now, texts, earlier = number_versions(before.op), number_versions(after.op), _texts(after), _texts(before)
    places = {text: index for index, text in enumerate(earlier)}
    unique = {text for text, count in Counter(earlier).items() if count == 1}
    if texts != earlier and [op.type for op in before.op] == [op.type for op in after.op] and _new(before, after):
        both = zip(before.op, after.op)
        pairs: Iterable[tuple[int, int]] = [(i, i) for i, (op, new) in enumerate(both) if list(op.arg) == list(new.arg)]
        by_place = True
    else:
        pairs = [(places[text], index) for index, text in enumerate(texts) if text in unique]
        by_place = False
    for old, new in pairs:
        for slot, (a, b) in enumerate(zip(was.inputs[old], now.inputs[new])):
            first, second = was.writers[a], now.writers[b]
            if by_place:
                wrong = first != second
            else:  # a new operator may write in the place of the one that did
                wrong = second >= 0 and texts[second] in unique and first != places[texts[second]]
            if wrong:
                op = after.op[new]
                yield f"operator {new} {op.type} reads {op.input[slot]!r} as another operator has left it"


def _devices(before: NetDef, after: NetDef, context: PassContext) -> Iterator[str]:
    if not any(True for _ in device_faults(before, devices=context.devices)):
        yield from map(str, device_faults(after, devices=context.devices))
