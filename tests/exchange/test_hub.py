"""Weights by the names of models of the Hugging Face Hub: from a server here, from the cache, and the errors."""

import hashlib
import importlib
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from netbuilder.exchange import save_weights
from netbuilder.exchange.hub import is_hub_name
from netbuilder.exchange.safetensors import write_safetensors
from netbuilder.exchange.weights import read_weights
from netbuilder.graph.net_names import reset_names
from netbuilder.model import ModelHelper
from netbuilder.proto import NetError
from netbuilder.runtime import Workspace
from netbuilder.tools.training.images import Images
from netbuilder.tools.training.nets import NETS
from netbuilder.tools.training.options import parse
from netbuilder.tools.training.run import Run

NAME = "someone/small.net"


class Hub(BaseHTTPRequestHandler):
    """Serves one model with one file, at the revisions main and v1."""

    data: bytes = b""
    asked: list[str] = []

    def do_HEAD(self):
        self.respond()

    def do_GET(self):
        self.wfile.write(self.data if self.respond() else b"")

    def respond(self):
        self.asked.append(f"{self.command} {self.path}")
        _, owner, name, *rest = self.path.split("/")
        if f"{owner}/{name}" != NAME:
            return self.refuse(404, "RepoNotFound")
        if rest[1] not in ("main", "v1"):
            return self.refuse(404, "RevisionNotFound")
        if rest[2:] != ["model.safetensors"]:
            return self.refuse(404, "EntryNotFound")
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(self.data).hexdigest()}"')
        self.send_header("X-Repo-Commit", hashlib.sha1(rest[1].encode()).hexdigest())
        self.send_header("Content-Length", str(len(self.data)))
        self.end_headers()
        return True

    def refuse(self, status, code):
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *about):
        pass


def point(monkeypatch, port):
    """Let huggingface_hub ask a server here; what it has read of its environment is in its constants."""
    constants, place = importlib.import_module("huggingface_hub.constants"), f"http://127.0.0.1:{port}"
    monkeypatch.setattr(constants, "ENDPOINT", place)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", place + "/{repo_id}/resolve/{revision}/{filename}")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The server; what huggingface_hub keeps is in a folder of its own."""
    constants = pytest.importorskip("huggingface_hub.constants")
    write_safetensors(tmp_path / "w.safetensors", {"fc.weight": np.arange(6, dtype=np.float32).reshape(2, 3)})
    kind = type("Served", (Hub,), {"data": (tmp_path / "w.safetensors").read_bytes(), "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    point(monkeypatch, server.server_port)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    yield kind
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_model_is_downloaded_once(hub, monkeypatch):
    for name in (NAME, NAME, f"{NAME}@v1"):
        np.testing.assert_array_equal(read_weights(name)["fc.weight"], [[0, 1, 2], [3, 4, 5]])
    assert sum(each.startswith("GET") for each in hub.asked) == 1
    hub.asked.clear()
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert read_weights(NAME).keys() == {"fc.weight"} and not hub.asked


def test_the_trainer_begins_with_a_model_of_the_hub(hub, tmp_path):
    reset_names()
    model, workspace = ModelHelper("whole"), Workspace(threads=1, seed=3)
    NETS["squeezenet1.1"](model, (3, 32, 32), 7, is_test=True)
    workspace.run_net_once(model.param_init_net)
    names = [f"features.{layer}.{part}" for layer in range(25) for part in ("weight", "bias")]
    path = tmp_path / "theirs.safetensors"
    save_weights(model, path, like=[*names, "classifier.1.weight", "classifier.1.bias"], workspace=workspace)
    hub.data = path.read_bytes()
    options = parse(["--cpu", "--model=squeezenet1.1", "--batch=4", "--finetune", f"--weights={NAME}"])
    rng = np.random.default_rng(0)
    images = Images(rng.standard_normal((8, 3, 32, 32)).astype(np.float32), np.arange(8, dtype=np.int32) % 3)
    run = Run(options, images, images)
    assert run.loaded.source == repr(NAME) and set(run.loaded.reinitialized) == {"conv10_w", "conv10_b"}
    for blob in run.loaded.loaded:
        np.testing.assert_array_equal(run.model.workspace.fetch(f"cpu_0/{blob}"), workspace.fetch(blob))


def test_models_that_the_hub_does_not_have(hub):
    with pytest.raises(NetError, match="'someone/other': there is no such file, and the hub has no such model"):
        read_weights("someone/other")
    with pytest.raises(NetError, match="'someone/small.net@v2': the model has no revision 'v2'"):
        read_weights(f"{NAME}@v2")


def test_without_a_network(hub, monkeypatch, caplog):
    point(monkeypatch, 9)  # the port of discard, where nobody listens
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("tries again"))
    with pytest.raises(NetError, match="'someone/small.net': the hub cannot be reached .*HF_HUB_OFFLINE=1.* try again"):
        read_weights(NAME)
    assert not caplog.records  # no warnings of attempts
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(NetError, match="'someone/small.net': HF_HUB_OFFLINE is set, and"):
        read_weights(NAME)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(NetError, match=r"'timm/resnet18': .* needs the package huggingface_hub: pip install .*\[hub\]"):
        read_weights("timm/resnet18")


def test_names_and_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "timm").mkdir()
    (tmp_path / "timm" / "resnet18").write_bytes(b"")
    (tmp_path / "timm" / "loop").symlink_to("loop")
    assert (
        not is_hub_name("timm/loop")
        and not is_hub_name("timm/resnet18")
        and is_hub_name("timm/resnet50")
        and is_hub_name("timm/a@refs/pr/1")
    )
    for text in ("a/b/c", "/a/b", "../b", "a/", "b", "a/b.pth", "a/b.safetensors", tmp_path):
        assert not is_hub_name(text)
    with pytest.raises(NetError, match="--weights: 'folder/file.pth': no such file: the folder 'folder' does not"):
        parse(["--cpu", "--model=resnet18", "--weights=folder/file.pth"])
