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

from netbuilder.distributed.launch.proxy import proxy_order
from netbuilder.distributed.transport import launchers
from netbuilder.proto.errors import DistributedError, NetError

_LOOK = 5.0  # seconds that one question to the store waits


def main(arguments: list[str]) -> int:
    """Hand a command to the launcher of a host, and return its status when it has ended there."""
    try:
        host, order = proxy_order(arguments)
    except NetError as error:
        print(f"netbuilder-launch: {error}", file=sys.stderr)
        return 1
    store = launchers.job_store(os.environ)
    assert store is not None  # mpiexec passes the launcher's variables on
    store = store.with_prefix(os.environ[launchers.ATTEMPT])
    store.set(f"command/{host}", order)
    while True:
        try:
            return int(store.get(f"ended_command/{host}", _LOOK))
        except TimeoutError:
            continue
        except DistributedError:
            return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
