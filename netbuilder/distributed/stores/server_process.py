"""A store over TCP that a process of its own serves: a rank that starts MPI lets none of its threads answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

if __name__ == "__main__":  # run by its path, with the module path of its parent
    _parent, _given = os.getppid(), json.loads(sys.stdin.buffer.readline())
    sys.path[:] = _given["path"]

from netbuilder.distributed.stores.tcp_server import TcpStoreServer
from netbuilder.proto.errors import DistributedError

__all__ = ["serve_in_process"]

_LOOK = 0.2  # seconds between two looks at whether the parent is there
_LINGERING = 5.0  # seconds after its end in which the others may read why
_TAKEN = 6.0  # seconds in which an address may still be that of a job before


def serve_in_process(host: str, port: int, secret: bytes) -> int:
    """Start a process that serves a store until this one ends; return its port.

    Args:
        host, port, secret: see ``TcpStoreServer``.

    Raises:
        DistributedError: the address is taken, or not one of this host.
    """
    given = {"path": sys.path, "host": host, "port": port, "secret": secret.decode("latin-1")}
    process = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None and process.stdout is not None
    process.returncode = 0  # nobody waits for it, as it outlives this process
    with process.stdin, process.stdout:
        process.stdin.write(json.dumps(given).encode() + b"\n")
        process.stdin.flush()
        answer = process.stdout.readline().decode().strip()
    if not answer.isdecimal():
        raise DistributedError(answer or f"the process that serves the store on port {port} has ended")
    return int(answer)


def _serve(parent: int, host: str, port: int, secret: bytes) -> None:
    """Write the port, or the error, to standard output; serve until the parent has ended."""
    end, server = time.monotonic() + _TAKEN, None
    while server is None:
        try:
            server = TcpStoreServer(host, port, secret=secret)
        except DistributedError as error:
            if time.monotonic() > end:
                print(error, flush=True)
                return
            time.sleep(_LOOK)
    print(server.port, flush=True)
    while os.getppid() == parent:
        time.sleep(_LOOK)
    end = time.monotonic() + _LINGERING
    while server.clients and time.monotonic() < end:
        time.sleep(_LOOK)
    server.close()


if __name__ == "__main__":
    _serve(_parent, _given["host"], _given["port"], _given["secret"].encode("latin-1"))
