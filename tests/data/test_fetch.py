"""Files of data sets: fetched once and checked; the message without a network."""

import hashlib
import http.server
import threading

import pytest

from netbuilder.data import fetch_file
from netbuilder.proto import NetError, ParseError

DATA = b"\x1f\x8b some data"


@pytest.fixture
def url(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "set.gz").write_bytes(DATA)
    return (tmp_path / "there" / "set.gz").as_uri()


def test_a_file_is_fetched_once(url, tmp_path):
    described = {"size": len(DATA), "sha256": hashlib.sha256(DATA).hexdigest().upper(), "magic": b"\x1f\x8b"}
    path = fetch_file(url, folder=tmp_path / "cache", **described)
    assert path == tmp_path / "cache" / "set.gz" and path.read_bytes() == DATA
    (tmp_path / "there" / "set.gz").unlink()
    assert fetch_file(url, folder=tmp_path / "cache", **described) == path


def test_the_cache_is_where_the_variable_says(url, tmp_path, monkeypatch):
    monkeypatch.setenv("NETBUILDER_CACHE", str(tmp_path / "named"))
    assert fetch_file(url) == tmp_path / "named" / "data" / "set.gz"


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"size": 5}, "set.gz has 12 bytes instead of 5"),
        ({"magic": b"\0\0\x08"}, "begins with 1f 8b 20 instead of 00 00 08"),
        ({"sha256": "0" * 64}, "has the SHA-256 sum"),
    ],
)
def test_another_file_is_refused_and_not_kept(url, tmp_path, described, message):
    with pytest.raises(ParseError, match=message):
        fetch_file(url, folder=tmp_path / "cache", **described)
    assert not list((tmp_path / "cache").iterdir())
    path = fetch_file(url, folder=tmp_path / "cache")
    with pytest.raises(ParseError, match="remove it to have it fetched again"):
        fetch_file(url, folder=tmp_path / "cache", **described)
    assert path.exists()


def test_what_cannot_be_fetched(tmp_path):
    for url in ((tmp_path / "no.gz").as_uri(), "http://127.0.0.1:9/no.gz"):
        with pytest.raises(NetError, match=r"cannot be fetched \(.*without a network, put the file at .*no.gz"):
            fetch_file(url, folder=tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())
    for url in ("no.gz", "ftp://host/no.gz", "http://host/"):
        with pytest.raises(NetError, match="needs the http, https or file URL of a file"):
            fetch_file(url, folder=tmp_path)


class Breaking(http.server.BaseHTTPRequestHandler):
    """Answers with less than it says."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"x" * 10)

    def log_message(self, *_):
        pass


def test_an_answer_that_breaks_off_is_not_kept(tmp_path, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with http.server.HTTPServer(("127.0.0.1", 0), Breaking) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(NetError, match="cannot be fetched .the answer ended after 10 of 1000 bytes.; without"):
            fetch_file(f"http://127.0.0.1:{server.server_address[1]}/set.bin", folder=tmp_path)
        thread.join()
    assert not list(tmp_path.iterdir())
