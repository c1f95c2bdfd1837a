"""Threads that are started where memory is short."""

import subprocess
import sys

import pytest

from netbuilder.proto.threads import Thread

UNDER_LIMITS = """
import resource, sys, threading
from pathlib import Path
from netbuilder.proto.threads import Thread

threading.stack_size(1 << 20)
ended = []
thread = Thread(target=ended.append, args=(None,))
thread.start()
thread.join()
found = {}
for headroom in range(0, 2 << 20, 4096):
    status = Path("/proc/self/status").read_text()
    data = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData"))
    thread = Thread(target=ended.append, args=(headroom,))
    resource.setrlimit(resource.RLIMIT_DATA, (data + headroom, resource.RLIM_INFINITY))
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2)
        assert "can't start new thread" in str(error) or isinstance(error, MemoryError), error
        assert headroom not in ended
        found[headroom] = "refused"
    else:
        thread.join()
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2)
        assert headroom in ended or headroom in found
        found[headroom] = "run"
print(len(found), sorted(set(found.values())))
"""


def test_a_thread_ends_its_start_and_names_itself():
    thread = Thread(target=lambda: None, name="of a test", daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive() and thread.name == "of a test" and thread.ident is not None


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_a_thread_without_memory_is_an_error():
    done = subprocess.run([sys.executable, "-c", UNDER_LIMITS], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "512 ['refused', 'run']\n"
