"""Files that are kept for later processes are read whole or not at all."""

import os
import subprocess
import sys

import pytest

from netbuilder.engines.kept_files import mark_of, mark_of_sources, read_kept, replace_file, write_kept


def test_what_was_written_is_read(tmp_path):
    path = tmp_path / "new" / "file"
    assert read_kept(path) is None and read_kept(None) is None
    for content in (b"one", b"", b"another" * 1000):
        write_kept(path, content)
        assert read_kept(path) == content
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("damage", ["empty", "begun", "half", "changed", "longer"])
def test_what_is_damaged_is_not_read(tmp_path, damage):
    path = tmp_path / "file"
    write_kept(path, b"content" * 100)
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[-5] ^= 1
    contents = {
        "empty": b"",
        "begun": whole[:20],
        "half": whole[:300],
        "changed": bytes(changed),
        "longer": whole + b"x",
    }
    path.write_bytes(contents[damage])
    assert read_kept(path) is None
    write_kept(path, b"new")
    assert read_kept(path) == b"new"


def test_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_bytes(b"not a folder")
    write_kept(tmp_path / "file" / "kept", b"content")
    write_kept(None, b"content")
    with pytest.raises(OSError):
        replace_file(tmp_path / "file" / "kept", b"content")


def test_a_write_that_fails_leaves_the_old_file_and_no_part_of_the_new_one(tmp_path):
    path = tmp_path / "file"
    write_kept(path, b"old")
    with pytest.raises(TypeError):
        replace_file(path, "no bytes")
    assert read_kept(path) == b"old" and os.listdir(tmp_path) == ["file"]


def test_marks_differ_after_changes(tmp_path, monkeypatch):
    package = tmp_path / "some_package"
    (package / "inner").mkdir(parents=True)
    files = [package / "__init__.py", package / "inner" / "part.py"]
    for file in files:
        file.write_text("a = 1")
    monkeypatch.syspath_prepend(tmp_path)
    marks = {mark_of("some_package"), mark_of_sources([str(package)])}
    (package / "notes.txt").write_text("no code")
    assert marks == {mark_of("some_package"), mark_of_sources([str(package)])}
    files[1].write_text("a = 10")
    marks.add(mark_of_sources([str(package)]))
    files[0].write_text("a = 10")
    marks |= {mark_of("some_package"), mark_of_sources([str(package)])}
    assert len(marks) == 5 and mark_of("no_such_package") == ""


WRITER = """
import sys
from pathlib import Path
from netbuilder.engines.kept_files import write_kept
for _ in range(200):
    write_kept(Path(sys.argv[1]), sys.argv[2].encode() * 50_000)
"""


def test_processes_that_write_at_the_same_time(tmp_path):
    path = tmp_path / "file"
    write_kept(path, b"a" * 50_000)
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, path, letter]) for letter in "ab"]
    found = set()
    try:
        while any(writer.poll() is None for writer in writers):
            found.add(read_kept(path))
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    assert found <= {b"a" * 50_000, b"b" * 50_000} and [writer.returncode for writer in writers] == [0, 0]
    assert os.listdir(tmp_path) == ["file"]
