"""Runs that fail if an operator computes infinities or NaN from finite numbers, if a flag is set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.caffe2.flags import flag
from netbuilder.proto import OperatorDef, OperatorError
from netbuilder.proto.arguments import made_at
from netbuilder.runtime import Workspace

__all__ = ["check_finite"]

_FLAG = "caffe2_operator_throw_if_fp_exceptions"


def check_finite(workspace: Workspace, ops: Sequence[OperatorDef]) -> None:
    """If the flag is set, check the outputs of operators in a workspace.

    Inputs that an operator overwrote in place are no longer known, so only its other inputs are checked.

    Raises:
        OperatorError: an operator's output holds an infinity or NaN, and none of its inputs does.
    """
    if not flag(_FLAG):
        return
    finite: dict[str, bool] = {}

    def is_finite(blob: str) -> bool:
        if blob not in finite:
            value = workspace.fetch(blob) if workspace.has(blob) and workspace.spec(blob) is not None else None
            floats: Any = value if isinstance(value, np.ndarray) and value.dtype.kind == "f" else None
            finite[blob] = floats is None or bool(np.isfinite(floats).all())
        return finite[blob]

    for index, op in enumerate(ops):
        made = [blob for blob in op.output if not is_finite(blob)]
        if made and all(is_finite(blob) for blob in op.input if blob not in op.output):
            raise OperatorError(
                f"operator {index} {op.type} {list(op.input)} -> {list(op.output)}{made_at(op)}: made infinities or "
                f"NaN in {made} from finite numbers (--{_FLAG} is on)"
            )
