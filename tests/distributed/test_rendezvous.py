"""Rendezvous: Caffe2's dict and its errors, the variables of launchers, the store of a run."""

import logging
import socket

import pytest

from netbuilder import Workspace
from netbuilder.distributed import Rendezvous
from netbuilder.distributed.stores import FileStore, MemoryStore, TcpStoreServer
from netbuilder.engines.arrays import gpu_count
from netbuilder.proto import BlobError, DistributedError, NetError
from netbuilder.proto.arguments import make_op

CAFFE2 = {"kv_handler": None, "num_shards": 4, "shard_id": 1, "engine": "GLOO", "exit_nets": None}


def test_the_dict_of_caffe2(caplog):
    caplog.set_level(logging.INFO, "netbuilder")
    found = Rendezvous.of({**CAFFE2, "kv_handler": "store_handler", "transport": "tcp", "interface": "eth0"})
    assert (found.num_shards, found.shard_id, found.engine, found.kv_handler) == (4, 1, "MPI", "store_handler")
    said = caplog.text
    assert "engine 'GLOO' means 'MPI' here" in said and "transport='tcp' is ignored; MPI chooses it" in said
    assert "interface='eth0' is ignored" in said
    assert Rendezvous.of(found) is found
    assert Rendezvous.of({**CAFFE2, "mpi_rendezvous": True}).mpi_rendezvous


@pytest.mark.parametrize("key", ["num_shards", "shard_id", "engine", "kv_handler"])
def test_a_missing_key_is_named(key):
    with pytest.raises(NetError, match=f"rendezvous: '{key}' is missing"):
        Rendezvous.of({name: value for name, value in CAFFE2.items() if name != key})


def test_kv_handler_is_not_needed_by_mpi():
    assert Rendezvous.of({"num_shards": 2, "shard_id": 0, "engine": "MPI"}).shared_store() is None


@pytest.mark.parametrize(
    "given, message",
    [
        (None, "rendezvous must be a Rendezvous or a dict with the keys 'num_shards', 'shard_id', 'engine', got None"),
        ({**CAFFE2, "num_shard": 4}, "unknown key 'num_shard'; did you mean 'num_shards'?"),
        ({**CAFFE2, "zzz": 4}, "unknown key 'zzz'; its keys are 'num_shards', 'shard_id', 'engine', 'kv_handler', "),
        ({}, "'num_shards', 'shard_id', 'engine' are missing; its keys are "),
        ({**CAFFE2, "num_shards": 0}, "num_shards must be a whole number, 1 or more, got 0"),
        ({**CAFFE2, "num_shards": "4"}, "num_shards must be a whole number, 1 or more, got '4'"),
        ({**CAFFE2, "num_shards": True}, "num_shards must be a whole number, 1 or more, got True"),
        ({**CAFFE2, "shard_id": 4}, r"shard_id must be a whole number in \[0, 4\), since num_shards is 4, got 4"),
        ({**CAFFE2, "shard_id": -1}, r"shard_id must be a whole number in \[0, 4\), since num_shards is 4, got -1"),
        ({**CAFFE2, "local_rank": 1}, r"local_rank must be a whole number in \[0, 1\), since local_size is 1, got 1"),
        ({**CAFFE2, "engine": "IBVERBS"}, "engine must be 'MPI' or 'NCCL' .'GLOO' is taken for 'MPI'., got 'IBVERBS'"),
        ({**CAFFE2, "engine": None}, "engine must be 'MPI' or 'NCCL'"),
        ({**CAFFE2, "engine": "NCCL"}, "engine 'NCCL' with num_shards=4 needs a store"),
        ({**CAFFE2, "store": 7}, "store must be a Store or the address of one, got 7"),
        ({**CAFFE2, "store": "nowhere"}, "store 'nowhere' must be file:FOLDER"),
        ({**CAFFE2, "run_id": 7}, "run_id must be a text, got 7"),
    ],
)
def test_wrong_values(given, message):
    with pytest.raises(ValueError, match=message):
        Rendezvous.of(given)


LAUNCHERS = {
    "netbuilder-launch": (
        {"NETBUILDER_RANK": "3", "NETBUILDER_WORLD_SIZE": "4", "NETBUILDER_LOCAL_RANK": "1",
         "NETBUILDER_LOCAL_SIZE": "2", "NETBUILDER_RUN_ID": "r", "NETBUILDER_ATTEMPT": "2", "PMI_RANK": "0",
         "PMI_SIZE": "1"},
        (3, 4, 1, 2, "r.2"),
    ),
    "mpich": ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, (1, 2, 1, 2, "")),
    "another with PMI": ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2, 0, 1, "")),
    "openmpi": (
        {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
         "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "PMIX_NAMESPACE": "prterun-7@1", "SLURM_PROCID": "0",
         "SLURM_STEP_NUM_TASKS": "1"},
        (2, 3, 0, 1, "prterun-7@1"),
    ),
    "srun": (
        {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "7", "SLURM_LOCALID": "1", "SLURM_NODEID": "2",
         "SLURM_STEP_TASKS_PER_NODE": "2(x2),3", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"},
        (5, 7, 1, 3, "77.0"),
    ),
    "srun --mpi=pmi2": (
        {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_JOBID": "77.1", "PMI_FD": "15", "SLURM_PROCID": "3",
         "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
         "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "1"},
        (3, 4, 1, 2, "77.1"),
    ),
    "mpiexec in a job of Slurm": (
        {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2", "SLURM_PROCID": "0",
         "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"},
        (0, 2, 0, 2, ""),
    ),
    "a script of sbatch": ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "77"}, (0, 1, 0, 1, "")),
    "nothing": ({}, (0, 1, 0, 1, "")),
}  # fmt: skip


@pytest.mark.parametrize("name", LAUNCHERS)
def test_launchers(name):
    environment, expected = LAUNCHERS[name]
    found = Rendezvous.from_environment(environment=environment)
    assert (found.shard_id, found.num_shards, found.local_rank, found.local_size, found.run_id) == expected
    assert found.engine == "MPI" and found.mpi_rendezvous and found.shared_store() is None


@pytest.mark.parametrize(
    "environment, message",
    [
        ({"PMI_RANK": "0"}, r"PMI_RANK is set in .*, as by mpiexec \(PMI\), but PMI_SIZE is not; set both"),
        ({"RANK": "0", "WORLD_SIZE": "two"}, "WORLD_SIZE in the environment must be a whole number, got 'two'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, r"RANK=2 in the environment, set by .*'s variables, must lie in \[0, 2\)"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "but MASTER_ADDR or MASTER_PORT is not; set them"),
        ({"NETBUILDER_RANK": "0", "NETBUILDER_WORLD_SIZE": "2", "NETBUILDER_STORE": "h:1",
          "NETBUILDER_STORE_SECRET": "xyz"}, "NETBUILDER_STORE_SECRET in the environment must have 16 to 4096 char"),
        ({"NETBUILDER_RANK": "0", "NETBUILDER_WORLD_SIZE": "2", "NETBUILDER_STORE": "h:1"},
         "the secret of the store tcp://h:1 is missing"),
        ({"NETBUILDER_RANK": "0", "NETBUILDER_WORLD_SIZE": "2", "NETBUILDER_ENGINE": "TCP"}, "engine must be 'MPI' or"),
    ],
)  # fmt: skip
def test_wrong_variables(environment, message):
    with pytest.raises(NetError, match=message):
        Rendezvous.from_environment(environment=environment)


def test_the_store_of_netbuilder_launch():
    server = TcpStoreServer()
    environment = {
        "NETBUILDER_RANK": "0",
        "NETBUILDER_WORLD_SIZE": "2",
        "NETBUILDER_RUN_ID": "r",
        "NETBUILDER_STORE": f"127.0.0.1:{server.port}",
        "NETBUILDER_STORE_SECRET": server.secret.decode(),
        "NETBUILDER_ENGINE": "NCCL",
    }
    found = Rendezvous.from_environment(environment=environment)
    assert found.engine == "NCCL" and not found.mpi_rendezvous
    found.shared_store().set("k", b"v")
    assert server.store.peek("r/k") == b"v"
    other = Rendezvous.from_environment(environment=environment, run_id="s", engine="MPI")
    assert other.shared_store().peek("k") is None
    server.close()
    with pytest.raises(NetError, match="engine 'NCCL' with num_shards=2 needs a store"):
        Rendezvous.from_environment(environment=environment | {"NETBUILDER_STORE": ""})


def test_the_store_under_torchrun():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port - 1), "LOCAL_RANK": "0",
                   "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "t", "RANK": "0"}  # fmt: skip
    first = Rendezvous.from_environment(environment=environment)
    second = Rendezvous.from_environment(environment=environment | {"RANK": "1", "LOCAL_RANK": "1"})
    engine = "NCCL" if gpu_count() else "MPI"
    assert (first.engine, second.engine, second.local_rank, second.local_size) == (engine, engine, 1, 2)
    first.shared_store().set("id", b"7")
    assert second.shared_store().get("id", 10) == b"7"
    with pytest.raises(DistributedError, match="the secret is wrong"):
        Rendezvous.from_environment(environment=environment | {"RANK": "1", "TORCHELASTIC_RUN_ID": "u"})


def test_torchrun_on_several_hosts_needs_a_secret(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "NETBUILDER_STORE_PORT": str(port), "LOCAL_RANK": "0",
                   "LOCAL_WORLD_SIZE": "1", "RANK": "0"}  # fmt: skip
    with pytest.raises(NetError, match=r"2 processes of .* are on several hosts \(1 on this one\), so .* a secret"):
        Rendezvous.from_environment(environment=environment | {"MASTER_ADDR": "node0"})
    known = environment | {"NETBUILDER_STORE_SECRET": "only these tests know it"}
    first = Rendezvous.from_environment(environment=known)
    (tmp_path / "secret").write_text("only these tests know it\n")
    (tmp_path / "secret").chmod(0o600)
    second = environment | {"RANK": "1", "NETBUILDER_STORE_SECRET_FILE": str(tmp_path / "secret")}
    first.store.set("id", b"7")
    assert Rendezvous.from_environment(environment=second).store.get("id", 10) == b"7"


def test_a_store_by_its_address_and_a_run_id(tmp_path):
    one = Rendezvous(2, 0, store=f"file:{tmp_path}", run_id="one")
    two = Rendezvous(2, 1, store=f"file:{tmp_path}", run_id="two")
    one.shared_store().set("k", b"")
    assert two.shared_store().peek("k") is None
    assert Rendezvous(2, 1, store=FileStore(tmp_path)).shared_store().peek("one/k") == b""


def test_a_blob_with_a_store(tmp_path):
    workspace = Workspace()
    rendezvous = Rendezvous.of({**CAFFE2, "kv_handler": "store_handler", "run_id": "r"})
    with pytest.raises(NetError, match="kv_handler is the blob 'store_handler'; give the workspace that holds it"):
        rendezvous.shared_store()
    with pytest.raises(BlobError, match="no blob 'store_handler'"):
        rendezvous.shared_store(workspace)
    workspace.feed("store_handler", 7.0)
    with pytest.raises(NetError, match="kv_handler 'store_handler' must be what FileStoreHandlerCreate or Redis"):
        rendezvous.shared_store(workspace)
    workspace.run_operator_once(make_op("FileStoreHandlerCreate", [], ["store_handler"], path=str(tmp_path)))
    rendezvous.shared_store(workspace).set("k", b"of a blob")
    assert FileStore(tmp_path).peek("r/k") == b"of a blob"
    store = MemoryStore()
    Rendezvous.of({**CAFFE2, "kv_handler": store, "run_id": "r"}).shared_store(workspace).set("k", b"v")
    assert store.peek("r/k") == b"v"
