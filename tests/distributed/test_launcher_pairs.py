"""The place of a process from the variables of launchers: one of them, two within one another, and damaged ones."""

import itertools
import os
import subprocess
import sys

import pytest

from house import ROOT
from netbuilder.distributed.launch.installed_mpi import installed_mpi
from netbuilder.distributed.transport import launchers
from netbuilder.distributed.transport.launchers import place_in
from netbuilder.distributed.worlds import world
from netbuilder.proto import DeviceError, NetError

LAUNCHERS = {
    "netbuilder-launch": (
        {"NETBUILDER_RANK": "1", "NETBUILDER_WORLD_SIZE": "11", "NETBUILDER_LOCAL_RANK": "1",
         "NETBUILDER_LOCAL_SIZE": "2", "NETBUILDER_RUN_ID": "r", "NETBUILDER_ATTEMPT": "0"},
        ("netbuilder-launch", 1, 11),
        ("python3.11", "python", "/lib/netbuilder/distributed/launch/rank_process.py", "{}"),
    ),
    "torchrun": (
        {"RANK": "2", "WORLD_SIZE": "12", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "t",
         "GROUP_RANK": "1", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
        ("torchrun", 2, 12), ("torchrun", "/usr/bin/python", "/usr/local/bin/torchrun", "--nproc-per-node=2"),
    ),
    "Open MPI": (
        {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "13", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
         "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "prterun-h-7@1", "PMIX_RANK": "3"},
        ("mpiexec of Open MPI", 3, 13), ("prted", "/usr/bin/prted", "--daemonize"),
    ),
    "Hydra": (
        {"PMI_RANK": "4", "PMI_SIZE": "14", "PMI_FD": "9", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"},
        ("mpiexec (PMI)", 4, 14), ("hydra_pmi_proxy", "/usr/bin/hydra_pmi_proxy", "--control-port"),
    ),
    "srun": (
        {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "15", "SLURM_LOCALID": "1", "SLURM_NODEID": "0",
         "SLURM_STEP_TASKS_PER_NODE": "2(x7),1", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"},
        ("srun", 5, 15), ("slurmstepd", "slurmstepd: [77.0]"),
    ),
    "a container": ({"RANK": "6", "WORLD_SIZE": "16", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
                    (launchers.BY_RANK, 6, 16), ("sh", "/bin/sh", "-c", "python train.py")),
}  # fmt: skip
"""Variables of a process, its place, and the parent that the launcher gives it: name and command."""

BY_VARIABLES = ("netbuilder-launch", "torchrun", "Open MPI", "Hydra", "srun", "a container")
"""The innermost first, where the parents cannot be seen."""

PAIRS = [pair for pair in itertools.permutations(LAUNCHERS, 2) if pair[1] != "a container"]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in {name for variables, *_ in LAUNCHERS.values() for name in variables}:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(launchers, "warned", set())


def place(environment):
    found = place_in(environment)
    return found.launcher, found.rank, found.size


@pytest.mark.parametrize("outer, inner", PAIRS)
def test_the_innermost_of_two_launchers_wins(outer, inner, monkeypatch):
    for name, value in (LAUNCHERS[outer][0] | LAUNCHERS[inner][0]).items():
        monkeypatch.setenv(name, value)
    shell, root = ("bash", "bash", "job.sh"), ("init", "/sbin/init")
    parents = [shell, LAUNCHERS[inner][2], shell, LAUNCHERS[outer][2], root]
    monkeypatch.setattr(launchers, "parents", lambda: parents)
    assert place(os.environ) == LAUNCHERS[inner][1]
    monkeypatch.setattr(launchers, "parents", lambda: [shell, root])
    assert place(os.environ) == LAUNCHERS[min(outer, inner, key=BY_VARIABLES.index)][1]


ON_HOST = {
    "netbuilder-launch": "NETBUILDER_LOCAL_SIZE",
    "torchrun": "LOCAL_WORLD_SIZE",
    "Open MPI": "OMPI_COMM_WORLD_LOCAL_SIZE",
    "Hydra": "MPI_LOCALNRANKS",
    "srun": "SLURM_STEP_TASKS_PER_NODE",
}
"""The variable with the number of processes on the host."""


@pytest.mark.parametrize("outer, inner", list(itertools.permutations(ON_HOST, 2)))
@pytest.mark.parametrize("of_outer, of_inner, warnings", [(2, 64, 1), (64, 2, 0)])
def test_ranks_are_compared_with_cores_as_the_innermost_counts_them(
    outer, inner, of_outer, of_inner, warnings, monkeypatch, recwarn
):
    local = {"LOCAL_RANK": "0"} if "torchrun" in (outer, inner) else {}
    for name, value in (LAUNCHERS[outer][0] | LAUNCHERS[inner][0] | local).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(ON_HOST[outer], str(of_outer))
    monkeypatch.setenv(ON_HOST[inner], str(of_inner))
    monkeypatch.setattr(launchers, "parents", lambda: [LAUNCHERS[inner][2], LAUNCHERS[outer][2]])
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    world.warn_if_oversubscribed(LAUNCHERS[inner][1][2])
    assert [str(each.message)[:33] for each in recwarn] == ["64 ranks share the 4 cores of thi"] * warnings


def test_ranks_are_compared_with_cores_only_as_far_as_a_launcher_counts_them(monkeypatch, recwarn):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    world.warn_if_oversubscribed(64)  # without any
    for name, value in LAUNCHERS["Hydra"][0].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MPI_LOCALNRANKS", "8")
    world.warn_if_oversubscribed(2)  # of another job
    assert not recwarn.list
    world.warn_if_oversubscribed(14)
    assert len(recwarn) == 1


@pytest.mark.parametrize("first, second", list(itertools.combinations(BY_VARIABLES, 2)))
def test_the_variables_alone(first, second):
    """Of a process that is not this one: nobody sees its parents."""
    both = LAUNCHERS[second][0] | LAUNCHERS[first][0]
    assert place(both) == LAUNCHERS[first][1]
    assert place({}) == ("no launcher", 0, 1)


def test_parents_of_this_process():
    parents = launchers.parents()
    assert parents and all(isinstance(words[0], str) and len(words) >= 2 for words in parents)
    with open("/proc/self/stat") as file:
        assert int(file.read().rpartition(")")[2].split()[1]) == os.getppid()
    with open(f"/proc/{os.getppid()}/comm") as file:
        assert parents[0][0] == file.read().rstrip("\n")


@pytest.mark.parametrize(
    "environment, warning",
    [
        ({"RANK": "3"}, "RANK=3 in the environment is ignored: WORLD_SIZE is not set"),
        ({"RANK": "3", "WORLD_SIZE": ""}, "RANK=3 in the environment is ignored: WORLD_SIZE is not set"),
        ({"RANK": "x", "LOCAL_RANK": "0"}, "RANK=x in the environment is ignored"),
        ({"RANK": ""}, "RANK= in the environment is ignored: it is empty"),
        ({"RANK": "", "WORLD_SIZE": "4"}, "RANK= in the environment is ignored: it is empty"),
        ({"PMI_RANK": "", "PMI_SIZE": ""}, "PMI_RANK= in the environment is ignored: it is empty"),
        ({"NETBUILDER_RANK": ""}, "NETBUILDER_RANK= in the environment is ignored: it is empty"),
        ({"OMPI_COMM_WORLD_RANK": ""}, "OMPI_COMM_WORLD_RANK= in the environment is ignored"),
        ({"SLURM_PROCID": "", "SLURM_STEP_NUM_TASKS": "2"}, "SLURM_PROCID= in the environment is ignored"),
        ({"WORLD_SIZE": "4"}, None),
        ({"SLURM_PROCID": "0"}, None),
    ],
)
def test_a_rank_that_is_alone_or_empty_counts_as_absent(environment, warning, caplog):
    for _ in range(2):
        assert place(environment) == ("no launcher", 0, 1)
    said = [record.message for record in caplog.records]
    assert len(said) == (warning is not None) and (warning is None or said[0].startswith(warning))


def test_empty_places_on_the_host_count_as_absent():
    found = place_in({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "", "LOCAL_WORLD_SIZE": ""})
    assert (found.rank, found.size, found.local_rank, found.local_size) == (1, 2, 0, 1)
    with pytest.raises(NetError, match="PMI_RANK is set in the environment, as by .*, but PMI_SIZE is not; set both"):
        place_in({"PMI_RANK": "1", "PMI_SIZE": ""})


NESTED = """
import os, subprocess, sys
from netbuilder.distributed.transport import launchers
from netbuilder.distributed import Rendezvous
place = launchers.place_in(os.environ)
if len(sys.argv) > 1:
    subprocess.run([sys.argv[1], "-n", "3", sys.executable, __file__], check=True)
else:
    found = Rendezvous.from_environment()
    assert launchers.job_store(os.environ) is None and found.shared_store() is None
print(f"{place.launcher}: {place.rank} of {place.size}\\n", end="", flush=True)
"""


def test_mpiexec_in_a_program_of_netbuilder_launch(tmp_path):
    try:
        mpi = installed_mpi()
    except DeviceError:
        pytest.skip("needs mpi4py with MPICH")
    if mpi.is_open_mpi:
        pytest.skip("needs MPICH, whose processes need no options here")
    (tmp_path / "nested.py").write_text(NESTED)
    done = subprocess.run(
        [sys.executable, "-m", "netbuilder.tools.launch", "-n", "1", "--engine", "NCCL", str(tmp_path / "nested.py"),
         mpi.mpiexec], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    want = [*(f"mpiexec (PMI): {rank} of 3" for rank in range(3)), "netbuilder-launch: 0 of 1"]
    assert sorted(done.stdout.splitlines()) == want
