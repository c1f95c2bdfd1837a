"""Files that are kept for later processes are read whole or not at all, and their folder stays bounded."""

import os
import signal
import subprocess
import sys
import time

import pytest

from netbuilder.engines import kept_files
from netbuilder.engines.kept_files import mark_of, mark_of_sources, read_kept, replace_file, trim_kept, write_kept

DAY = 86400


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


def aged(path, days, content=b"x" * 968):
    """Write a file of 1000 bytes that was last used so many days ago; return it."""
    write_kept(path, content)
    then = time.time() - days * DAY
    os.utime(path, (then, then))
    return path


def names(folder):
    return sorted(os.listdir(folder))


@pytest.fixture
def fresh(monkeypatch):
    """As in a new process, which has trimmed nothing yet."""
    monkeypatch.setattr(kept_files, "_written", {})


def test_files_that_nothing_has_used_for_long_are_removed(tmp_path, fresh):
    aged(tmp_path / "old.plan", 91)
    aged(tmp_path / "used.plan", 91)
    aged(tmp_path / "young.plan", 89)
    for other in ("old.json", ".lock"):
        aged(tmp_path / other, 500)
    (tmp_path / "a.plan").mkdir()
    assert read_kept(tmp_path / "used.plan") == b"x" * 968  # so it is in use
    kept_files._written.clear()
    write_kept(tmp_path / "new.plan", b"")
    assert names(tmp_path) == [".lock", "a.plan", "new.plan", "old.json", "used.plan", "young.plan"]


def test_a_folder_keeps_to_its_bound_by_what_was_used_longest_ago(tmp_path, fresh, monkeypatch):
    monkeypatch.setattr(kept_files, "MOST_BYTES", 1 << 30)
    for days in (3, 9, 5, 7):
        aged(tmp_path / f"{days}.plan", days)
    read_kept(tmp_path / "9.plan")
    monkeypatch.setattr(kept_files, "MOST_BYTES", 3500)
    write_kept(tmp_path / "0.plan", b"x" * 968)
    assert names(tmp_path) == ["0.plan", "3.plan", "9.plan"]
    for count in range(20):
        write_kept(tmp_path / f"more{count}.plan", b"x" * 968)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4500  # with the one being written
    assert read_kept(tmp_path / "more19.plan") == b"x" * 968


def test_what_a_killed_process_has_left_is_removed_after_a_day(tmp_path, fresh):
    process = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "file.plan"], check=False)
    assert process.returncode == -signal.SIGKILL
    (begun,) = tmp_path.iterdir()
    trim_kept(tmp_path, ".plan")
    assert begun.exists()
    then = time.time() - 1.1 * DAY
    os.utime(begun, (then, then))
    trim_kept(tmp_path, ".plan")
    assert not begun.exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from netbuilder.engines import kept_files
kept_files.os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
kept_files.write_kept(Path(sys.argv[1]), b"content")
"""

TRIMMER = """
import sys
from pathlib import Path
from netbuilder.engines import kept_files
kept_files.MOST_BYTES = 40_000
for k in range(150):
    path = Path(sys.argv[1]) / f"{k % 100}.plan"
    kept_files.write_kept(path, str(k % 100).encode() * 500)
    found = kept_files.read_kept(Path(sys.argv[1]) / f"{(k - 5) % 100}.plan")
    assert found in (None, str((k - 5) % 100).encode() * 500), k
"""


def test_processes_that_trim_a_folder_at_the_same_time(tmp_path):
    trimmers = [subprocess.Popen([sys.executable, "-c", TRIMMER, tmp_path]) for _ in range(3)]
    assert [process.wait(120) for process in trimmers] == [0, 0, 0]
    assert 0 < sum(path.stat().st_size for path in tmp_path.iterdir()) < 2 * 40_000


def test_a_folder_that_cannot_be_trimmed(tmp_path, fresh, monkeypatch):
    def unlink(path):
        raise PermissionError(path)

    aged(tmp_path / "old.plan", 91)
    monkeypatch.setattr(kept_files.os, "unlink", unlink)
    kept_files._written.clear()
    write_kept(tmp_path / "new.plan", b"new")
    assert read_kept(tmp_path / "new.plan") == b"new" and names(tmp_path) == ["new.plan", "old.plan"]
