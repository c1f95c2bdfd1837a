"""The conda recipe says what setup.py says: version, commands, and what is needed."""

import ast
import re

import yaml

from house import ROOT
from netbuilder import __version__
from netbuilder.__main__ import COMMANDS


def test_the_conda_recipe():
    recipe = yaml.safe_load((ROOT / "docs" / "packaging" / "recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["context"]["version"] == __version__
    commands = [f"netbuilder-{name} = netbuilder.tools.{module}:main" for name, (module, _) in COMMANDS.items()]
    assert recipe["build"]["python"]["entry_points"] == commands
    nodes = ast.walk(ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")))
    [needed] = [node.value for node in nodes if isinstance(node, ast.keyword) and node.arg == "install_requires"]
    ours = {re.match(r"[\w-]+", text)[0]: re.sub(r";.*", "", text) for text in ast.literal_eval(needed)}
    theirs = {text.split()[0]: text.replace(" ", "") for text in recipe["requirements"]["run"]}
    del ours["onednn-cpu-gomp"], theirs["onednn-cpu-omp"]  # of the package index, and of conda-forge
    assert theirs.pop("python") == "python>=3.10" and theirs == ours
