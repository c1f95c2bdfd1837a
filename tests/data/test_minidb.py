"""minidb files and readers of databases."""

import logging
import os
import signal
import struct
import subprocess
import sys
import threading
import time

import pytest

import golden_data
from netbuilder.caffe2.databases import Mode, create_db
from netbuilder.data import DBReader, open_records, read_minidb, read_records, write_minidb
from netbuilder.data.minidb import append_minidb
from netbuilder.proto import NetError, ParseError
from waiting import HANG


@pytest.fixture
def five(tmp_path):
    path = tmp_path / "five.minidb"
    write_minidb(path, [(str(k), bytes([k])) for k in range(5)])
    return path


def test_a_file_of_caffe2_is_written_back_the_same(tmp_path):
    files = sorted(golden_data.GOLDEN.rglob("*.minidb"))
    assert len(files) >= 7
    for path in files:
        copy = tmp_path / "copy.minidb"
        assert write_minidb(copy, read_minidb(path)) > 0
        assert copy.read_bytes() == path.read_bytes(), path


def test_keys_and_order_are_kept(five):
    assert list(read_minidb(five)) == [(b"0", b"\0"), (b"1", b"\1"), (b"2", b"\2"), (b"3", b"\3"), (b"4", b"\4")]


def test_empty_keys_values_and_files(tmp_path):
    path = tmp_path / "empty.minidb"
    assert write_minidb(path, []) == 0
    assert list(read_minidb(path)) == []
    write_minidb(path, [(b"", b""), ("é", b"x")])
    assert list(read_minidb(path)) == [(b"", b""), ("é".encode(), b"x")]


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (b"\x01", "record 5 at byte 50 needs 8 bytes for its lengths, 1 are left"),
        (struct.pack("<ii", 1, 9) + b"k12", "record 5 at byte 50 announces 1 bytes of key and 9 of value, 3 are left"),
        (struct.pack("<ii", -1, 2), "record 5 at byte 50 announces -1 bytes of key"),
    ],
)
def test_a_broken_file_is_named_with_the_place(five, tail, message):
    five.write_bytes(five.read_bytes() + tail)
    records = read_minidb(five)
    assert next(records) == (b"0", b"\0")
    with pytest.raises(ParseError, match=f"five.minidb' cannot be read as minidb: {message}"):
        list(records)


def test_a_missing_file():
    with pytest.raises(FileNotFoundError, match="nowhere.minidb"):
        list(read_minidb("nowhere.minidb"))


def test_a_failed_write_leaves_the_old_file(five):
    before = five.read_bytes()

    def records():
        yield "a", b"1"
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_minidb(five, records())
    assert five.read_bytes() == before
    assert [path.name for path in five.parent.iterdir()] == ["five.minidb"]


def test_a_reader_begins_again_after_the_last_record(five):
    reader = DBReader(five)
    assert [reader.read()[0] for _ in range(7)] == [b"0", b"1", b"2", b"3", b"4", b"0", b"1"]
    reader.rewind()
    assert reader.read()[0] == b"0"


def test_the_log_says_which_records_a_shard_has(five, caplog):
    with caplog.at_level(logging.INFO, "netbuilder.input"):
        DBReader(five)
        DBReader(five, num_shards=2, shard_id=1)
    (message,) = [record.message for record in caplog.records]
    assert message.endswith("shard 1 of 2) reads records 1, 3, 5, ...")


def test_shards_deal_out_the_records_of_each_pass(five):
    first, second = (DBReader(five, num_shards=2, shard_id=i) for i in range(2))
    assert [first.read()[0] for _ in range(5)] == [b"0", b"2", b"4", b"0", b"2"]
    assert [second.read()[0] for _ in range(4)] == [b"1", b"3", b"1", b"3"]
    assert repr(second).endswith("shard 1 of 2)")


def test_threads_that_share_a_reader_get_different_records(tmp_path):
    path = tmp_path / "many.minidb"
    write_minidb(path, [(str(k), b"") for k in range(400)])
    reader, got = DBReader(path), []
    threads = [threading.Thread(target=lambda: got.extend(reader.read()[0] for _ in range(100))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == sorted(str(k).encode() for k in range(400))


def test_a_reader_refuses(five, tmp_path):
    with pytest.raises(NetError, match=r"unknown type of database 'mindb'; known: \['lmdb', 'minidb'\]"):
        DBReader(five, "mindb")
    with pytest.raises(NetError, match="unknown type"):
        read_records(five, "")
    with pytest.raises(NetError, match=r"shard_id must be in \[0, num_shards\), got 2 of 2"):
        DBReader(five, num_shards=2, shard_id=2)
    with pytest.raises(FileNotFoundError, match="no such minidb database"):
        DBReader(tmp_path / "nowhere")
    empty = tmp_path / "empty"
    write_minidb(empty, [])
    with pytest.raises(NetError, match="holds no record"):
        DBReader(empty).read()
    with pytest.raises(NetError, match="holds no record"):
        DBReader(five, num_shards=9, shard_id=7).read()


def test_a_file_that_is_changed_while_it_is_read_by_number_is_an_error(tmp_path):
    path = tmp_path / "x.minidb"
    write_minidb(path, [("a", b"1" * 50), ("b", b"2" * 50)])
    records = open_records(path)
    for size in (100, 60, 4):
        os.truncate(path, size)
        with pytest.raises(ParseError, match="x.minidb' no longer has a minidb record at byte 59"):
            records[1]


def test_records_are_appended(five):
    before = list(read_minidb(five))
    assert append_minidb(five, [("5", b"x"), (b"6", b"y")]) == 2
    assert list(read_minidb(five)) == [*before, (b"5", b"x"), (b"6", b"y")]
    assert sorted(os.listdir(five.parent)) == ["five.minidb"]


def test_an_append_that_fails_leaves_the_file_as_it_was(five):
    before = five.read_bytes()

    def records():
        yield "5", b"x" * 100_000
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        append_minidb(five, records())
    assert five.read_bytes() == before and os.listdir(five.parent) == ["five.minidb"]


CUT_OFF = """
import resource, signal, sys
from netbuilder.caffe2.databases import Mode, create_db

signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # the system kills who writes beyond the limit
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
transaction = create_db("minidb", sys.argv[1], Mode.write).new_transaction()
transaction.put("whole", "w" * 100)
transaction.put("long", "l" * 300_000)
transaction.commit()
"""


@pytest.mark.one_in(2)
@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="needs limits of the size of files")
@pytest.mark.parametrize("limit", [57, 60, 200, 150_000])
def test_a_writer_that_is_killed_in_the_midst_of_an_append_leaves_the_file_as_it_was(five, limit):
    before = list(read_minidb(five))
    done = subprocess.run([sys.executable, "-c", CUT_OFF, str(five), str(limit)], timeout=HANG)
    assert done.returncode == -signal.SIGXFSZ and five.stat().st_size == limit
    assert list(read_minidb(five)) == before
    assert len(open_records(five)) == 5 and DBReader(five).read() == before[0]
    append_minidb(five, [("5", b"x")])
    assert list(read_minidb(five)) == [*before, (b"5", b"x")]


KILLED = """
import sys
from netbuilder.caffe2.databases import Mode, create_db

transaction = create_db("minidb", sys.argv[1], Mode.write).new_transaction()
print("begins", flush=True)
for number in range(10**9):
    for part in range(3):
        transaction.put(f"{number}.{part}", str(part) * 200_000)
    transaction.commit()
"""


def test_a_writer_that_is_killed_at_any_time_leaves_whole_transactions(five):
    count = 5
    for round_ in range(5):
        with subprocess.Popen([sys.executable, "-c", KILLED, str(five)], stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            time.sleep(0.01 + 0.013 * round_)
            process.kill()
        found = [key for key, _ in read_minidb(five)]
        assert len(found) >= count and (len(found) - 5) % 3 == 0
        count = len(found)


def test_what_a_killed_writer_left_does_not_count_for_a_new_file(five):
    mark = five.with_name(".five.minidb.append")
    mark.write_text(f"9 {five.stat().st_ino}")
    assert len(list(read_minidb(five))) == 1
    write_minidb(five, [("a", b"1" * 50)])
    assert len(list(read_minidb(five))) == 1 and not mark.exists()
    mark.write_text(f"9 {five.stat().st_ino}")
    create_db("minidb", str(five), Mode.new)
    append_minidb(five, [("b", b"2" * 50)])
    assert list(read_minidb(five)) == [(b"b", b"2" * 50)]
