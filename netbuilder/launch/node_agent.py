"""What mpiexec calls to start a command on another host: the launcher that runs there gets it from the store.

It is called as ssh would be, ``node_agent.py [-x] HOST COMMAND...``, and takes its place, so that nodes need neither
ssh nor keys. It ends when the command has ended there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["main"]

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from netbuilder.ops.engines import launchers
from netbuilder.proto.errors import DistributedError

_LOOK = 5.0  # seconds that one question to the store waits


def main(arguments: list[str]) -> int:
    """Hand a command to the launcher of a host, and return its status when it has ended there."""
    words = list(arguments)
    while words and words[0].startswith("-"):
        del words[0]
    store = launchers.job_store(os.environ)
    assert store is not None  # mpiexec passes the launcher's variables on
    store = store.with_prefix(os.environ[launchers.ATTEMPT])
    store.set(f"command/{words[0]}", " ".join(words[1:]).encode())
    while True:
        try:
            return int(store.get(f"ended_command/{words[0]}", _LOOK))
        except TimeoutError:
            continue
        except DistributedError:
            return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
