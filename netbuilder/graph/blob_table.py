"""Which blobs a net defines, kept up to date although the net's message may be edited directly."""

from __future__ import annotations

from collections.abc import Iterable

from netbuilder.graph.scope import CurrentNameScope
from netbuilder.proto import NetDef, OperatorDef

__all__ = ["BlobTable"]


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
        self.written: dict[str, int] = {}  # blob -> index of the last operator that writes it
        self.external: set[str] = set()
        self._n_ops = self._n_external = 0
        self._scan_new()

    def _scan_new(self) -> None:
        for index, op in enumerate(self._net.op[self._n_ops :] if self._n_ops else self._net.op, self._n_ops):
            self.written.update(dict.fromkeys(op.output[:], index))
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

    def __contains__(self, name: str) -> bool:
        return name in self.written or name in self.external

    def writer(self, name: str) -> OperatorDef | None:
        """Return the last operator that writes a blob; None: none does."""
        self.refresh()
        index = self.written.get(name)
        if index is not None and name not in self._net.op[index].output:  # the message has been edited
            self._scan_all()
            index = self.written.get(name)
        return None if index is None else self._net.op[index]

    def add_operator(self, inputs: Iterable[str], outputs: Iterable[str]) -> None:
        """Record an appended operator; inputs that nothing defines become external inputs of the net."""
        written, external = self.written, self.external
        for name in inputs:
            if name not in written and name not in external:
                self.add_external(name)
        for name in outputs:
            written[name] = self._n_ops
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
