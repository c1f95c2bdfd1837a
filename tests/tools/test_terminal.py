"""Output of commands on terminals: colors with rich, lines that fit without, plain text elsewhere."""

import contextlib
import io
import re
import sys

import pytest

from netbuilder.runtime.profile.text_table import TextTable, report_text
from netbuilder.tools import prove
from netbuilder.tools.terminal import print_cells, print_line, print_report

REPORT = ["about it", TextTable("sizes", ("n", "what"), [("1", "one"), ("100", "a hundred, which is more than one")])]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "24")
    return Terminal()


def shown_on(terminal):
    with contextlib.redirect_stdout(terminal):
        print_report(REPORT)
        print_line("wrong, and longer than a line is", "bold red")
    return terminal.getvalue()


def test_plain_where_output_is_no_terminal(capsys):
    print_report(REPORT)
    print_line("wrong", "bold red")
    text = "about it\n\nsizes\n  n  what\n  1  one\n100  a hundred, which is more than one\n"
    assert capsys.readouterr().out == text + "wrong\n"
    assert report_text(REPORT) + "\n" == text


def test_colors_on_a_terminal(terminal):
    pytest.importorskip("rich")
    shown = shown_on(terminal)
    assert "\x1b[32m100\x1b[0m" in shown and "\x1b[1;31mwrong, and longer than a line is\x1b[0m" in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert [line.rstrip() for line in plain.splitlines()] == [
        "about it", "", "sizes", "  n  what", "  1  one", "100  a hundred, which i\u2026",
        "wrong, and longer than a line is",
    ]  # fmt: skip


def test_rows_that_come_one_by_one(terminal, capsys):
    pytest.importorskip("rich")
    with contextlib.redirect_stdout(terminal):
        print_cells(["a   ", "1.5"], ["", "green"])
    assert terminal.getvalue() == "a     \x1b[32m1.5\x1b[0m\n"
    print_cells(["a   ", "1.5", "   "], ["", "green", ""])
    assert capsys.readouterr().out == "a     1.5\n"


def test_the_table_of_a_proof_has_colors(terminal):
    pytest.importorskip("rich")
    with contextlib.redirect_stdout(terminal):
        assert prove.main(["--models=dense", "--optimizers=SGD", "--devices=1", "--steps=1"]) == 0
    lines = terminal.getvalue().splitlines()
    assert lines[0].startswith("\x1b[1;36mmodel ") and re.match(r"dense +SGD +Parallelize +\x1b\[32m", lines[1])
    with contextlib.redirect_stdout(terminal), contextlib.redirect_stderr(io.StringIO()):
        assert prove.main(["--models=dense", "--optimizers=SGD", "--devices=2", "--steps=1", "--bound=1e-30"]) == 1
    assert "\x1b[1;31m" in terminal.getvalue()


def test_no_color_is_respected(terminal, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setenv("NO_COLOR", "1")
    shown = shown_on(terminal)
    assert "\x1b[1msizes" in shown and not re.search(r"\x1b\[3\dm|;3\dm", shown)


def test_lines_are_cut_where_rich_is_not_installed(terminal, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert shown_on(terminal).splitlines()[2:] == [
        "sizes", "  n  what", "  1  one", "100  a hundred, which is", "wrong, and longer than a line is",
    ]  # fmt: skip
