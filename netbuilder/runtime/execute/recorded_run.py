"""The values of a run, operator by operator, for comparing two runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Any

import numpy as np

from netbuilder.graph.defuse import undefined_inputs
from netbuilder.ops.core.instructions import Instruction, Role, describe
from netbuilder.ops.core.operator_event import OperatorEvent
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.execute.net import RuntimeNet

__all__ = ["RecordedRun", "Written", "recorded"]

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Written:
    """A value that an operator has written.

    Args:
        name: of the blob.
        value: a copy.
        net: the name of the net, or of the step net.
        maker: the operator; of several in one kernel, the last that writes the blob.
        parts: all operators of the kernel.
        step: step of a recurrent net; -1: none.
    """

    name: str
    value: Array
    net: str
    maker: Instruction
    parts: tuple[Instruction, ...]
    step: int = -1

    @property
    def exchanged(self) -> bool:
        """Whether the operator exchanges values between devices."""
        return self.maker.role is Role.EXCHANGE

    @property
    def where(self) -> str:
        """The operator's position for messages."""
        others = [str(part.index) for part in self.parts if part is not self.maker]
        named = f"operator{'s' if len(others) > 1 else ''} {', '.join(others)}"
        joined = f" (one kernel with {named})" if others else ""
        return describe(self.net, self.maker) + joined + (f", in step {self.step}" if self.step >= 0 else "")


@dataclass
class RecordedRun:
    """What a run has read and written.

    Args:
        nets: the names of the nets that run, without those of subgraphs.
        before: blobs that the nets read before they write them, with copies of their values.
        written: the values, in the order in which they were written.
    """

    nets: tuple[str, ...]
    before: dict[str, Array] = field(default_factory=dict)
    written: list[Written] = field(default_factory=list)

    def add(self, event: OperatorEvent) -> None:
        """Add what an operator has written, if it is not a value that was there already and was not kept."""
        if event.again:
            return
        for name, read in event.outputs:
            maker = next((part for part in reversed(event.parts) if name in part.outputs), event.parts[-1])
            self.written.append(Written(name, np.array(read()), event.net, maker, event.parts, event.step))


@contextmanager
def recorded(nets: Iterable[RuntimeNet]) -> Iterator[RecordedRun]:
    """Record, in the block, the runs of created nets; memory is needed for all values at once.

    The nets run with their own kernels, fusions and memory; only the order is that of the net, on one thread.
    """
    nets = list(nets)
    found = RecordedRun(tuple(net.name for net in nets))
    for net in nets:
        for name in undefined_inputs(net.proto.op):
            blob = net.find_blob(name)
            if blob is not None and not blob.is_empty and blob.spec is not None and name not in found.before:
                found.before[name] = np.array(blob.fetch())
    for net in nets:
        net.observe(found.add)
    try:
        yield found
    finally:
        for net in nets:
            net.observe(None)
