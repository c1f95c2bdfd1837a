"""``python -m netbuilder``: the commands listed, found, run."""

import runpy
from importlib.metadata import EntryPoint

import pytest
import setuptools

from house import ROOT
from netbuilder import __version__
from netbuilder.__main__ import COMMANDS, main


def test_the_list(capsys):
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n  {name} " in listed for name in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


def test_each_command_is_installed(monkeypatch):
    given = {}
    monkeypatch.setattr(setuptools, "setup", lambda **options: given.update(options))
    runpy.run_path(str(ROOT / "setup.py"))
    installed = [line.split(" = ") for line in given["entry_points"]["console_scripts"]]
    assert ["netbuilder-make-db", "netbuilder.tools.make_db:main"] in installed
    assert [name for name, _ in installed] == [f"netbuilder-{name}" for name in COMMANDS]
    assert all(callable(EntryPoint(name, target, "console_scripts").load()) for name, target in installed)


def test_a_command_is_run(capsys):
    with pytest.raises(SystemExit):
        main(["make-db", "--help"])
    assert "usage: netbuilder-make-db" in capsys.readouterr().out


def test_an_unknown_one(capsys):
    assert main(["predicct"]) == 2
    assert "unknown command 'predicct'; did you mean 'predict'?" in capsys.readouterr().err
