"""netbuilder-launch: how jobs end, with real processes, over MPI and without it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest

from house import ROOT
from launched import LIMIT, PROGRAM, SOON, Launched, free_port, no_orphans, nodes, processes
from netbuilder.distributed.launch import installed_mpi as installed
from netbuilder.distributed.launch import launcher as launch_module
from netbuilder.distributed.launch import rank_process
from netbuilder.distributed.launch.launcher import Job, launch
from netbuilder.distributed.transport import launchers
from netbuilder.proto import DeviceError, DistributedError, NetError
from netbuilder.tools.launch import main

CORES = len(os.sched_getaffinity(0))

try:
    installed.installed_mpi()
    ENGINES = ["NCCL", "MPI"]
except DeviceError:
    ENGINES = ["NCCL"]


def test_the_launcher_imports_little():
    code = (
        "import netbuilder.tools.launch, sys; print({'numpy', 'google.protobuf', 'netbuilder.graph'} & {*sys.modules})"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=LIMIT)
    assert found.stdout == "set()\n", found.stdout + found.stderr


def test_a_job_that_ends(tmp_path):
    """One whose ranks catch a SystemExit, which ends nothing."""
    job = Launched(tmp_path, "caught", "--engine", ENGINES[-1])
    assert job.end() == 0, job.text
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    for rank in (0, 1):
        assert f"place {rank} {share} {share} {rank} 2 {len(os.sched_getaffinity(0))} 0\n" in job.text
        assert f"[rank {rank}] warning of GPUs {os.environ.get(launchers.GPUS)}\n" in job.text
    no_orphans(tmp_path)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "engine, mode, status, said",
    [
        (ENGINES[-1], "raise", 1, "[rank 1] ValueError: this rank fails"),
        ("NCCL", "thread", 1, "[rank 1] rank 1 of 2: uncaught exception in thread 'loader', which ends the job"),
        (ENGINES[-1], "kill", 137, "was ended by SIGKILL, as the system does when memory runs out"),
    ],
)
def test_a_rank_that_fails_ends_the_job(engine, mode, status, said, tmp_path):
    job = Launched(tmp_path, mode, "--engine", engine)
    begin = job.ready()
    assert job.end() == status, job.text
    assert time.monotonic() - begin < SOON
    assert said in job.text and re.search(
        r"netbuilder-launch: rank 1 on \S+ (ended with status|was ended by)", job.text
    )
    no_orphans(tmp_path)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("engine, number", [("NCCL", signal.SIGINT), (ENGINES[-1], signal.SIGTERM)])
def test_a_signal_lets_all_ranks_write_checkpoints(engine, number, tmp_path):
    job = Launched(tmp_path, "checkpoint", "--engine", engine)
    job.ready()
    job.process.send_signal(number)
    assert job.end() == 128 + number, job.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-0", "checkpoint-1"]
    assert f"all processes have ended after {number.name}" in job.text
    no_orphans(tmp_path)


def test_ranks_that_ignore_a_signal_are_killed(tmp_path):
    job = Launched(tmp_path, "deaf", "--engine", ENGINES[-1], "--grace", "0.3")
    job.ready()
    job.process.send_signal(signal.SIGTERM)
    begin = time.monotonic()
    assert job.end() == 143, job.text
    assert 0.3 <= time.monotonic() - begin < SOON
    no_orphans(tmp_path)


def test_a_launcher_that_is_killed_leaves_no_processes(tmp_path):
    job = Launched(tmp_path, "wait", "--engine", ENGINES[-1])
    job.ready()
    job.process.kill()
    job.end()
    no_orphans(tmp_path)


@pytest.mark.slow
def test_ranks_that_somebody_else_ends_have_not_ended_well(tmp_path):
    job = Launched(tmp_path, "wait", "--engine", "NCCL")
    job.ready()
    for process in processes(tmp_path):
        with contextlib.suppress(OSError):  # the launcher has ended it, as another one had ended
            if b"rank_process.py" in Path(f"/proc/{process}/cmdline").read_bytes():
                os.kill(int(process), signal.SIGTERM)
    assert job.end() == 128 + signal.SIGTERM, job.text
    no_orphans(tmp_path)


@pytest.mark.parametrize("nodes, ended_by", [(1, [signal.SIGINT]), (2, [signal.SIGTERM])])
def test_a_launcher_that_is_stopped(nodes, ended_by, monkeypatch):
    """Ctrl-Z stops the launcher alone; the ranks of its node know by their connection that it has not ended."""
    rank = object.__new__(rank_process.Rank)
    answers = [*2 * [DistributedError("no answer")], b'{"signal": 2, "grace": 1}']
    answers[0].__cause__ = answers[1].__cause__ = TimeoutError()
    rank.store, rank.place, rank.stopping = mock.Mock(), launchers.Place("", size=2 * nodes, local_size=2), False
    rank.store.get.side_effect = answers
    numbers = []
    monkeypatch.setattr(rank, "_signal", lambda number, grace: numbers.append(number))
    rank.obey()
    assert numbers == ended_by


def test_restarts_cores_threads_and_output(tmp_path):
    cores = len(os.sched_getaffinity(0))
    pin = ["--pin"] if cores > 1 else []
    options = ("--restarts", "2", *pin, "--threads", "3", "--gpus", "2", "--only-rank-0", "--prefix", "all")
    job = Launched(tmp_path, "once", "--engine", "NCCL", *options)
    assert job.end() == 0, job.text
    assert "starting the job again, 1 of 2 restarts" in job.text and "again, 2 of" not in job.text
    assert f"[rank 0] place 0 3 3 0 2 {cores // 2 if pin else cores} 1\n" in job.text
    assert "place 1" not in job.text and "[rank 1] warning of GPUs 2,3\n" in job.text
    no_orphans(tmp_path)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("engine, mode, status", [(ENGINES[-1], "end", 0), ("NCCL", "exit", 3)])
def test_several_nodes(engine, mode, status, tmp_path):
    if engine == "MPI" and not installed.installed_mpi().starts_over_store:
        pytest.skip("this MPI starts its processes on several nodes by its own mpiexec only")
    first, second = nodes(tmp_path, mode, "--engine", engine)
    with ThreadPoolExecutor() as together:  # ranks that fail wait until their output is read
        statuses = list(together.map(Launched.end, (first, second)))
    assert statuses == [status, status], first.text + second.text
    if mode == "end":
        text = first.text + second.text
        assert re.search(r"place 0 \d+ \d+ 0 1 ", text) and re.search(r"place 1 \d+ \d+ 0 1 ", text)
    else:
        assert "rank 1 on" in first.text and "ended with status 3; all processes were ended" in first.text
    no_orphans(tmp_path)


SHORT_SILENCE = """
import sys
from netbuilder.distributed.launch import node
from netbuilder.distributed.stores import tcp
from netbuilder.tools.launch import main
node.SIGN, node.SILENCE, tcp._SILENCE, tcp.wire.SLICE = 0.1, 2.0, 3.0, 0.5
sys.exit(main())
"""


def test_a_node_whose_launcher_is_killed(tmp_path):
    first, second = nodes(tmp_path, "wait", "--engine", "NCCL", "--restarts", "1", program=("-c", SHORT_SILENCE))
    first.read_until("ready 0")
    second.read_until("ready 1")
    second.process.kill()
    begin = time.monotonic()
    assert first.end() == 1, first.text
    assert time.monotonic() - begin < SOON
    assert "node 1 (127.0.0.3) has sent no heartbeat for 2 s" in first.text and "again" not in first.text
    second.end()
    no_orphans(tmp_path)


def of_rank(rank, folder):
    """Return the processes of a rank."""
    place, found = f"{launchers.RANK}={rank}\0".encode(), []
    for process in processes(folder):
        with contextlib.suppress(OSError):  # it has ended
            if place in Path(f"/proc/{process}/environ").read_bytes():
                found.append(process)
    return found


@pytest.mark.slow
def test_a_launcher_without_a_store_ends_its_processes_before_it_ends(tmp_path):
    """Also those that ignore SIGTERM."""
    first, second = nodes(tmp_path, "deaf", "--engine", "NCCL")
    second.read_until("ready 1")
    assert of_rank(1, tmp_path)
    first.process.kill()
    assert second.end() == 1, second.text
    assert not of_rank(1, tmp_path)
    first.end()
    no_orphans(tmp_path)


@pytest.mark.slow
def test_a_first_launcher_that_is_stopped_does_not_fail_a_node_that_has_finished(tmp_path):
    first, second = nodes(tmp_path, "until", "--engine", "NCCL", program=("-c", SHORT_SILENCE))
    first.read_until("ready 0")
    (tmp_path / "go-1").touch()
    end = time.monotonic() + LIMIT
    while of_rank(1, tmp_path):
        assert time.monotonic() < end
        time.sleep(0.02)
    first.process.send_signal(signal.SIGSTOP)
    assert second.end() == 0, second.text
    assert "the processes of this node have ended well; how those of the others have is not known" in second.text
    first.process.send_signal(signal.SIGCONT)
    (tmp_path / "go-0").touch()
    assert first.end() in (0, 1), first.text  # 1: the second launcher was gone before it could say how it has ended
    no_orphans(tmp_path)


def test_a_node_that_never_starts(tmp_path, capsys):
    secret = tmp_path / "secret"
    secret.write_text("only these tests know it")
    secret.chmod(0o600)
    options = ["--hosts", "127.0.0.2,127.0.0.3", "--port", str(free_port()), "--start-timeout", "0.2"]
    begin = time.monotonic()
    assert main(["--engine", "NCCL", "--secret-file", str(secret), *options, PROGRAM]) == 1
    assert time.monotonic() - begin < SOON
    assert "nodes 1 (127.0.0.3) have not started within 0.2 s; run the same command there" in capsys.readouterr().err
    assert main(["--node-rank", "1", "--engine", "NCCL", "--secret-file", str(secret), *options, PROGRAM]) == 1
    assert "nobody answers there after 0.2 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    "values, message",
    [
        ({"processes": 0}, "processes must be a whole number, 1 or more, got 0"),
        ({"restarts": -1}, "restarts must be a whole number, 0 or more, got -1"),
        ({"command": []}, "command must name a program, got none"),
        ({"node_rank": 1}, r"node_rank must lie in \[0, 1\), got 1"),
        ({"hosts": ["a", "a"]}, r"each host may be given once, got \['a', 'a'\]"),
        ({"hosts": ["a", "b"]}, "2 hosts need a secret, the same on all of them"),
        ({"hosts": ["a", "b"], "secret": b"x" * 15}, "launch: secret must have 16 to 4096 characters, got 15"),
        ({"secret": "x" * 16}, "launch: secret must be bytes, got str"),
        ({"engine": "GLOO"}, "engine must be 'MPI' or 'NCCL', got 'GLOO'"),
        ({"processes": 10**6}, "processes must be at most [0-9]+ on [0-9]+ cores?, got 1000000"),
        ({"threads": 10**6}, "threads must be at most 4096, got 1000000"),
        ({"gpus": 10**6}, "gpus must be at most 1024, got 1000000"),
        ({"port": 0}, "port must be from 1 to 65535, got 0"),
        ({"processes": 40, "gpus": 2}, "names 1 GPU, and each of the 40 processes of this host needs 2"),
        ({"processes": CORES + 1, "pin": True}, f"{CORES + 1} processes cannot have cores of their own on"),
    ],
)
def test_wrong_values(values, message, monkeypatch):
    monkeypatch.setenv(launchers.GPUS, "0")
    with pytest.raises(NetError, match=message):
        Job(**{"command": ["true"], **values})


@pytest.mark.parametrize(
    "options, message",
    [
        (["-n", "0", "x.py"], "must be a positive whole number, got '0'"),
        (["--grace", "-1", "x.py"], "--grace: must be a number from 0 to 1000000000, got '-1'"),
        (["--restart", "x", "x.py"], "--restarts: must be a whole number, 0 or greater, got 'x'"),
        ([], "required: program"),
        (["--epochs", "3", "x.py"], "unrecognized arguments: --epochs; options of the program come after its name"),
    ],
)
def test_wrong_options(options, message, capsys):
    with pytest.raises(SystemExit):
        main(options)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, mode, message",
    [
        ("short", 0o600, "must have 16 to 4096 characters, got 5"),
        ("only these tests know it", 0o644, "is open to others: its mode is 0644; chmod 600 "),
    ],
)
def test_a_wrong_secret_file(text, mode, message, tmp_path, capsys):
    (tmp_path / "secret").write_text(text)
    (tmp_path / "secret").chmod(mode)
    assert main(["--secret-file", str(tmp_path / "secret"), PROGRAM]) == 1
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1 and "only these" not in said
    assert main(["--secret-file", str(tmp_path / "none"), PROGRAM]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_more_processes_than_cores_are_named(capsys, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    mpi = installed.InstalledMpi("Open MPI v5", "mpiexec")
    launch_module.warn_if_cores_are_few(Job(["x"], 3), mpi)
    assert "3 processes on 1 core: they take turns" in capsys.readouterr().err
    assert mpi.command(3) == ["mpiexec", "--bind-to", "none", "--oversubscribe", "-n", "3"]
    assert mpi.command(1) == ["mpiexec", "--bind-to", "none", "-n", "1"]


def test_open_mpi_as_root(monkeypatch, capsys):
    mpi = installed.InstalledMpi("Open MPI v5", "mpiexec")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert mpi.environment() == {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    launch_module.warn_if_cores_are_few(Job(["x"]), mpi)
    assert "OMPI_ALLOW_RUN_AS_ROOT is set for this job" in capsys.readouterr().err
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    assert mpi.environment() == {} and not mpi.note
    monkeypatch.setattr(launch_module, "installed_mpi", lambda: mpi)
    with pytest.raises(DeviceError, match="several nodes need MPICH, and mpi4py loads Open MPI v5; pip install mpich"):
        launch(Job(["x"], hosts=["a", "b"], secret=b"x" * 16))


def test_no_mpi(monkeypatch, capfd):
    def missing():
        raise DeviceError("mpi4py cannot be used: install it")

    monkeypatch.setattr(launch_module, "installed_mpi", missing)
    with pytest.raises(DeviceError, match="mpi4py cannot be used"):
        launch(Job(["x"], engine="MPI"))
    code = f"import os; assert os.environ['{launchers.ENGINE}'] == 'NCCL'"
    assert launch(Job([sys.executable, "-c", code])) == 0
    assert "install it. The processes are started without MPI" in capfd.readouterr().err


def test_mpi4py_that_cannot_be_imported(monkeypatch):
    monkeypatch.setattr(installed, "ASK", "import mpi4py_that_is_missing")
    with pytest.raises(DeviceError, match="No module named 'mpi4py_that_is_missing'.*pip install 'netbuilder-nn.mpi.'"):
        installed.installed_mpi()
    monkeypatch.setattr(installed, "ASK", "print('Open MPI v5'); print('/nowhere/lib/libmpi.so')")
    monkeypatch.setattr(installed.shutil, "which", lambda *args, **options: None)
    with pytest.raises(DeviceError, match="Open MPI v5 has no mpiexec next to /nowhere/lib/libmpi.so or on the path"):
        installed.installed_mpi()
