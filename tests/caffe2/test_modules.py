"""docs/caffe2.md has a line for each of Caffe2's modules: what it does, or why it is missing."""

import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from house import ROOT
from netbuilder.caffe2.reexports import MODULES as TEXTS

MODULES = json.loads((Path(__file__).parent / "data" / "signatures.json").read_text())["modules"]
PAGE = (ROOT / "docs" / "caffe2.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (`.*?`) \| (.*?) \|$", re.search(r"^## Modules$(.*?)^## ", PAGE, re.S | re.M)[1], re.M)
TABLE = {name: what for names, what in ROWS for name in re.findall(r"`([\w.]+)`", names)}


def test_every_module_has_a_line():
    assert len(MODULES) > 140
    assert sorted(TABLE) == sorted(MODULES)


@pytest.mark.parametrize("module", sorted(TABLE))
def test_the_line_is_true(module):
    what, name = TABLE[module], f"netbuilder.caffe2.python.{module}"
    if what.startswith("no: "):
        with pytest.raises(ModuleNotFoundError) as caught:
            importlib.import_module(name)
        assert what.removeprefix("no: ") in str(caught.value)
    else:
        assert importlib.import_module(name).__doc__.split("\n\n")[0].replace("\n", " ").rstrip(".") == what


@pytest.mark.parametrize("name", TEXTS)
def test_modules_without_a_file(name):
    """They are modules like others: under both names one object, with a source and the objects of their sources."""
    loaded = importlib.import_module(f"netbuilder.caffe2.{name}")
    assert importlib.import_module(f"caffe2.{name}") is loaded
    assert loaded.__name__ == loaded.__spec__.name == f"netbuilder.caffe2.{name}"
    assert inspect.getdoc(loaded) == TEXTS[name][0]
    assert f"__all__ = {loaded.__all__}" in loaded.__loader__.get_source(loaded.__name__)
    for part in TEXTS[name][1].split("; "):
        source, _, names = part.partition(": ")
        original = importlib.import_module(f"netbuilder.{source}")
        for there, _, here in (entry.partition("=") for entry in names.split()):
            assert getattr(loaded, here or there) is getattr(original, there)
    with pytest.raises(AttributeError, match=f"has no {name}.nothing_like_this"):
        loaded.nothing_like_this  # noqa: B018


def test_a_module_without_a_file_is_run():
    run = [sys.executable, "-W", "ignore", "-m", "netbuilder.caffe2", "-m", "caffe2.python.schema"]
    assert subprocess.run(run, cwd=ROOT, capture_output=True, text=True).stderr == ""
