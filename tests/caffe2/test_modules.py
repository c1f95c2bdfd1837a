"""docs/caffe2.md has a line for each module that Caffe2 has: what is here, or why it is not."""

import importlib
import json
import re
from pathlib import Path

import pytest

from house import ROOT

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
