"""Each of Caffe2's modules is there, or docs/caffe2.md says why it is missing."""

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
ABSENT = re.search(r"^## Modules$.*?^\| missing(.*?)^## ", PAGE, re.S | re.M)[1]
WHY = {
    name: reason
    for names, reason in re.findall(r"^\| (`.*?`) \| (.*?) \|$", ABSENT, re.M)
    for name in re.findall(r"`([\w.]+)`", names)
}
THERE = sorted(set(MODULES) - set(WHY))


def test_the_page_names_modules_of_caffe2():
    assert len(MODULES) > 140 and set(WHY) < set(MODULES)


@pytest.mark.parametrize("module", THERE)
def test_a_module_says_what_it_does(module):
    assert importlib.import_module(f"netbuilder.caffe2.python.{module}").__doc__.strip()


@pytest.mark.parametrize("module", sorted(WHY))
def test_the_reason_is_that_of_the_error(module):
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module(f"netbuilder.caffe2.python.{module}")
    assert WHY[module] in str(caught.value)


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
