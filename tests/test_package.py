"""The package as a whole: what it exports, how fast it imports, what it needs, what is installed."""

import ast
import importlib
import importlib.metadata
import pkgutil
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import netbuilder
from house import ROOT, TOP_FOLDERS, library_modules
from netbuilder import data, distributed, exchange
from netbuilder.proto.extras import DISTRIBUTION
from waiting import HANG

# Refuses every library but the standard one, NumPy and protobuf.
BLOCKER = """
import sys
sys.path.insert(0, {root!r})
class Blocker:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in ("numpy", "google", "netbuilder"):
            raise ModuleNotFoundError(f"No module named {{name!r}} (blocked)", name=name)
sys.meta_path.insert(0, Blocker())
"""


def python(code: str) -> str:
    """Run ``code`` in a fresh interpreter; return what it prints."""
    run = subprocess.run(
        [sys.executable, "-c", BLOCKER.format(root=str(ROOT)) + code], capture_output=True, text=True, timeout=HANG
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_import_is_quick():
    """What takes time is loading: of this package two modules, and no library."""
    loaded = "print(*sorted(name for name in sys.modules if name.partition('.')[0] not in sys.stdlib_module_names))"
    before, after = python(loaded).split(), python(f"import netbuilder; {loaded}").split()
    assert sorted(set(after) - set(before)) == ["netbuilder", "netbuilder._lazy"]


def test_another_package_of_the_same_name_is_named(tmp_path):
    """The registry has a package ``netbuilder`` of another project, which is imported by the same name."""
    for name in ("__init__.py", "_lazy.py"):
        (tmp_path / "netbuilder").mkdir(exist_ok=True)
        (tmp_path / "netbuilder" / name).write_text((ROOT / "netbuilder" / name).read_text())
    command = [sys.executable, "-c", "import netbuilder"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG)
    assert run.returncode == 0 and not run.stderr
    (tmp_path / "netbuilder-0.2.3.dist-info").mkdir()
    (tmp_path / "netbuilder_nn-0.1.0.dist-info").mkdir()
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG)
    assert (
        "package, netbuilder-0.2.3, is installed too" in run.stderr
        and "pip uninstall netbuilder netbuilder-nn" in run.stderr
    )


@pytest.mark.parametrize(
    "package",
    "data distributed exchange graph model optimizers parallel passes proto runtime zoo".split(),
)
def test_a_wrong_name_is_answered_with_similar_ones(package):
    module = importlib.import_module(f"netbuilder.{package}")
    name = module.__all__[-1]
    hint = f"'{name}x'.*; did you mean .*'{name}'"
    with pytest.raises(ImportError, match=f"cannot import name {hint}"):
        exec(f"from netbuilder.{package} import {name}x")
    with pytest.raises(AttributeError, match=f"has no attribute {hint}"):
        getattr(module, f"{name}x")
    assert name in dir(module)


def test_every_package_and_public_name_needs_numpy_and_protobuf_alone():
    outer = {"", "__main__", "_lazy", "_modules", "caffe2", "tools"}
    packages = sorted({module.package for module in library_modules()} - outer)
    names = python(
        f"import netbuilder\nprint(*(getattr(netbuilder, each).__name__ for each in {packages}))\n"
        "for name in netbuilder.__all__: getattr(netbuilder, name)"
    )
    assert names.split() == [f"netbuilder.{each}" for each in packages]


def test_every_operator_needs_numpy_and_protobuf_alone():
    code = (
        "from netbuilder.ops.core.registry import find, operator_types; print(*map(find, operator_types()), sep='\\n')"
    )
    assert python(code).count("\n") > 800


def test_the_blocker_blocks():
    assert "cffi" in python("try: import cffi\nexcept ModuleNotFoundError as error: print(error)")


LAZY = pytest.mark.parametrize("package", [netbuilder, data, distributed, exchange], ids=lambda each: each.__name__)


@LAZY
def test_public_names_are_declared_for_type_checkers(package):
    tree = ast.parse(Path(package.__file__).read_text())
    told = {
        (node.module, alias.name)
        for branch in tree.body
        if isinstance(branch, ast.If) and getattr(branch.test, "id", "") == "TYPE_CHECKING"
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == alias.asname
    }
    for module, name in told:
        assert getattr(package, name) is getattr(importlib.import_module(module), name)
    assert {name for _, name in told} == set(package.__all__) - {"__version__"}


@LAZY
def test_no_public_name_is_that_of_a_module(package):
    """Importing the module would put it in the place of the name."""
    modules = {each.name for each in pkgutil.iter_modules(package.__path__)}
    assert not set(package.__all__) & modules


def test_public_names_are_listed():
    assert set(netbuilder.__all__) <= set(dir(netbuilder))
    assert all(getattr(netbuilder, name) is not None for name in netbuilder.__all__)


def test_unknown_name_gets_the_nearest():
    with pytest.raises(
        AttributeError, match=r"module 'netbuilder' has no attribute 'ModelHalper'; did you mean 'ModelHelper'"
    ):
        netbuilder.ModelHalper  # noqa: B018


def test_version_is_in_the_changelog():
    assert re.fullmatch(r"\d+\.\d+\.\d+", netbuilder.__version__)
    assert f"## {netbuilder.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def installed() -> importlib.metadata.Distribution:
    """The installed copy, if it is a copy; the checkout may hold the remains of a build, which do not count."""
    folders = [sysconfig.get_path("purelib")]
    found = list(importlib.metadata.distributions(name=DISTRIBUTION, path=folders))
    if not found:
        pytest.skip("netbuilder is not installed here; `make test` installs it")
    if '"editable": true' in (found[0].read_text("direct_url.json") or ""):
        pytest.skip("netbuilder is installed as a link to this checkout")
    return found[0]


def test_installation_adds_one_name():
    tops = {path.parts[0] for path in installed().files if path.parts[0] != ".."}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"netbuilder"}


def test_installation_has_every_file():
    there = {str(path) for path in installed().files}
    for top in ("netbuilder", *TOP_FOLDERS):
        for path in (ROOT / top).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                inside = path.relative_to(ROOT)
                assert str(inside if top == "netbuilder" else Path("netbuilder") / inside) in there


def test_installation_has_its_commands():
    entries = {entry.name: entry.load() for entry in installed().entry_points if entry.group == "console_scripts"}
    assert {"netbuilder-train", "netbuilder-extract", "netbuilder-benchmark", "netbuilder-profile"} <= entries.keys()
    assert all(name.startswith("netbuilder-") for name in entries)
    assert all(map(callable, entries.values()))


def test_names_that_no_module_ever_had():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("netbuilder.ops.no_such_family")
