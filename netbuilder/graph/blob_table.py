"""Which blobs a net defines, kept up to date although the net's message may be edited directly."""

from __future__ import annotations

from collections.abc import Iterable

from netbuilder.graph.scope import CurrentNameScope
from netbuilder.proto import NetDef, OperatorDef

__all__ = ["BlobTable", "Trial"]


class BlobTable:
    """The outputs of a net's operators, its external inputs, and fresh names.

    Edits of the message that bypass the table are noticed if they change the number of operators or
    of external inputs.
    """

    def __init__(self, net: NetDef) -> None:
        self._net = net
        self._next_index: dict[tuple[str, int | None], int] = {}
        self._next_unnamed = 0
        self._returned: dict[str, int] = {}  # name that next_blob returned -> next index of its suffix
        self._scan_all()

    def _scan_all(self) -> None:
        self.written: set[str] = set()
        self.external: set[str] = set()
        self._n_ops = self._n_external = 0
        self._scan_new()

    def _scan_new(self) -> None:
        for op in self._net.op[self._n_ops :] if self._n_ops else self._net.op:
            self.written.update(op.output[:])
        self.external.update(self._net.external_input[self._n_external :])
        self._n_ops, self._n_external = len(self._net.op), len(self._net.external_input)

    def refresh(self) -> None:
        """Update the table for operators and external inputs that were added to or removed from the message."""
        n_ops, n_external = len(self._net.op), len(self._net.external_input)
        if n_ops < self._n_ops or n_external < self._n_external:
            self._scan_all()
        elif n_ops > self._n_ops or n_external > self._n_external:
            self._scan_new()

    def invalidate(self) -> None:
        """Read the whole message again."""
        self._scan_all()

    def trial(self) -> Trial:
        """Return a record of the net's state, to which ``Trial.undo`` brings it back."""
        self.refresh()
        return Trial(self)

    def __contains__(self, name: str) -> bool:
        return name in self.written or name in self.external

    def add_operator(self, inputs: Iterable[str], outputs: Iterable[str]) -> None:
        """Record an appended operator; inputs that nothing defines become external inputs of the net."""
        written, external = self.written, self.external
        for name in inputs:
            if name not in written and name not in external:
                self.add_external(name)
        written.update(outputs)
        self._n_ops += 1

    def add_external(self, name: str) -> None:
        """Append an external input to the message."""
        self._net.external_input.append(name)
        self.external.add(name)
        self._n_external += 1

    def next_name(self, prefix: str | None, output_id: int | None) -> str:
        """Return a name, without scope, for an output of an operator of type ``prefix``.

        The scoped name is not defined yet. Names are counted across scopes, as in Caffe2.
        """
        net = self._net.name
        if not prefix:
            name = f"{net}_blob_{self._next_unnamed}"
            self._next_unnamed += 1
            return name
        base = f"{net}/{prefix}"
        tail = "" if output_id is None else f":{output_id}"
        scope = CurrentNameScope()
        name = base + tail
        while scope + name in self:
            index = self._next_index.get((base, output_id), 2)
            self._next_index[base, output_id] = index + 1
            name = f"{base}_{index}{tail}"
        return name

    def next_blob(self, prefix: str) -> str:
        """Return ``prefix``, or ``<prefix>_auto_<n>``: a name that is not defined and was not returned before."""
        name = prefix
        if name in self._returned or name in self:
            index = self._returned.get(prefix, 0)
            name = f"{prefix}_auto_{index}"
            while name in self._returned or name in self:
                index += 1
                name = f"{prefix}_auto_{index}"
            self._returned[prefix] = index + 1
        self._returned.setdefault(name, 0)
        return name


class Trial:
    """What is appended to a net from now on, until ``undo``; operators that exist must not be changed meanwhile.

    The cost does not depend on the size of the net.

    Args:
        table: the net's table, after ``refresh``.
    """

    def __init__(self, table: BlobTable) -> None:
        self._table = table
        self._counts = table._n_ops, table._n_external
        self._sets = table.written, table.external
        self._numbers = dict(table._next_index), table._next_unnamed, dict(table._returned)
        table.written, table.external = _Added(table.written), _Added(table.external)

    def undo(self) -> tuple[list[OperatorDef], list[str]]:
        """Remove what was appended; return the operators, and the names of the blobs that they defined."""
        table, (n_ops, n_external) = self._table, self._counts
        new = [name for name in table.written if name not in self._sets[0]]
        net = table._net
        ops = []
        for op in net.op[n_ops:]:
            ops.append(copy := OperatorDef())
            copy.CopyFrom(op)
        del net.op[n_ops:]
        del net.external_input[n_external:]
        table.written, table.external = self._sets
        table._next_index, table._next_unnamed, table._returned = self._numbers
        table._n_ops, table._n_external = n_ops, n_external
        return ops, new


class _Added(set[str]):
    """A set of names that also contains those of another one, which stays as it is."""

    def __init__(self, others: set[str]) -> None:
        super().__init__()
        self._others = others

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._others
