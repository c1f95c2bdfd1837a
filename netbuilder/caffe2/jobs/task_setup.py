"""Setup and exit nets of steps, stored as attributes of nets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from netbuilder.caffe2.lenient import LenientNet as Net
from netbuilder.graph import ExecutionStep, execution_step

__all__ = ["SetupNets", "add_setup_steps", "get_setup_nets"]


class SetupNets:
    """Nets that run before and after a step, stored as an attribute of a net that needs them.

    Args:
        init_nets, exit_nets: lists of nets, or None.
    """

    def __init__(self, init_nets: Any = None, exit_nets: Any = None) -> None:
        self.init_nets = init_nets
        self.exit_nets = exit_nets

    def setup(self, init_net: Net | None) -> Any:
        """Return the nets that run before."""
        return self.init_nets

    def exit(self, exit_net: Net | None) -> Any:
        """Return the nets that run after the steps."""
        return self.exit_nets

    def __repr__(self) -> str:
        return f"SetupNets(init_nets={self.init_nets}, exit_nets={self.exit_nets})"


def get_setup_nets(key: str, steps_or_nets: Iterable[Any], target: Any) -> tuple[list[Any], list[Any]]:
    """Return the setup and exit nets of the objects that nets store in the attribute ``key``.

    Such an object has ``setup(net)``, or ``exit(net)``, or both. They add operators to ``net``, or return a net or
    builder, or a list of these. They are called once for each target.

    Args:
        key: name of the attribute.
        steps_or_nets: steps, nets and builders.
        target: the task or group of tasks.
    """
    init_net, exit_net = Net(key + "/init"), Net(key + "/exit")
    init_nets: list[Any] = []
    exit_nets: list[Any] = []
    seen: set[int] = set()
    for obj in [obj for part in steps_or_nets for obj in _attributes(part, key)]:
        if id(obj) in seen:
            continue
        seen.add(id(obj))
        for method, net, nets in (("setup", init_net, init_nets), ("exit", exit_net, exit_nets)):
            if not hasattr(obj, method):
                continue
            made = getattr(obj, method)(net)
            if isinstance(made, (list, tuple)):
                nets.extend(made)
            elif made is not None and (isinstance(made, Net) or hasattr(made, "steps_or_nets")):
                nets.append(made)
    init_nets.extend([init_net] if init_net.op_len else [])
    exit_nets.extend([exit_net] if exit_net.op_len else [])
    # Setup nets may have setup and exit nets of their own, which run before and after them.
    inner = [net for net in init_nets if net is not init_net] if init_nets else []
    if inner and any(_attributes(net, key) for net in inner):
        more_init, more_exit = get_setup_nets(key, inner, target)
        return more_init + init_nets, exit_nets + more_exit
    return init_nets, exit_nets


def _attributes(part: Any, key: str) -> list[Any]:
    if isinstance(part, Net):
        return part.get_attributes(key)
    if isinstance(part, ExecutionStep):
        return part.get_all_attributes(key)
    if hasattr(part, "steps_or_nets"):
        return [obj for inner in part.steps_or_nets() for obj in _attributes(inner, key)]
    return []


def add_setup_steps(step: ExecutionStep, init_nets: list[Any], exit_nets: list[Any], name: str) -> ExecutionStep:
    """Return a step that runs nets, then ``step``, then other nets; ``step`` itself if there are none."""
    if not init_nets and not exit_nets:
        return step
    steps = []
    if init_nets:
        steps.append(execution_step(f"{name}:init", init_nets))
    steps.append(step)
    if exit_nets:
        steps.append(execution_step(f"{name}:exit", exit_nets))
    return execution_step(name, steps)
