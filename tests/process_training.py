"""Models that processes train together, and the program that each process runs: ``process_training.py FOLDER``.

With ``shared`` after the folder, each process has one device and trains the cases of ``SHARED``.
The same cases run in one process with the devices of all.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder import parallel
from netbuilder.distributed import Rendezvous, require_equal_blobs
from netbuilder.distributed.worlds.world import CommonWorld
from netbuilder.graph.net_names import reset_names
from netbuilder.model import Initializer, ModelHelper, brew, rnn
from netbuilder.optimizers import reset_optimizer_instance_count
from netbuilder.proto import DistributedError
from netbuilder.runtime import Workspace
from parallel_models import OPTIMIZERS, no_input
from toy_models import chain, convnet, dropped, mlp, normalized, scaled_loss

__all__ = ["CASES", "CASES_OF_FOUR", "DEVICES", "SHARED", "Case", "build_case", "results", "train_built", "train_case"]

DEVICES = 4
"""Devices of all processes together."""

ROWS, WIDTH, HIDDEN, LENGTH = 9, 3, 4, 5


def lstm(model: ModelHelper, loss_scale: float) -> list[Any]:
    """The last state of an LSTM over sequences of different lengths: seq (N, steps, 3), lengths (N,), label (N,)."""
    steps = model.net.Transpose("seq", "steps", axes=[1, 0, 2])
    last = rnn.LSTM(model, steps, "lengths", None, WIDTH, HIDDEN, scope="lstm", outputs_with_grads=(1,))[1]
    rows, _ = model.net.Reshape(last, ["rows", "rows_shape"], shape=[-1, HIDDEN])
    return scaled_loss(model, brew.fc(model, rows, "scores", HIDDEN, 4), loss_scale)


def table(model: ModelHelper, name: str) -> Any:
    return model.create_param(name, [ROWS, WIDTH], Initializer("UniformFill", min=-0.5, max=0.5))


def looked_up(model: ModelHelper, loss_scale: float, tables: list[Any] | None = None) -> list[Any]:
    """Rows of two tables, both by the same indices and one by others as well: first, second, label (N,)."""
    one, two = tables or [table(model, "one"), table(model, "two")]
    pairs = [(one, "first"), (two, "first"), (one, "second")]
    rows = [model.net.Gather([from_table, index], f"rows{n}") for n, (from_table, index) in enumerate(pairs)]
    x = model.net.Concat(rows, ["x", "x_split"], axis=1)[0]
    return scaled_loss(model, brew.fc(model, x, "fc", 3 * WIDTH, 4), loss_scale)


def scaled_by_common(model: ModelHelper, loss_scale: float, shared: list[Any] | None = None) -> list[Any]:
    """A layer whose weights and biases exist once, outside the replicas: data (N, 6), label (N,) of 4 classes."""
    assert shared is not None
    x = model.net.FC(["data", *shared], "fc1")
    return scaled_loss(model, brew.fc(model, x, "fc2", 8, 4), loss_scale)


def common_layer(model: ModelHelper) -> list[Any]:
    return [
        model.create_param("common_w", [8, 6], Initializer("XavierFill")),
        model.create_param("common_b", [8], Initializer("UniformFill", min=-0.5, max=0.5)),
    ]


def weighted(model: ModelHelper, loss_scale: float) -> list[Any]:
    """Two layers, a weighted loss, and one of the rows with a positive weight: data (N, 6), label (N,), weight (N,)."""
    scores = brew.fc(model, brew.tanh(model, brew.fc(model, "data", "fc1", 6, 8), "tanh"), "fc2", 8, 4)
    squares = model.net.Sqr("weight", "squared_weight")
    _, loss = model.net.SoftmaxWithLoss([scores, "label", squares], ["softmax", "loss"])
    zeros = model.net.ConstantFill("weight", "zeros", value=0.0)
    rows, _ = model.net.BooleanMask([scores, model.net.GT(["weight", zeros], "chosen")], ["rows", "rows_at"])
    other = model.net.AveragedLoss(model.net.Sqr(rows, "squares"), "other")
    return [model.Scale(loss, scale=loss_scale), model.net.Scale(other, "scaled_other", scale=loss_scale)]


@dataclass(frozen=True)
class Case:
    """What is trained, and on how many samples in each step.

    Args:
        forward: as ``Parallelize`` takes it; with ``outside`` it is also given what that returns.
        inputs: name -> the shape of a sample, or the number of classes of an integer.
        sizes: number of samples of each batch; a step of ``accumulate_steps`` is one batch.
        optimizer: as ``optimizer_builder_fun``.
        options: of ``Parallelize``.
        outside: makes parameters before the replicas.
        own_samples: each process is given only its part of each batch, uneven, rather than all of it.
        blocks: iterations of a block, trained by ``Parallelize_BMUF``.
        same_seed: all processes have the same seed, for random numbers in training; else only rank 0 has that of the
            process that trains alone, so that its initial values must reach the others.
    """

    forward: Callable[..., list[Any]] = mlp
    inputs: dict[str, Any] = field(default_factory=lambda: {"data": (6,), "label": 4})
    sizes: tuple[int, ...] = (24, 24, 24)
    optimizer: Callable[[ModelHelper], Any] = OPTIMIZERS["momentum"]
    options: dict[str, Any] = field(default_factory=dict)
    outside: Callable[[ModelHelper], list[Any]] | None = None
    own_samples: bool = False
    blocks: int = 0
    same_seed: bool = False
    on_gpus: bool = False

    def batches(self) -> Iterator[dict[str, Any]]:
        rng = np.random.default_rng(7)
        for size in self.sizes:
            batch: dict[str, Any] = {}
            for name, shape in self.inputs.items():
                if isinstance(shape, int):
                    batch[name] = rng.integers(0, shape, size).astype(np.int32)
                else:
                    batch[name] = rng.normal(size=(size, *shape)).astype(np.float32)
            yield batch


IMAGES = {"data": (3, 8, 8), "label": 4}
SEQUENCES = {"seq": (LENGTH, WIDTH), "lengths": LENGTH + 1, "label": 4}
INDICES = {"first": ROWS, "second": ROWS, "label": 4}
WEIGHTED = {"weighted_shares": True}
OF_WEIGHTS = {"data": (6,), "label": 4, "weight": ()}
UNEVEN = (24, 13, 3)

CASES = {
    "dense": Case(options={"bucket_bytes": 64, "max_concurrent_distributed_ops": 2}),
    "dense, each gradient alone, in the order of ranks": Case(options={"bucket_bytes": 0, "deterministic": True}),
    "dense, buckets that suit the link": Case(options={"bucket_bytes": "auto"}, sizes=(24,) * 8),
    "dense, adam": Case(optimizer=OPTIMIZERS["adam"]),
    "dense, all elements with their positions": Case(options={"strategy": "topk:1", "bucket_bytes": 64}),
    "a layer outside, no least magnitude": Case(
        scaled_by_common, outside=common_layer, options={"strategy": "threshold:0"}
    ),
    "convnet": Case(convnet, IMAGES),
    "plain normalization": Case(normalized, IMAGES),
    "normalization over all": Case(normalized, IMAGES, options={"combine_spatial_bn": True}),
    "normalization over all, uneven": Case(
        normalized, IMAGES, UNEVEN, options={"combine_spatial_bn": True, "weighted_shares": True}
    ),
    "dropout": Case(dropped, same_seed=True),
    "lstm": Case(lstm, SEQUENCES, optimizer=OPTIMIZERS["adagrad"]),
    "tables inside": Case(looked_up, INDICES, optimizer=OPTIMIZERS["adagrad"]),
    "tables inside, uneven": Case(looked_up, INDICES, UNEVEN, OPTIMIZERS["sgd"], WEIGHTED),
    "tables outside": Case(
        looked_up,
        INDICES,
        optimizer=OPTIMIZERS["adagrad"],
        outside=lambda model: [table(model, "one"), table(model, "two")],
    ),
    "large tables outside": Case(looked_up, INDICES, optimizer=OPTIMIZERS["sgd"], options={"outside_from_bytes": 1}),
    "a layer outside": Case(scaled_by_common, outside=common_layer),
    "uneven": Case(sizes=UNEVEN, options=WEIGHTED),
    "uneven, own samples": Case(sizes=(24, 11, 1), options=WEIGHTED, own_samples=True),
    "micro-batches": Case(options={"accumulate_steps": 2}, sizes=(24, 13)),
    "micro-batches of rows": Case(looked_up, INDICES, (24, 13), OPTIMIZERS["sgd"], {"accumulate_steps": 2}),
    "weighted means": Case(weighted, OF_WEIGHTS),
    "weighted means, uneven, own samples": Case(weighted, OF_WEIGHTS, (24, 11, 1), options=WEIGHTED, own_samples=True),
    "weighted means of micro-batches": Case(weighted, OF_WEIGHTS, (24, 13), options={"accumulate_steps": 2}),
    "updates on one device": Case(options={"reduce_update_broadcast": True}),
    "an owner of each parameter": Case(convnet, IMAGES, optimizer=OPTIMIZERS["adam"], options={"strategy": "zero:1"}),
    "an owner of a layer outside": Case(scaled_by_common, outside=common_layer, options={"strategy": "zero:1"}),
    "shared memory": Case(convnet, IMAGES, options={"optimize_gradient_memory": True}),
    "a memory budget": Case(chain(6, 16, normalized=False), IMAGES, options={"memory_budget": 0.95}),
    "only outputs kept": Case(options={"dynamic_memory_management": True, "blobs_to_keep": ["fc1"]}),
    "blocks": Case(
        options={"block_momentum": 0.5, "add_blobs_to_sync": ["fc2_b_momentum"], "warmup_iterations": 1},
        sizes=(24,) * 5,
        blocks=2,
    ),
    "blocks of micro-batches": Case(
        options={"block_momentum": 0.5, "accumulate_steps": 2, "weighted_shares": True}, sizes=(24, 13, 24, 3), blocks=2
    ),
    "blocks of micro-batches, by a strategy": Case(
        options={"strategy": "local_sgd:2", "accumulate_steps": 2}, sizes=(24, 13, 24, 3)
    ),
    "block momentum of micro-batches, by a strategy": Case(
        options={"strategy": "block_momentum:2,momentum=0.5", "accumulate_steps": 2}, sizes=(24, 13, 24, 3)
    ),
    "DiLoCo": Case(convnet, IMAGES, options={"strategy": "diloco:2"}, sizes=(24,) * 4),
    "DiLoCo, overlapped": Case(convnet, IMAGES, options={"strategy": "diloco:3,overlap=2"}, sizes=(24,) * 7),
    "blocks, a layer outside": Case(scaled_by_common, outside=common_layer, sizes=(24,) * 4, blocks=2),
    "overlapped blocks, a layer outside": Case(
        scaled_by_common, outside=common_layer, options={"block_overlap": 1}, sizes=(24,) * 5, blocks=2
    ),
}


CASES_OF_FOUR = (
    "dense",
    "normalization over all, uneven",
    "dropout",
    "lstm",
    "tables inside, uneven",
    "tables outside",
    "uneven, own samples",
    "weighted means of micro-batches",
    "updates on one device",
    "blocks",
)
"""Those that are also trained by four processes of one device each."""

SHARED = {
    f"{name}, one copy": dataclasses.replace(case, options={**case.options, "shared_model": True})
    for name, case in CASES.items()
    if name in ("dense, adam", "convnet", "normalization over all", "tables outside", "micro-batches")
}
"""Those that processes of one device each train with ``shared_model=True``, as one process with two devices does."""

ROUNDED = Case(normalized, IMAGES, options={"strategy": "diloco:2,bits=8"}, sizes=(24,) * 6)
"""Changes of blocks of which processes exchange 8 bits."""

OVERLAPPED = dataclasses.replace(ROUNDED, options={"strategy": "diloco:3,bits=8,overlap=2"}, sizes=(24,) * 8)
"""The same, while the next block runs."""


def build_case(case: Case, devices: int, rendezvous: Rendezvous | None) -> tuple[ModelHelper, parallel.Replicas]:
    """Return the model of a case over so many devices of this process, as in a fresh process."""
    reset_names()
    reset_optimizer_instance_count()
    model = ModelHelper("net")
    made = [] if case.outside is None else [case.outside(model)]
    options: dict[str, Any] = {"devices": list(range(devices)), "rendezvous": rendezvous, **case.options}

    def forward(model: ModelHelper, loss_scale: float) -> list[Any]:
        return case.forward(model, loss_scale, *made)

    if case.blocks:
        options["block_iterations"] = case.blocks
        return model, parallel.Parallelize_CPU_BMUF(model, no_input, forward, case.optimizer, **options)
    options["optimizer_builder_fun"] = case.optimizer
    make = parallel.Parallelize_GPU if case.on_gpus else parallel.Parallelize_CPU
    return model, make(model, no_input, forward, **options)


def train_case(
    case: Case, devices: int, rendezvous: Rendezvous | None = None
) -> tuple[ModelHelper, parallel.Replicas, Workspace, dict[str, Any]]:
    """Train a case on this process's devices; all processes are given the same batches.

    Returns:
        The model, its record and workspace, and the parameters after training.
    """
    model, record = build_case(case, devices, rendezvous)
    workspace = train_built(case, model, record, rendezvous is not None)
    return model, record, workspace, results(record, workspace)


def train_built(case: Case, model: ModelHelper, record: parallel.Replicas, several: bool) -> Workspace:
    """Train the model of a case, perhaps in ``several`` processes; return the workspace."""
    workspace = Workspace(threads=2, seed=0 if case.same_seed else record.world.rank)
    parallel.RunInitNet(model, workspace=workspace)
    train_steps(case, model, record, workspace, several)
    if record.block is not None and record.block.overlap:
        parallel.finish_block(model, workspace=workspace)
    require_equal_blobs(model, workspace=workspace)
    return workspace


def train_steps(case: Case, model: ModelHelper, record: parallel.Replicas, workspace: Workspace, several: bool) -> None:
    """Train on the batches of a case; ``several`` processes may be given only their own samples."""
    if record.weighted_shares:
        for batch in case.batches():
            of_process = case.own_samples and several
            given = own_part(batch, record) if of_process else batch
            for _ in parallel.feed_shares(model, given, of_process=of_process, workspace=workspace):
                parallel.RunNet(model, workspace=workspace)
        return
    with parallel.prefetch(model, case.batches(), blobs=list(case.inputs), workspace=workspace) as batches:
        for _ in batches:
            parallel.RunNet(model, workspace=workspace)


def own_part(batch: dict[str, Any], record: parallel.Replicas) -> dict[str, Any]:
    """Return an uneven part of a batch: the first process has more than its share, or no sample at all."""
    processes = record.world.size // len(record)
    samples = len(batch["label"])
    ends = [max(0, samples - processes + 1 + rank) for rank in range(processes)]
    first = ends[record.world.rank - 1] if record.world.rank else 0
    return {name: rows[first : ends[record.world.rank]] for name, rows in batch.items()}


def results(record: parallel.Replicas, workspace: Workspace) -> dict[str, Any]:
    """Return the parameters and computed parameters of the first replica, and those outside."""
    names = {name: record.blobs(name)[0] for name in (*record.parameters, *record.computed)}
    return {name: workspace.fetch(blob) for name, blob in {**names, **{name: name for name in record.outside}}.items()}


def check_processes(model: ModelHelper, record: parallel.Replicas, workspace: Workspace, place: Rendezvous) -> None:
    """Check what a model of several processes does besides training; all processes call it."""
    worlds = [workspace.fetch(blob) for blob in (*record.world.common, record.world.barrier)]
    assert all(isinstance(np.asarray(world).item(), CommonWorld) for world in worlds)
    ours = place.shard_id
    for blobs in (["fc1_b"], ["cpu_0/fc1_w", "fc2_b", "optimizer_iteration"], None):
        for replica, scope in enumerate(record.devices.scopes):
            workspace.feed(scope + "fc1_b", np.full(8, 10 * ours + replica, np.float32))
            workspace.feed(scope + "fc2_b", np.full(4, 10 * ours + replica, np.float32))
        workspace.feed("optimizer_iteration", np.array([100 + ours], np.int64))
        parallel.Synchronize(model, 20 + len(blobs or ()), workspace=workspace)
        if blobs is None:
            try:
                require_equal_blobs(model, ["cpu_0/fc1_w", "cpu_0/fc1_b"], workspace=workspace)
            except DistributedError as error:
                assert str(error).startswith("blobs differ from those of rank 0: 'cpu_0/fc1_b' on rank 1"), error
            else:
                raise AssertionError("blobs that differ were not noticed")
        parallel.FinalizeAfterCheckpoint(model, blobs, workspace=workspace)
        for scope in record.devices.scopes:
            same = {"fc1_b": blobs is None or "fc1_b" in blobs, "fc2_b": blobs is None or "fc2_b" in blobs}
            for name, equal in same.items():
                value = float(workspace.fetch(scope + name)[0])
                assert value == 0 if equal else value // 10 == ours, (blobs, scope + name, value)
        counted = int(workspace.fetch("optimizer_iteration")[0])
        assert counted == (100 + ours if blobs == ["fc1_b"] else 100), (blobs, counted)
    require_equal_blobs(model, workspace=workspace)
    after = [workspace.fetch(blob) for blob in (*record.world.common, record.world.barrier)]
    assert [np.asarray(world).item() for world in after] == [np.asarray(world).item() for world in worlds]


def check_that_nets_are_compared(devices: int, place: Rendezvous) -> None:
    """Check that all processes raise the same error where one has built another net."""

    def forward(model: ModelHelper, loss_scale: float) -> list[Any]:
        x = brew.fc(model, "data", "fc", 6, 4 if place.shard_id else 5)
        return scaled_loss(model, x, loss_scale)

    without_store = dataclasses.replace(place, store=None)
    number = place.shard_id % 2 + 1  # of devices
    for what, (case, count, rendezvous, texts) in {
        "another net": (Case(forward), devices, place, ["differ in net 0: shard", "XavierFill of ['cpu_0/fc_w']"]),
        "another number of devices": (Case(), number, place, ["differ in devices: shard", "give Parallelize as many"]),
        "another number, without a store": (Case(), number, without_store, ["differ in devices: shard"]),
    }.items():
        model, _ = build_case(case, count, rendezvous)
        try:
            parallel.RunInitNet(model, workspace=Workspace())
        except DistributedError as error:
            assert all(text in str(error) for text in texts), (what, error)
        else:
            raise AssertionError(f"{what} has not been noticed")


def main() -> None:
    folder = Path(sys.argv[1])
    place = Rendezvous.from_environment()
    if sys.argv[2:] == ["shared"]:
        for name, case in SHARED.items():
            values = train_case(case, 1, place)[-1]
            if place.shard_id == 0:
                np.savez(folder / f"{name}.npz", **values)
        return
    if sys.argv[2:] in (["rounded"], ["overlapped"]):
        case = ROUNDED if sys.argv[2] == "rounded" else OVERLAPPED
        np.savez(folder / f"{place.shard_id}.npz", **train_case(case, 2, place)[-1])
        return
    devices = DEVICES // place.num_shards
    if devices > 1:  # nets are compared over a store; by four processes over MPI
        place = Rendezvous.from_environment(store=f"file:{folder / 'store'}", run_id="run")
    for number, name in enumerate(sys.argv[3:]):
        model, record, workspace, values = train_case(CASES[name], devices, place)
        if place.shard_id == 0:
            np.savez(folder / f"{name}.npz", **values)
        if number == 0:
            check_processes(model, record, workspace, place)
            check_that_nets_are_compared(devices, place)
    print(f"rank {place.shard_id} has finished")


if __name__ == "__main__":
    main()
