"""The benchmark of tables: steps with rows divided over processes, with whole tables in each, and in one process.

``mpiexec -n P python -m netbuilder.tools.bench.tables STEPS`` trains in all processes; rank 0 prints a line of JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from netbuilder import ModelHelper, Workspace, parallel
from netbuilder.distributed import ProcessGroup, Rendezvous, exchanged_bytes
from netbuilder.distributed.launch.installed_mpi import installed_mpi
from netbuilder.graph import GradientSlice
from netbuilder.model import Initializer, brew
from netbuilder.optimizers import AdagradOptimizer, build_sgd
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.tools.bench.report import Line

__all__ = ["Tables", "table_lines", "train"]

_SECONDS = 3600
_SIDES = {"divided": {"shard_tables": True}, "whole": {}, "alone": {}}
"""The sides, which take turns: processes with divided tables, with whole ones, and one process with all devices."""


@dataclass(frozen=True)
class Tables:
    """Sums of rows of some tables under a fully connected layer, by Adagrad with a state for each row.

    Args:
        processes: number of them, with one device each.
        tables, rows, columns: of the model.
        batch: samples of all processes together.
        lookups: rows that a sample reads of each table.
        steps: that are timed, after two others.
    """

    processes: int = 2
    tables: int = 8
    rows: int = 200_000
    columns: int = 32
    batch: int = 2048
    lookups: int = 4
    steps: int = 20


def table_lines(options: Tables) -> Iterator[Line]:
    """Train, and yield the times of a step, its bytes and the memory of tables and state.

    Raises:
        DeviceError: mpi4py, its library or mpiexec is missing.
        RuntimeError: the training failed; the message has the end of its output.
    """
    program = [sys.executable, "-m", "netbuilder.tools.bench.tables", json.dumps(dataclasses.asdict(options))]
    mpi = installed_mpi()
    environment = {**os.environ, **mpi.environment(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*mpi.command(options.processes), *program],
        env=environment, capture_output=True, text=True, check=False, timeout=_SECONDS,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or len(lines) != 1:
        raise RuntimeError(f"the training with tables ended with code {done.returncode}: {done.stderr[-2000:]}")
    found = json.loads(lines[0])
    divided, whole, alone = (found[side] for side in _SIDES)
    text = (
        f"{options.tables} tables of {options.rows} x {options.columns}, batch {options.batch}, "
        f"{options.processes} processes: a step with divided tables {_times(divided)}; with whole ones "
        f"{_times(whole)}; one process {1e3 * alone['seconds']:.1f} ms; {alone['seconds'] / divided['seconds']:.2f} x "
        "as fast as that"
    )
    yield Line(text, {"kind": "tables", **dataclasses.asdict(options), **found})


def _times(found: dict[str, Any]) -> str:
    return (
        f"{1e3 * found['seconds']:.1f} ms ({1e3 * found['processor_seconds']:.1f} of the processor's), "
        f"{found['bytes'] / 1e6:.2f} MB given, {found['memory'] / 2**20:.0f} MiB of tables and state in each"
    )


def train(options: Tables, place: Rendezvous) -> dict[str, Any]:
    """Train with each side in turn, in this process, with the others; return times, bytes and memory."""
    group, sides = ProcessGroup(place), dict[str, _Side]()
    for name, more in _SIDES.items():
        if name != "alone" or group.is_first:
            sides[name] = _Side(name, options, None if name == "alone" else place, more)
    for step in range(options.steps + 2):
        for name in _SIDES:
            group.wait()
            if name in sides:
                sides[name].run(timed=step >= 2)
    return {name: side.results() for name, side in sides.items()}


class _Side:
    """A model that is trained, and what its steps have taken."""

    def __init__(self, name: str, options: Tables, place: Rendezvous | None, more: dict[str, Any]) -> None:
        devices = options.processes if place is None else 1
        self._model, self._seconds = ModelHelper(f"{name}_tables"), list[tuple[float, float]]()
        self._options, self._workspace = options, Workspace(threads=devices, seed=1)
        self._record = parallel.Parallelize_CPU(
            self._model, lambda model: None, self._forward, optimizer_builder_fun=_update,
            devices=list(range(devices)), rendezvous=place, outside_from_bytes=1, **more,
        )  # fmt: skip
        self._rng = np.random.default_rng(0)
        self._feed()
        parallel.RunInitNet(self._model, workspace=self._workspace)
        self._given = 0

    def _forward(self, model: ModelHelper, loss_scale: float) -> list[Any]:
        options, sums = self._options, []
        for number in range(options.tables):
            fill = Initializer("UniformFill", min=-0.1, max=0.1)
            table = model.create_param(f"table{number}", [options.rows, options.columns], fill)
            sums.append(model.net.SparseLengthsSum([table, f"index{number}", "lengths"], f"sum{number}"))
        x, _ = model.net.Concat(sums, ["x", "x_split"], axis=1)
        scores = brew.fc(model, x, "fc", options.tables * options.columns, 2)
        _, loss = model.net.SoftmaxWithLoss([scores, "label"], ["softmax", "loss"])
        return [model.Scale(loss, scale=loss_scale)]

    def _feed(self) -> None:
        options, world = self._options, self._record.world
        share = options.batch // world.size
        for number in range(options.tables):
            index = self._rng.integers(0, options.rows, (world.size, share * options.lookups)).astype(np.int32)
            for replica, scope in enumerate(self._record.devices.scopes):
                self._workspace.feed(f"{scope}index{number}", index[world.first_replica + replica])
        for scope in self._record.devices.scopes:
            self._workspace.feed(scope + "lengths", np.full(share, options.lookups, np.int32))
            self._workspace.feed(scope + "label", (np.arange(share) % 2).astype(np.int32))

    def run(self, *, timed: bool) -> None:
        """Make a step."""
        self._feed()
        before = exchanged_bytes(self._model, workspace=self._workspace)
        began, used = time.perf_counter(), time.process_time()
        parallel.RunNet(self._model, workspace=self._workspace)
        seconds = time.perf_counter() - began, time.process_time() - used
        self._given = exchanged_bytes(self._model, workspace=self._workspace) - before
        if timed:
            self._seconds.append(seconds)

    def results(self) -> dict[str, Any]:
        names = [name for name in map(str, parallel.GetCheckpointParams(self._model)) if name.startswith("table")]
        specs = [self._workspace.spec(name) for name in names]
        memory = sum(spec.nbytes for spec in specs if spec is not None)
        seconds, processor = map(statistics.median, zip(*self._seconds))
        return {"seconds": seconds, "processor_seconds": processor, "bytes": self._given, "memory": memory}


def _update(model: ModelHelper) -> None:
    own = AdagradOptimizer(alpha=0.05, rowWise=True)
    for info in model.GetOptimizationParamInfo():
        if isinstance(info.grad, GradientSlice):
            info.optimizer = own
    build_sgd(model, 0.05)


def main(arguments: Sequence[str]) -> None:
    """Train in this process of several."""
    options, place = Tables(**json.loads(arguments[0])), Rendezvous.from_environment()
    found = train(options, place)
    if place.shard_id == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
