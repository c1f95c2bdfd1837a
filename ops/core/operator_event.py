"""What an observer of a run is told after each operator: which one ran, and the values that it read and wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.instructions import Instruction
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["OnOperator", "OperatorEvent", "ReadValue"]

ReadValue = Callable[[], "np.ndarray[Any, Any]"]
"""Returns a value as a NumPy array in plain order, which the run may overwrite later."""


@dataclass(frozen=True)
class OperatorEvent:
    """An operator, or several fused into one, has run.

    Args:
        net: the name of its net, or of the step net that it belongs to.
        parts: the operators.
        inputs: the tensors that it has read and not overwritten, by name.
        outputs: the tensors that it has written, by name.
        step: the step of a recurrent net; -1: it is in none, or runs once for all steps.
        again: it has computed a value that an earlier event reported, and that was not kept.
    """

    net: str
    parts: tuple[Instruction, ...]
    inputs: Sequence[tuple[str, ReadValue]]
    outputs: Sequence[tuple[str, ReadValue]]
    step: int = -1
    again: bool = False


OnOperator = Callable[[OperatorEvent], object]
"""Is called after each operator; an exception that it raises ends the run."""
