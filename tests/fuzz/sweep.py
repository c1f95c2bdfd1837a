"""Every golden operator with one input changed at a time: its rank, each extent, and the last of its integers.

``cd tests && python -m fuzz.sweep`` runs all of it, 130,000 inputs in some two minutes; names of operators select some.
The campaign's random inputs meet a class of these only by chance.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

import golden_data
from fuzz.judge import Finding, fault
from fuzz.operator_kind import LEFT_OUT
from fuzz.worker import limit_memory
from netbuilder.ops.core.registry import is_registered
from netbuilder.proto import OperatorDef
from netbuilder.runtime import Workspace

__all__ = ["changed", "sweep"]

_SMALL = 5000  # elements of all inputs of a case
_NUMBERS = (-1, 10**6, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63))


def changed(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield changed copies of an array, each with what was changed."""
    first = value.reshape(-1)[0] if value.size else np.zeros((), value.dtype)[()]
    yield "a scalar", np.array(first, dtype=value.dtype)
    yield "flat", value.reshape(-1)
    yield "one axis more", value[None]
    for axis, extent in enumerate(value.shape):
        for n in sorted({0, 1, extent + 1, max(extent - 1, 0)} - {extent}):
            shape = (*value.shape[:axis], n, *value.shape[axis + 1 :])
            yield f"extent {n} of axis {axis}", np.resize(value, shape) if value.size else np.zeros(shape, value.dtype)
    if value.dtype.kind in "iu" and value.size:
        limits = np.iinfo(value.dtype)
        for number in _NUMBERS:
            if limits.min <= number <= limits.max:
                copy = value.copy()
                copy.reshape(-1)[-1] = number
                yield f"{number} as the last number", copy


def sweep(only: Collection[str] = ()) -> tuple[int, list[Finding]]:
    """Run all changed inputs, of the operators ``only`` if there are any; return their number, and what was wrong.

    One finding is returned for each operator and place.
    """
    count, found = 0, {}
    for op, inputs in _cases(only):
        for name, value in inputs.items():
            for what, other in changed(np.asarray(value)):
                for engines in ((), None):
                    count += 1
                    wrong = _run(op, {**inputs, name: other}, engines)
                    if wrong is not None and (op.type, wrong[1]) not in found:
                        text = f"{op.type}, {name!r} of shape {np.shape(value)} with {what}: {wrong[0]}"
                        found[op.type, wrong[1]] = Finding("sweep", count, text, wrong[1])
    return count, list(found.values())


def _cases(only: Collection[str]) -> Iterator[tuple[OperatorDef, dict[str, Any]]]:
    for case in golden_data.cases():
        if only and case.op not in only or sum(np.asarray(value).size for value in case.inputs.values()) > _SMALL:
            continue
        values = {**case.inputs, **case.outputs, **case.output_grads}
        for op in (case.operator, *case.gradient_ops):
            if is_registered(op.type) and op.type not in LEFT_OUT:
                yield op, {name: values[name] for name in op.input if name in values}


def _run(op: OperatorDef, inputs: dict[str, Any], engines: tuple[str, ...] | None) -> tuple[str, str] | None:
    workspace = Workspace(engines=engines, threads=1, seed=1)
    try:
        for name, value in inputs.items():
            workspace.feed(name, value)
        with np.errstate(all="ignore"):
            workspace.run_operator_once(op)
        for name in op.output:
            workspace.fetch(name)
    except Exception as error:
        return fault(error, may_lack_memory=True)
    return None


def main(only: list[str]) -> int:
    """Sweep in this process, whose memory is bounded; return 1 if anything was found."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        limit_memory()
        count, findings = sweep(only)
        os.chdir("/")
    print(f"{count:,d} inputs, {len(findings)} findings")
    for each in findings:
        print(f"{each.what} ({each.where})")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
