"""cuDNN without a GPU: which graphs of the zoo's nets it has kernels for, on an H100 that a file describes.

The table is in tests/recorded/cudnn_graphs.txt; docs/internals/cudnn.md sums it up. For another version of cuDNN,
``NETBUILDER_RECORD=1 python -m pytest tests/engines/cudnn/test_graphs_on_h100.py`` writes it again.
"""

import importlib.util
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cudnn_zoo import recipes_of_the_zoo
from house import ROOT

DATA = Path(__file__).parent
RECORD = ROOT / "tests" / "recorded" / "cudnn_graphs.txt"
PAGE = ROOT / "docs" / "internals" / "cudnn.md"


def libraries():
    """The folders of NVIDIA's libraries that pip has installed."""
    spec = importlib.util.find_spec("nvidia")
    return [
        str(path) for place in (spec.submodule_search_locations if spec else ()) for path in Path(place).glob("*/lib")
    ]


def supported(recipes, folder):
    """What the program says of recipes."""
    subprocess.run(
        ["cc", "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", folder / "libcuda.so.1", DATA / "libcuda.c"],
        check=True,
    )
    (folder / "recipes").write_bytes(pickle.dumps(recipes))
    path = os.pathsep.join([str(folder), *libraries()])
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "cudnn_program.py", folder / "recipes", DATA / "h100.json"],
        env={**os.environ, "LD_LIBRARY_PATH": path, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])},
        capture_output=True, text=True, timeout=7200,  # of a busy machine; minutes on another
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def table(version, zoo, plans):
    """The lines of the record: for each kernel and precision, how many graphs there are, and how many are supported."""
    name = json.loads((DATA / "h100.json").read_text())["deviceName"]
    lines = [
        f"cuDNN {version}, {name}",
        "",
        "| kernel | precision | graphs | supported | deterministic | plans for each |",
        "|---|---|---|---|---|---|",
    ]
    for (what, precision), recipes in zoo.items():
        counts = [plans[recipe][0] for recipe in recipes]
        repeatable = sum(plans[recipe][1] for recipe in recipes)
        least = min((count for count in counts if count), default=0)
        good = sum(map(bool, counts))
        lines.append(f"| {what} | {precision} | {len(counts)} | {good} | {repeatable} | {least} to {max(counts)} |")
    lost = [recipe for recipe, (count, _) in plans.items() if not count]
    return "\n".join([*lines, "", "Not supported:", *map(str, lost), ""])


@pytest.mark.skipif(
    importlib.util.find_spec("cudnn") is None or not libraries(),
    reason="needs cuDNN's wheels: pip install nvidia-cudnn-cu12 'nvidia-cudnn-frontend<1.19'",
)
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_cudnn_supports_the_graphs_of_the_zoo(tmp_path):
    zoo = recipes_of_the_zoo()
    recipes = list(dict.fromkeys(recipe for each in zoo.values() for recipe in each))
    told = supported(recipes, tmp_path)
    assert told["missing"] == told["differences"] == []
    for what, limit, proposed, measured, scratch in told["searches"]:
        assert 0 < measured <= 10 and measured <= proposed, what
        assert limit is None or scratch <= limit, what
    assert told["workspaces"].keys() == {"Convolution", "DataGradient", "FilterGradient"}
    version = told["version"]
    plans = dict(zip(recipes, zip(told["plans"], told["repeatable"], strict=True), strict=True))
    found = table(version, zoo, plans)
    if os.environ.get("NETBUILDER_RECORD"):
        RECORD.write_text(found)
    recorded = RECORD.read_text()
    if recorded.startswith(f"cuDNN {version},"):
        assert found == recorded
    lost = {str(recipe) for recipe, (count, _) in plans.items() if not count}
    known = set(recorded.partition("Not supported:\n")[2].splitlines())
    assert lost <= known, "cuDNN has no kernel for graphs that another version has one for"


def test_the_page_sums_up_the_table():
    """It says how many are not supported, of normalizations and others; what is supported is so deterministically."""
    recorded = RECORD.read_text()
    page = " ".join(PAGE.read_text().partition("## What cuDNN has kernels for")[2].split())
    rows = re.findall(r"^\| (.*?) \| (\w+) \| (\d+) \| (\d+) \| (\d+) \|", recorded, re.M)
    assert {precision for _, precision, *_ in rows} == {"float32", "tf32", "bfloat16", "float16"}
    assert all(deterministic == supported for *_, supported, deterministic in rows)
    lost = {(kernel, f"{int(graphs) - int(supported)} of {graphs}") for kernel, _, graphs, supported, _ in rows}
    lost = {(kernel, text) for kernel, text in lost if not text.startswith("0 ")}
    assert {kernel for kernel, _ in lost if "SpatialBN" not in kernel} == {"ConvGradient that scales images"}
    assert set(re.findall(r"\b\d+ of \d+\b", page)) == {text for _, text in lost}
    counts = [[*map(int, counts)] for counts in re.findall(r"\| (\d+) to (\d+) \|$", recorded, re.M)]
    assert f"with {min(map(min, counts))} to {max(map(max, counts))} plans each" in page
    version, gpu = recorded.splitlines()[0].split(", ")
    assert f"{version} about an {gpu}" in page
