"""Small exchanges between the processes that train a model: sums of numbers, and whether blobs are the same."""

from __future__ import annotations

import hashlib
import os
import socket
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from netbuilder.distributed.common_worlds import create_worlds, makers_of, process_link
from netbuilder.distributed.preflight_checks import preflight, preflight_by, refuse
from netbuilder.distributed.rendezvous import Rendezvous
from netbuilder.distributed.stores import Store
from netbuilder.distributed.transport.launchers import ATTEMPT
from netbuilder.distributed.transport.start_over_store import begin_over_store
from netbuilder.distributed.transport.time_limits import time_limits
from netbuilder.distributed.worlds.world import CommonWorld, share_store
from netbuilder.graph.blob import blob_name
from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.proto import BlobError, DistributedError, NetDef, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.errors import counted
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute import default

__all__ = ["agree_on_batch", "exchanged_bytes", "require_equal_blobs", "require_equal_nets", "sum_over_processes"]

_NO_LIMIT = 1e9  # seconds


def exchanged_bytes(model: ModelHelper, *, workspace: Workspace | None = None) -> int:
    """Return the bytes of the values that this process has given to the exchange since the common worlds were made.

    That of a step is the difference of two calls. Values that are summed count once; with more processes, each of them
    receives as many bytes for a sum, and as many for each other process where all values are gathered (sparse
    gradients, ``TopK``, ``Threshold``).

    Args:
        model: made by ``Parallelize``; its init net has run.
        workspace: workspace of the model; None: the current default one.

    Raises:
        NetError: the model is not data-parallel.
        BlobError: the init net has not run.
    """
    record = Replicas.load(model.net.Proto())
    workspace = workspace or default.workspace()
    if missing := [blob for blob in record.world.common if not workspace.has(blob)]:
        raise BlobError(f"common worlds {missing} are not in the workspace; run the init net first")
    worlds = [np.asarray(workspace.fetch(blob)).item() for blob in record.world.common]
    return sum(world.communicator.given_bytes for world in worlds if isinstance(world, CommonWorld))


def sum_over_processes(model: ModelHelper, record: Replicas, number: int, *, workspace: Workspace) -> int:
    """Return the sum of a whole number over the processes; all of them call it."""
    link = process_link(record, [])
    if link is None:
        return number
    blob = f"{model.net.Name()}_sum"
    workspace.feed(blob, np.array([number], np.int64))
    _run(model, record, blob, link.allreduce([blob]), workspace)
    return int(workspace.fetch(blob)[0])


def agree_on_batch(record: Replicas, samples: int | None, workspace: Workspace) -> None:
    """Let the barrier with which the next step begins fail if processes take batches of different sizes.

    Args:
        record: the record of the replicas.
        samples: the number of samples that the batch has for all processes together; None: none has been taken.
        workspace: of the model.
    """
    blob = record.world.barrier
    if record.world.common and workspace.has(blob) and not workspace.get(blob).is_empty:
        world = np.asarray(workspace.fetch(blob)).item()
        if isinstance(world, CommonWorld):
            world.at_barrier = "" if samples is None else f"a batch of {counted(samples, 'sample')} for all processes"


def require_equal_nets(model: ModelHelper, workspace: Workspace) -> None:
    """Check that all processes have built the same nets over as many devices.

    It is over the store of the rendezvous, or over MPI if it has none.

    Raises:
        DistributedError: they have not, have other versions, or the same shard id; the message says in what they
            differ, the same in all of them.
        StoreTimeoutError: a process is missing after the time limit of a collective's first run.
    """
    rendezvous = getattr(model, "_rendezvous", None)
    if not isinstance(rendezvous, Rendezvous):
        return
    record, store = Replicas.load(model.net.Proto()), rendezvous.shared_store(workspace)
    facts, nets = {"devices": len(record)}, [model.param_init_net.Proto(), model.net.Proto()]
    if store is None:
        maker = next(op for op in nets[0].op if list(op.output) == [record.world.common[0]])
        preflight_by(lambda text: _gathered(text, maker), rendezvous, facts, nets=nets)
        return
    share_store(store)
    name = f"{model.net.Name()}/{_number_of_check(rendezvous, store, model.net.Name())}"
    if rendezvous.engine == "MPI":
        begin_over_store(store, rendezvous.num_shards, rendezvous.shard_id)  # so that others see if this one ends
    preflight(rendezvous, facts, nets=nets, store=store, name=name, timeout=time_limits().first or _NO_LIMIT)


_checks: Counter[tuple[str, int]] = Counter()  # of this process, by store and shard


def _number_of_check(rendezvous: Rendezvous, store: Store, net: str) -> str:
    """Return the number of a check among those of this run.

    Raises:
        DistributedError: another process with this shard id has used the store; the others learn it by their checks.
    """
    attempt, shard = os.environ.get(ATTEMPT, "0"), rendezvous.shard_id
    _checks[f"{store}", shard] += 1
    own, all_runs = _checks[f"{store}", shard], store.add(f"nets_of_shard/{attempt}/{shard}")
    if all_runs <= own:
        return f"{attempt}/{all_runs}"
    text = (
        f"shard id {shard} of {socket.gethostname()}, process {os.getpid()}, is used by another process in {store}, or "
        "an earlier run has left it there; give each process its own shard_id, and each run its own run_id or folder"
    )
    refuse(store, f"{net}/{attempt}/{own}", text)
    raise DistributedError(f"preflight: {text}")


def _gathered(text: bytes, maker: OperatorDef) -> list[bytes]:
    """Return the texts of all processes, in the order of their ranks.

    Args:
        text: that of this process.
        maker: makes the common world over which they go.
    """
    workspace = Workspace()
    create_worlds([maker], workspace)
    workspace.feed("text", np.frombuffer(text + b"\0", np.uint8))
    workspace.run_operator_once(make_op("Allgather", [maker.output[0], "text"], ["texts"]))
    return bytes(workspace.fetch("texts")).split(b"\0")[:-1]


def require_equal_blobs(
    model: ModelHelper, blobs: Iterable[Any] | None = None, *, workspace: Workspace | None = None
) -> None:
    """Check that blobs have the same type, shape and values, to the bit, in all processes that train a model.

    All processes call it, with the same blobs.

    Args:
        model: made by ``Parallelize``; its init net has run.
        blobs: full names or references; None: the parameters and computed parameters of the first replica, and those
            outside the replicas, but for tables whose rows are divided over the processes.
        workspace: workspace of the blobs; None: the current default one.

    Raises:
        NetError: the model is not data-parallel.
        BlobError: a blob is not in the workspace; then the other processes wait for this one until their time limit.
        DistributedError: in all processes: a blob differs; the message names it, and the processes that differ from
            rank 0.
    """
    record = Replicas.load(model.net.Proto())
    workspace = workspace or default.workspace()
    if blobs is None:
        scope = record.devices.scopes[0]
        outside = [name for name in record.outside if name not in record.rows_of_sharded]
        blobs = [*(scope + name for name in (*record.parameters, *record.computed)), *outside]
    names = list(map(blob_name, blobs))
    if missing := [name for name in names if not workspace.has(name) or workspace.get(name).is_empty]:
        raise BlobError(f"blobs {missing} have no value in the workspace; run the init net, or load them, first")
    link = process_link(record, [])
    if link is None or not names:
        return
    blob = f"{model.net.Name()}_digests"
    workspace.feed(blob, np.array([_digest(workspace.fetch(name)) for name in names], np.int64))
    _run(model, record, blob, link.allgather(blob, blob + "_of_all"), workspace)
    _compare(names, np.asarray(workspace.fetch(blob + "_of_all")).reshape(link.processes, len(names)))


def _digest(value: Any) -> int:
    array = np.ascontiguousarray(value)
    content = array.tobytes() if not array.dtype.hasobject else repr(array.tolist()).encode()
    known = hashlib.blake2b(f"{array.dtype} {np.shape(value)} ".encode() + content, digest_size=8)
    return int.from_bytes(known.digest(), "little", signed=True)


def _compare(names: Sequence[str], digests: np.ndarray[Any, Any]) -> None:
    different = {
        name: [rank for rank in range(len(digests)) if digests[rank, column] != digests[0, column]]
        for column, name in enumerate(names)
    }
    found = {name: ranks for name, ranks in different.items() if ranks}
    if found:
        listed = "; ".join(f"{name!r} on rank {', '.join(map(str, ranks))}" for name, ranks in list(found.items())[:8])
        more = f", and {len(found) - 8} more" if len(found) > 8 else ""
        raise DistributedError(
            f"blobs differ from those of rank 0: {listed}{more}; FinalizeAfterCheckpoint(model, blobs) copies those of "
            "rank 0 to all processes"
        )


def _run(model: ModelHelper, record: Replicas, blob: str, ops: Sequence[OperatorDef], workspace: Workspace) -> None:
    """Run operators on a blob, after the common worlds have been made if they were not."""
    create_worlds(makers_of(model.param_init_net.Proto(), record.world), workspace)
    net = NetDef(name=f"{blob}_net", external_input=[blob, record.world.common[0]])
    net.op.extend(ops)
    workspace.run_net_once(net)
