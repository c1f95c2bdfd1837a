"""Every example in a docstring, in README and in the pages under docs/ runs and gives what it shows."""

import contextlib
import doctest
import importlib
import io
import re

import numpy as np
import pytest

from house import ROOT, library_modules
from netbuilder.graph import reset_names

FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
WITH_EXAMPLES = [m for m in library_modules() if ">>> " in m.path.read_text(encoding="utf-8")]
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")})


@pytest.fixture(autouse=True)
def _fresh_names():
    """Nets get their names as in a fresh process."""
    reset_names()


def runs(examples: doctest.DocTest) -> str:
    """Run the examples; return what the failed ones say."""
    said: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(examples, out=said.append)
    return "".join(said)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("module", WITH_EXAMPLES, ids=str)
def test_docstrings(module):
    loaded = importlib.import_module(module.name)
    found = [t for t in doctest.DocTestFinder(exclude_empty=True).find(loaded, extraglobs={"np": np}) if t.examples]
    assert found, "the file has '>>>' outside its docstrings"
    failures = "".join(map(runs, found))
    assert not failures, failures


@pytest.mark.one_in(6)
@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pages(page, tmp_path, monkeypatch):
    """A block runs by itself, in an empty folder, unless its first line says that it continues the one above.

    A block of text that follows it is what it prints.
    """
    for number, (block, shown) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8"))):
        if not CONTINUES.match(block):
            namespace: dict[str, object] = {"__name__": page.stem}
            (tmp_path / str(number)).mkdir()
            monkeypatch.chdir(tmp_path / str(number))
            reset_names()
        if ">>> " in block:
            failures = runs(doctest.DocTestParser().get_doctest(block, namespace, page.name, str(page), 0))
            assert not failures, failures
        else:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(block, f"{page.stem}.py", "exec"), namespace)
            if shown:
                assert doctest.OutputChecker().check_output(shown, printed.getvalue(), FLAGS), printed.getvalue()


BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.S | re.M)
CONTINUES = re.compile("(>>> )?# continues the example above\n")
