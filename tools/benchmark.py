"""Benchmarks beside peers on the same machine in the same run: ``netbuilder-benchmark TASK``.

Tasks: ``mlp`` and ``resnet50`` (training steps beside PyTorch), ``build`` (Parallelize, per operator).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from netbuilder.runtime.compiler import default_threads
from netbuilder.tools.bench.build import build_time
from netbuilder.tools.bench.machine import busy_share, describe_machine
from netbuilder.tools.bench.pairs import Worker, compare
from netbuilder.tools.bench.peers import peer_python

__all__ = ["main"]

_IDLE = 0.05  # share of the cores that other work may take before a figure is doubtful
_STEPS = {"mlp": 500, "resnet50": 2}
_BATCH = {"mlp": 32, "resnet50": 32}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="netbuilder-benchmark", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("task", choices=["mlp", "resnet50", "build"])
    parser.add_argument("--mode", choices=["eager", "compile"], default="eager", help="how PyTorch runs (eager)")
    parser.add_argument("--threads", type=int, default=default_threads(), help="threads on either side")
    parser.add_argument("--batch", type=int, help="samples a step (32)")
    parser.add_argument("--pairs", type=int, default=5, help="turns of each side (5)")
    parser.add_argument("--steps", type=int, help="steps a turn")
    parser.add_argument("--peer-python", help="an interpreter that has the peer; by default one is installed")
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 4, 16, 64], help="for build")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark and print its figures; returns the exit status."""
    options = _parser().parse_args(arguments)
    print(describe_machine())
    busy = busy_share()
    if busy > _IDLE:
        print(
            f"the machine is not idle: other work takes {busy:.0%} of its cores, figures are doubtful", file=sys.stderr
        )
    if options.task == "build":
        _build(options.devices)
    else:
        _pairs(options)
    return 0


def _build(devices: Sequence[int]) -> None:
    build_time(1)  # imports and first-time set-up do not count
    for count in devices:
        done = build_time(count)
        print(
            f"Parallelize of ResNet-50 over {done.devices} devices: {done.operators} operators in "
            f"{done.seconds:.2f} s, {done.per_operator:.1f} us an operator"
        )


def _pairs(options: argparse.Namespace) -> None:
    task, threads = options.task, options.threads
    batch = options.batch or _BATCH[task]
    python = options.peer_python or peer_python("torch")
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    script = Path(__file__).parent / "bench" / "peer_torch.py"
    size = [str(threads), str(batch)]
    ours = Worker("netbuilder", [sys.executable, "-m", "netbuilder.tools.bench.ours", task, *size], env)
    peer = Worker("torch", [python, str(script), task, options.mode, *size], env)
    try:
        result = compare(ours, peer, pairs=options.pairs, steps=options.steps or _STEPS[task])
    finally:
        ours.close()
        peer.close()
    low, high = result.spread
    unit, factor = ("us", 1e6) if task == "mlp" else ("ms", 1e3)
    print(
        f"{task}, batch {batch}, {threads} threads, {options.pairs} pairs: "
        f"netbuilder {factor * statistics.median(result.ours):.1f} {unit}, "
        f"torch {peer.info['torch']} {options.mode} {factor * statistics.median(result.peer):.1f} {unit}; "
        f"{result.ratio:.2f} x as fast (pairs {low:.2f} to {high:.2f}), "
        f"{1 / result.ratio:.2f} of its time"
    )


if __name__ == "__main__":
    sys.exit(main())
