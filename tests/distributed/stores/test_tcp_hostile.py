"""A store over TCP among strangers: false servers, clients without the secret, somebody in between, many who wait."""

import contextlib
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time

import pytest

from house import ROOT
from netbuilder.distributed.stores import TcpStore, TcpStoreServer, open_store, tcp_server
from netbuilder.distributed.stores import tcp_session as wire
from netbuilder.distributed.stores.secret import SECRET, read_secret, secret_in
from netbuilder.proto import DistributedError, NetError
from waiting import HANG, join_all

KNOWN = b"only these tests know it"
HELLO, PROOF = len(wire.HELLO) + wire.NONCE, wire.NONCE + wire.TAG


@pytest.fixture
def server():
    server = TcpStoreServer(secret=KNOWN)
    yield server
    server.close()


def receive(connection, count):
    data = b""
    while len(data) < count and (part := connection.recv(count - len(data))):
        data += part
    return data


@contextlib.contextmanager
def listening(serve):
    """Call a function with each connection to a port, and yield the port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=run, args=(connection,), daemon=True).start()

    def run(connection):
        with connection, contextlib.suppress(OSError):
            serve(connection)

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def without_the_secret(connection):
    connection.sendall(wire.HELLO + bytes(wire.NONCE))
    receive(connection, PROOF)
    connection.sendall(wire.KNOWN + os.urandom(wire.TAG))
    receive(connection, 1)


def with_the_proof_of_the_client(connection):
    connection.sendall(wire.HELLO + bytes(wire.NONCE))
    connection.sendall(wire.KNOWN + receive(connection, PROOF)[wire.NONCE :])
    receive(connection, 1)


def with_another_secret(connection):
    connection.sendall(wire.HELLO + bytes(wire.NONCE))
    session = wire.Session(b"another secret than that", bytes(wire.NONCE), receive(connection, PROOF)[: wire.NONCE])
    connection.sendall(wire.KNOWN + session.server_proof)
    receive(connection, 1)


def of_another_kind(connection):
    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
    receive(connection, 1)


def without_proofs(connection):
    """As in netbuilder's earlier protocol, in which the server proves nothing."""
    connection.sendall(os.urandom(32))
    receive(connection, 32)
    connection.sendall(b"v")


@pytest.mark.parametrize(
    "serve, message",
    [
        (without_the_secret, "what listens there does not know the secret, and only says so"),
        (with_the_proof_of_the_client, "what listens there does not know the secret, and only says so"),
        (with_another_secret, "what listens there does not know the secret, and only says so"),
        (of_another_kind, "what listens there is no store of this netbuilder: it begins with b'SSH"),
        (without_proofs, "what listens there is no store of this netbuilder"),
    ],
)
def test_a_false_server(serve, message):
    with listening(serve) as port, pytest.raises(DistributedError, match=f"tcp://127.0.0.1:{port}: {message}"):
        TcpStore("127.0.0.1", port, secret=KNOWN)


def test_a_server_that_ends_connections_is_tried_again(server):
    calls = []

    def busy_at_first(connection):
        calls.append(1)
        if len(calls) > 2:
            relay(connection, server.port, lambda frames: frames, lambda frames: frames)

    with listening(busy_at_first) as port:
        assert TcpStore("127.0.0.1", port, secret=KNOWN).add("n") == 1
    with listening(lambda connection: None) as port, pytest.raises(DistributedError, match="does not answer any more"):
        TcpStore("127.0.0.1", port, secret=KNOWN, connect_timeout=0.1)


@pytest.mark.parametrize("secret", [None, b"", b"too short", b" white space around ", "text"])
def test_no_secret(secret, server, monkeypatch):
    monkeypatch.delenv(SECRET, raising=False)
    rule = "secret.* (is missing|must have 16 to 4096 characters, got 9|white space|must be bytes, got str)"
    with pytest.raises(NetError, match=rule):
        TcpStore("127.0.0.1", server.port, secret=secret)
    with pytest.raises(NetError, match=rule):
        open_store(f"tcp://127.0.0.1:{server.port}", secret=secret)
    if secret is not None:
        with pytest.raises(NetError, match=rule):
            TcpStoreServer(secret=secret)
    monkeypatch.setenv(SECRET, KNOWN.decode())
    assert open_store(f"tcp://127.0.0.1:{server.port}").peek("k") is None


def test_another_secret(server, caplog):
    for _ in range(3):
        with pytest.raises(DistributedError, match=r"tcp://127.0.0.1:\d+: the secret is wrong; another run's store"):
            TcpStore("127.0.0.1", server.port, secret=b"another secret than that")
    assert [record.message for record in caplog.records] == [
        f"the store on port {server.port} has refused a connection from 127.0.0.1, which does not know the secret; "
        "it is said once"
    ]
    assert "only these" not in str(TcpStore("127.0.0.1", server.port, secret=KNOWN)) + caplog.text


SET = wire.REQUEST.pack(wire.SET, 1, 1, 0.0) + b"kv"


def meet(port):
    """Return a connection that the server has let in, its session, and what was sent for it."""
    connection = socket.create_connection(("127.0.0.1", port))
    nonce = receive(connection, HELLO)[len(wire.HELLO) :]
    session = wire.Session(KNOWN, nonce, b"n" * wire.NONCE)
    sent = b"n" * wire.NONCE + session.client_proof
    connection.sendall(sent)
    assert receive(connection, 1 + wire.TAG) == wire.KNOWN + session.server_proof
    return connection, session, sent


@pytest.mark.parametrize("proof", ["none", "random", "of an earlier connection", "of the server"])
def test_a_client_without_the_secret_changes_nothing(proof, server):
    first, _, earlier = meet(server.port)
    with first, socket.create_connection(("127.0.0.1", server.port)) as stranger:
        nonce = receive(stranger, HELLO)[len(wire.HELLO) :]
        sent = {
            "none": b"",
            "random": os.urandom(PROOF),
            "of an earlier connection": earlier,
            "of the server": bytes(wire.NONCE) + wire.Session(KNOWN, nonce, bytes(wire.NONCE)).server_proof,
        }[proof]
        stranger.sendall(sent + 2 * (SET + bytes(wire.TAG)))
        assert receive(stranger, 2) == wire.UNKNOWN
    assert server.store.peek("k") is None


def test_what_follows_a_message_with_a_wrong_tag_is_not_done(server, caplog):
    connection, session, _ = meet(server.port)
    with connection:
        tag = session.to_server.make(SET)
        connection.sendall(SET + bytes(wire.TAG) + SET + tag)
        answer = receive(connection, 1000)
    assert answer.startswith(wire.CHANGED) and len(answer) == wire.ANSWER.size + wire.TAG
    assert server.store.peek("k") is None and "a message from 127.0.0.1 was changed" in caplog.text


@pytest.mark.parametrize("lengths", [(1 << 17, 0), (1, 1 << 60)])
def test_a_length_that_cannot_be_ends_the_connection_at_once(lengths, server):
    connection, _, _ = meet(server.port)
    with connection:
        connection.sendall(wire.REQUEST.pack(b"s", *lengths, 0.0))
        assert receive(connection, 1000).startswith(wire.CHANGED)


def test_a_request_of_nonsense_ends_nothing_else(server):
    store = TcpStore("127.0.0.1", server.port, secret=KNOWN)
    for head, body in [((wire.ADD, 1, 1, 0.0), b"kx"), ((wire.ADD, 1, 5000, 0.0), b"k" + b"9" * 5000),
                       ((wire.SET, 0, 1, 0.0), b"v"), ((wire.GET, 1, 0, float("nan")), b"k"),
                       ((wire.SET, 2, 0, 0.0), b"\xff\xff"), ((b"?", 1, 0, 0.0), b"k")]:  # fmt: skip
        connection, session, _ = meet(server.port)
        with connection:
            message = wire.REQUEST.pack(*head) + body
            connection.sendall(message + session.to_server.make(message))
            connection.settimeout(HANG)
            connection.recv(1)  # an answer, or the end of this connection
    assert store.add("n") == 1


def relay(client, port, requests, answers):
    """Pass on what the two ends say; ``requests`` and ``answers`` get the list of the messages so far, and return those
    that are to be sent then."""
    with socket.create_connection(("127.0.0.1", port)) as other:
        client.sendall(receive(other, HELLO))
        other.sendall(receive(client, PROOF))
        client.sendall(receive(other, 1 + wire.TAG))

        def back():
            with contextlib.suppress(OSError):
                pump(other, client, wire.ANSWER, lambda head: head[2], answers)
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=back, daemon=True)
        thread.start()
        with contextlib.suppress(OSError):
            pump(client, other, wire.REQUEST, lambda head: head[1] + head[2], requests)
            other.shutdown(socket.SHUT_WR)
        thread.join(HANG)


def pump(source, target, head, length, change):
    frames = []
    while len(start := receive(source, head.size)) == head.size:
        frames.append(start + receive(source, length(head.unpack(start)) + wire.TAG))
        for frame in change(frames):
            target.sendall(frame)


def pass_on(frames):
    return frames[-1:]


def changed_at(position):
    """Change one bit of the second message."""

    def change(frames):
        frame = bytearray(frames[-1])
        if len(frames) == 2:
            frame[position] ^= 1
        return [bytes(frame)]

    return change


def repeat(frames):
    return [frames[-1]] * (2 if len(frames) == 2 else 1)


def repeat_an_earlier_one(frames):
    return [frames[0]] if len(frames) == 2 else frames[-1:]


def leave_out(frames):
    return [] if len(frames) == 2 else frames[-1:]


def reorder(frames):
    return {1: frames[-1:], 2: [], 3: frames[:0:-1]}.get(len(frames), frames[-1:])


FAULTS = {
    "the value": changed_at(-wire.TAG - 1),
    "the tag": changed_at(-1),
    "the kind": changed_at(0),
    "repeated": repeat,
    "an earlier one": repeat_an_earlier_one,
    "left out": leave_out,
    "reordered": reorder,
}


@pytest.mark.parametrize("which", ["request", "answer"])
@pytest.mark.parametrize("fault", FAULTS)
def test_somebody_in_between(which, fault, server):
    """Two threads ask, so that a message can be left out, and another come first."""
    ways = (FAULTS[fault], pass_on) if which == "request" else (pass_on, FAULTS[fault])
    with listening(lambda connection: relay(connection, server.port, *ways)) as port:
        store = TcpStore("127.0.0.1", port, secret=KNOWN)
        store.add("n")
        errors = []

        def ask():
            try:
                for _ in range(20):
                    store.add("n")
            except DistributedError as error:
                errors.append(str(error))

        threads = [threading.Thread(target=ask, name=f"asks {i}") for i in range(2)]
        for thread in threads:
            thread.start()
        join_all(*threads)
        said = f"{which} was changed, repeated or left out on the way"
        assert any(said in text for text in errors), errors
        assert all(said in text or "does not answer any more" in text for text in errors), errors
        if which == "request":
            assert int(server.store.peek("n")) < 10  # nothing that comes after the fault on its connection
        again = TcpStore("127.0.0.1", server.port, secret=KNOWN)
        assert again.add("m") == 1
        again.close()
        store.close()


def test_nobody_reads_what_another_connection_has_said(server):
    """The answers of one session, sent in another one."""
    recorded = []

    def record(frames):
        recorded.append(frames[-1])
        return frames[-1:]

    with listening(lambda connection: relay(connection, server.port, pass_on, record)) as port:
        TcpStore("127.0.0.1", port, secret=KNOWN).add("n")
    with listening(lambda connection: relay(connection, server.port, pass_on, lambda frames: recorded[:1])) as port:
        store = TcpStore("127.0.0.1", port, secret=KNOWN)
        with pytest.raises(DistributedError, match="an answer was changed, repeated or left out on the way"):
            store.add("n")


def test_threads_share_a_connection(server):
    store = TcpStore("127.0.0.1", server.port, secret=KNOWN)
    got = []
    threads = [
        threading.Thread(target=lambda i=i: got.append(store.get(f"k{i}", HANG)), name=f"waits {i}") for i in range(8)
    ]
    for thread in threads:
        thread.start()
    begin = time.monotonic()
    for i in reversed(range(8)):
        assert store.add("n") == 8 - i
        store.set(f"k{i}", b"%d" % i)
    assert time.monotonic() - begin < 4
    join_all(*threads)
    assert sorted(got) == [b"%d" % i for i in range(8)]
    clients = [key for key in server.selector.get_map().values() if isinstance(key.data, tcp_server.Client)]
    assert len(clients) == 1
    value = os.urandom(20_000_000)
    store.set("large", value)
    assert store.get("large") == value


def test_a_thread_that_gives_up_leaves_the_others_their_answers(server):
    store = TcpStore("127.0.0.1", server.port, secret=KNOWN)
    for wait in (0.05, 0.1):  # the first reads for the second, and gives up first
        threading.Thread(
            target=lambda wait=wait: pytest.raises(TimeoutError, store.get, "x", wait), daemon=True
        ).start()
    later = threading.Timer(0.3, store.set, ("k", b"v"))
    later.start()
    assert store.get("k", HANG) == b"v"
    join_all(later)


def test_a_forked_process_has_a_connection_of_its_own(server):
    code = f"""
import os
from netbuilder.distributed.stores import TcpStore
store = TcpStore("127.0.0.1", {server.port}, secret={KNOWN!r})
if (child := os.fork()) == 0:
    assert store.add("n") == 1
    raise SystemExit  # with all that runs at an end of the interpreter
assert os.waitpid(child, 0)[1] == 0
assert store.add("n") == 2
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=HANG)
    assert server.store.peek("n") == b"2"


def test_strangers_are_few_and_short(server, monkeypatch):
    monkeypatch.setattr(tcp_server, "STRANGERS", 8)
    monkeypatch.setattr(tcp_server, "LEAST_PATIENCE", 0.2)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(40)]
        for each in silent[::2]:
            each.sendall(b"x" * 40)  # less than a proof
        begin = time.monotonic()
        assert TcpStore("127.0.0.1", server.port, secret=KNOWN).add("n") == 1
        assert time.monotonic() - begin < 5
        assert len(server.strangers) <= 8
        assert receive(silent[0], HELLO + 1).startswith(wire.HELLO)  # until the server has ended it
    store = TcpStore("127.0.0.1", server.port, secret=KNOWN)
    monkeypatch.setattr(tcp_server, "PATIENCE", 0.2)
    with socket.create_connection(("127.0.0.1", server.port)) as alone:
        alone.settimeout(HANG)
        assert len(receive(alone, HELLO + 1)) == HELLO  # it is ended although nothing else happens
    assert store.add("n") == 2


NO_FILES = """
import resource, sys, time
from netbuilder.distributed.stores import TcpStoreServer, tcp_server
tcp_server.LEAST_PATIENCE = 0.5
resource.setrlimit(resource.RLIMIT_NOFILE, (24, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
server = TcpStoreServer(secret=sys.argv[1].encode())
print(server.port, flush=True)
server.store.get("end", 60)
server.close()
"""


def test_a_process_that_may_open_no_more_files_lets_new_ones_wait():
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", NO_FILES, KNOWN.decode()],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process, contextlib.ExitStack() as stack:
        port = int(process.stdout.readline())
        for _ in range(60):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        store = TcpStore("127.0.0.1", port, secret=KNOWN)
        assert store.add("n") == 1
        with contextlib.suppress(DistributedError):  # the server may end before it has answered
            store.set("end", b"")
        said = process.stderr.read()
        assert process.wait(HANG) == 0, said
    assert re.search(
        r"cannot take another connection now \(too many open files\); new ones wait; it is said once", said
    )
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 24


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o622, 0o601])
def test_a_secret_file_that_is_open_to_others(mode, tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(KNOWN + b"\n")
    path.chmod(mode)
    with pytest.raises(NetError, match=f"secret file '.*secret' is open to others: its mode is {mode:04o}; chmod 600 "):
        read_secret(path)
    path.chmod(0o600)
    assert read_secret(path) == KNOWN


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to others")
def test_secret_files_of_others(tmp_path, monkeypatch):
    path = tmp_path / "secret"
    path.write_bytes(KNOWN)
    path.chmod(0o600)
    os.chown(path, 12345, 12345)
    with pytest.raises(NetError, match="belongs to another user"):
        read_secret(path)
    os.chown(path, 0, 0)
    path.chmod(0o440)  # as a container mounts a secret
    with pytest.raises(NetError, match="is open to others: its mode is 0440"):
        read_secret(path)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert read_secret(path) == KNOWN
    path.chmod(0o444)
    with pytest.raises(NetError, match="is open to others: its mode is 0444"):
        read_secret(path)


@pytest.mark.parametrize("content", [b"", b"short\n", b"x" * 5000, b"zero\0byte in a secret"])
def test_secret_files_without_a_secret(content, tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(
        NetError, match="the secret in '.*secret' (is missing|must have (16 to 4096 char|no zero bytes))"
    ):
        read_secret(path)
    with pytest.raises(FileNotFoundError):
        read_secret(tmp_path / "none")
    with pytest.raises(NetError, match=f"{SECRET} in the environment must have 16 to 4096 characters, got 5"):
        secret_in({SECRET: "short"})
    assert secret_in({SECRET: ""}) is None
