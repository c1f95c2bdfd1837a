"""Observers of created nets: the time of runs, and the number of operators run."""

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
    """Measures the time of a net's runs."""

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
        """Return ``average_time`` as a sentence."""
        return f"A run takes {self.average_time():.6g} ms on average."


class RunCountObserver:
    """Counts the operators that a net's runs execute; those of a recurrent operator's step net count once per step."""

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
        """Return the count as a sentence that contains no other digits."""
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
        NetError: the workspace has no such net, or there is no such observer type.
    """
    if observer_type not in _KINDS:
        raise NetError(
            f"AddObserver: the type must be one of {', '.join(_KINDS)}, got {observer_type!r}; for the time of each "
            "operator use netbuilder.runtime.profile.profiling.profile or netbuilder-profile"
        )
    observer = _KINDS[observer_type]()
    _created(self).observers.append(observer)
    return observer


def RemoveObserver(self: Any, observer: Any) -> None:
    """Remove an observer from a created net.

    Raises:
        NetError: the net does not exist, or does not have this observer.
    """
    observers = _created(self).observers
    if observer not in observers:
        raise NetError(f"net {self}: {observer!r} is not an observer of it; it has {len(observers)} observers")
    observers.remove(observer)


def NumObservers(self: Any) -> int:
    """Return the number of a created net's observers."""
    return len(_created(self).observers)


def _created(net: Any) -> RuntimeNet:
    return default.workspace().net(net)


# netbuilder.graph's nets know no workspace; Caffe2's nets have these methods.
for _method in (AddObserver, RemoveObserver, NumObservers):
    setattr(LenientNet, _method.__name__, _method)
