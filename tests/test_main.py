"""``python -m netbuilder``: the commands listed, found, run."""

import ast

import pytest

from house import ROOT
from netbuilder import __version__
from netbuilder.__main__ import COMMANDS, main


def test_the_list(capsys):
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n  {name} " in listed for name in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


def test_the_commands_are_those_that_are_installed():
    texts = [node.value for node in ast.walk(ast.parse((ROOT / "setup.py").read_text()))
             if isinstance(node, ast.Constant) and isinstance(node.value, str)]  # fmt: skip
    installed = {text for text in texts if text.startswith("netbuilder-") and " = " in text}
    assert installed == {
        f"netbuilder-{name} = netbuilder.tools.{module}:main" for name, (module, _) in COMMANDS.items()
    }


def test_a_command_is_run(capsys):
    with pytest.raises(SystemExit):
        main(["make-db", "--help"])
    assert "usage: netbuilder-make-db" in capsys.readouterr().out


def test_an_unknown_one(capsys):
    assert main(["predicct"]) == 2
    assert "unknown command 'predicct'; did you mean 'predict'?" in capsys.readouterr().err
