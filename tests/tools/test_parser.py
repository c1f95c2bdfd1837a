"""The parser of the commands: what a mistyped option or choice was probably meant to be."""

import argparse
import importlib
import re

import pytest

from command_parsers import parser_of
from house import ROOT
from netbuilder.__main__ import COMMANDS as INSTALLED
from netbuilder.tools import draw, predict
from netbuilder.tools.parser import Parser


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


COMMANDS = sorted(
    path.stem for path in (ROOT / "tools").glob("*.py") if "def main(" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_every_option_and_fits_the_terminal(name, monkeypatch, capsys):
    parsers = []
    parse = Parser.parse_known_args
    monkeypatch.setattr(Parser, "parse_known_args", lambda self, *given: [parsers.append(self), parse(self, *given)][1])
    command = importlib.import_module(f"netbuilder.tools.{name}")
    for columns in (80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as ended:
            command.main(["--help"])
        assert ended.value.code == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= columns
    actions = [action for action in parsers[0]._actions if not isinstance(action, argparse._HelpAction)]
    assert actions
    for action in actions:
        assert action.help and len(action.help) > 8, action.option_strings or action.dest
        assert not re.search(r" \([\d.e-]+\)$", action.help), f"say (default: ...): {action.help}"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_runs_as_a_module(name):
    assert 'if __name__ == "__main__":\n    sys.exit(main())' in (ROOT / "tools" / f"{name}.py").read_text(
        encoding="utf-8"
    )


def test_pages_name_options_that_the_commands_have():
    commands = {
        f"netbuilder-{name}": importlib.import_module(f"netbuilder.tools.{module}")
        for name, (module, _) in INSTALLED.items()
    }
    known = {name: set(parser_of(command)._option_string_actions) for name, command in commands.items()}
    known["netbuilder-compare"] |= known["netbuilder-train"]
    known["netbuilder-launch"] |= known["netbuilder-train"]  # of the programs that it starts
    wrong, seen = [], 0
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = page.read_text(encoding="utf-8")
        lines = re.findall(r"^    (?:.* )?(netbuilder-[a-z0-9-]+) ((?:.*\\\n)*.*)$", text, re.M)
        lines += re.findall(r"`(netbuilder-[a-z0-9-]+) ([^`]*)`", text)
        if page.name == "commands.md":
            text = re.sub(r"[`\[]netbuilder-[^`\]]*", "", text)
            lines += re.findall(r"^## (netbuilder-[a-z0-9-]+)$(.*?)(?=^## |\Z)", text, re.M | re.S)
        for command, rest in lines:
            given = re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", rest)
            seen += len(given)
            wrong += [f"{page.name}: {command} {option}" for option in given if option not in known[command]]
    assert wrong == []
    assert seen > 200
