"""For the tests of collectives: a world of one rank, and runs of an operator on ranks that are threads."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.distributed.transport.communicator import OneRank
from netbuilder.distributed.worlds.world import CommonWorld
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from thread_ranks import on_ranks, thread_worlds

OBJECT = TensorSpec((), STRING)


def alone() -> CommonWorld:
    """Return a common world of one rank."""
    return CommonWorld("cw", OneRank(), None)


def run_on_ranks(op_type: str, blobs: list[dict[str, Any]], outputs: list[str], **arguments: Any) -> list[Any]:
    """Run an operator twice on each of several ranks, by a plan where it has a kernel for one.

    Args:
        op_type: the operator.
        blobs: for each rank its inputs after the common world.
        outputs: names of the outputs.
        arguments: of the operator.

    Returns:
        For each rank the outputs of the second run, or its error.
    """
    worlds = thread_worlds(len(blobs))

    def run(rank: int) -> list[Any]:
        workspace = Workspace(threads=1)
        workspace.feed("cw", worlds[rank])
        net = NetDef(name="collective")
        net.op.append(make_op(op_type, ["cw", *blobs[rank]], outputs, **arguments))
        for number in range(2):
            for name, value in blobs[rank].items():
                workspace.feed(name, value)
            if number == 0:
                workspace.create_net(net)
            workspace.run_net(net.name)
        return [workspace.fetch(name) for name in outputs]

    return on_ranks(len(blobs), run)


def numbers(rank: int, dtype: Any = np.float32, shape: tuple[int, ...] = (3, 4)) -> Any:
    """Return small whole numbers, others on each rank."""
    return (np.arange(int(np.prod(shape))).reshape(shape) % 7 + rank).astype(dtype)
