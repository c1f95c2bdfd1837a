"""Operators that a builder appends for one blob after another, built once and then repeated for other names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from netbuilder.graph.net import Net, operator_watchers
from netbuilder.proto import OperatorDef

__all__ = ["OperatorPattern"]


class OperatorPattern:
    """The operators that a function appends to some nets, with placeholders instead of the names of some blobs.

    Args:
        nets: the nets.
        added: for each net the operators.
        placeholders: the names that stand for blobs.
    """

    def __init__(
        self, nets: Sequence[Net], added: Sequence[Sequence[OperatorDef]], placeholders: Sequence[str]
    ) -> None:
        self._nets = nets
        self._placeholders = placeholders
        blobs = [[(list(op.input), list(op.output), list(op.control_input)) for op in ops] for ops in added]
        names = dict.fromkeys(name for ops in blobs for op in ops for kind in op for name in kind)
        self._fixed = {name: name for name in names if not self._has_placeholder(name)}
        self._variable = [name for name in names if name not in self._fixed]
        self._parts = [[(_bare(op), *kinds) for op, kinds in zip(*part)] for part in zip(added, blobs)]

    @classmethod
    def record(
        cls, nets: Sequence[Net], placeholders: Sequence[str], build: Callable[[], Any]
    ) -> OperatorPattern | None:
        """Return the operators that ``build`` appends to ``nets``, which are unchanged afterwards.

        None if they cannot be repeated for other names: ``build`` raises, it defines a blob whose name has no
        placeholder, or an argument has one; somebody watches the operators that are added, or a net adds them in a
        way of its own.

        Args:
            nets: the nets.
            placeholders: names that occur in no net.
            build: a function that uses the placeholders as names of blobs.
        """
        if operator_watchers or any(type(net)._add is not Net._add for net in nets):
            return None
        trials = [net._blobs.trial() for net in nets]
        failed = False
        try:
            build()
        except Exception:  # the same call for a real name raises it again
            failed = True
        added = []
        for trial in trials:
            ops, names = trial.undo()
            added.append(ops)
            failed = failed or not all(any(part in name for part in placeholders) for name in names)
        pattern = None if failed else cls(nets, added, placeholders)
        return pattern if pattern is not None and pattern._is_in_blobs_only() else None

    def _has_placeholder(self, text: str) -> bool:
        return any(part in text for part in self._placeholders)

    def _is_in_blobs_only(self) -> bool:
        texts = [part.encode() for part in self._placeholders]
        fields = (bare.SerializeToString() for part in self._parts for bare, *_ in part)
        return not any(text in field for field in fields for text in texts)

    def append(self, blobs: Sequence[str]) -> Mapping[str, str] | None:
        """Append the operators with ``blobs`` instead of the placeholders; return pattern name -> name.

        None, and the nets are unchanged, if two blobs of the pattern would get the same name.
        """
        names = dict(self._fixed)
        for name in self._variable:
            renamed = name
            for placeholder, blob in zip(self._placeholders, blobs):
                renamed = renamed.replace(placeholder, blob)
            names[name] = renamed
        if len(set(names.values())) < len(names):
            return None
        for net, part in zip(self._nets, self._parts):
            table, ops = net._blobs, net.Proto().op
            table.refresh()
            for bare, inputs, outputs, controls in part:
                op = ops.add()
                op.CopyFrom(bare)
                read, written = [names[name] for name in inputs], [names[name] for name in outputs]
                op.input.extend(read)
                op.output.extend(written)
                if controls:
                    op.control_input.extend([names[name] for name in controls])
                table.add_operator(read, written)
        return names


def _bare(op: OperatorDef) -> OperatorDef:
    """Return a copy of an operator without its blobs."""
    bare = OperatorDef()
    bare.CopyFrom(op)
    for field in ("input", "output", "control_input"):
        bare.ClearField(field)
    return bare
