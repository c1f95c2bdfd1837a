"""Checks of the blobs of a net: read before they are written, never written, written twice without an order."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from netbuilder.graph.checks.finding import Finding, Place, Rule
from netbuilder.graph.device_faults import CROSSING
from netbuilder.graph.observability import stored
from netbuilder.graph.versions import reads_of
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.ops.core.renaming import mentioned_blobs, shares_names, subgraphs
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import arguments, made_at
from netbuilder.proto.suggestions import did_you_mean

__all__ = ["check_dangling", "check_observable", "check_races"]


def check_dangling(
    place: Place, available: Collection[str] = (), of_operator: Collection[str] = ()
) -> Iterator[Finding]:
    """Yield each blob that a net, or a subgraph, reads although nothing has written it, or that it never writes.

    Args:
        place: the net.
        available: blobs that exist in addition to its external inputs.
        of_operator: those that exist only because the operator that has the subgraph writes them.
    """
    net, of_operator = place.net, set(of_operator)
    known = {*net.external_input, *available}
    later = {blob: index for index, op in enumerate(net.op) for blob in op.output}
    for index, op in enumerate(net.op):
        for what, blobs in (("reads", op.input), ("has the control input", op.control_input)):
            for blob in dict.fromkeys(blobs):
                if blob not in known:
                    hint = _hint(blob, later.get(blob), known)
                    yield place.finding(
                        Rule.DANGLING_BLOB,
                        f"it {what} {blob!r}, which no earlier operator writes and which is not an external input of "
                        f"the net{hint}",
                        index,
                        blob=blob,
                    )
        named, inside = _named_in(op), list(subgraphs(op))
        if inside and not shares_names(op):  # a backward step net reads what the step net has computed
            named.update(blob for subgraph in inside[:-1] for each in subgraph.op for blob in each.output)
        for subgraph in inside:
            written = set(op.output).difference(known, named, subgraph.external_input)
            yield from check_dangling(place.of_subgraph(subgraph, index), {*known, *op.output, *named}, written)
        known.update(op.output)
        of_operator.difference_update(op.output)
    for blob in net.external_output:
        if blob not in known or blob in of_operator:
            yield place.finding(
                Rule.DANGLING_BLOB,
                f"its external output {blob!r} is written by no operator{_hint(blob, None, known - {blob})}",
                blob=blob,
            )


def check_observable(place: Place) -> Iterator[Finding]:
    """Yield each blob that the net stores as observable (``Net.set_observable``) and does not have."""
    _, names = stored(place.net)
    known = dict.fromkeys(mentioned_blobs(place.net)) if names else {}
    for name in dict.fromkeys(names):
        if not any(name == blob or name.endswith(f"/{blob}") for blob in known):  # with the scope of a device
            yield place.finding(
                Rule.DANGLING_BLOB,
                f"it stores {name!r} as observable, which no operator reads or writes"
                f"{did_you_mean(name, known) or '; call set_observable again without it'}",
                blob=name,
            )


def _named_in(op: OperatorDef) -> set[str]:
    """Return the blobs of an operator's subgraphs that its arguments name, such as those linked to a sequence."""
    named = find(op.type).blob_arguments if is_registered(op.type) else ()
    values = arguments(op) if named else {}
    found: set[str] = set()
    for name in named:
        value = values.get(name, getattr(find(op.type), name, None)) or ()
        texts = [value] if isinstance(value, (bytes, str)) else value
        found.update(text.decode() if isinstance(text, bytes) else text for text in texts)
    return found


def _hint(blob: str, writer: int | None, known: Collection[str]) -> str:
    if writer is not None:
        return f"; operator {writer} writes it later: change the order of the operators, or declare the input"
    return did_you_mean(blob, known) or "; add the operator that makes it, or declare the input (AddExternalInput)"


def check_races(place: Place) -> Iterator[Finding]:
    """Yield each blob that two operators of a net, or of a subgraph, write although neither depends on the other.

    An operator depends on another one if it reads what that one has written, or has it as a control input, directly or
    through further operators. If it only comes later in the list, the first value is lost, or the second one if the two
    run at the same time. Equal operators, such as two fills with one number, and copies that make the replicas' blobs
    equal are no findings.
    """
    net = place.net
    sources = _sources(net.op)
    writer: dict[str, int] = {}
    read: set[str] = set()  # since the last write
    for index, op in enumerate(net.op):
        for blob in _repeated(op.output):
            yield place.finding(
                Rule.RACE, f"it writes {blob!r} twice, as two of its outputs; give each a name of its own", index,
                blob=blob,
            )  # fmt: skip
        read.update(reads_of(op), op.control_input)
        for blob in dict.fromkeys(op.output):
            first = writer.get(blob)
            if first is None or blob in read or op.type in CROSSING or _depends(sources, index, first):
                pass
            elif not _same(before := net.op[first], op):
                yield place.finding(
                    Rule.RACE,
                    f"it writes {blob!r}, which operator {first} {before.type}{made_at(before)} writes too, nobody "
                    "reads the blob between them, and neither depends on the other, so one of the values is lost; give "
                    "one of the outputs another name, or order them by a control input",
                    index,
                    blob=blob,
                )
            writer[blob] = index
            read.discard(blob)
        for subgraph in subgraphs(op):
            yield from check_races(place.of_subgraph(subgraph, index))


def _repeated(names: Collection[str]) -> list[str]:
    seen: set[str] = set()
    return [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]


def _same(first: OperatorDef, second: OperatorDef) -> bool:
    """Whether two operators write the same values: equal but for name and source line, and not random."""
    if is_registered(first.type) and find(first.type).stateful:
        return False
    texts = []
    for op in (first, second):
        copy = OperatorDef()
        copy.CopyFrom(op)
        copy.ClearField("name")
        copy.ClearField("debug_info")
        texts.append(copy.SerializeToString(deterministic=True))
    return texts[0] == texts[1]


def _sources(ops: Collection[OperatorDef]) -> list[set[int]]:
    """Return for each operator those whose outputs it reads, or has as control inputs."""
    writer: dict[str, int] = {}
    found = []
    for index, op in enumerate(ops):
        found.append({writer[blob] for blob in (*reads_of(op), *op.control_input) if blob in writer})
        writer.update(dict.fromkeys(op.output, index))
    return found


def _depends(sources: list[set[int]], index: int, first: int) -> bool:
    stack, seen = [index], {index}
    while stack:
        for source in sources[stack.pop()]:
            if source == first:
                return True
            if source > first and source not in seen:
                seen.add(source)
                stack.append(source)
    return False
