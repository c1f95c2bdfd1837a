"""Stores: the same behavior of all kinds, between threads and processes; what each does when it cannot serve."""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time

import pytest

from house import ROOT
from netbuilder.distributed import stores
from netbuilder.distributed.stores import FileStore, MemoryStore, RedisStore, Store, TcpStore, TcpStoreServer
from netbuilder.proto import DeviceError, DistributedError, NetError, StoreTimeoutError
from waiting import HANG, join_all


@pytest.fixture
def server():
    server = TcpStoreServer()
    yield server
    server.close()


def redis_server():
    """Path of a Redis server: NETBUILDER_TEST_REDIS names it, or it is on the path; None without one."""
    return os.environ.get("NETBUILDER_TEST_REDIS") or shutil.which("redis-server")


@pytest.fixture(scope="module")
def redis_port():
    pytest.importorskip("redis")
    if redis_server() is None:
        pytest.skip("no redis-server here")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([redis_server(), "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL)
    for _ in range(200):
        try:
            RedisStore("127.0.0.1", port).close()
            break
        except DistributedError:
            time.sleep(0.05)
    yield port
    process.terminate()
    process.wait(HANG)


@pytest.fixture(params=["memory", "file", "tcp", "redis", "prefixed"])
def store(request, tmp_path):
    kind = request.param
    if kind == "tcp":
        server = request.getfixturevalue("server")
        made: Store = TcpStore("127.0.0.1", server.port, secret=server.secret)
    elif kind == "redis":
        made = RedisStore("127.0.0.1", request.getfixturevalue("redis_port"), prefix=f"{tmp_path}/")
    else:
        made = MemoryStore() if kind == "memory" else FileStore(tmp_path / "new" / "folder")
    yield made.with_prefix("run 7/a") if kind == "prefixed" else made
    made.close()


def test_values(store):
    assert store.peek("k") is None and store.delete("k") is False
    store.set("k", b"")
    assert store.peek("k") == b"" == store.get("k", 0)
    value = bytes(range(256)) * 1000
    store.set("k", value)
    store.set("K", b"another")
    store.set("a/b c\n%2F" + "é" * 300, b"odd")
    store.set("a/b c\n%2F" + "é" * 299, b"odder")
    assert store.get("k") == value and store.peek("K") == b"another"
    assert store.peek("a/b c\n%2F" + "é" * 300) == b"odd"
    assert store.delete("k") is True and store.peek("k") is None and store.peek("K") == b"another"


def test_numbers(store):
    assert [store.add("n"), store.add("n", 41), store.add("n", -50)] == [1, 42, -8]
    assert store.get("n") == b"-8"
    store.set("text", b"no number")
    with pytest.raises(NetError, match="add: key '.*text' of .* (not a whole number|not an integer)"):
        store.add("text")


def test_numbers_of_several_threads(store):
    sums = []
    threads = [
        threading.Thread(target=lambda: [sums.append(store.add("n")) for _ in range(25)], name=f"adds {i}")
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    join_all(*threads)
    assert sorted(sums) == list(range(1, 101))


@pytest.mark.one_in(3)
def test_waiting(store):
    later = threading.Thread(target=lambda: (time.sleep(0.1), store.set("b", b"B"), store.set("c", b"C")), name="later")
    later.start()
    assert store.get("b", HANG) == b"B"
    store.wait(["c", "b"], HANG)
    join_all(later)
    with pytest.raises(StoreTimeoutError, match="key '.*d' did not appear in the .* within 0.05 s: the process that"):
        store.get("d", 0.05)
    with pytest.raises(TimeoutError, match="keys '.*d', '.*e' did not appear in "):
        store.wait(["d", "b", "e"], timeout=0.05)
    with pytest.raises(NetError, match="timeout must be a number of seconds, 0 or more, got -1"):
        store.get("b", -1)
    with pytest.raises(NetError, match="keys must be a list of texts, got the single text 'bc'"):
        store.wait("bc")


@pytest.mark.parametrize("key", ["", None, b"k"])
def test_keys_are_texts(store, key):
    for call in (store.peek, store.get, store.add, store.delete, lambda key: store.set(key, b""), store.with_prefix):
        with pytest.raises(NetError, match="a key of a store must be a text that is not empty, got"):
            call(key)


def test_values_are_bytes(store):
    with pytest.raises(NetError, match="a store holds bytes, got str 'text'; encode it"):
        store.set("k", "text")


def test_prefixes_keep_runs_apart(store):
    one, two = store.with_prefix("one"), store.with_prefix("two")
    one.set("k", b"1")
    assert two.peek("k") is None and store.peek("one/k") == b"1"
    two.with_prefix("a").set("k", b"2")
    assert store.peek("two/a/k") == b"2"
    assert "prefix 'two'" in str(two)
    one.close()
    store.set("k", b"the store itself is still open")


ADDS = """
import sys
from netbuilder.distributed.stores import open_store
store = open_store(sys.argv[1], secret=b"only this run knows it")
store.wait(["start"], 60)
for _ in range(100):
    store.add("n")
store.add("ended")
"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ["file", "tcp"])
def test_processes(kind, tmp_path):
    server = TcpStoreServer(secret=b"only this run knows it")
    address = f"tcp://127.0.0.1:{server.port}" if kind == "tcp" else f"file:{tmp_path}"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", ADDS, address]
    processes = [subprocess.Popen(command, env=environment) for _ in range(2)]
    store = stores.open_store(address, secret=b"only this run knows it")
    store.set("start", b"")
    assert [process.wait(HANG) for process in processes] == [0, 0]
    assert store.get("n") == b"200" and store.get("ended") == b"2"
    server.close()


def test_a_file_store_leaves_no_drafts(tmp_path):
    store = FileStore(tmp_path)
    for i in range(20):
        store.set("k", b"%d" % i)
        store.add("n")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "k.value", "n.value"]


def test_a_file_store_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DistributedError, match="the store in the folder '.*file': cannot make it: .*exists"):
        FileStore(tmp_path / "file")
    store = FileStore(tmp_path / "folder")
    shutil.rmtree(tmp_path / "folder")
    for call in (lambda: store.set("k", b""), lambda: store.add("k")):
        with pytest.raises(DistributedError, match="cannot (write into|lock) it: .*no such file"):
            call()


def test_a_closed_store():
    store = MemoryStore()
    store.close()
    store.close()
    with pytest.raises(DistributedError, match="the store in memory has been closed"):
        store.peek("k")


def test_somebody_who_says_nothing_holds_up_nobody(server):
    silent = socket.create_connection(("127.0.0.1", server.port))
    store = TcpStore("127.0.0.1", server.port, secret=server.secret)
    assert store.add("n") == 1
    silent.close()


def test_a_tcp_store_that_nobody_serves(server):
    with pytest.raises(DistributedError, match="nobody answers there after 0.1 s .*is the process that serves it"):
        TcpStore("127.0.0.1", 1, secret=b"only this run knows it", connect_timeout=0.1)
    with pytest.raises(DistributedError, match=f"cannot listen on 127.0.0.1, port {server.port}: .*give another port"):
        TcpStoreServer(port=server.port)


def test_a_tcp_store_whose_server_ends(server):
    store = TcpStore("127.0.0.1", server.port, secret=server.secret)
    threading.Timer(0.1, server.close).start()
    begin = time.monotonic()
    with pytest.raises(DistributedError, match="does not answer any more .*the process that serves it has ended"):
        store.get("k", HANG)
    assert time.monotonic() - begin < 5
    store.close()
    with pytest.raises(DistributedError, match="has been closed"):
        store.peek("k")


def test_a_client_that_waits_is_served_while_another_thread_asks(server):
    store = TcpStore("127.0.0.1", server.port, secret=server.secret)
    waits = threading.Thread(target=store.get, args=("k", HANG), name="waits")
    waits.start()
    begin = time.monotonic()
    assert store.add("n") == 1
    assert time.monotonic() - begin < 4
    store.set("k", b"")
    join_all(waits)


def test_addresses(tmp_path, monkeypatch):
    assert isinstance(stores.open_store("memory:"), MemoryStore)
    monkeypatch.chdir(tmp_path)
    assert stores.open_store("file:a%20b/c").folder == tmp_path / "a b" / "c"
    assert stores.open_store(f"file://{tmp_path}/d").folder == tmp_path / "d"
    for address in ("file:", "tcp://host", "tcp://host:x", "redis://host/x", "etcd://host:1", ""):
        with pytest.raises(NetError, match=f"store '{address}'(:| must be file:FOLDER)"):
            stores.open_store(address)


def test_redis_is_not_there(monkeypatch):
    pytest.importorskip("redis")
    with pytest.raises(DistributedError, match="the Redis server 127.0.0.1:1 does not answer: .*; start it, or give"):
        stores.open_store("redis://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(DeviceError, match=r"needs the package 'redis'; pip install 'netbuilder-nn\[redis\]'"):
        RedisStore("127.0.0.1")


def test_stores_import_neither_numpy_nor_redis():
    """The processes that watch over ranks use them."""
    code = "import sys, netbuilder.distributed.stores; print({'numpy', 'redis'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
