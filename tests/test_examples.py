"""Every example in a docstring, in README and in the pages under docs/ runs and gives what it shows."""

import doctest
import importlib
import os
import re
import subprocess
import sys

import numpy as np
import pytest

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest needs this package
    import tomli as tomllib

from house import ROOT, TOP_FOLDERS, library_modules
from netbuilder.graph import reset_names

FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
WITH_EXAMPLES = [m for m in library_modules() if ">>> " in m.path.read_text(encoding="utf-8")]
GUIDE = ROOT / "CONTRIBUTING.md"
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")} - {GUIDE})
OURS = ("netbuilder/", *(f"{folder}/" for folder in TOP_FOLDERS))


@pytest.fixture(autouse=True)
def _fresh_names():
    """Nets get their names as in a fresh process."""
    reset_names()


def runs(examples: doctest.DocTest) -> str:
    """Run the examples; return what the failed ones say."""
    said: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(examples, out=said.append)
    return "".join(said)


@pytest.mark.parametrize("module", WITH_EXAMPLES, ids=str)
def test_docstrings(module):
    loaded = importlib.import_module(module.name)
    found = [t for t in doctest.DocTestFinder(exclude_empty=True).find(loaded, extraglobs={"np": np}) if t.examples]
    assert found, "the file has '>>>' outside its docstrings"
    failures = "".join(map(runs, found))
    assert not failures, failures


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pages(page, tmp_path, monkeypatch):
    """A block runs by itself, in an empty folder, unless its first line says that it continues the one above."""
    for number, block in enumerate(BLOCK.findall(page.read_text(encoding="utf-8"))):
        if not CONTINUES.match(block):
            namespace: dict[str, object] = {"__name__": page.stem}
            (tmp_path / str(number)).mkdir()
            monkeypatch.chdir(tmp_path / str(number))
            reset_names()
        if ">>> " in block:
            failures = runs(doctest.DocTestParser().get_doctest(block, namespace, page.name, str(page), 0))
            assert not failures, failures
        else:
            exec(compile(block, str(page), "exec"), namespace)


BLOCK = re.compile(r"^```python\n(.*?)^```", re.S | re.M)
CONTINUES = re.compile("(>>> )?# continues the example above\n")

# A block, and before it, at the end of a line, the name of its file.
FILE = re.compile(r"(?:`([\w/]+\.(?:py|toml))`:\n\n)?^```(?:python|toml)\n(.*?)^```", re.S | re.M)

# Loaded into the process that runs a page's tests: packages find the page's modules too.
PACKAGES = """
import importlib

for package, folder in {folders!r}.items():
    importlib.import_module(package).__path__.append(folder)
"""


def test_the_files_that_contributors_are_told_to_write(tmp_path):
    """They run in a process of their own, since they add to registries: tests by pytest, an engine as a package."""
    files = dict(FILE.findall(GUIDE.read_text(encoding="utf-8")))
    assert "" not in files, "a block of CONTRIBUTING.md does not say which file it is"
    for file, block in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(block, encoding="utf-8")
    install(tmp_path, tomllib.loads(files["pyproject.toml"])["project"])
    folders = {package_of(file): str((tmp_path / file).parent) for file in files if file.startswith(OURS)}
    (tmp_path / "page_packages.py").write_text(PACKAGES.format(folders=folders))
    paths = os.pathsep.join(map(str, (tmp_path, ROOT, ROOT / "tests")))
    tests = [file for file in files if file.startswith("tests/")]
    assert len(tests) == 4
    plugins = ["-p", "page_packages", "-p", "conftest"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-c", ROOT / "pyproject.toml", "--rootdir", ROOT, *tests],
        cwd=tmp_path, env=dict(os.environ, PYTHONPATH=paths), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def package_of(file):
    """Return the package that a module belongs to, by the file's path in the checkout."""
    package = ".".join(file.split("/")[:-1])
    return package if package.startswith("netbuilder") else f"netbuilder.{package}"


def install(folder, project):
    """Have a package with these settings found as installed by processes that look into ``folder``."""
    name, version = project["name"], project["version"]
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    [(group, points)] = project["entry-points"].items()
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *(f"{k} = {v}" for k, v in points.items())]))
