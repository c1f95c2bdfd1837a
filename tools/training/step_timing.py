"""Time of training by phase: a few steps of each epoch are timed call by call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.parallel.accumulate import net_names
from netbuilder.parallel.blocks import count_iterations
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan.values import StepKind
from netbuilder.runtime.profile.call import runs_again, share_again
from netbuilder.runtime.profile.timing import Recorder

__all__ = ["PHASES", "Boundaries", "StepTiming", "phase_table"]

PHASES = ("forward", "backward", "exchange", "update")


@dataclass
class Boundaries:
    """Ends of the phases of a training net, as indices of operators; set while it is built."""

    forward: int = 0
    backward: int = 0
    exchange: int = 0

    def phase(self, index: int) -> str:
        """Return the phase of an operator."""
        ends = (self.forward, self.backward, self.exchange)
        return next((name for name, end in zip(PHASES, ends) if index < end), PHASES[-1])


@dataclass
class StepTiming:
    """Times steps call by call.

    Args:
        model: data-parallel training model.
        workspace: where its nets were created.
        boundaries: of its net.
    """

    model: ModelHelper
    workspace: Workspace
    boundaries: Boundaries
    #: Phase -> share of the time of the fastest step that was timed; their sum is 1.
    shares: dict[str, float] = field(default_factory=dict)
    #: The time to compute values again, to save memory, as a fraction of that of all else, in the same step.
    again: float = 0.0
    _least: float = 0.0

    def begin(self) -> None:
        """Forget the steps timed so far."""
        self._least = 0.0

    def run(self) -> None:
        """Run a micro-batch, and the update if it is due, like ``RunNet``, with every call timed."""
        record = Replicas.load(self.model.net.Proto())
        names = net_names(self.model.net.Name(), record)
        seconds = dict.fromkeys(PHASES, 0.0)
        first, times = 0, []
        for number, name in enumerate(names):
            net = self.workspace.net(name)
            once = number > 0 and number == len(names) - 1
            if once and self.workspace.net(names[0]).clock.iteration % record.accumulate_steps:
                break
            recorder = Recorder(net)
            recorder.run()
            weight = 1 if once else record.accumulate_steps
            times += self._add(recorder, first, weight, seconds)
            first += len(net.program)
        else:
            count_iterations(self.model, 1, workspace=self.workspace)
        whole = sum(seconds.values())
        if whole > 0 and (whole < self._least or not self._least):
            self._least = whole
            self.shares = {name: value / whole for name, value in seconds.items()}
            self.again = share_again(times)

    def _add(
        self, recorder: Recorder, first: int, weight: int, seconds: dict[str, float]
    ) -> list[tuple[bool, bool, float]]:
        """Add the time of each call to that of its phase; return the times for ``share_again``."""
        times = []
        calls = [call for plan in recorder.plans for call in plan.calls] + recorder.alone
        for call in calls:
            phase = self.boundaries.phase(first + call.instruction.index)
            took = weight * sum(ended - began for _, began, ended in call.spans) / 1e9
            seconds[phase] += took
            if call.step is not None:
                times.append((call.step.kind is StepKind.RECOMPUTE, runs_again(call.step), took))
        return times


def phase_table(shares: dict[str, float], wait: float, seconds: float) -> str:
    """Return a line with the time of an epoch by phase.

    Args:
        shares: of the steps' time, by phase.
        wait: seconds that the loop waited for input.
        seconds: of the epoch.

    >>> phase_table({"forward": 0.5, "backward": 0.5}, 1.0, 5.0)
    'input 1.00 s (20%), forward 2.00 s (40%), backward 2.00 s (40%)'
    """
    busy = max(seconds - wait, 0.0)
    rows: Sequence[tuple[str, float]] = [("input", wait), *((name, share * busy) for name, share in shares.items())]
    return ", ".join(f"{name} {value:.2f} s ({value / max(seconds, 1e-9):.0%})" for name, value in rows)
