"""benchmark_net: the time of a created net, and of each of its operators run alone."""

from __future__ import annotations

import time
from typing import Any

from netbuilder.proto import NetDef, NetError
from netbuilder.runtime.execute.net import RuntimeNet
from netbuilder.runtime.execute.workspace import Workspace

__all__ = ["benchmark_net"]


def benchmark_net(
    workspace: Workspace, name: Any, warmup_runs: int, main_runs: int, *, each_operator: bool = False
) -> list[float]:
    """Run a created net repeatedly, and return the mean time of a run.

    The runs have their usual effects: counters advance, and parameters are updated.

    Args:
        workspace: where the net was created.
        name: of the net.
        warmup_runs: runs before those that are timed.
        main_runs: runs that are timed.
        each_operator: also run each operator alone, ``main_runs`` times. These times do not show what a plan gains
            from fusing operators or keeping values in an engine's layout.

    Returns:
        The time of the net in milliseconds, then that of each operator, or 0 without ``each_operator``.

    Raises:
        NetError: there is no such net, a number of runs is out of range, or an operator failed.
    """
    if warmup_runs < 0 or main_runs < 1:
        raise NetError(
            f"net {name!r}: warmup_runs must be 0 or more and main_runs 1 or more, got {warmup_runs} and {main_runs}"
        )
    net = workspace.net(name)
    times = [_mean(net, warmup_runs, main_runs)]
    for index, op in enumerate(net.proto.op):
        if not each_operator:
            times.append(0.0)
            continue
        alone = NetDef(name=f"{net.name}, operator {index}")
        alone.device_option.CopyFrom(net.proto.device_option)
        alone.op.add().CopyFrom(op)
        options = workspace.options.of_net(alone, without="fusion")
        times.append(_mean(RuntimeNet(alone, workspace, options), min(warmup_runs, 1), main_runs))
    return times


def _mean(net: RuntimeNet, warmup_runs: int, main_runs: int) -> float:
    for _ in range(warmup_runs):
        net.run()
    net.finish()
    start = time.perf_counter()
    for _ in range(main_runs):
        net.run()
    net.finish()
    return (time.perf_counter() - start) / main_runs * 1000
