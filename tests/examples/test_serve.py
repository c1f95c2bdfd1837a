"""The example of a server, asked by real clients."""

import http.client
import io
import json
import os
import runpy
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from house import ROOT
from netbuilder.exchange import ImagePreparation, save_predictor
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op
from waiting import HANG

for needed in ("fastapi", "uvicorn", "PIL.Image"):
    pytest.importorskip(needed, reason="needs FastAPI, uvicorn and Pillow")

CLASSES = ["blue", "green", "red"]
COLORS = {"red": (250, 20, 10), "green": (10, 250, 20), "blue": (20, 10, 250)}


def png(color):
    file = io.BytesIO()
    sys.modules["PIL.Image"].fromarray(np.full((20, 30, 3), color, np.uint8)).save(file, "png")
    return file.getvalue()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Yield the port of a server in a process of its own, whose predictor tells colors apart."""
    folder = tmp_path_factory.mktemp("colors")
    net = NetDef(name="colors")
    net.op.append(make_op("ReduceMean", ["data"], ["mean"], axes=[2, 3], keepdims=0))
    net.op.append(make_op("Softmax", ["mean"], ["softmax"]))
    net.external_input.append("data")
    net.external_output.append("softmax")
    save_predictor(
        folder, net, {}, shapes={"data": (1, 3, 8, 8)}, images=ImagePreparation(scale=1 / 64), classes=CLASSES
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(ROOT / "examples" / "serve.py"), str(folder), "--port", str(port), "--threads", "2"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for(port, process)
        assert f"http://127.0.0.1:{port}; http://127.0.0.1:{port}/docs" in process.stdout.readline()
        yield port
        process.terminate()
        assert process.wait(HANG) in (0, -15)


def wait_for(port, process):
    end = time.monotonic() + HANG
    while True:
        try:
            assert ask(port, "GET", "/health")[0] == 200
            return
        except OSError:
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.05)


def ask(port, method, path, body=None, **headers):
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=HANG)) as connection:
        connection.request(method, path, body, headers)
        with connection.getresponse() as answer:
            return answer.status, json.loads(answer.read())


def test_fifty_requests_at_a_time_get_their_own_answers(server):
    names = [list(COLORS)[k % 3] for k in range(200)]
    with ThreadPoolExecutor(50) as threads:
        found = list(threads.map(lambda name: ask(server, "POST", "/classify?top=2", png(COLORS[name])), names))
    for name, (status, classes) in zip(names, found):
        assert status == 200 and len(classes) == 2
        assert (classes[0]["name"], classes[0]["number"]) == (name, CLASSES.index(name))
        assert classes[0]["score"] > classes[1]["score"]


def test_what_is_no_image_is_refused(server):
    status, said = ask(server, "POST", "/classify", b"no image")
    assert status == 422 and "no image" in said["detail"]
    status, said = ask(server, "POST", "/classify?top=0", png(COLORS["red"]))
    assert status == 422 and "greater than or equal to 1" in json.dumps(said)
    status, said = ask(server, "POST", "/classify", b"\0" * ((20 << 20) + 1))
    assert status == 413 and "larger" in said["detail"]
    form = {"Content-Type": "multipart/form-data; boundary=x"}
    status, said = ask(server, "POST", "/classify", b"--x--", **form)
    assert status == 415 and "curl --data-binary" in said["detail"]
    assert ask(server, "POST", "/classify", png(COLORS["red"]))[0] == 200  # it goes on


def test_the_description_of_requests(server):
    status, said = ask(server, "GET", "/openapi.json")
    assert status == 200 and {"/classify", "/health"} <= said["paths"].keys()
    status, said = ask(server, "GET", "/")
    assert status == 200 and "POST /classify" in said


@pytest.mark.parametrize("name, said", [("nowhere", "no such folder"), ("net.onnx", "net.onnx' is ")])
def test_what_is_no_predictor_is_refused_in_one_line(tmp_path, name, said):
    (tmp_path / "net.onnx").write_bytes(b"onnx")
    with pytest.raises(SystemExit, match=said) as error:
        runpy.run_path(str(ROOT / "examples" / "serve.py"))["main"]([str(tmp_path / name)])
    assert str(error.value).startswith("serve.py: ") and "\n" not in str(error.value)


def test_what_is_missing_is_named():
    program = "import sys; sys.modules['uvicorn'] = None; import examples.serve"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 1 and done.stderr.startswith("serve.py: ") and done.stderr.count("\n") == 1
    assert "uvicorn" in done.stderr and "pip install 'netbuilder-nn[data,serve]'" in done.stderr
