"""Observers of created nets: how long runs take, and how many operators they run."""

from __future__ import annotations

import time
from typing import Any

from netbuilder.caffe2.lenient import LenientNet
from netbuilder.ops.recurrent.links import Recurrent
from netbuilder.proto import NetError
from netbuilder.runtime.execute import default
from netbuilder.runtime.execute.net import RuntimeNet

__all__ = ["AddObserver", "NumObservers", "RemoveObserver", "RunCountObserver", "TimeObserver"]


class TimeObserver:
    """The time that the runs of a net take."""

    def __init__(self) -> None:
        self._began = 0.0
        self._seconds = 0.0
        self._runs = 0

    def run_starts(self, net: RuntimeNet) -> None:
        self._began = time.perf_counter()

    def run_ends(self, net: RuntimeNet) -> None:
        net.finish()
        self._seconds += time.perf_counter() - self._began
        self._runs += 1

    def average_time(self) -> float:
        """Return the mean time of a run in milliseconds; 0 before the first one."""
        return 1000 * self._seconds / self._runs if self._runs else 0.0

    def debug_info(self) -> str:
        """Return ``average_time`` in words."""
        return f"A run takes {self.average_time():.6g} ms on average."


class RunCountObserver:
    """How many operators the runs of a net run; those of a recurrent operator's step net count once a step."""

    def __init__(self) -> None:
        self._count = 0

    def run_starts(self, net: RuntimeNet) -> None:
        pass

    def run_ends(self, net: RuntimeNet) -> None:
        for instruction in net.program:
            self._count += 1
            op = instruction.op
            if isinstance(op, Recurrent):
                blob = net.find_blob(op.forward_inputs[0])
                steps = blob.spec.shape[0] if blob is not None and blob.spec is not None else 0
                held: Any = getattr(op, "backward_step_net", None) if instruction.op_def.is_gradient_op else op.step_net
                self._count += steps * len(held.op if held is not None else ())

    def debug_info(self) -> str:
        """Return the number in words; no other digits are in them."""
        return f"Operators were run {self._count} times."


_KINDS: dict[str, type[TimeObserver | RunCountObserver]] = {
    "RunCountObserver": RunCountObserver,
    "TimeObserver": TimeObserver,
}


def AddObserver(self: Any, observer_type: str) -> TimeObserver | RunCountObserver:
    """Observe a created net of the current workspace from its next run on; return the observer.

    Args:
        self: the Net.
        observer_type: "TimeObserver" or "RunCountObserver".

    Raises:
        NetError: there is no such net in the workspace, or no such observer.
    """
    if observer_type not in _KINDS:
        raise NetError(
            f"no observer {observer_type!r}; there are {', '.join(_KINDS)}; for the time of each operator use "
            "netbuilder.runtime.profile.profiling.profile or netbuilder-profile"
        )
    observer = _KINDS[observer_type]()
    _created(self).observers.append(observer)
    return observer


def RemoveObserver(self: Any, observer: Any) -> None:
    """End an observer's work.

    Raises:
        NetError: the net is not there, or the observer is none of its.
    """
    observers = _created(self).observers
    if observer not in observers:
        raise NetError(f"net {self}: {observer!r} does not observe it; NumObservers() tells how many do")
    observers.remove(observer)


def NumObservers(self: Any) -> int:
    """Return how many observers a created net has."""
    return len(_created(self).observers)


def _created(net: Any) -> RuntimeNet:
    return default.workspace().net(net)


# Nets of the graph know no workspace; under Caffe2's names they do.
for _method in (AddObserver, RemoveObserver, NumObservers):
    setattr(LenientNet, _method.__name__, _method)
