"""Test of engines: which there are, what they refuse, and one that another package adds by an entry point."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from netbuilder import Workspace
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.array_engines import NumPyEngine
from netbuilder.ops.engines.engine import HOST, array_engine, engine_names, find_engine, layout_engine, library_engines
from netbuilder.ops.engines.onednn.engine import OneDnnEngine
from netbuilder.ops.engines.onednn.layout import channel_blocked, image_view
from netbuilder.proto import DeviceError, NetError

SPEC = TensorSpec((2, 16, 4, 4), np.dtype(np.float32))

TOY = '''
"""An engine with one kernel and one fusion, both of which count their calls."""

import numpy as np

from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.engines.engine import Engine, Fusion, Pattern
from netbuilder.ops.core.registry import CPU, find, is_registered, prepare

calls = {"alone": 0, "fused": 0}


def kernel(kind, compute):
    def make(op, ctx, x):
        def bind(inputs, outputs, scratch):
            def call():
                calls[kind] += 1
                outputs[0][...] = compute(inputs[0])

            return call

        return Prepared([x], [x], bind, name="toy " + kind, engine="TOY")

    return make


class ToyEngine(Engine):
    name = "TOY"
    registered = False

    def register_kernels(self):
        if not self.registered and is_registered("Softsign"):
            prepare(find("Softsign"), device=CPU, engine="TOY", priority=99)(
                kernel("alone", lambda x: x / (1 + np.abs(x)))
            )
            self.registered = True

    def fusions(self):
        fused = kernel("fused", lambda x: np.maximum(x / (1 + np.abs(x)), 0))
        return [Fusion(Pattern.CHAIN, ("Softsign",), "Relu", fused)]

    def new_buffer(self, spec, location):
        raise AssertionError("the toy has no layout of its own")

    def prepare_reorder(self, ctx, source, target, location):
        raise AssertionError("the toy has no layout of its own")
'''

SCRIPT = """
import numpy as np
import toy_engine
from netbuilder import Workspace
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op

x = np.float32([-3, -0.5, 0, 1, 4])
softsign = x / (1 + np.abs(x))


def run(ops, **options):
    workspace = Workspace(engines=options.pop("engines", None))
    workspace.feed("x", x)
    net = NetDef(name="net", external_input=["x"], external_output=["y"])
    net.op.extend(ops)
    workspace.create_net(net, observable=["y"], **options)
    workspace.run_net("net")
    return workspace.fetch("y")


alone = [make_op("Softsign", ["x"], ["y"])]
both = [make_op("Softsign", ["x"], ["s"]), make_op("Relu", ["s"], ["y"])]
np.testing.assert_allclose(run(alone), softsign, 1e-6)
assert toy_engine.calls == {"alone": 1, "fused": 0}, toy_engine.calls
np.testing.assert_allclose(run(both), np.maximum(softsign, 0), 1e-6)
assert toy_engine.calls == {"alone": 1, "fused": 1}, toy_engine.calls
run(both, without=["engine_fusions"])
assert toy_engine.calls == {"alone": 2, "fused": 1}, toy_engine.calls
for engines in ((), ("ONEDNN",)):
    np.testing.assert_allclose(run(both, engines=engines), np.maximum(softsign, 0), 1e-6)
run(both, engines=("TOY",))
assert toy_engine.calls == {"alone": 2, "fused": 2}, toy_engine.calls
"""


def install(folder: Path, target: str = "toy_engine:ToyEngine") -> dict[str, str]:
    """Put the toy where a process with the returned environment finds it as an installed package."""
    (folder / "toy_engine.py").write_text(TOY)
    info = folder / "toy_engine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[netbuilder.engines]\nTOY = {target}\n")
    root = str(Path(__file__).resolve().parents[3])
    return dict(os.environ, PYTHONPATH=os.pathsep.join([str(folder), root]))


def test_an_engine_of_another_package_takes_over_an_operator_and_a_fusion(tmp_path):
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=install(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_entry_point_that_is_no_engine_is_refused_by_name(tmp_path):
    env = install(tmp_path, "toy_engine:kernel")
    script = "from netbuilder.ops.engines.engine import find_engine; find_engine('TOY')"
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert "'TOY'" in done.stderr and "netbuilder.engines" in done.stderr


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
    with pytest.raises(DeviceError, match="no engine is called 'MKL'; there are NUMPY, CUPY, ONEDNN"):
        find_engine("MKL")
    with pytest.raises(NetError, match="engines must be a tuple of names among ONEDNN"):
        Workspace(engines=("NUMPY",))
    assert engine_names() == ("ONEDNN",)
