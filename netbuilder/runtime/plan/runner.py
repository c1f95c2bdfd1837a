"""What the plan compiler needs to know of the net it compiles for."""

from __future__ import annotations

from typing import Protocol

from netbuilder.ops.core.instructions import Instruction
from netbuilder.runtime.plan.run_context import KernelContext
from netbuilder.runtime.values.blob import Blob

__all__ = ["Runner"]


class Runner(Protocol):
    """What the compiler needs to know of the net it compiles for (see ``runtime.net.RuntimeNet``)."""

    name: str
    program: list[Instruction]

    def find_blob(self, name: str) -> Blob | None:
        """The blob of that name, or None."""

    def last_end(self, start: int) -> int:
        """Where a plan that begins at the operator ``start`` has to end, at the latest."""

    def kernel_context(self, instruction: Instruction) -> KernelContext:
        """What the kernels of an operator are given."""

    def hides(self, name: str, start: int, end: int) -> bool:
        """Whether nobody but the operators from ``start`` to before ``end`` may see a blob that they make."""
