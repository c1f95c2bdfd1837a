"""Rendezvous: which of how many processes this one is, and how it finds the others."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from netbuilder.distributed.stores import Store, TcpStore, open_store
from netbuilder.distributed.stores.secret import SECRET, secret_in
from netbuilder.distributed.stores.server_process import serve_in_process
from netbuilder.distributed.transport.launchers import (
    BY_RANK,
    ENGINE,
    Place,
    has_process_manager,
    is_of_outer_job,
    job_store,
    place_in,
    see_own_gpus,
)
from netbuilder.engines.arrays import gpu_count
from netbuilder.graph.blob import blob_name
from netbuilder.ops.collectives.stores import StoreHandler
from netbuilder.proto import DistributedError, NetError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.suggestions import did_you_mean
from netbuilder.runtime import Workspace

__all__ = ["ENGINES", "Rendezvous"]

_log = logging.getLogger("netbuilder")

ENGINES = ("MPI", "NCCL")
"""What processes may exchange tensors with."""

_REQUIRED = ("num_shards", "shard_id", "engine")
_PORT = "NETBUILDER_STORE_PORT"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_SLURM_PORTS = 20000  # the first port of stores under srun, and how many there are
_served = set[int]()  # ports of stores that this process has started


@dataclass(frozen=True)
class Rendezvous:
    """Which of how many processes this one is, and how it finds the others: the fields of Caffe2's dict, and more.

    Args:
        num_shards: number of processes, 1 or more.
        shard_id: which of them this one is, from 0 on; its rank.
        engine: "MPI" or "NCCL"; "GLOO", the name in Caffe2's scripts, means "MPI".
        kv_handler: blob with a store, made by FileStoreHandlerCreate or RedisStoreHandlerCreate, or a ``Store``; None
            where ``store`` is given or MPI needs none.
        transport: ignored with a note: the engine chooses how it sends.
        interface: as ``transport``; MPI libraries have options of their own for it.
        mpi_rendezvous: processes find one another by MPI alone, without a store.
        exit_nets: nets that run when the job ends.
        run_id: text that other runs do not have; keys in the store begin with it, so that a run does not meet what
            another one left in the same store.
        store: a store that all processes see, or its address, such as "file:/shared/run7".
        local_rank: number of this process among those of its host, from 0 on.
        local_size: number of processes of its host.

    Raises:
        NetError: a value is not one of these; the message names the field, the value and the rule.
    """

    num_shards: int
    shard_id: int
    engine: str = "MPI"
    kv_handler: Any = None
    transport: str | None = None
    interface: str | None = None
    mpi_rendezvous: bool = False
    exit_nets: Any = None
    run_id: str = ""
    store: Store | str | None = field(default=None, compare=False)
    local_rank: int = 0
    local_size: int = 1

    def __post_init__(self) -> None:
        self._check_count("num_shards", 1)
        self._check_count("local_size", 1)
        self._check_member("shard_id", "num_shards")
        self._check_member("local_rank", "local_size")
        self._check_engine()
        if isinstance(self.store, str):
            object.__setattr__(self, "store", open_store(self.store))
        elif self.store is not None and not isinstance(self.store, Store):
            raise NetError(f"rendezvous: store must be a Store or the address of one, got {self.store!r}")
        if not isinstance(self.run_id, str):
            raise NetError(f"rendezvous: run_id must be a text, got {self.run_id!r}")
        if self.engine == "NCCL" and self.num_shards > 1 and self.store is None and self.kv_handler is None:
            raise NetError(
                f"rendezvous: engine 'NCCL' with num_shards={self.num_shards} needs a store, in which shard 0 puts "
                "NCCL's unique id; give kv_handler or store, or start the processes with netbuilder-launch"
            )
        for name in ("transport", "interface"):
            if getattr(self, name):
                _log.info("rendezvous: %s=%r is ignored; %s chooses it", name, getattr(self, name), self.engine)

    @classmethod
    def of(cls, rendezvous: Mapping[str, Any] | Rendezvous) -> Rendezvous:
        """Return the rendezvous that a mapping with Caffe2's keys describes; a rendezvous is returned as it is.

        Args:
            rendezvous: has num_shards, shard_id and engine; unless engine is "MPI" or mpi_rendezvous is true,
                kv_handler or store, too.

        Raises:
            NetError: a key is missing or unknown, or a value is wrong; the message names it.
        """
        if isinstance(rendezvous, Rendezvous):
            return rendezvous
        if not isinstance(rendezvous, Mapping):
            raise NetError(
                f"rendezvous must be a Rendezvous or a dict with the keys {_listed(_REQUIRED)}, got {rendezvous!r}"
            )
        fields = [one.name for one in dataclasses.fields(cls)]
        for key in rendezvous:
            if key not in fields:
                hint = did_you_mean(str(key), fields) or f"; its keys are {_listed(fields)}"
                raise NetError(f"rendezvous: unknown key {key!r}{hint}")
        if missing := [key for key in _REQUIRED if key not in rendezvous]:
            raise NetError(
                f"rendezvous: {_listed(missing)} {'is' if len(missing) == 1 else 'are'} missing; its keys are "
                f"{_listed(fields)}, and Rendezvous.from_environment() fills them under a launcher"
            )
        engine = str(rendezvous["engine"]).upper()
        by_store = not (engine == "MPI" or rendezvous.get("mpi_rendezvous"))
        if by_store and "kv_handler" not in rendezvous and "store" not in rendezvous:
            raise NetError(
                "rendezvous: 'kv_handler' is missing, the blob with the store by which processes with engine "
                f"{engine!r} find one another; FileStoreHandlerCreate and RedisStoreHandlerCreate make one; or give "
                "'store', or mpi_rendezvous=True where mpiexec or srun starts the processes"
            )
        return cls(**rendezvous)

    @classmethod
    def from_environment(
        cls,
        *,
        engine: str | None = None,
        store: Store | str | None = None,
        run_id: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Rendezvous:
        """Return the rendezvous that the launcher of this process describes in the environment.

        Launchers are netbuilder-launch, mpiexec of MPICH, Open MPI and their relatives, srun, and torchrun. A process
        that none of them has started is the only one of its world.

        Args:
            engine: "MPI" or "NCCL"; None: that of netbuilder-launch; "NCCL" with torchrun, if there are GPUs;
                otherwise "MPI".
            store: a store that all processes see, or its address; None: that of netbuilder-launch; with torchrun's
                variables, and under srun without a process manager for MPI, one that rank 0 serves: on MASTER_ADDR (the
                first node of srun) and the port after MASTER_PORT, or NETBUILDER_STORE_PORT; on several hosts it needs
                NETBUILDER_STORE_SECRET.
            run_id: text that other runs do not have; None: made from what the launcher states.
            environment: None: ``os.environ``.

        Raises:
            NetError: a variable is missing or wrong; the message names it.
            DistributedError: the store does not answer.
        """
        environment = os.environ if environment is None else environment
        place = place_in(environment)
        by_torchrun = place.launcher in ("torchrun", BY_RANK)
        given = "" if is_of_outer_job(environment) else environment.get(ENGINE)
        engine = engine or given or ("NCCL" if by_torchrun and gpu_count() else "MPI")
        if store is None and place.size > 1:
            alone = place.launcher == "srun" and not has_process_manager(environment, place.size)
            alone = alone and (place.local_size == place.size or secret_in(environment) is not None)
            store = _store_of_rank_0(environment, place) if by_torchrun or alone else job_store(environment)
        return cls(
            place.size,
            place.rank,
            engine,
            mpi_rendezvous=engine == "MPI" and store is None,
            run_id=place.run_id if run_id is None else run_id,
            store=store,
            local_rank=place.local_rank,
            local_size=place.local_size,
        )

    def see_own_gpus(self, count: int = 1) -> None:
        """Let this process see only its own GPUs of its host, as numbers from 0 on; before it uses any.

        It sets CUDA_VISIBLE_DEVICES, by the local rank. ``netbuilder-launch --gpus`` does the same. The nets of all
        processes must name the same devices, so each of them calls its GPUs 0, 1, ....

        Args:
            count: number of GPUs of each process.

        Raises:
            NetError: CUDA_VISIBLE_DEVICES names fewer GPUs.
        """
        see_own_gpus(os.environ, Place("", local_rank=self.local_rank, local_size=self.local_size), count)

    def shared_store(self, workspace: Workspace | None = None) -> Store | None:
        """Return the store that the processes share, with keys that begin with ``run_id``; None if there is none.

        Args:
            workspace: where ``kv_handler`` is, if that is the name of a blob.

        Raises:
            NetError: the blob ``kv_handler`` holds no store, or no workspace is given for it.
            BlobError: there is no such blob.
        """
        store = self.store if self.store is not None else self._handler(workspace)
        assert not isinstance(store, str)  # opened when this was made
        return store.with_prefix(self.run_id) if store is not None and self.run_id else store

    def _handler(self, workspace: Workspace | None) -> Store | None:
        if self.kv_handler is None or isinstance(self.kv_handler, Store):
            return self.kv_handler
        name = blob_name(self.kv_handler)
        if workspace is None:
            raise NetError(f"rendezvous: kv_handler is the blob {name!r}; give the workspace that holds it")
        value = workspace.fetch(name)
        if not isinstance(value, StoreHandler):
            raise NetError(
                f"rendezvous: kv_handler {name!r} must be what FileStoreHandlerCreate or RedisStoreHandlerCreate "
                f"makes, got {type(value).__name__}"
            )
        return value.store

    def _check_count(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if not _is_whole(value) or value < least:
            raise NetError(f"rendezvous: {name} must be a whole number, {least} or more, got {value!r}")

    def _check_member(self, name: str, of: str) -> None:
        value, count = getattr(self, name), getattr(self, of)
        if not _is_whole(value) or not 0 <= value < count:
            raise NetError(
                f"rendezvous: {name} must be a whole number in [0, {count}), since {of} is {count}, got {value!r}"
            )

    def _check_engine(self) -> None:
        engine = self.engine.upper() if isinstance(self.engine, str) else self.engine
        if engine == "GLOO":
            _log.info("rendezvous: engine 'GLOO' means 'MPI' here, the engine of CPUs")
            engine = "MPI"
        if engine not in ENGINES:
            raise NetError(
                f"rendezvous: engine must be 'MPI' or 'NCCL' ('GLOO' is taken for 'MPI'), got {self.engine!r}"
            )
        object.__setattr__(self, "engine", engine)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _store_of_rank_0(environment: Mapping[str, str], place: Place) -> Store:
    """Return a store that rank 0 serves, next to torchrun's own.

    torchrun and srun give processes no secret. NETBUILDER_STORE_SECRET does, which processes of several hosts must
    have; those of one host do without, by an address that no other host reaches: then the secret is made from the run's
    id, which keeps runs apart that meet by mistake, and not other users of the host that know it.
    """
    host, port = _address_of_rank_0(environment, place)
    one_host = place.local_size == place.size or host in _LOOPBACK
    secret = secret_in(environment)
    if secret is None and not one_host:
        here = f" ({place.local_size} on this one)" if place.local_size < place.size > 1 else ""
        raise NetError(
            f"the {place.size} processes of {place.launcher} are on several hosts{here}, so their store needs a "
            f"secret: set {SECRET} to the same 16 random characters on all of them, or give store="
        )
    if secret is None:
        secret = hashlib.sha256(f"{place.run_id}/{host}:{port}".encode()).hexdigest().encode()
    if place.rank == 0 and port not in _served:
        try:
            serve_in_process("127.0.0.1" if one_host else "", port, secret)
        except DistributedError as error:
            raise DistributedError(f"{error}; {_PORT} sets it") from error
        _served.add(port)
    return TcpStore("127.0.0.1" if one_host else host, port, secret=secret)


def _address_of_rank_0(environment: Mapping[str, str], place: Place) -> tuple[str, int]:
    host, port = environment.get("MASTER_ADDR"), environment.get(_PORT)
    if port is None and (theirs := environment.get("MASTER_PORT", "")).isdecimal():
        port = str(int(theirs) + 1)
    if place.launcher == "srun":
        host = host or _first_node(environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_NODELIST", ""))
        port = port or str(_SLURM_PORTS + int(environment.get("SLURM_JOB_ID", "0")) % _SLURM_PORTS)
    if not host or port is None or not port.isdecimal():
        raise NetError(
            "RANK and WORLD_SIZE are set in the environment, as by torchrun, but MASTER_ADDR or MASTER_PORT is not; "
            "set them to the address of rank 0 and a free port, or give store="
        )
    return host, int(port)


def _first_node(nodes: str) -> str:
    """Return the first node of Slurm's list.

    >>> _first_node("node[07-09,12],login"), _first_node("gpu1,gpu2")
    ('node07', 'gpu1')
    """
    name, _, numbers = nodes.partition("[")
    return name.partition(",")[0] if "," in name or not numbers else name + re.split("[-,\\]]", numbers)[0]
