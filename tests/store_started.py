"""Processes that no launcher has started, which meet in a store: a program, and how tests start it."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpi_runs import environment
from netbuilder import Workspace, parallel
from netbuilder.distributed import ProcessGroup, Rendezvous
from netbuilder.model import ModelHelper, brew
from netbuilder.optimizers import build_sgd
from netbuilder.parallel.compat import DistOpt, NcclIdHolder

__all__ = ["FAULTS", "parameters", "run_in_shells", "run_multiprocessing"]

FAULTS = {
    "killed": "os.kill(os.getpid(), 9)",
    "leaves with status 0": "os._exit(0)",
    "exits with status 3": "sys.exit(3)",
    "raises": "raise ValueError('this is why')",
    "aborts": "__import__('mpi4py.MPI').MPI.COMM_WORLD.Abort(5)",
}


def loss(model: ModelHelper) -> Any:
    x = brew.relu(model, brew.fc(model, "data", "fc1", 16, 32), "fc1")
    return model.net.SoftmaxWithLoss([brew.fc(model, x, "fc2", 32, 4), "label"], ["softmax", "loss"])[1]


def parameters(rendezvous: Rendezvous | dict[str, Any] | None, devices: Sequence[int] = (0,)) -> dict[str, Any]:
    """Train a net, and return its parameters."""
    model = ModelHelper("net")
    record = parallel.Parallelize_CPU(
        model,
        lambda model: None,
        lambda model, scale: [model.Scale(loss(model), scale=scale)],
        optimizer_builder_fun=lambda model: build_sgd(model, 0.1, momentum=0.9),
        devices=list(devices),
        rendezvous=rendezvous,
    )
    return _trained(model, record)


def _trained(model: ModelHelper, record: parallel.Replicas) -> dict[str, Any]:
    workspace = Workspace(seed=1)
    parallel.RunInitNet(model, workspace=workspace)
    rng = np.random.default_rng(1)
    batches = (
        {"data": rng.normal(size=(12, 16)).astype(np.float32), "label": rng.integers(0, 4, 12).astype(np.int32)}
        for _ in range(5)
    )
    with parallel.prefetch(model, batches, blobs=["data", "label"], workspace=workspace) as steps:
        for _ in steps:
            parallel.RunNet(model, workspace=workspace)
    return {name: workspace.fetch(record.blobs(name)[0]) for name in record.parameters}


def run_in_shells(count: int, *arguments: str, timeout: float = 90, **variables: str) -> list[tuple[int, str, float]]:
    """Run this file in so many processes; return exit status, what each prints, and when it has ended.

    Args:
        count: the number of processes.
        arguments: of the program, in which "RANK" is the number of a process.
        timeout: seconds until they are killed.
        variables: of the environment, likewise.
    """
    started = [
        subprocess.Popen(
            [sys.executable, __file__, *(each.replace("RANK", str(rank)) for each in arguments)],
            env=environment(**{name: value.replace("RANK", str(rank)) for name, value in variables.items()}),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(count)
    ]  # fmt: skip
    end, found = time.monotonic() + timeout, dict[int, float]()
    while len(found) < count and time.monotonic() < end:
        found.update({rank: time.time() for rank, each in enumerate(started) if rank not in found and _ended(each)})
        time.sleep(0.02)
    for each in started:
        each.kill()
    texts = [each.communicate()[0] for each in started]
    return [(each.returncode, texts[rank], found.get(rank, np.inf)) for rank, each in enumerate(started)]


def _ended(process: subprocess.Popen[str]) -> bool:
    return process.poll() is not None


def run_multiprocessing(method: str, count: int, path: str) -> list[dict[str, Any]]:
    """Train as SINGA's examples do, in processes that this one starts; return the parameters in each."""
    context, nccl_id = multiprocessing.get_context(method), NcclIdHolder()
    processes = [context.Process(target=_singa, args=(rank, count, nccl_id, path)) for rank in range(count)]
    for each in processes:
        each.start()
    for each in processes:
        each.join(90)
        each.kill()
    return [dict(np.load(f"{path}/{rank}.npz")) for rank in range(count)]


def _singa(local_rank: int, world_size: int, nccl_id: NcclIdHolder, path: str) -> None:
    model = ModelHelper("net")
    sgd = DistOpt(
        lambda model: build_sgd(model, 0.1, momentum=0.9), nccl_id, local_rank, world_size, model=model, cpu_device=True
    )
    values = _trained(model, sgd.backward_and_update(loss))
    total = sgd.all_reduce(np.float32([sgd.rank_in_local(), sgd.rank_in_global(), 1]))
    assert total.tolist() == [*[sum(range(world_size))] * 2, world_size]
    sgd.wait()
    np.savez(f"{path}/{local_rank}.npz", **values)


def exchange(rendezvous: Rendezvous, fault: str) -> None:
    """Exchange numbers until rank 1 does what ``fault`` says."""
    group = ProcessGroup(rendezvous)
    for count in range(100_000):
        group.sum(1.0)
        if count == 20 and group.rank == 1:
            print(f"time {time.time()}", flush=True)
            exec(fault)
        time.sleep(0.005)


def main() -> None:
    what, *given = sys.argv[1:]
    if what == "exchange":
        rank, size, store, fault = given
        exchange(Rendezvous(int(size), int(rank), "GLOO", store=store), fault)
        return
    if given:
        size, rank, store = given
        place = Rendezvous.of({"num_shards": int(size), "shard_id": int(rank), "engine": "GLOO", "store": store})
    else:
        place = Rendezvous.from_environment()
    np.savez(os.path.join(what, f"{place.shard_id}.npz"), **parameters(place))


if __name__ == "__main__":
    main()
