"""Launchers as tests start them, alone or as on several hosts, and what they leave."""

import itertools
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from house import ROOT

__all__ = ["LIMIT", "PROGRAM", "SOON", "Launched", "free_port", "joining", "no_orphans", "nodes", "processes"]

PROGRAM = str(ROOT / "tests/distributed/launch/launched_program.py")
LIMIT = 60.0  # seconds for a whole job
SOON = 25.0  # seconds: the 5 of the launcher, on a machine that does other things, too


class Launched:
    """A launcher that runs, and what it has printed."""

    started: list["Launched"] = []  # by the test that runs; the fixture of conftest.py abandons what it has left

    def __init__(self, folder, mode, *options, program=("-m", "netbuilder.tools.launch")):
        command = [sys.executable, *program, "-n", "2", *options, PROGRAM, mode, str(folder)]
        self.text = ""
        variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": ""}
        environment = {name: value for name, value in (os.environ | variables).items() if value}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1, env=environment
        )
        self.limit = threading.Timer(LIMIT, self.process.kill)  # its processes end with it, and close the pipe
        self.limit.start()
        self.started.append(self)

    def read_until(self, pattern):
        while not re.search(pattern, self.text, re.S):
            line = self.process.stdout.readline()
            assert line, f"ended without {pattern!r}:\n{self.text}"
            self.text += line

    def end(self):
        """Wait for the end; return the status."""
        with self.process:
            self.text += self.process.stdout.read()  # communicate() would leave out what readline() has in its buffer
        self.limit.cancel()
        return self.process.returncode

    def abandon(self):
        """End it, if a test that failed has not; else its pipe would be a warning in another test."""
        self.limit.cancel()
        self.process.kill()
        with self.process:
            pass

    def ready(self):
        self.read_until("ready.*ready")
        return time.monotonic()


def processes(folder):
    """Processes whose command names the folder of a test."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            pass  # it has ended
    return found


def no_orphans(folder):
    end = time.monotonic() + SOON
    while found := processes(folder):
        assert time.monotonic() < end, found
        time.sleep(0.05)


def free_port():
    with socket.socket() as server:
        server.bind(("", 0))
        return server.getsockname()[1]


def nodes(tmp_path, mode, *options, **more):
    """Start two launchers, as on two hosts."""
    common = _on_hosts(tmp_path, "127.0.0.2,127.0.0.3", *options)
    return [Launched(tmp_path, mode, "--node-rank", str(rank), *common, **more) for rank in (0, 1)]


def joining(tmp_path, mode, *options, **more):
    """Return a function that starts a launcher of an elastic job: the first one, and then others that join it."""
    common, number = _on_hosts(tmp_path, "127.0.0.2", *options), itertools.count()
    return lambda: Launched(tmp_path, mode, *(["--join"] if next(number) else []), *common, **more)


def _on_hosts(tmp_path, hosts, *options):
    secret = tmp_path / "secret"
    secret.write_text("only these tests know it")
    secret.chmod(0o600)
    return (
        "-n",
        "1",
        "--hosts",
        hosts,
        "--port",
        str(free_port()),
        "--start-timeout",
        "20",
        "--secret-file",
        str(secret),
        *options,
    )
