"""Databases through ``workspace.C``, as Caffe2's own tests write and read them."""

import pytest
from caffe2.python import workspace

from netbuilder.data import write_minidb
from netbuilder.proto import NetError

C = workspace.C


def records(db):
    cursor, found = db.new_cursor(), []
    while cursor.valid():
        found.append((cursor.key(), cursor.value()))
        cursor.next()
    with pytest.raises(NetError, match="after the last record"):
        cursor.key()
    cursor.seek_to_first()
    assert cursor.valid() and not cursor.supports_seek()
    return found


@pytest.mark.parametrize("db_type", ["minidb", "lmdb"])
def test_written_and_read(db_type, tmp_path):
    if db_type == "lmdb":
        pytest.importorskip("lmdb")
    path = str(tmp_path / "db")
    transaction = C.create_db(db_type, path, C.Mode.write).new_transaction()
    transaction.put("a", b"1")
    transaction.put(b"b", "2")
    transaction.commit()
    transaction.put("c", b"3")
    del transaction
    db = C.create_db(db_type, path, C.Mode.read)
    assert records(db) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
    db.close()


def test_new_begins_again(tmp_path):
    path = tmp_path / "db"
    write_minidb(path, [("old", b"0")])
    transaction = C.create_db("MiniDB", path, C.Mode.new).new_transaction()
    transaction.put("new", b"1")
    transaction.commit()
    assert records(C.create_db("minidb", path, C.Mode.read)) == [(b"new", b"1")]


def test_bad_input(tmp_path):
    with pytest.raises(NetError, match="unknown type of database 'leveldb'"):
        C.create_db("leveldb", "x", C.Mode.read)
    with pytest.raises(FileNotFoundError, match="no such minidb database"):
        C.create_db("minidb", tmp_path / "none", C.Mode.read)
    with pytest.raises(NetError, match="mode must be a Mode, got 1"):
        C.create_db("minidb", tmp_path / "none", 1)
    write_minidb(tmp_path / "db", [("a", b"1")])
    with pytest.raises(NetError, match="was opened for reading"):
        C.create_db("minidb", tmp_path / "db", C.Mode.read).new_transaction()
