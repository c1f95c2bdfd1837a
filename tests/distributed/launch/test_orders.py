"""What the first node may tell the launchers of the others: to start the proxy of their own MPI, and nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from netbuilder.distributed.launch import node_agent
from netbuilder.distributed.launch.installed_mpi import InstalledMpi
from netbuilder.distributed.launch.launcher import Job, Node
from netbuilder.distributed.launch.proxy import proxy_command, proxy_order
from netbuilder.distributed.launch.relay import Relay
from netbuilder.distributed.stores import MemoryStore
from netbuilder.distributed.stores.secret import SECRET, SECRET_FILE, secret_in
from netbuilder.proto import DistributedError, NetError

HYDRA = (
    '-x node1 "/usr/bin/hydra_pmi_proxy" --control-port node0:45061 --rmk user --launcher ssh --launcher-exec '
    "/tmp/x/agent --demux poll --pgid 0 --retries 10 --usize -1 --pmi-port 0 --gpus-per-proc -2 "
    "--gpu-subdevs-per-proc -2 --proxy-id 1"
).split()
"""What mpiexec of MPICH 5.0.2 gives a program in the place of ssh."""


def order(*more, without=()):
    words = json.loads(proxy_order(HYDRA)[1])
    pairs = [pair for pair in zip(words[::2], words[1::2]) if pair[0] not in without]
    return json.dumps([word for pair in pairs for word in pair] + list(more)).encode()


def test_an_order_starts_the_proxy_of_this_node():
    host, sent = proxy_order(HYDRA)
    assert host == "node1"
    command = proxy_command(sent, "/here/bin/mpiexec", "node0")
    assert command[0] == "/here/bin/hydra_pmi_proxy" and "/tmp/x/agent" not in command
    options = dict(zip(command[1::2], command[2::2]))
    assert options["--control-port"] == "node0:45061" and options["--proxy-id"] == "1"
    assert options["--launcher"] == "fork" and options["--usize"] == "-1"


@pytest.mark.parametrize(
    "sent, message",
    [
        (b"touch /tmp/x", "it is no list of options and values: b'touch"),
        (b'"touch /tmp/x"', "it is no list of options and values"),
        (b"[" * 100_000, "it is no list of options and values"),
        (b'["--control-port"]', "it is no list of options and values"),
        (b'["--pgid", 0]', "it is no list of options and values"),
        (order("touch", "/tmp/x"), "'touch' is not one of the options --control-port, --demux"),
        (order("--debug", "/tmp/x"), "'--debug' is not one of the options"),
        (order("--proxy-id", "2"), "it has --proxy-id twice"),
        (order("--demux", "$(touch x)", without=["--demux"]), r"--demux may not be '\$\(touch x\)'"),
        (order("--pgid", "0;ls", without=["--pgid"]), "--pgid may not be '0;ls'"),
        (order("--pgid", "0\n", without=["--pgid"]), r"--pgid may not be '0\\n'"),
        (order("--control-port", "node0", without=["--control-port"]), "--control-port may not be 'node0'"),
        (
            order("--control-port", "evil:1", without=["--control-port"]),
            "to the first node, node0, and not to 'evil:1'",
        ),
        (order(without=["--control-port", "--proxy-id"]), "--control-port and --proxy-id is missing"),
    ],
)
def test_other_orders_are_refused(sent, message, capsys):
    with pytest.raises(DistributedError, match=f"an order that this one does not follow: .*{message}"):
        proxy_command(sent, "/here/bin/mpiexec", "node0")


def test_a_launcher_that_gets_another_order_starts_nothing(tmp_path, capsys, monkeypatch):
    job = Job(["x"], hosts=["node0", "node1"], node_rank=1, secret=b"only these tests know it")
    node = Node(job, None, MemoryStore(), [], {}, Relay())
    node.mpi = type("Mpi", (), {"mpiexec": "/here/bin/mpiexec"})()
    monkeypatch.setattr(node, "_start", lambda *args, **options: pytest.fail("it starts something"))
    node.store.set("command/node1", f"touch {tmp_path}/x".encode())
    assert node._watch(node.store, [], command_from_first=True) == 1
    assert node.store.peek("ended_command/node1") == b"1"  # so mpiexec on the first node fails, too
    said = capsys.readouterr().err
    assert said.startswith("netbuilder-launch: the first node has sent an order that this one does not follow")
    assert said.count("\n") == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words", [["host"], [], ["-x"], ["host", "/bin/sh", "-c", "ls"], ["host", "hydra_pmi_proxy_2"]]
)
def test_the_agent_sends_nothing_else(words, capsys):
    with pytest.raises(NetError, match="mpiexec wants to start .*, which is not its hydra_pmi_proxy"):
        proxy_order(words)
    assert node_agent.main(words) == 1
    assert capsys.readouterr().err.startswith("netbuilder-launch: mpiexec wants to start")


def test_the_agent_imports_little():
    """It is started once for each node."""
    code = "import sys, runpy; runpy.run_path(sys.argv[1]); print({'numpy', 'netbuilder.graph'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code, node_agent.__file__], cwd=Path(node_agent.__file__).parents[3],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == "set()\n", done.stderr


def test_mpiexec_which_sends_its_environment_over_the_network_has_no_secret(tmp_path):
    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text(f'#!/bin/sh\nenv > {tmp_path}/environment\ncp "${SECRET_FILE}" {tmp_path}/secret\n')
    mpiexec.chmod(0o700)
    job = Job(["x"], hosts=["node0", "node1"], secret=b"only these tests know it")
    environment = {SECRET: "only these tests know it", "PATH": "/usr/bin:/bin"}
    assert (
        Node(job, InstalledMpi("MPICH", str(mpiexec)), MemoryStore(), [], environment, Relay())._run(MemoryStore()) == 0
    )
    assert "only these" not in (tmp_path / "environment").read_text()
    assert (tmp_path / "secret").stat().st_mode & 0o077 == 0
    assert secret_in({SECRET_FILE: str(tmp_path / "secret")}) == b"only these tests know it"
