"""Finding the first operator of a run whose result is NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.instructions import describe
from netbuilder.ops.core.operator import STRING
from netbuilder.ops.core.operator_event import OperatorEvent, ReadValue
from netbuilder.proto import OperatorError
from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.plan.options import FindNan

__all__ = ["NotFinite", "NotFiniteError", "NotFiniteFinder"]

_INPUTS = 4  # of which the message gives the range


@dataclass(frozen=True)
class NotFinite:
    """The first value of a run that is not finite.

    Args:
        blob: its name.
        nan, infinite, size: how many of its elements are NaN, how many infinite, and how many there are.
        index: the index of the first of them.
        shape: of the value.
        run: number of the run of the net, from 1.
        net: name of the net, or of the step net.
        operator: index of the operator that computed it; None: an input had the value before the run.
        op_type: type of that operator, or "".
        source: the line of the user's code that made the operator, or "".
        step: step of a recurrent net, from 0; -1: none.
    """

    blob: str
    nan: int
    infinite: int
    size: int
    index: tuple[int, ...]
    shape: tuple[int, ...]
    run: int
    net: str
    operator: int | None = None
    op_type: str = ""
    source: str = ""
    step: int = -1

    @property
    def counts(self) -> str:
        """The numbers as text, such as "2 NaN of 12 elements"."""
        kinds = [f"{self.nan:,} NaN"] * bool(self.nan) + [f"{self.infinite:,} inf"] * bool(self.infinite)
        place = f", first at {self.index}" if self.index else ""
        return f"{' and '.join(kinds)} of {counted(self.size, 'element')}{place}"


class NotFiniteError(OperatorError, FloatingPointError):
    """An operator has computed NaN or an infinity, or an input has one.

    Args:
        text: the message.
        found: what was found.
    """

    _located = True  # the message has the operator's position

    def __init__(self, text: str, found: NotFinite | None = None) -> None:
        super().__init__(text)
        self.found = found


class NotFiniteFinder:
    """Looks at the values of a run as they are computed, and raises an error at the first that is not finite.

    Args:
        kinds: what to find.
        clock: counts the runs.
    """

    def __init__(self, kinds: FindNan, clock: Any) -> None:
        self._only_nan = kinds == "nan"
        self._clock = clock

    def check_inputs(self, net: str, blobs: Iterable[Any]) -> None:
        """Raise NotFiniteError if a blob (``runtime.values.blob.Blob``) has such a value before the run."""
        for blob in blobs:
            if blob is None or blob.is_empty or blob.spec is None or blob.spec.dtype == STRING:
                continue
            found = self._look(blob.name, blob.fetch, net)
            if found is not None:
                raise NotFiniteError(
                    f"net {net!r}, before run {found.run}: its input {found.blob!r} of shape {found.shape} has "
                    f"{found.counts}; no operator of this net has computed it: look at what was fed, or at the net "
                    "that wrote it",
                    found,
                )

    def on_operator(self, event: OperatorEvent) -> None:
        """Raise NotFiniteError if an output of the operator has such a value."""
        for name, read in event.outputs:
            found = self._look(name, read, event.net, event)
            if found is not None:
                raise NotFiniteError(_message(event, found), found)

    def _look(self, name: str, read: ReadValue, net: str, event: OperatorEvent | None = None) -> NotFinite | None:
        array = np.asarray(read())
        if array.dtype.kind != "f" or _sum_is_finite(array):
            return None
        nan = np.isnan(array)
        wrong = nan if self._only_nan else ~np.isfinite(array)
        if not wrong.any():
            return None
        first = event.parts[-1] if event is not None else None
        return NotFinite(
            blob=name, nan=int(nan.sum()), infinite=int(np.isinf(array).sum()), size=array.size,
            index=tuple(map(int, np.argwhere(wrong)[0])), shape=array.shape, run=self._clock.iteration, net=net,
            operator=first.index if first is not None else None, op_type=first.op_def.type if first is not None else "",
            source=first.op_def.debug_info if first is not None else "", step=event.step if event is not None else -1,
        )  # fmt: skip


def _sum_is_finite(array: np.ndarray[Any, Any]) -> bool:
    """Whether the sum is finite: then all elements are. It may overflow where they are."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(array.sum()))


def _message(event: OperatorEvent, found: NotFinite) -> str:
    where = " + ".join(describe(event.net, part) for part in event.parts)
    time = f", in step {event.step}" if event.step >= 0 else ""
    return (
        f"{where}{time}: the first value of run {found.run} that is not finite: its output {found.blob!r} of shape "
        f"{found.shape} has {found.counts}{_ranges(event.inputs)}"
    )


def _ranges(inputs: Sequence[tuple[str, ReadValue]]) -> str:
    """Return the ranges of an operator's inputs as text: with them the reason is mostly plain."""
    texts: list[str] = []
    for name, read in dict(inputs).items():
        array = np.asarray(read())
        if array.dtype.kind in "fiu" and array.size and len(texts) < _INPUTS:
            texts.append(f"{name!r} is in [{array.min():.4g}, {array.max():.4g}]")
    return f"; {', '.join(texts)}" if texts else ""
