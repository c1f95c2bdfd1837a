"""What has been written to pipes, sockets, terminals and files, and not been read."""

import os
import pty
import socket
import threading
import time

import pytest

from netbuilder.engines.unread import unread, wait_until_read


def pair(kind):
    """Return the descriptors of the reading and the writing end."""
    if kind == "pipe":
        return os.pipe()
    if kind == "terminal":
        return pty.openpty()
    return tuple(end.detach() for end in socket.socketpair())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["pipe", "socket", "terminal"])
def test_a_writer_waits_until_all_is_read(kind):
    reading, writing = pair(kind)
    try:
        assert unread(writing) == 0 and wait_until_read(writing, seconds=5)
        os.write(writing, b"the last words")
        if kind != "terminal":  # the system may have handed them over already
            assert unread(writing) > 0 and not wait_until_read(writing, seconds=0.05)
        timer = threading.Timer(0.3, os.read, (reading, 100))
        begin = time.monotonic()
        timer.start()
        assert wait_until_read(writing, seconds=20)
        assert time.monotonic() - begin > 0.25 or kind == "terminal"
        timer.join()
    finally:
        os.close(reading)
        os.close(writing)


def test_nobody_reads_a_file(tmp_path):
    with open(tmp_path / "log", "wb+") as file:
        file.write(b"line")
        file.flush()
        file.seek(0)
        assert unread(file.fileno()) == 0
        number = file.fileno()
    assert unread(number) == 0, "it is closed"
