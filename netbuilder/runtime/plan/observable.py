"""Which blobs of a net are observable, that is, have their values in the workspace after a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from netbuilder.graph.blob import blob_name
from netbuilder.graph.devices import Devices
from netbuilder.graph.observability import (
    ACTIVATIONS,
    ALL,
    OUTPUTS,
    check_kind,
    hidden_gradients,
    results,
    stored,
)
from netbuilder.ops.control.parallel_do import OnDevices
from netbuilder.ops.core.instructions import Instruction
from netbuilder.ops.core.operator import decode
from netbuilder.ops.core.registry import find
from netbuilder.ops.core.renaming import blob_names, mentioned_blobs, subgraphs, written_blobs
from netbuilder.proto import BlobError, NetDef, NetError
from netbuilder.proto.numbers import listed
from netbuilder.proto.suggestions import did_you_mean

__all__ = ["Observable", "check_constants", "requested_blobs"]


class Observable:
    """Which names of a net are observable.

    External inputs and outputs always are. So are the blobs of subgraphs, which operators look up in the workspace. The
    blobs of a ParallelDo, which its net makes on each device, can be requested by their names in the workspace, or
    without the device's scope for all devices.

    Attributes:
        kind: one of ``netbuilder.graph.observability.KINDS``.
        names: the further blobs.
        fetched, not_kept: see ``keep`` and ``forget_fetched``.

    Args:
        net: the net.
        program: its operators.
        requested: one of ``netbuilder.graph.observability.KINDS``, or a list of names: "outputs", and these as well;
            None: what the net stores.
        default: the kind of a net that stores none.

    Raises:
        NetError: ``requested`` is another single string.
        BlobError: the net has no blob of a requested name.
    """

    def __init__(
        self,
        net: NetDef,
        program: Sequence[Instruction],
        requested: str | Iterable[object] | None,
        default: str = ACTIVATIONS,
    ) -> None:
        kind, names = stored(net) if requested is None else requested_blobs(net, requested)
        self.kind = kind or default
        blocks = _blobs_of_blocks(program) if names else {}
        self.names = [copy for name in names for copy in blocks.get(name, (name,))]
        self.fetched: list[str] = []  # those that are observable since they were fetched
        self.not_kept: set[str] = set()  # those that are not, since they do not fit into a memory budget
        if self.kind == ALL:
            return
        self._first: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._kept = {*net.external_input, *net.external_output, *self.names}
        for instruction in program:
            for name in (*instruction.inputs, *instruction.outputs):
                self._first.setdefault(name, instruction.index)
                self._last[name] = instruction.index
            if instruction.op.net_names == "around":
                for subgraph in subgraphs(instruction.op_def):
                    self._kept.update(mentioned_blobs(subgraph))
        for name in names if requested is not None else ():
            if name not in self._first and name not in blocks and name not in self._kept.difference(self.names):
                raise _no_blob(net, name, "observable", [*self._first, *blocks])
        if self.kind == ACTIVATIONS:
            self._kept |= self._first.keys() - hidden_gradients(net)
        else:
            self._kept |= results(net)

    def hides(self, name: str, start: int, end: int) -> bool:
        """Whether a blob made by the operators from ``start`` to before ``end`` is used by them alone."""
        if self.kind == ALL or name in self._kept:
            return False
        return start <= self._first[name] and self._last[name] < end

    def keep(self, name: str) -> bool:
        """Make a blob observable from now on; False if it is already, or if the net has no such blob."""
        if self.kind == ALL or name in self._kept or name in self.not_kept or name not in self._first:
            return False
        self._kept.add(name)
        self.fetched.append(name)
        return True

    def forget_fetched(self) -> str:
        """Undo the last ``keep``, and refuse it for that blob from now on; return its name, "" if there is none."""
        if not self.fetched:
            return ""
        name = self.fetched.pop()
        self._kept.remove(name)
        self.not_kept.add(name)
        return name


def _blobs_of_blocks(program: Sequence[Instruction]) -> dict[str, tuple[str, ...]]:
    """Return the names of the blobs that nets on several devices make, with the blobs that each stands for.

    A name with a device's scope stands for that blob, and one without for those of all devices.
    """
    found: dict[str, tuple[str, ...]] = {}
    for instruction in program:
        if isinstance(instruction.op, OnDevices):
            for scope, name in _in_block(instruction.op):
                found[name] = (*found.get(name, ()), scope + name)
                found[scope + name] = (scope + name,)
    return found


def _in_block(op: OnDevices) -> Iterator[tuple[str, str]]:
    """Yield the blobs that the net of an operator makes on its devices: their scope, and their name in the net."""
    outside = {name: mode for name, mode in zip(op.inner_inputs, op.modes) if mode in ("whole", "updated")}
    for replica, scope in enumerate(Devices(op.device_type, op.devices).scopes):
        for inner in op.net.op if op.net is not None else ():
            is_block = issubclass(find(inner.type), OnDevices)
            for name in (*inner.input, *inner.output) if is_block else blob_names(inner):
                if name and (name not in outside or outside[name] == "updated" and replica):
                    yield scope, name
            if is_block:
                block = decode(find(inner.type), inner)
                assert isinstance(block, OnDevices)
                yield from ((nested + scope, name) for nested, name in _in_block(block))


def requested_blobs(net: NetDef, requested: str | Iterable[object]) -> tuple[str, list[str]]:
    """Return the kind that is requested, and the further names.

    Raises:
        NetError: ``requested`` is a single string that is not one of the kinds, or no list.
    """
    if isinstance(requested, (str, bytes)):
        return check_kind(requested, f"net {net.name!r}"), []
    return OUTPUTS, [blob_name(name) for name in listed(f"net {net.name!r}: observable", "blobs", requested)]


def check_constants(net: NetDef, constants: Iterable[object]) -> frozenset[str]:
    """Return the names of the blobs to treat as constant, without those that the net writes.

    Raises:
        NetError: ``constants`` is a single string.
        BlobError: the net has no blob of a name in it.
    """
    if isinstance(constants, (str, bytes)):
        raise NetError(f"net {net.name!r}: constants must be a list of blobs, got the single string {constants!r}")
    names = list(map(blob_name, listed(f"net {net.name!r}: constants", "blobs", constants)))
    if not names:
        return frozenset()
    known = dict.fromkeys(mentioned_blobs(net))
    for name in names:
        if name not in known:
            raise _no_blob(net, name, "constant", known)
    return frozenset(names).difference(written_blobs(net.op))


def _no_blob(net: NetDef, name: str, what: str, known: Iterable[str]) -> BlobError:
    return BlobError(f"net {net.name!r} has no blob {name!r}, so it cannot be {what}{did_you_mean(name, known)}")
