"""The examples in examples/extending: their own tests pass, and CONTRIBUTING.md links all of them."""

import os
import subprocess
import sys

from house import ROOT

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest needs this package
    import tomli as tomllib

EXAMPLES = ROOT / "examples" / "extending"
TESTS = sorted(EXAMPLES.rglob("test_*.py"))


def test_the_guide_links_every_example():
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert len(TESTS) == 4
    for path in EXAMPLES.rglob("*.py"):
        if path.name != "__init__.py":
            assert f"]({path.relative_to(ROOT).as_posix()})" in guide, path


def test_their_own_tests_pass(tmp_path):
    """In a process of their own, since they add to registries; the engine is found as an installed package."""
    [project] = EXAMPLES.rglob("pyproject.toml")
    install(tmp_path, tomllib.loads(project.read_text(encoding="utf-8"))["project"])
    paths = os.pathsep.join(map(str, (EXAMPLES, project.parent, tmp_path, ROOT, ROOT / "tests")))
    options = ["-q", "-p", "conftest", "-c", ROOT / "pyproject.toml", "--rootdir", ROOT]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *TESTS],
        cwd=tmp_path, env=dict(os.environ, PYTHONPATH=paths), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def install(folder, project):
    """Have a package with these settings found as installed by processes that look into ``folder``."""
    name, version = project["name"], project["version"]
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    [(group, points)] = project["entry-points"].items()
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *(f"{k} = {v}" for k, v in points.items())]))
