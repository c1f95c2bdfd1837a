"""LMDB databases: written, read by several readers at a time, truncated, of other programs; records by number."""

import os
import sys
import threading

import pytest

import golden_data
from netbuilder.data import (
    DBReader,
    database_type,
    open_records,
    read_lmdb,
    read_minidb,
    write_lmdb,
    write_minidb,
    write_records,
)
from netbuilder.proto import DeviceError, NetError, ParseError

KINDS = ["lmdb", "minidb"]
IMAGES = golden_data.GOLDEN / "exports" / "image_db"


def needs(kind):
    if kind == "lmdb":
        pytest.importorskip("lmdb")


@pytest.fixture(params=KINDS)
def database(request, tmp_path):
    """Seven records, of either type: path and type."""
    needs(request.param)
    path = tmp_path / "seven"
    assert write_records(path, request.param, ((f"{k}", bytes([k]) * k) for k in range(7))) == 7
    return path, request.param


def test_records_of_caffe2_go_through_lmdb(tmp_path):
    needs("lmdb")
    records = list(read_minidb(IMAGES / "byte_images.minidb"))
    write_lmdb(tmp_path / "images", records)
    assert list(read_lmdb(tmp_path / "images")) == sorted(records)
    assert sorted(os.listdir(tmp_path / "images")) == ["data.mdb", "lock.mdb"]


@pytest.mark.skipif(os.name != "posix", reason="folders are flushed on POSIX only")
@pytest.mark.parametrize("exists", [False, True])
def test_a_written_database_is_on_the_disk_with_its_name(tmp_path, monkeypatch, exists):
    """The folder, which names the file, and the folder that names it are flushed, too."""
    needs("lmdb")
    path, flushed, flush = tmp_path / "images", [], os.fsync
    if exists:
        write_lmdb(path, [(b"b", b"2")])

    def noting(number):
        flushed.append(os.fstat(number).st_ino)
        flush(number)

    monkeypatch.setattr(os, "fsync", noting)
    write_lmdb(path, [(b"a", b"1")])
    assert flushed[-2:] == [path.stat().st_ino, tmp_path.stat().st_ino]


def test_lmdb_grows_as_records_come_and_sorts_them(tmp_path):
    needs("lmdb")
    count = write_lmdb(tmp_path / "large", ((f"{k:04}", os.urandom(1) * 400_000) for k in reversed(range(60))))
    assert count == 60
    found = [key for key, _ in read_lmdb(tmp_path / "large")]
    assert found == [b"%04d" % k for k in range(60)]


def test_shards_are_disjoint_and_complete(database):
    path, kind = database
    for count in (1, 2, 3, 7, 9):
        readers = [DBReader(path, kind, num_shards=count, shard_id=k) for k in range(count)]
        found = [[key for key, _ in reader.rest()] for reader in readers]
        assert sorted(key for keys in found for key in keys) == [b"%d" % k for k in range(7)]


def test_readers_of_one_database_do_not_disturb_one_another(database):
    path, kind = database
    readers = [DBReader(path, kind) for _ in range(3)]
    assert [reader.read()[0] for _ in range(2) for reader in readers] == [b"0"] * 3 + [b"1"] * 3
    readers[1].seek(5)
    assert readers[1].read() == (b"5", bytes([5]) * 5)
    assert readers[0].read()[0] == b"2"


def test_threads_share_a_reader(database):
    path, kind = database
    reader, found = DBReader(path, kind), []
    threads = [threading.Thread(target=lambda: found.extend(reader.read()[0] for _ in range(14))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(b"%d" % k for k in list(range(7)) * 8)


def test_records_by_number(database):
    path, kind = database
    assert database_type(path) == kind
    records = open_records(path)
    assert (len(records), records.db_type, records[6], records[0]) == (7, kind, (b"6", bytes([6]) * 6), (b"0", b""))
    with pytest.raises(IndexError):
        records[7]


def test_a_database_is_replaced_whole_or_not_at_all(database):
    path, kind = database

    def broken():
        yield "a", b"1"
        raise ArithmeticError("in the middle")

    with pytest.raises(ArithmeticError):
        write_records(path, kind, broken())
    assert len(open_records(path)) == 7
    assert write_records(path, kind, [("z", b"2")]) == 1
    assert [open_records(path)[0], len(os.listdir(path.parent))] == [(b"z", b"2"), 1]


@pytest.mark.parametrize("cut", [0, 100, 5000, 12000])
def test_a_file_cut_short_or_foreign_is_refused(tmp_path, cut):
    needs("lmdb")
    write_lmdb(tmp_path / "whole", ((f"{k}", b"x" * 3000) for k in range(20)))
    whole = (tmp_path / "whole" / "data.mdb").read_bytes()
    for name, data in (("short", whole[:cut]), ("foreign", b"no database at all, but some text " * 500)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.mdb").write_bytes(data)
        with pytest.raises(ParseError, match=f"{name}' cannot be read as lmdb"):
            list(read_lmdb(tmp_path / name))
        with pytest.raises(ParseError, match=f"{name}' cannot be read as lmdb"):
            open_records(tmp_path / name)


def test_what_lmdb_cannot_hold_is_refused(tmp_path):
    needs("lmdb")
    for key, message in (("", "key of 0 bytes"), ("k" * 512, "key of 512 bytes; lmdb takes keys of 1 to 511")):
        with pytest.raises(NetError, match=message):
            write_lmdb(tmp_path / "x", [(key, b"")])
    with pytest.raises(NetError, match="key b'a' occurs twice"):
        write_lmdb(tmp_path / "x", [("a", b"1"), ("a", b"2")])
    assert not os.listdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="is not an LMDB database"):
        write_lmdb(tmp_path / "folder", [])
    with pytest.raises(FileNotFoundError, match="does not exist"):
        write_lmdb(tmp_path / "no" / "x", [])


def test_missing_and_unknown_databases(tmp_path):
    needs("lmdb")
    with pytest.raises(FileNotFoundError, match="no such lmdb database"):
        DBReader(tmp_path / "nowhere", "lmdb")
    with pytest.raises(FileNotFoundError, match="no such database"):
        open_records(tmp_path / "nowhere")
    with pytest.raises(NetError, match="unknown type of database 'rocks'"):
        open_records(tmp_path, "rocks")
    with pytest.raises(NetError, match="unknown type of database 'rocks'"):
        write_records(tmp_path / "x", "rocks", [])


def test_reading_needs_no_package_and_writing_names_it(tmp_path, monkeypatch):
    needs("lmdb")
    write_lmdb(tmp_path / "x", [("a", b"1")])
    monkeypatch.setitem(sys.modules, "lmdb", None)
    assert DBReader(tmp_path / "x", "lmdb").read() == (b"a", b"1")
    with pytest.raises(DeviceError, match=r"needs the package lmdb; pip install lmdb"):
        write_lmdb(tmp_path / "y", [])


def test_a_minidb_that_is_cut_short(tmp_path):
    path = tmp_path / "x.minidb"
    write_minidb(path, [("a", b"1" * 50), ("b", b"2" * 50)])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ParseError, match="record 1 at byte 59 announces 1 bytes of key and 50 of value, 50 are left"):
        open_records(path)


def long_and_short(tmp_path):
    """A database with two levels, short and long values; its file's bytes."""
    records = [(f"{k:03}", bytes([k % 256]) * (5000 + k if k % 10 == 0 else k)) for k in range(200)]
    write_lmdb(tmp_path / "whole", records)
    return (tmp_path / "whole" / "data.mdb").read_bytes()


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (10, 0x02, "page [01] is not a meta page"),
        (16, 0, "page [01] is not a meta page of data format 1: .* magic"),
        (16 + 24, 7, "pages have 512, 1024, ... or 65536 bytes, got"),
        (16 + 24 + 48 + 4, 4, "databases with several values per key are not supported"),
        (16 + 24 + 48 + 6, 90, "200 records, 90 levels"),
        (16 + 24 + 48 + 38, 1, "pages cannot hold|records, "),
        (16 + 24 + 96 + 7, 9, "the file is truncated|cannot hold|its meta pages contradict"),
        (16 + 24 + 96 + 9, 9, "its meta pages contradict each other"),
    ],
)
def test_damaged_meta_pages_are_refused(tmp_path, at, value, message):
    needs("lmdb")
    data = bytearray(long_and_short(tmp_path))
    newest = max((0, 4096), key=lambda page: data[page + 16 + 24 + 96 + 8])
    data[newest + at] = value
    (tmp_path / "data.mdb").write_bytes(data)
    with pytest.raises(ParseError, match=f"data.mdb' cannot be read as lmdb: .*({message})"):
        list(read_lmdb(tmp_path / "data.mdb"))


def test_no_changed_byte_ends_the_process_or_hides_a_record(tmp_path):
    """Bytes of all headers and lists of nodes, changed in turn: right keys, or an error."""
    needs("lmdb")
    whole = long_and_short(tmp_path)
    keys = [key for key, _ in read_lmdb(tmp_path / "whole")]
    refused = 0
    for page in range(0, len(whole), 4096):
        for at in (0, 10, 12, 13, 14, 16, 17, 20):
            data = bytearray(whole)
            data[page + at] ^= 0x15
            (tmp_path / "data.mdb").write_bytes(data)
            try:
                found = [key for key, _ in read_lmdb(tmp_path / "data.mdb")]
            except ParseError as error:
                assert "data.mdb' cannot be read as lmdb: " in str(error)
                refused += 1
            else:
                assert found == keys
    assert refused > 100


def test_a_database_replaced_while_it_is_read_stays_as_it_was(tmp_path):
    needs("lmdb")
    write_lmdb(tmp_path / "x", [(f"{k:03}", bytes(6000)) for k in range(50)])
    reading = read_lmdb(tmp_path / "x")
    assert next(reading)[0] == b"000"
    write_lmdb(tmp_path / "x", [("a", b"1")])
    assert len(list(reading)) == 49
    assert list(read_lmdb(tmp_path / "x")) == [(b"a", b"1")]


def test_a_file_cut_short_while_it_is_read_is_an_error(tmp_path):
    needs("lmdb")
    write_lmdb(tmp_path / "x", [(f"{k:03}", bytes(6000)) for k in range(50)])
    reading = read_lmdb(tmp_path / "x")
    next(reading)
    os.truncate(tmp_path / "x" / "data.mdb", 8192)
    with pytest.raises(ParseError, match="is truncated; if the file has been rewritten"):
        list(reading)
