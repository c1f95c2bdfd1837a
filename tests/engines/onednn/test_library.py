"""Finding, loading and turning off the library; each case in a process of its own."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from netbuilder.engines import onednn
from netbuilder.engines.onednn.library import OneDnnError, check, dnnl
from netbuilder.tools.onednn_interface import interface_text

ROOT = Path(__file__).parents[3]

needs_onednn = pytest.mark.skipif(not onednn.available(), reason="needs oneDNN")


def report(code: str, **variables: str) -> str:
    """Run Python code in a new process of the checkout; return what it printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


REGISTER_TWICE = """
import warnings
from netbuilder.engines import onednn
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    print(onednn.available(), onednn.register_kernels(), onednn.register_kernels(), len(seen))
    for warning in seen:
        print(warning.message)
print(onednn.why_unavailable())
"""


def test_turned_off_without_a_warning():
    lines = report(REGISTER_TWICE, NETBUILDER_ONEDNN="0").splitlines()
    assert lines == ["False False False 0", "turned off by NETBUILDER_ONEDNN=0"]


def test_missing_library_warns_once_and_names_the_package():
    lines = report(REGISTER_TWICE, NETBUILDER_DNNL="/nowhere/libdnnl.so.3").splitlines()
    assert lines[0] == "False False False 1"
    assert "/nowhere/libdnnl.so.3" in lines[1]
    assert "pip install onednn-cpu-gomp" in lines[1]


def test_a_package_whose_library_was_not_installed_is_named(tmp_path):
    """As after ``pip install --target``."""
    folder = tmp_path / "onednn_cpu_gomp-2023.2.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: onednn-cpu-gomp\nVersion: 2023.2.0\n")
    (folder / "RECORD").write_text("../libdnnl.so.3,sha256=5jdi,54569528\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.prefix = sys.base_prefix = '/nowhere'\n"
    said = report(code + REGISTER_TWICE).splitlines()
    assert said[0] == "False False False 1"
    assert "onednn-cpu-gomp is installed, but its library is not" in said[1] and "NETBUILDER_DNNL" in said[1]


def test_missing_cffi_is_named():
    code = "import sys; sys.modules['cffi'] = None\n" + REGISTER_TWICE
    assert "cffi" in report(code).splitlines()[1]


def test_nets_run_without_the_library():
    code = """
import numpy as np
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
ws = Workspace()
ws.feed("x", np.ones((1, 2, 4, 4), np.float32))
ws.feed("w", np.ones((3, 2, 3, 3), np.float32))
ws.run_operator_once(make_op("Conv", ["x", "w"], ["y"], kernel=3))
print(ws.fetch("y").sum())
"""
    assert report(code, NETBUILDER_ONEDNN="0") == "216.0\n"


@needs_onednn
def test_the_variable_names_another_library():
    code = "from netbuilder.engines.onednn.library import dnnl; print(dnnl().path, dnnl().version[0])"
    path = dnnl().path
    assert report(code, NETBUILDER_DNNL=path) == f"{path} 3\n"


@needs_onednn
def test_importing_loads_nothing():
    code = (
        "import sys, netbuilder.engines.onednn\nfrom netbuilder.ops.core.registry import find, operator_types\n"
        "[find(name) for name in operator_types()]; print('_cffi_backend' in sys.modules)"
    )
    assert report(code) == "False\n"


@needs_onednn
def test_loading_parses_no_c():
    code = "import sys, netbuilder.engines.onednn as o; print(o.available(), {'cffi', 'pycparser'} & {*sys.modules})"
    assert report(code) == "True set()\n"


@needs_onednn
def test_the_interface_is_that_of_the_declarations():
    path = ROOT / "netbuilder" / "engines" / "onednn" / "interface.py"
    assert path.read_text(encoding="utf-8") == interface_text(), "run `make onednn-interface`"


@needs_onednn
def test_a_failure_names_primitive_and_status():
    with pytest.raises(OneDnnError, match="oneDNN, convolution_forward: unimplemented"):
        check(3, "convolution_forward")


@needs_onednn
def test_threads_are_set_for_one_thread_of_python():
    omp, seen = dnnl().omp, {}

    def other(n: int) -> None:
        onednn.set_threads(n)
        seen[n] = omp.max_threads()

    before = omp.max_threads()
    for n in (1, 3):
        thread = threading.Thread(target=other, args=(n,))
        thread.start()
        thread.join()
    assert seen == {1: 1, 3: 3}
    assert omp.max_threads() == before


@needs_onednn
def test_an_exit_with_busy_threads_is_clean():
    code = """
import numpy as np
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
ws = Workspace(threads=2)
ws.feed("x", np.ones((2, 16, 16, 16), np.float32))
ws.feed("w", np.ones((16, 16, 3, 3), np.float32))
ws.run_operator_once(make_op("Conv", ["x", "w"], ["y"], kernel=3))
print(ws.fetch("y").shape)
"""
    assert report(code, OMP_NUM_THREADS="2") == "(2, 16, 14, 14)\n"


WAITS = """
import os, time
import numpy as np
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
before = os.environ.get("GOMP_SPINCOUNT")
ws = Workspace(threads=2)
ws.feed("x", np.ones((2, 64, 56, 56), np.float32))
ws.feed("w", np.ones((64, 64, 3, 3), np.float32))
ws.create_net(NetDef(name="net", op=[make_op("Conv", ["x", "w"], ["y"], kernel=3)]))
ws.run_net("net")
assert os.environ.get("GOMP_SPINCOUNT") == before
waited = []
for _ in range(30):
    ws.run_net("net")
    start = time.process_time()
    time.sleep(0.02)
    waited.append(time.process_time() - start)
print(sorted(waited)[15])
"""


@pytest.mark.slow
@needs_onednn
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="libgomp does not spin with more threads than cores")
def test_waiting_threads_give_up_their_cores_soon():
    """Where other processes keep the cores busy, a waiting thread may not run while its time is taken."""

    def times():
        return [float(report(WAITS, OMP_NUM_THREADS="2", **spins)) for spins in ({}, {"GOMP_SPINCOUNT": "100000"})]

    assert any(own < long / 4 for own, long in (times() for _ in range(4)))
