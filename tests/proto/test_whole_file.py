"""Files that appear whole or not at all: full disks, killed processes, folders that cannot be written."""

import errno
import os
import subprocess
import sys
import threading

import pytest

from netbuilder.proto.whole_file import is_draft, whole_file, write_text

KILLED = """
import os, sys
from netbuilder.proto.whole_file import whole_file
os.replace = lambda *names: os._exit(9)
with whole_file(sys.argv[1]) as file:
    file.write(b"new")
"""


def write(path, data=b"new"):
    with whole_file(path) as file:
        file.write(data)


def test_a_file_is_made_or_replaced(tmp_path):
    for data in (b"one", b"two"):
        write(tmp_path / "file", data)
        assert (tmp_path / "file").read_bytes() == data
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_stays_one(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "file")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "file").read_bytes() == b"new"


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, call):
    def fail(*details):
        raise OSError(errno.ENOSPC, "No space left on device")

    write(tmp_path / "file", b"old")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="cannot be written: No space left on device: .*file'") as caught:
        write(tmp_path / "file")
    assert caught.value.errno == errno.ENOSPC
    assert (tmp_path / "file").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_an_error_of_the_caller_comes_through_as_it_is(tmp_path):
    for error in (KeyError("x"), FileNotFoundError(errno.ENOENT, "no such file", "elsewhere")):
        with pytest.raises(type(error)) as caught:
            with whole_file(tmp_path / "file"):
                raise error
        assert caught.value is error
    assert os.listdir(tmp_path) == []


def test_a_process_killed_before_the_rename_leaves_the_old_file_and_a_draft(tmp_path):
    write(tmp_path / "file", b"old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "file")], check=False)
    assert done.returncode == 9
    assert (tmp_path / "file").read_bytes() == b"old"
    (draft,) = [name for name in os.listdir(tmp_path) if name != "file"]
    assert is_draft(draft)
    assert not is_draft("file")


def test_places_where_no_file_can_be(tmp_path):
    with pytest.raises(FileNotFoundError, match="the folder .*none' does not exist"):
        write(tmp_path / "none" / "file")
    with pytest.raises(IsADirectoryError, match="is a folder; give the name of a file"):
        write(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="does not exist"):
        write(tmp_path / "file" / "below")


def test_text_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write_text(path, "größer\n")
    assert path.read_bytes() == "größer\n".encode()

    def full(*details):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="cannot be written: No space left"):
        write_text(path, "other")
    assert path.read_text(encoding="utf-8") == "größer\n" and os.listdir(tmp_path) == ["x.json"]


def test_a_pipe_is_written_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    found = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    write_text(tmp_path / "pipe", "text")
    reader.join()
    assert found == [b"text"] and os.listdir(tmp_path) == ["pipe"]
