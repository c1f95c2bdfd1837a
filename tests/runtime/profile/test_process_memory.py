"""Which pages are resident, and the peak of the process that is expected before a run."""

import mmap
import subprocess
import sys

import numpy as np
import pytest

from netbuilder.runtime.profile.process_memory import absent_bytes, peak_resident, resident

PAGE = mmap.PAGESIZE


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell which pages are resident")
def test_absent_bytes():
    area = mmap.mmap(-1, 16 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_NOHUGEPAGE)
    memory = np.frombuffer(area, np.uint8)
    start = memory.ctypes.data

    def absent(*pages):
        return absent_bytes([(start + int(a * PAGE), start + int(b * PAGE)) for a, b in pages])

    assert absent((0, 16)) == 16 * PAGE and absent() == 0 and absent((3, 3)) == 0
    assert absent((2, 5), (0, 3)) == 5 * PAGE, "parts that overlap count once"
    assert absent((0.5, 1.5), (1.6, 1.9)) == 2 * PAGE
    memory[3 * PAGE] = 1
    assert absent((0, 16)) == 15 * PAGE and absent((3, 4)) == 0
    assert absent_bytes([(8, 16)]) == 0, "addresses that are no memory"


def test_resident_memory():
    assert 0 < resident() <= peak_resident()


RUN = """
import numpy as np
from netbuilder import ModelHelper, Workspace, brew
from netbuilder.optimizers import build_sgd
from netbuilder.runtime.profile.memory import planned_memory
from netbuilder.runtime.profile.process_memory import peak_resident

model, x = ModelHelper("train"), "data"
for number in range(6):
    channels = 3 if number == 0 else 16
    x = brew.relu(model, brew.conv(model, x, f"conv{{number}}", channels, 16, kernel=3, pad=1), f"r{{number}}")
scores = brew.fc(model, brew.average_pool(model, x, "pooled", kernel=64), "scores", 16, 4)
_, loss = model.net.SoftmaxWithLoss([scores, "label"], ["softmax", "loss"])
model.AddGradientOperators([loss])
build_sgd(model, 0.1, momentum=0.9)
workspace = Workspace(threads=1)
workspace.feed("data", np.ones((32, 3, 64, 64), np.float32))
workspace.feed("label", np.zeros(32, np.int32))
workspace.run_net_once(model.param_init_net)
name = workspace.create_net(model.net, observable={observable!r}, memory_budget={budget!r})
memory = planned_memory(workspace, name)
assert memory.total > 40 << 20, memory
workspace.run_net(name)
assert planned_memory(workspace, name).expected_peak == 0
print(memory.expected_peak, peak_resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell which pages are resident")
@pytest.mark.parametrize("observable, budget", [("outputs", None), ("all", None), (None, 0.8)])
def test_the_peak_is_expected_before_the_first_run(observable, budget):
    code = RUN.format(observable=observable, budget=budget)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected, measured = map(int, done.stdout.split())
    assert expected == pytest.approx(measured, rel=0.05)
