"""Runner: the interface of a net to the plan compiler."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from netbuilder.ops.core.instructions import Instruction
from netbuilder.runtime.plan.run_context import KernelContext
from netbuilder.runtime.values.blob import Blob, Hider

__all__ = ["Runner"]


class Runner(Hider, Protocol):
    """The interface of a net to the plan compiler (see ``runtime.execute.net.RuntimeNet``)."""

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

    def hides(self, name: str, start: int, end: int) -> bool:
        """Whether a blob made by the operators from ``start`` to before ``end`` is used by them alone."""
