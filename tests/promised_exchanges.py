"""Exchanges that ranks make without headers after two like steps; as a program, in processes over MPI."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from netbuilder.distributed.worlds.promises import History
from netbuilder.distributed.worlds.world import CommonWorld, create_world
from netbuilder.proto import DistributedError, NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace

__all__ = ["CASES", "SHAPES", "barrier", "check_case", "net_of", "steps"]

SHAPES = [(40, 5), (3,), (7, 11)]

CASES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "float16": ("AllreduceBucket", {"precision": "float16"}, False),
    "bfloat16": ("AllreduceBucket", {"precision": "bfloat16", "clip": 1.5}, False),
    "two devices in float16": ("AllreduceBucket", {"precision": "float16", "devices": 2}, False),
    "in order": ("AllreduceBucket", {"deterministic": True}, False),
    "largest": ("AllreduceTopK", {"fraction": 0.1}, True),
    "largest, no residuals": ("AllreduceTopK", {"fraction": 0.3, "residual": False}, False),
    "large": ("AllreduceThreshold", {"bound": 0.5}, True),
    "from rank 1": ("BroadcastBucket", {"root": 1}, False),
    "from rank 0 to two devices": ("BroadcastBucket", {"devices": 2}, False),
}
"""Type and arguments of an operator, and whether it has residuals."""

STEPS = 6
HEADERS = [2, 2, 1, 1, 1, 1]
"""In each step: of the barrier, and of the exchange until it is promised."""


def barrier(world: CommonWorld, name: str = "") -> None:
    world.run(world.call("Barrier", name), lambda communicator, _: None)


def net_of(case: str) -> tuple[NetDef, list[str], list[str]]:
    """Return a net of the exchange of a case, its values and its residuals."""
    kind, arguments, has_residuals = CASES[case]
    devices = arguments.get("devices", 1)
    values = [f"g{number}_{device}" for number in range(len(SHAPES)) for device in range(devices)]
    residuals = [f"{name}_rest" for name in values if has_residuals]
    names = [*values, *residuals]
    return NetDef(name="exchange", op=[make_op(kind, ["cw", *names], names, **arguments)]), values, residuals


def steps(
    world: CommonWorld, case: str, not_a_number: int | None = None, after: str = ""
) -> tuple[list[bytes], list[int]]:
    """Exchange the values of ``STEPS`` steps; return their bytes, and how many headers each step has had.

    Args:
        world: the common world.
        case: a name in ``CASES``.
        not_a_number: a step in which the first element of each value is NaN on rank 1; None: there is none.
        after: name of the barrier before each step, which the exchange follows.
    """
    net, values, residuals = net_of(case)
    workspace, counts, found = Workspace(threads=1), [0], []
    workspace.feed("cw", world)
    devices = len(values) // len(SHAPES)
    shapes = [shape for shape in SHAPES for _ in range(devices)]
    for name, shape in zip(residuals, shapes):
        workspace.feed(name, np.zeros(shape, np.float32))
    assert world.session is not None
    control, given = world.session.control, world.session.control.allreduce

    def counted(*args: Any, **more: Any) -> None:
        counts[-1] += 1
        given(*args, **more)

    control.allreduce = counted  # type: ignore[method-assign]
    for step in range(STEPS):
        rng = np.random.default_rng([world.rank, step])
        for name, shape in zip(values, shapes):
            value = rng.normal(size=shape).astype(np.float32)
            value[..., -1] = -0.0
            if step == not_a_number and world.rank == 1:
                value.reshape(-1)[0] = np.nan
            workspace.feed(name, value)
        if not step:
            workspace.create_net(net)
        barrier(world, after)
        workspace.run_net("exchange")
        found.append(b"".join(workspace.fetch(name).tobytes() for name in (*values, *residuals)))
        counts.append(0)
    del control.allreduce
    return found, counts[:-1]


def check_case(world: CommonWorld, case: str, not_a_number: int | None, want: list[bytes]) -> list[bytes]:
    """Check that headers end, and that values are those of an earlier call (``want``) without promises, to the bit."""
    found, headers = steps(world, case, not_a_number, f"{case} {not_a_number}")
    asked = list(HEADERS)
    if not_a_number is not None and doubts(case):
        asked[not_a_number] += 1
    assert headers == asked, (case, headers)
    assert found == want, (case, [a == b for a, b in zip(found, want)])
    return found


def doubts(case: str) -> bool:
    """Whether a NaN in the first element on rank 1 looks like a refusal."""
    kind, arguments, _ = CASES[case]
    return kind == "AllreduceBucket" or (kind == "BroadcastBucket" and arguments.get("root") == 1)


def main() -> None:
    """Check all cases; at the end rank 1 does something else."""
    world = create_world("cw", 0, 0)
    promised = History.promised_after
    for case in CASES:
        for not_a_number in (None, 4):
            History.promised_after = lambda self, number: 0  # type: ignore[method-assign]
            want, headers = steps(world, case, not_a_number)
            assert headers == [2] * STEPS, headers
            History.promised_after = promised  # type: ignore[method-assign]
            check_case(world, case, not_a_number, want)
    case = sys.argv[1]
    net, values, residuals = net_of(case)
    print(f"rank {world.rank} has checked all", flush=True)
    barrier(world, f"{case} None")  # after which all have promised
    try:
        if world.rank == 1:
            barrier(world, "another one")
        else:
            workspace = Workspace(threads=1)
            workspace.feed("cw", world)
            for name in (*values, *residuals):
                workspace.feed(name, np.ones(SHAPES[int(name[1]) % len(SHAPES)], np.float32))
            workspace.run_net_once(net)
    except DistributedError as error:
        print(f"rank {world.rank}: {error}", flush=True)


if __name__ == "__main__":
    main()
