"""The parser of the commands, and what the trainer shows while it trains."""

import os
import re
import subprocess
import sys
import time

import pytest

from house import ROOT
from netbuilder.tools import draw, predict
from netbuilder.tools.parser import Parser
from netbuilder.tools.training import progress
from netbuilder.tools.training.progress import Progress


def said(parser, arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        parser(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def make():
    parser = Parser(prog="it")
    parser.add_argument("--output", required=True)
    parser.add_argument("--kind", choices=["linear", "area"])
    parser.add_argument("--batch-size", type=int)
    return parser.parse_args


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--output=x", "--batchsize=3"], "unrecognized arguments: --batchsize=3; did you mean --batch-size?"),
        (["--ouput", "x"], "arguments are required: --output; unknown option --ouput; did you mean --output?"),
        (["--output=x", "--kind=liner"], "; did you mean linear?"),
        (["--output=x", "--quite-another"], "it: error: unrecognized arguments: --quite-another"),
        (["--output=x", "--batch-size=y"], "argument --batch-size: invalid int value: 'y'"),
    ],
)
def test_what_was_meant(arguments, text, capsys):
    line = said(make(), arguments, capsys)
    assert line.endswith(text)


def test_what_is_right_is_left_alone():
    found = make()(["--out", "x", "--batch-size=3"])  # shortened, as argparse takes it
    assert (found.output, found.batch_size) == ("x", 3)


@pytest.mark.parametrize("main", [draw.main, predict.main])
def test_every_command_says_what_was_meant(main, capsys):
    assert re.search("did you mean --(out|in)puts?", said(main, ["net", "image", "--inptus", "x"], capsys))


def test_no_command_has_another_parser():
    for path in (ROOT / "tools").rglob("*.py"):
        if path.name not in ("parser.py",):
            plain = re.findall(r"argparse\.ArgumentParser\(.*\)", path.read_text(encoding="utf-8"))
            assert all("add_help=False" in text for text in plain), path  # such a one never answers


# Progress.


def test_a_line_a_minute_where_there_is_no_terminal(monkeypatch, capsys):
    clock = [1000.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    with Progress("epoch 1/2", 400) as shown:
        for _ in range(300):
            clock[0] += 0.5
            shown.step(32, 1.25, 0.5)
    lines = capsys.readouterr().out.splitlines()
    assert progress._EVERY == 60 and len(lines) == 2
    assert lines[0] == "epoch 1/2: step 121/400, loss 1.250, top-1 50%, 64 images/s, 2 min 20 s left"


def test_no_line_of_a_short_epoch(capsys):
    with Progress("epoch 1/1", 3) as shown:
        for _ in range(3):
            shown.step(8, None)
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a terminal of Unix")
def test_a_bar_on_a_terminal():
    pytest.importorskip("tqdm")
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 160, 0, 0))
    script = (
        "import time\n"
        "from netbuilder.tools.training.progress import Progress\n"
        "with Progress('epoch 1/2', 40) as shown:\n"
        "    for number in range(40):\n"
        "        time.sleep(0.02)\n"
        "        shown.step(32, 1.5, 0.25)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen([sys.executable, "-c", script], stderr=theirs, stdout=theirs, env=environment)
    os.close(theirs)
    text = b""
    try:
        while piece := os.read(ours, 4096):
            text += piece
    except OSError:
        pass  # as Linux says that the other end is closed
    assert child.wait() == 0
    os.close(ours)
    shown = [line for line in text.decode(errors="replace").split("\r") if "loss" in line]
    assert len(shown) > 3
    assert re.search(
        r"epoch 1/2: +\d+%.*\d+/40 \[\d\d:\d\d<\d\d:\d\d,.*step/s, loss 1\.500, top-1 25%, \d+ images/s", shown[-1]
    )
