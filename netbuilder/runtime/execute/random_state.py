"""The random state of a workspace: its seed, and how often each of its nets has run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from netbuilder.proto import NetError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.execute.workspace import Workspace

__all__ = ["RandomState", "random_state", "set_random_state"]


@dataclass(frozen=True)
class RandomState:
    """What random numbers depend on, besides the operators' random streams.

    Args:
        seed: of the workspace.
        iterations: for each created net, how often it has run.
    """

    seed: int
    iterations: Mapping[str, int] = field(default_factory=dict)


def random_state(workspace: Workspace) -> RandomState:
    """Return the random state of a workspace."""
    return RandomState(int(workspace.seed), {name: workspace.net(name).clock.iteration for name in workspace.nets()})


def set_random_state(workspace: Workspace, state: RandomState) -> None:
    """Restore a random state: random operators draw the same numbers as after ``random_state`` returned it.

    Args:
        workspace: the workspace; nets that the state does not name are unchanged.
        state: from ``random_state``; nets that the workspace does not have are ignored.

    Raises:
        NetError: a count is negative.

    >>> workspace = Workspace(seed=3)
    >>> set_random_state(workspace, RandomState(7))
    >>> random_state(workspace)
    RandomState(seed=7, iterations={})
    """
    if wrong := {name: count for name, count in state.iterations.items() if count < 0}:
        raise NetError(f"random state: the number of runs of a net must not be negative, got {wrong}")
    nets = set(workspace.nets())
    if workspace.seed != state.seed:
        workspace.seed = state.seed
        workspace.generation.number += 1
        for name in nets:
            workspace.net(name).forget_plans()
    for name in nets.intersection(state.iterations):
        workspace.net(name).clock.iteration = state.iterations[name]
