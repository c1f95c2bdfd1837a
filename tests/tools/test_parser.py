"""The parser of the commands: what a mistyped option or choice was probably meant to be."""

import argparse
import importlib
import re

import pytest

from command_parsers import parser_of
from house import ROOT
from netbuilder.__main__ import COMMANDS as INSTALLED
from netbuilder.tools import draw, predict
from netbuilder.tools.parser import Parser, add_list, real_number, whole_number


def said(parser, arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        parser(arguments)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()  # without the usage
    return line


def make():
    parser = Parser(prog="it")
    parser.add_argument("--output", required=True)
    parser.add_argument("--kind", choices=["linear", "area"])
    parser.add_argument("--batch-size", type=int)
    return parser.parse_args


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--output=x", "--batchsize=3"], "unrecognized arguments: --batchsize=3; did you mean '--batch-size'?"),
        (["--ouput", "x"], "arguments are required: --output; unknown option --ouput; did you mean '--output'?"),
        (["--output=x", "--kind=liner"], "; did you mean 'linear'?"),
        (
            ["--output=x", "--quite-another"],
            "it: error: unrecognized arguments: --quite-another; --help lists the options",
        ),
        (["--output=x", "--batch-size=y"], "argument --batch-size: invalid int value: 'y'; --help lists the options"),
    ],
)
def test_what_was_meant(arguments, text, capsys):
    line = said(make(), arguments, capsys)
    assert line.endswith(text)


@pytest.mark.parametrize("given", [["0,1,2"], ["0", "1", "2"], ["0,1", "2"], ["0, 1, 2"]])
def test_lists_are_separated_by_commas_or_spaces(given):
    parser = Parser(prog="it")
    add_list(parser, "--devices", type=int, metavar="N,N")
    assert parser.parse_args(["--devices", *given]).devices == [0, 1, 2]
    assert "--devices N,N" in parser.format_help()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--devices=0,x"], "argument --devices: invalid int value: '0,x'"),
        (["--devices="], "argument --devices: must be a list, N,N, got ''"),
        (["--nets=lenet,lenett"], "invalid choice: 'lenett'; did you mean 'lenet'?"),
    ],
)
def test_wrong_lists(arguments, text, capsys):
    parser = Parser(prog="it")
    add_list(parser, "--devices", type=int, metavar="N,N")
    add_list(parser, "--nets", choices=["lenet", "mlp"], may_be_empty=True, metavar="NET,NET")
    assert parser.parse_args(["--nets"]).nets == []
    assert said(parser.parse_args, arguments, capsys).endswith((text, f"{text}; --help lists the options"))


@pytest.mark.parametrize(
    ("convert", "good", "bad"),
    [
        (whole_number(), {"0": 0, "7": 7}, {"-1": "0 or greater", "1.5": "0 or greater"}),
        (whole_number(1, 100), {"1": 1, "100": 100}, {"0": "from 1 to 100", "101": "from 1 to 100"}),
        (real_number(), {"-1e3": -1000.0}, {"nan": "a number", "inf": "a number", "x": "a number"}),
        (real_number(0, 1), {"0": 0.0, "1": 1.0}, {"-0.1": "from 0 to 1", "1.1": "from 0 to 1"}),
    ],
)
def test_numbers(convert, good, bad):
    assert {text: convert(text) for text in good} == good
    for text, rule in bad.items():
        with pytest.raises(argparse.ArgumentTypeError, match=f"must be .*{rule}, got '{text}'"):
            convert(text)


def test_what_is_right_is_left_alone():
    found = make()(["--out", "x", "--batch-size=3"])  # shortened, as argparse takes it
    assert (found.output, found.batch_size) == ("x", 3)


@pytest.mark.parametrize("main", [draw.main, predict.main])
def test_every_command_says_what_was_meant(main, capsys):
    assert re.search("did you mean '--(out|in)put", said(main, ["net", "image", "--inptus", "x"], capsys))


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
