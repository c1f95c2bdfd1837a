"""The command that checks the processes of a job, alone and as real processes."""

import os
import subprocess
import sys

import pytest

from mpi_runs import MPIEXEC, environment, needs_mpi, run_over_mpi
from netbuilder.distributed import process_group
from netbuilder.distributed.transport import launchers
from netbuilder.tools import preflight
from netbuilder.tools.preflight import main

BY_LAUNCHER = ["-m", "netbuilder.tools.launch", "-n", "2", "-m", "netbuilder.tools.preflight"]

ONE_DIFFERS = """
import importlib, os, sys
from netbuilder.distributed.transport.launchers import place_in
from netbuilder.tools.preflight import main
if place_in(os.environ).rank == 1:
    importlib.import_module("netbuilder.distributed.preflight_checks").__version__ = "0.0.1"
sys.exit(main(["--timeout", "20"]))
"""


def alone():
    """The environment without the variables of launchers."""
    return {name: value for name, value in environment().items() if name not in launchers.place_variables()}


def started(ranks, size, store):
    """Processes with the variables of netbuilder-launch, but without its store."""
    command = [sys.executable, "-m", "netbuilder.tools.preflight", "--store", f"file:{store}", "--timeout", "20"]
    return [
        subprocess.Popen(
            command,
            env={**alone(), launchers.RANK: str(rank), launchers.WORLD_SIZE: str(count)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, count in zip(ranks, size)
    ]


@pytest.fixture
def of_two(monkeypatch):
    """Let this process be rank 0 of two."""
    for name in launchers.place_variables() & set(os.environ):
        monkeypatch.delenv(name)
    monkeypatch.setenv(launchers.RANK, "0")
    monkeypatch.setenv(launchers.WORLD_SIZE, "2")


def test_one_process_has_nothing_to_check(of_two, monkeypatch, capsys):
    monkeypatch.delenv(launchers.RANK)
    monkeypatch.delenv(launchers.WORLD_SIZE)
    assert main([]) == 0
    said = capsys.readouterr().out
    assert said.startswith("1 process, started by no launcher: ") and "netbuilder-launch -n 4 -m" in said


def test_a_process_that_does_not_come(of_two, tmp_path, capsys):
    assert main(["--store", f"file:{tmp_path}", "--timeout", "0.3"]) == 1
    assert "shard 1 of 2 did not come to the store in the folder" in capsys.readouterr().err


def test_nccl_without_a_store(of_two, capsys):
    assert main(["--engine", "nccl"]) == 1
    assert "engine 'NCCL' with num_shards=2 needs a store" in capsys.readouterr().err


def test_nccl_without_gpus(of_two, tmp_path, capsys, monkeypatch):
    """As netbuilder-launch starts processes where there is no MPI."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(process_group, "gpu_count", lambda: 0)
    monkeypatch.setattr(preflight, "preflight", lambda *args, **options: None)  # of a rank that has the others' word
    assert main(["--engine", "nccl", "--store", f"file:{tmp_path}", "--timeout", "1"]) == 1
    assert "to exchange values of CPUs, pip install 'netbuilder-nn[mpi]', and start" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "ranks, sizes, said",
    [
        ((1, 1), (2, 2), "shard id 1 is used 2 times"),
        ((0, 1), (2, 3), "the shards differ in num_shards: "),
    ],
)
def test_ranks_and_numbers_that_do_not_fit(ranks, sizes, said, tmp_path):
    for process in started(ranks, sizes, tmp_path):
        output = process.communicate(timeout=60)[0]
        assert process.returncode == 1
        assert output.startswith("netbuilder-preflight: preflight: ") and said in output, output
        assert output.count("\n") == 1


@pytest.mark.one_in(2)
@needs_mpi
@pytest.mark.parametrize("launcher", [True, False])
def test_processes_that_agree(launcher):
    by = [sys.executable, *BY_LAUNCHER] if launcher else [MPIEXEC, "-n", "2", sys.executable, *BY_LAUNCHER[-2:]]
    done = subprocess.run(by, env=alone(), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(
        "2 processes, started by netbuilder-launch, " if launcher else "2 processes, started by mpi"
    )
    assert [line.partition(":")[0] for line in lines[1:3]] == ["rank 0", "rank 1"]
    assert lines[3:] == ["all processes agree and have exchanged values"]


@pytest.mark.one_in(2)
@needs_mpi
@pytest.mark.parametrize("launcher", [True, False])
def test_another_version_is_an_error_on_all(launcher, tmp_path):
    """With a store, as under netbuilder-launch, and without."""
    program = tmp_path / "program.py"
    program.write_text(ONE_DIFFERS)
    status, output, _ = run_over_mpi(2, program, launcher=launcher)
    assert status == 1
    assert "the shards differ in netbuilder: shard " in output
    assert 'shard 1: "0.0.1"' in output and "; install the same version everywhere" in output
