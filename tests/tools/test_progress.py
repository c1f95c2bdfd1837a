"""Progress of commands: a bar on a terminal, a line a minute elsewhere, in training, evaluation and make-db."""

import builtins
import os
import re
import subprocess
import sys
import time
import types

import pytest

from image_cases import make_folder
from netbuilder.data import image_libraries
from netbuilder.tools import progress
from netbuilder.tools.progress import EpochProgress, Progress


@pytest.fixture
def clock(monkeypatch):
    found = [1000.0]
    monkeypatch.setattr(time, "perf_counter", lambda: found[0])
    return found


def test_a_line_a_minute_where_there_is_no_terminal(clock, capsys):
    with EpochProgress("epoch 1/2", 400) as shown:
        for _ in range(300):
            clock[0] += 0.5
            shown.step(32, 1.25, 0.5)
    lines = capsys.readouterr().out.splitlines()
    assert progress.EVERY == 60 and len(lines) == 2
    assert lines[0] == "epoch 1/2: step 121/400, loss 1.25, top-1 50%, 64 images/s, 2 min 20 s left"


@pytest.mark.parametrize(("total", "line"), [(1000, "read: image 650/1000, 33 s left"), (None, "read: image 650")])
def test_things_whose_number_is_known_or_not(total, line, clock, capsys):
    with Progress("read", total) as shown:
        for _ in range(20):
            clock[0] += 4.7
            shown.advance(50)
    assert capsys.readouterr().out.splitlines() == [line]


def test_a_diverging_loss_is_short(clock, capsys):
    with EpochProgress("epoch 1/1", 100) as shown:
        clock[0] += 61
        shown.step(8, 1.2345e28)
    assert "loss 1.235e+28, 0 images/s" in capsys.readouterr().out


def test_no_line_of_a_short_epoch(capsys):
    with EpochProgress("epoch 1/1", 3) as shown:
        for _ in range(3):
            shown.step(8, None)
    assert capsys.readouterr().out == ""


def on_a_terminal(*command):
    """Run Python on a pseudo-terminal; return what it shows, by line and by each new state of a bar."""
    pytest.importorskip("tqdm")
    fcntl, pty, termios = (pytest.importorskip(name) for name in ("fcntl", "pty", "termios"))
    import struct

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 160, 0, 0))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen([sys.executable, *command], stderr=theirs, stdout=theirs, env=environment)
    os.close(theirs)
    text = b""
    try:
        while piece := os.read(ours, 4096):
            text += piece
    except OSError:
        pass  # how Linux reports that the other end is closed
    assert child.wait() == 0, text.decode(errors="replace")
    os.close(ours)
    return [line.strip("\n") for line in text.decode(errors="replace").split("\r")]


def test_a_bar_on_a_terminal():
    shown = on_a_terminal(
        "-c",
        "import time\n"
        "from netbuilder.tools.progress import EpochProgress\n"
        "with EpochProgress('epoch 1/2', 40) as shown:\n"
        "    for number in range(40):\n"
        "        time.sleep(0.02)\n"
        "        shown.step(32, 1.5, 0.25)\n",
    )
    bars = [line for line in shown if "loss" in line]
    assert len(bars) > 3
    assert re.search(
        r"epoch 1/2: +\d+%.*\d+/40 \[\d\d:\d\d<\d\d:\d\d,.*step/s, loss 1\.5, top-1 25%, \d+ images/s", bars[-1]
    )


@pytest.mark.slow
def test_training_and_evaluation_show_bars_however_short(tmp_path):
    train = ["--model=mlp", "--data=digits", "--cpu", "--epochs=2", "--batch=256", f"--export={tmp_path / 'p'}"]
    shown = on_a_terminal("-m", "netbuilder.tools.imagenet_trainer", *train)
    for epoch in (1, 2):
        assert any(re.search(rf"epoch {epoch}/2: +0%.* 0/6 ", line) for line in shown)
        end = rf"epoch {epoch}/2: +100%.* 6/6 .*, loss [\d.]+, top-1 \d+%, \d+ images/s"
        assert any(re.search(end, line) for line in shown)
    whole = [line for line in shown if re.search(r"evaluation: +100%.* 359/359 ", line)]
    assert len(whole) >= 2  # one after each epoch
    shown = on_a_terminal("-m", "netbuilder.tools.evaluate_predictor", str(tmp_path / "p"))
    assert any(re.search(r"evaluation: +100%.* 359/359 ", line) for line in shown)
    assert "accuracy on 359 held-out images" in shown[-2] + shown[-1]


@pytest.mark.slow
@pytest.mark.skipif(not image_libraries(), reason="needs a library for images")
def test_make_db_shows_bars(tmp_path):
    folder = make_folder(tmp_path / "images", ("cat", "dog"), 3)
    shown = on_a_terminal("-m", "netbuilder.tools.make_db", str(folder), str(tmp_path / "db.minidb"))
    for title in ("write", "check"):
        assert any(re.search(rf"{title}: +100%.* 6/6 ", line) for line in shown)


def test_a_bar_in_a_notebook(monkeypatch, capsys):
    """Whose streams are no terminals; a line per minute would be all that it shows otherwise."""
    pytest.importorskip("tqdm")
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    with Progress("notes", 2) as progress:
        progress.advance(2)
    assert "notes: 100%" in capsys.readouterr().err
