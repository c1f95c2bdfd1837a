"""What all processes of our side of a benchmark do together: rank 0 reads the commands, and the others follow.

``mpiexec -n P python -m netbuilder.tools.bench.our_ranks exchange SIZES`` sums the gradients of a net in several ways,
``... our_ranks train WARMUP WORK`` trains it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import netbuilder
from netbuilder import Workspace
from netbuilder.distributed import Rendezvous
from netbuilder.distributed.transport.mpi import mpi
from netbuilder.distributed.worlds.world import create_world
from netbuilder.parallel.simulation.simulate import make_buckets
from netbuilder.parallel.simulation.sweep import sweep_allreduce
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.tools.bench.ours import Training
from netbuilder.tools.bench.work import Work
from netbuilder.tools.bench.worker import answer_commands, open_answers, timed

__all__ = ["exchange_ways", "main", "serve_ranks"]

_POLL = 1e-3  # seconds: ranks that wait for a command must not use the cores of the other sides
_TAG = 7


def exchange_ways(sizes: list[int], bucket_bytes: int) -> dict[str, Callable[[], Any]]:
    """Return functions that sum values over the processes; all processes call the same one at the same time.

    Args:
        sizes: bytes of each value (float32), in the order in which they are exchanged.
        bucket_bytes: of the buckets of netbuilder.

    Returns:
        "netbuilder": a net of AllreduceBucket over values that another net has made, as it makes gradients; "whole":
        one Allreduce of mpi4py in place over as many bytes; "buckets": one for each bucket.
    """
    library, workspace = mpi(), Workspace(threads=1)
    comm = library.COMM_WORLD
    workspace.run_operator_once(make_op("CreateCommonWorld", [], ["world"]))
    buckets = make_buckets([(f"g{i}", size) for i, size in enumerate(sizes)], bucket_bytes)
    sums = [make_op("AllreduceBucket", ["world", *each.gradients], each.gradients) for each in buckets]
    made = [make_op("ConstantFill", [], [f"g{i}"], shape=[size // 4]) for i, size in enumerate(sizes)]
    inputs = ["world", *(name for each in buckets for name in each.gradients)]
    workspace.run_net_once(NetDef(name="made", op=[*made, *sums], external_input=inputs[:1]))
    workspace.create_net(NetDef(name="exchange", op=sums, external_input=inputs), observable="outputs")
    whole = np.zeros(sum(sizes) // 4, np.float32)
    parts = np.split(whole, np.cumsum([each.nbytes // 4 for each in buckets])[:-1])

    def allreduce(*arrays: Any) -> None:
        for array in arrays:
            comm.Allreduce(library.IN_PLACE, array)

    return {
        "netbuilder": lambda: workspace.run_net("exchange"),
        "whole": lambda: allreduce(whole),
        "buckets": lambda: allreduce(*parts),
    }


def serve_ranks(run: Callable[[dict[str, Any]], dict[str, Any]], info: dict[str, Any], answers: Any) -> None:
    """Run each command of the controller in all processes at the same time; rank 0 answers.

    Args:
        run: runs a command; returns the answer.
        info: see ``worker.serve``.
        answers: see ``worker.open_answers``.
    """
    comm = mpi().COMM_WORLD
    others = range(1, comm.Get_size())

    def tell(command: dict[str, Any] | None) -> None:
        for rank in others:
            comm.send(command, rank, _TAG)

    def lead(command: dict[str, Any]) -> dict[str, Any]:
        tell(command)
        comm.Barrier()
        return run(command)

    if comm.Get_rank() == 0:
        answer_commands(answers, lead, info)
        tell(None)
        return
    while True:
        while not comm.Iprobe(0, _TAG):
            time.sleep(_POLL)
        command = comm.recv(source=0, tag=_TAG)
        if command is None:
            return
        comm.Barrier()
        run(command)


def _exchange(sizes: list[int], bucket_bytes: int) -> None:
    answers = open_answers()
    ways = exchange_ways(sizes, bucket_bytes)
    for way in ways.values():
        timed(way, 2)
    serve_ranks(lambda command: {"seconds": timed(ways[command["way"]], command["steps"])}, _INFO, answers)


def _train(warmup: int, work: Work) -> None:
    answers = open_answers()
    training = Training(work, Rendezvous.from_environment())
    training.measure_choices()
    timed(training.step, warmup)
    world = create_world("benchmark", 0, 0)

    def run(command: dict[str, Any]) -> dict[str, Any]:
        if "sweep" in command:
            points = world.run(world.call("a sweep", ""), lambda comm, _: sweep_allreduce(comm, command["sweep"]))
            return {"points": points}
        return {"seconds": timed(training.step, command["steps"]), "loss": training.loss()}

    buckets = sum(op.type == "AllreduceBucket" for op in training.model.net.Proto().op)
    serve_ranks(run, {**_INFO, "buckets": buckets}, answers)


_INFO = {"version": netbuilder.__version__}


def main(arguments: list[str]) -> None:
    """Serve an exchange, or training steps."""
    if arguments[0] == "exchange":
        _exchange(json.loads(arguments[1]), int(arguments[2]))
    else:
        _train(int(arguments[1]), Work.from_text(arguments[2]))


if __name__ == "__main__":
    main(sys.argv[1:])
