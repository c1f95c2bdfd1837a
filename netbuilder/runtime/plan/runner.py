"""Runner: the interface of a net to the plan compiler."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from netbuilder.ops.core.instructions import Instruction
from netbuilder.runtime.plan.run_context import KernelContext
from netbuilder.runtime.values.blob import Blob

__all__ = ["Runner"]


class Runner(Protocol):
    """The interface of a net to the plan compiler (see ``runtime.execute.net.RuntimeNet``)."""

    name: str
    program: list[Instruction]
    warned: set[str]  #: what the user has been told of kernels, see ``Warned``

    def find_blob(self, name: str) -> Blob | None:
        """The blob of that name, or None."""

    def filled_blobs(self) -> Iterable[str]:
        """The names of the blobs that hold a value."""

    def last_end(self, start: int) -> int:
        """The operator before which a plan that begins at the operator ``start`` has to end, at the latest."""

    def kernel_context(self, instruction: Instruction) -> KernelContext:
        """The run context of an operator's kernels."""

    def keep(self, name: str) -> bool:
        """Make a blob observable from the next run on; False if it is already, or if the net has no such blob."""

    @property
    def not_kept(self) -> Collection[str]:
        """Blobs that ``keep`` was called for, but with which the net cannot keep to its memory budget."""

    def hides(self, name: str, start: int, end: int) -> bool:
        """Whether a blob made by the operators from ``start`` to before ``end`` is used by them alone."""
