"""A job on two hosts: network namespaces with names of their own, joined by a virtual cable."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import digits_program
from house import ROOT
from netbuilder.distributed.launch.installed_mpi import installed_mpi
from netbuilder.proto import DeviceError
from process_training import train_case

ADDRESSES = ("10.213.0.1", "10.213.0.2")
BY_CABLE = {"UCX_TLS": "tcp,self", "FI_PROVIDER": "tcp"}  # MPI knows that the memory of the two is the same
LIMIT = 60.0  # seconds for the job


def mpi_over_hosts():
    try:
        return installed_mpi().starts_over_store
    except DeviceError:
        return False


def inside(host, *command):
    """Return the command that runs another one on a host."""
    return ["nsenter", "--target", str(host.pid), "--net", "--uts", "--mount", *command]


def has_begun(process):
    """Wait until unshare has made the namespaces, and runs the program inside; return whether it could."""
    while process.poll() is None:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{process.pid}/comm").read_text() == "cat\n":
                return True
        time.sleep(0.01)
    return False


@pytest.fixture
def hosts():
    """Two processes, each of which keeps a host until its standard input is closed."""
    if missing := [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]:
        pytest.skip(f"network namespaces need {', '.join(missing)}")
    with contextlib.ExitStack() as stack:
        found = []
        for _ in ADDRESSES:
            keeper = subprocess.Popen(
                ["unshare", "--net", "--uts", "--mount", "cat"], stdin=subprocess.PIPE, stderr=subprocess.PIPE
            )
            found.append(stack.enter_context(keeper))
            if not has_begun(keeper):
                pytest.skip(f"this user may make no network namespaces: {keeper.stderr.read().decode().strip()}")
        commands = [inside(found[0], *f"ip link add cable type veth peer name cable netns {found[1].pid}".split())]
        for number, (host, address) in enumerate(zip(found, ADDRESSES)):
            commands += [
                inside(host, "mount", "-t", "sysfs", "sysfs", "/sys"),  # where MPI looks for networks
                inside(host, "hostname", f"host{number}"),
                inside(host, "ip", "address", "add", f"{address}/24", "dev", "cable"),
                inside(host, "ip", "link", "set", "cable", "up"),
                inside(host, "ip", "link", "set", "lo", "up"),
            ]
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"this user may not join network namespaces: {done.stderr.strip()}")
        yield found


def received(host):
    """Return the number of bytes that have come over the cable."""
    text = subprocess.run(inside(host, "cat", "/proc/net/dev"), capture_output=True, text=True).stdout
    return int(re.search(r"cable: *(\d+)", text)[1])


@pytest.mark.skipif(not mpi_over_hosts(), reason="needs mpi4py with MPICH")
def test_two_hosts_get_the_parameters_of_one_process(hosts, tmp_path):
    (tmp_path / "secret").write_text("only these tests know it")
    (tmp_path / "secret").chmod(0o600)
    options = ["--hosts", ",".join(ADDRESSES), "--secret-file", str(tmp_path / "secret"), "--engine", "MPI"]
    environment = os.environ | BY_CABLE | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    running = [
        subprocess.Popen(
            inside(host, sys.executable, "-m", "netbuilder.tools.launch", "-n", "1", "--node-rank", str(rank),
                   *options, digits_program.__file__, str(tmp_path / "values.npz")),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        )
        for rank, host in enumerate(hosts)
    ]  # fmt: skip
    try:
        texts = [process.communicate(timeout=LIMIT)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], "".join(texts)
    assert all(f"rank {rank} of 2 on host{rank}" in "".join(texts) for rank in (0, 1)), "".join(texts)
    want = train_case(digits_program.DIGITS, 2)[-1]
    gradients = sum(value.nbytes for value in want.values())
    assert all(received(host) > 8 * gradients for host in hosts), "the gradients of 8 steps have taken another way"
    got = np.load(tmp_path / "values.npz")
    assert sorted(got.files) == sorted(want)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6)
