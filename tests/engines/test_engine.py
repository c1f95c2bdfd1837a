"""Engines: which there are, and what they refuse."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from house import ROOT
from netbuilder import Workspace
from netbuilder.engines.array_engines import NumPyEngine
from netbuilder.engines.engine import (
    HOST,
    Engine,
    array_engine,
    engine_names,
    find_engine,
    layout_engine,
    library_engines,
)
from netbuilder.engines.onednn.blocked_layout import channel_blocked, image_view
from netbuilder.engines.onednn.engine import OneDnnEngine
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.registry import CPU, prepared_kernels
from netbuilder.proto import DeviceError, NetError

SPEC = TensorSpec((2, 16, 4, 4), np.dtype(np.float32))


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("point", "message"),
    [
        ("builtins:print", "entry point 'TOY' of group netbuilder.engines must name a class of Engine"),
        ("no_such:Toy", "engine 'TOY', .* TOY = no_such:Toy .* cannot be loaded: ModuleNotFoundError: .*'no_such'"),
        ("builtins:nothing", "TOY = builtins:nothing .*: AttributeError: .*'nothing'.* allow only other engines"),
    ],
)
def test_an_entry_point_that_is_no_engine_is_refused_by_name(tmp_path, point, message):
    """One that is an engine is in examples/extending, tests/examples/test_extending.py runs it."""
    info = tmp_path / "toy_engine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[netbuilder.engines]\nTOY = {point}\n")
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    script = "from netbuilder.engines.engine import find_engine; find_engine('TOY')"
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.search(f"DeviceError: .*{message}", done.stderr), done.stderr


class Plain(Engine):
    """An engine with one kernel; its values are plain arrays."""

    name = "PLAIN"
    priority = -9

    def kernels(self):
        return {"Softsign": lambda op, ctx, x: None, "OfAModuleNotImported": lambda op, ctx: None}


def test_kernels_are_registered_once_also_for_operators_whose_module_is_not_imported():
    before = prepared_kernels("Softsign", CPU).copy()
    try:
        for _ in range(2):
            Plain().register_kernels()
        rows = prepared_kernels("Softsign", CPU)
        assert [(row.engine, row.priority) for row in rows if row not in before] == [("PLAIN", -9)]
        assert [row.engine for row in prepared_kernels("OfAModuleNotImported", CPU)] == ["PLAIN"]
    finally:
        prepared_kernels("Softsign", CPU)[:] = before
        prepared_kernels("OfAModuleNotImported", CPU).clear()
    with pytest.raises(NotImplementedError, match="engine PLAIN has no buffers for values in the layout"):
        Plain().new_buffer(SPEC, HOST)
    with pytest.raises(NotImplementedError, match="engine PLAIN has no copies from"):
        Plain().prepare_reorder(None, SPEC, SPEC, HOST)


def test_plain_values_belong_to_the_array_engine_of_their_location():
    assert isinstance(array_engine(HOST), NumPyEngine)
    assert layout_engine(SPEC, HOST) is array_engine(HOST)
    assert array_engine((1, 3)).name == "CUPY"
    assert find_engine("NUMPY") not in library_engines(lambda name: True)


@pytest.mark.skipif(not OneDnnEngine().available(), reason="oneDNN is not available here")
def test_a_layout_belongs_to_its_engine_which_keeps_it_on_the_host():
    layout = channel_blocked(image_view(SPEC.shape), 3, 16)
    engine = layout_engine(SPEC.with_layout(layout), HOST)
    assert engine is find_engine("ONEDNN")
    with pytest.raises(DeviceError, match="host's memory, not at"):
        engine.new_buffer(SPEC.with_layout(layout), (1, 0))


def test_an_unknown_engine_is_refused_with_the_names_there_are():
    libraries = ", ".join(engine_names())
    assert {"CUDA", "ONEDNN", "LLVM", "CUDNN"} <= {*engine_names()} and not {"NUMPY", "CUPY"} & {*engine_names()}
    with pytest.raises(DeviceError, match=f"no engine is called 'MKL'; there are NUMPY, CUPY, {libraries}$"):
        find_engine("MKL")
    with pytest.raises(NetError, match=f"engines must be a tuple of names among {libraries}, got"):
        Workspace(engines=("NUMPY",))
