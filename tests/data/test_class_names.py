"""Names of a database's classes: stored next to it, consistent with its records even if a replacement is killed."""

import importlib.util
import os
import signal
import subprocess
import sys

import pytest

from netbuilder.data import (
    class_names_file,
    read_class_names,
    read_records,
    write_minidb,
    write_named_records,
    write_records,
)
from netbuilder.data.class_names import pending_file
from netbuilder.proto import NetError, ParseError

OLD = [(f"{k:08}", b"old %d" % k) for k in range(5)], ("cat", "dog")
NEW = [(f"{k:08}", b"new %d" % k) for k in range(7)], ("bird", "cat", "dog")
UNNAMED = [(f"{k:08}", b"unnamed %d" % k) for k in range(3)], ()
HAS_LMDB = importlib.util.find_spec("lmdb") is not None
KINDS = ["minidb", pytest.param("lmdb", marks=pytest.mark.skipif(not HAS_LMDB, reason="needs lmdb to write"))]


def there(path, kind):
    """Return which of the databases is at a path, by its records and by its names; None: none."""
    by_records = [db for db in (OLD, NEW, UNNAMED) if os.path.exists(path) and _values(path, kind) == sorted(db[0])]
    by_names = read_class_names(path, kind)
    assert len(by_records) == 1 or not os.path.exists(path)
    return (by_records[0] if by_records else None), by_names


def _values(path, kind):
    return sorted((key.decode(), value) for key, value in read_records(path, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_lines_next_to_the_database(kind, tmp_path):
    path = tmp_path / "db"
    assert write_named_records(path, kind, *OLD) == 5
    assert class_names_file(path).read_text() == "cat\ndog\n"
    assert there(path, kind) == (OLD, ("cat", "dog"))
    write_named_records(path, kind, *NEW)
    assert there(path, kind) == (NEW, NEW[1])
    write_named_records(path, kind, *UNNAMED)
    assert there(path, kind) == (UNNAMED, ())
    assert sorted(os.listdir(tmp_path)) == ["db"]


def test_names_that_somebody_wrote(tmp_path):
    path = tmp_path / "db.minidb"
    write_minidb(path, OLD[0])
    assert read_class_names(path) == ()
    class_names_file(path).write_text("a\nb\nlast, without an end of line")
    assert read_class_names(path) == ("a", "b", "last, without an end of line")
    class_names_file(path).write_bytes(b"a\n\xff\n")
    with pytest.raises(ParseError, match=r"db.minidb.classes.txt': byte 2 is not UTF-8 text; save the names in UTF-8"):
        read_class_names(path)


class Killed(BaseException):
    """Simulate a killed process: no function that changes files works any more."""


def replace_and_die(monkeypatch, path, kind, new, at):
    """Replace a database by another one and die before the change of files number ``at``; return whether it came."""
    changes = []

    def dying(change):
        def run(*arguments, **options):
            changes.append(change.__name__)
            if len(changes) > at:
                raise Killed
            return change(*arguments, **options)

        return run

    with monkeypatch.context() as patch:
        for name in ("replace", "unlink", "rmdir", "remove"):
            patch.setattr(os, name, dying(getattr(os, name)))
        try:
            write_named_records(path, kind, *new)
        except Killed:
            return True
    assert len(changes) <= at
    return False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("old", "new"), [(None, NEW), (OLD, NEW), (OLD, UNNAMED), (UNNAMED, NEW)], ids=["first", "names", "no_more", "now"]
)
@pytest.mark.one_in(6)
def test_a_kill_at_each_point_leaves_a_database_with_its_own_names(kind, old, new, tmp_path, monkeypatch):
    seen = []
    for at in range(20):
        path = tmp_path / str(at) / "db"
        path.parent.mkdir()
        if old is not None:
            write_named_records(path, kind, *old)
        died = replace_and_die(monkeypatch, path, kind, new, at)
        found, names = there(path, kind)
        assert names == (found[1] if found else ())
        seen.append((died, found))
        # A second replacement, also killed at each point, starts from the files of the first one.
        again = OLD if found is not OLD else NEW
        for then in range(20):
            died_again = replace_and_die(monkeypatch, path, kind, again, then)
            found, names = there(path, kind)
            assert names == (found[1] if found else ())
            if not died_again:
                break
        assert (found, names) == (again, again[1])
        if not died:
            break
    assert seen[0] == (True, old) and seen[-1] == (False, new)
    assert (True, new) in seen  # some kill came after the database, and before all was done


SCRIPT = """
import os, signal, sys
from netbuilder.data import write_named_records
replace = os.replace
def dying(old, new):
    if "classes.txt" in str(new):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(old, new)
os.replace = dying
write_named_records(sys.argv[1], sys.argv[2], [("%08d" % k, b"new %d" % k) for k in range(7)], ("bird", "cat", "dog"))
"""


@pytest.mark.one_in(2)
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
@pytest.mark.parametrize("kind", KINDS)
def test_a_real_kill_between_the_database_and_its_names(kind, tmp_path):
    path = tmp_path / "db"
    write_named_records(path, kind, *OLD)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(path), kind], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert class_names_file(path).read_text() == "cat\ndog\n"  # the old names, which are not those of the records
    assert there(path, kind) == (NEW, NEW[1])
    write_records(path, kind, OLD[0])  # replaced by a program that knows nothing of it
    assert there(path, kind) == (OLD, OLD[1])


def test_a_damaged_file_of_pending_names(tmp_path):
    path = tmp_path / "db.minidb"
    write_named_records(path, "minidb", *OLD)
    for text in ("{", "[]", '{"records": 1}', '{"records": "1:0", "classes": 3}'):
        pending_file(path).write_text(text)
        with pytest.raises(ParseError, match=r"db.minidb.classes.pending.json' is damaged .*: remove it, and write"):
            read_class_names(path)
        write_named_records(path, "minidb", *NEW)
        assert there(path, "minidb") == (NEW, NEW[1])


@pytest.mark.parametrize("kind", KINDS)
def test_without_records_the_old_database_stays(kind, tmp_path):
    path = tmp_path / "db"
    write_named_records(path, kind, *OLD)
    with pytest.raises(NetError, match="there are no records to write"):
        write_named_records(path, kind, [], ("a",))
    assert there(path, kind) == (OLD, OLD[1])
