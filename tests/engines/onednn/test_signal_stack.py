"""Signals that come while kernels of oneDNN run."""

import subprocess
import sys

import pytest

from house import ROOT
from netbuilder.engines import onednn

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="signals of Linux"),
    pytest.mark.skipif(not onednn.available(), reason="needs oneDNN"),
]

RAIN = """
import signal, sys, threading
import numpy as np
from netbuilder.engines.onednn.library import dnnl
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace

if sys.argv[1] == "another thread":
    thread = threading.Thread(target=dnnl)
    thread.start()
    thread.join()
net = NetDef(name="product", op=[make_op("FC", ["x", "w", "b"], ["y"])], external_input=["x", "w", "b"])
x, w = np.ones((64, 512), np.float32), np.ones((64, 512), np.float32)
workspace = Workspace(threads=1)
for name, value in {"x": x, "w": w, "b": np.zeros(64, np.float32)}.items():
    workspace.feed(name, value)
workspace.create_net(net)
workspace.run_net("product")
came = []
signal.signal(signal.SIGALRM, lambda number, frame: came.append(number))
signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
while len(came) < 2000:
    workspace.run_net("product", 20)
    bytearray(3000)
signal.setitimer(signal.ITIMER_REAL, 0)
assert (workspace.fetch("y") == 512).all()
print("done")
"""


@pytest.mark.parametrize("loaded_by", ["the main thread", "another thread"])
def test_signals_during_products_do_no_harm(loaded_by):
    program = [sys.executable, "-c", RAIN, loaded_by]
    done = subprocess.run(program, capture_output=True, text=True, timeout=100, env={"PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


STACKS = """
import ctypes, faulthandler, sys
from netbuilder.engines.onednn.library import dnnl
from netbuilder.engines.onednn.signal_stack import _Stack

def stack():
    found = _Stack()
    ctypes.CDLL(None).sigaltstack(None, ctypes.byref(found))
    return found.address, found.flags

faulthandler.enable()
before = stack()
dnnl()
assert stack() == before and not before[1] & 2, (before, stack())
"""


def test_a_stack_that_the_thread_has_is_kept():
    done = subprocess.run([sys.executable, "-c", STACKS], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
