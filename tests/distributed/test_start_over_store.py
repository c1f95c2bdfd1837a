"""Processes that no process manager has started meet in a store, train by MPI as one process, and end together."""

from __future__ import annotations

import re
import shutil
import socket
import sys
import threading

import numpy as np
import pytest

from mpi_runs import needs_mpi
from netbuilder.distributed.launch.installed_mpi import installed_mpi
from netbuilder.distributed.stores import FileStore, MemoryStore, RedisStore, TcpStore, TcpStoreServer
from netbuilder.distributed.stores.secret import SECRET
from netbuilder.distributed.stores.server_process import serve_in_process
from netbuilder.distributed.transport.pmi_server import HOST, Beginning, PmiServer, host_mapping
from netbuilder.distributed.transport.start_over_store import begin_over_store, ended_over_store
from netbuilder.proto import DeviceError, DistributedError
from parallel_models import distance
from store_started import FAULTS, parameters, run_in_shells, run_multiprocessing

SECRET_TEXT = "a secret of 16 bytes or more"


@pytest.fixture(scope="module")
def with_mpich():
    if installed_mpi().is_open_mpi:
        pytest.skip("Open MPI does not start over a store")


@pytest.fixture(scope="module")
def alone():
    """A function that returns the parameters after training on so many devices of one process."""
    found = {}
    return lambda devices: found.setdefault(devices, parameters(None, range(devices)))


def check(folder, count, alone):
    for rank in range(count):
        got = dict(np.load(folder / f"{rank}.npz"))
        assert distance([got[name] for name in alone], list(alone.values())) < 1e-6


@pytest.mark.one_in(3)
@needs_mpi
@pytest.mark.parametrize("kind, count", [("file", 2), ("tcp", 3), ("redis", 2)])
def test_the_same_command_in_shells_with_another_shard_id(kind, count, tmp_path, alone, with_mpich, request):
    variables = {}
    if kind == "file":
        address = f"file:{tmp_path / 'store'}"
    elif kind == "tcp":
        address = f"tcp://127.0.0.1:{request.getfixturevalue('tcp_port')}"
        variables = {SECRET: SECRET_TEXT}
    else:
        pytest.importorskip("redis")
        if shutil.which("redis-server") is None:
            pytest.skip("no redis-server here")
        address = f"redis://127.0.0.1:{request.getfixturevalue('redis_server')}"
    done = run_in_shells(count, str(tmp_path), str(count), "RANK", address, **variables)
    assert [status for status, _, _ in done] == [0] * count, done
    check(tmp_path, count, alone(count))


@pytest.fixture
def tcp_port():
    server = TcpStoreServer(secret=SECRET_TEXT.encode())
    yield server.port
    server.close()


@pytest.fixture
def redis_server():
    import subprocess

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(["redis-server", "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL)
    for _ in range(100):
        try:
            RedisStore("127.0.0.1", port)
            break
        except DistributedError:
            threading.Event().wait(0.05)
    yield port
    process.kill()
    process.wait()


@needs_mpi
def test_variables_of_torchrun_with_nets_on_cpus(tmp_path, alone, with_mpich):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    done = run_in_shells(
        2, str(tmp_path), RANK="RANK", WORLD_SIZE="2", LOCAL_RANK="RANK", LOCAL_WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
    )  # fmt: skip
    assert [status for status, _, _ in done] == [0, 0], done
    check(tmp_path, 2, alone(2))


@needs_mpi
@pytest.mark.parametrize("method", ["spawn", pytest.param("fork", marks=pytest.mark.slow)])
def test_processes_that_a_parent_has_started_with_an_id(method, tmp_path, alone, with_mpich):
    run_multiprocessing(method, 2, str(tmp_path))
    check(tmp_path, 2, alone(2))


@needs_mpi
@pytest.mark.one_in(5)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_rank_that_fails_ends_the_others_within_seconds(fault, tmp_path, with_mpich):
    done = run_in_shells(2, "exchange", "RANK", "2", f"file:{tmp_path / 'store'}", FAULTS[fault])
    (begin,) = re.findall(r"time ([\d.]+)", done[1][1])
    status, text, end = done[0]
    assert status != 0 and end - float(begin) < 5
    assert "the job ends; rank 1 of 2" in text or "this is why" in text


@needs_mpi
@pytest.mark.slow
def test_a_rank_that_dies_while_the_others_compare_nets_or_start_mpi(tmp_path, with_mpich):
    """Its process manager is there from the first use of the store on."""
    kill = "import threading, os; threading.Timer(0.2, os.kill, [os.getpid(), 9]).start()"
    program = f"if sys.argv[2] == '1': exec({kill!r})"
    done = run_in_shells(2, "exchange", "RANK", "2", f"file:{tmp_path / 'store'}", program, timeout=60)
    assert all(status != 0 for status, _, _ in done)


@needs_mpi
def test_a_rank_that_is_used_twice_is_an_error(tmp_path):
    store = FileStore(tmp_path)
    store.with_prefix("mpi").add("starts/1")
    store.with_prefix("mpi").set("place/1", b"host, process 7")
    with pytest.raises(DistributedError, match=r"rank 1 of 2 is used by host, process 7 and by .* its own run_id"):
        begin_over_store(store, 2, 1)


@needs_mpi
def test_a_store_that_no_other_process_sees_is_refused():
    with pytest.raises(DeviceError, match="is in this process only, and 2 processes are to meet in it"):
        begin_over_store(MemoryStore(), 2, 0)


def test_mpi4py_that_is_missing_is_said_before_the_wait(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(DeviceError, match=r"mpi4py is missing: pip install 'netbuilder-nn\[mpi\]'"):
        begin_over_store(FileStore(tmp_path), 2, 0)
    assert not [*tmp_path.iterdir()]


def test_which_ranks_share_a_host():
    assert host_mapping(["a"] * 4) == "(vector,(0,1,4))"
    assert host_mapping(["a", "b", "a", "a"]) == "(vector,(0,1,1),(1,1,1),(0,1,2))"


def served(store, size, patience=None):
    failures = [[] for _ in range(size)]
    return [PmiServer(Beginning(store, size, rank, patience), failures[rank].append) for rank in range(size)], failures


def test_answers_to_mpi():
    store = MemoryStore()
    store.set("job", b"abc")
    (first, second), failures = served(store, 2)
    assert "pmi_version=1" in first.answer("cmd=init pmi_version=1 pmi_subversion=1\n")
    assert first.answer("cmd=get_my_kvsname\n") == "cmd=my_kvsname kvsname=netbuilder-abc rc=0"
    assert first.answer("cmd=put kvsname=x key=address value=there=1\n").endswith("msg=success")
    assert second.answer("cmd=get kvsname=x key=address\n").endswith("value=there=1")
    assert "rc=-1" in second.answer("cmd=get kvsname=x key=other\n")
    assert "size=2" in second.answer("cmd=get_universe_size\n")
    waiting = threading.Thread(target=first.answer, args=["cmd=barrier_in\n"])
    waiting.start()
    assert second.answer("cmd=barrier_in\n") == "cmd=barrier_out rc=0"
    waiting.join(5)
    assert not waiting.is_alive() and "rc=-1" in second.answer("cmd=spawn\n")
    assert not second.finalized and second.answer("cmd=finalize\n") == "cmd=finalize_ack rc=0" and second.finalized
    assert first.answer("cmd=abort exitcode=4\n") == "" and failures[0] == ["it has called MPI's Abort with status 4"]


def test_a_wait_in_mpi_ends_and_names_who_is_missing():
    servers, failures = served(MemoryStore(), 3, patience=0.05)
    assert servers[1].answer("cmd=barrier_in\n") == "cmd=barrier_out rc=-1"
    assert failures[1] == ["rank 0, 2 has not started MPI within 0.05 s of this one"]


def test_a_store_in_a_process_of_its_own(tmp_path):
    port = serve_in_process("127.0.0.1", 0, SECRET_TEXT.encode())
    with TcpStore("127.0.0.1", port, secret=SECRET_TEXT.encode()) as store:
        assert store.add("count", 2) == 2
    with pytest.raises(DistributedError, match="cannot listen on 203.0.113.7, port 1"):
        serve_in_process("203.0.113.7", 1, SECRET_TEXT.encode())


@needs_mpi
def test_a_rank_that_does_not_come_is_named(tmp_path, with_mpich):
    (status, text, _), = run_in_shells(
        1, "exchange", "RANK", "2", f"file:{tmp_path / 'store'}", "", NETBUILDER_FIRST_COLLECTIVE_TIMEOUT="1"
    )  # fmt: skip
    assert status == 1 and re.search(r"rank 0 of 2 has waited [\d.]+ s for rank 1, which has not begun", text), text


@needs_mpi
def test_open_mpi_says_that_only_its_mpiexec_connects_processes(tmp_path):
    if not installed_mpi().is_open_mpi:
        pytest.skip("this MPI starts over any store")
    done = run_in_shells(2, str(tmp_path), "2", "RANK", f"file:{tmp_path / 'store'}")
    assert all(status != 0 for status, _, _ in done)
    assert any("Open MPI" in text and "connects only processes that its own mpiexec has started" in text
               for _, text, _ in done), done  # fmt: skip


@needs_mpi
@pytest.mark.slow
def test_ranks_of_hosts_with_other_names_exchange_by_the_network(tmp_path, alone, with_mpich):
    variables = {HOST: "hostRANK", "UCX_TLS": "tcp,self"}
    done = run_in_shells(2, str(tmp_path), "2", "RANK", f"file:{tmp_path / 'store'}", **variables)
    assert [status for status, _, _ in done] == [0, 0], done
    check(tmp_path, 2, alone(2))


def test_a_process_that_began_over_no_store_knows_of_no_ended_ranks():
    assert ended_over_store(3) == []
