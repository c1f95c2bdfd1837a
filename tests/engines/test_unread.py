"""What others have not read of a pipe, and how long one waits for them."""

import os
import threading
import time

import pytest

from netbuilder.engines.unread import unread, wait_until_read


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for each in ends:
        os.close(each)


def test_a_pipe_that_is_read_slowly_is_waited_for(pipe):
    out, into = pipe
    os.write(into, b"12345")

    def read():
        for _ in range(5):
            time.sleep(0.06)
            os.read(out, 1)

    reader = threading.Thread(target=read)
    reader.start()
    assert wait_until_read(into, seconds=20, still=3) and unread(into) == 0
    reader.join()


@pytest.mark.parametrize("limits", [{"seconds": 0.2}, {"seconds": 20, "still": 0.2}], ids=str)
def test_where_nobody_reads_the_wait_ends(limits, pipe):
    os.write(pipe[1], b"1")
    begin = time.monotonic()
    assert not wait_until_read(pipe[1], **limits) and unread(pipe[1]) == 1
    assert 0.2 <= time.monotonic() - begin < 10


def test_nothing_is_unread(tmp_path):
    with open(tmp_path / "file", "w") as file:
        file.write("text")
        file.flush()
        assert wait_until_read(file.fileno(), seconds=0)
