"""Training steps of the zoo's nets on a GPU: nothing divides their CUDA graphs."""

import pytest

from cudnn_double import cudnn_double
from cupy_double import CupyDouble, draw_nothing
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan.capturable import why_not_captured
from netbuilder.tools.profiling.zoo import ZooOptions, load_zoo

AT_THE_BEGINNING = {"numpy", "transfer"}
"""The counter of iterations, and what is copied from the host."""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["alexnet", "shufflenet-g3", "squeezenet1.1"])
def test_no_operator_divides_a_graph(monkeypatch, name, dtype):
    draw_nothing(monkeypatch)
    with cudnn_double(CupyDouble(1)):
        workspace = Workspace(threads=1)
        options = ZooOptions(batch=2, image_size=96, classes=10, gpu=True, dtype=dtype, observable="outputs")
        plans = workspace.net(load_zoo(workspace, name, options).name).plan_ahead()
        steps = [step for plan in plans for step in plan.steps]
        alone = [step.prepared.name for step in steps if why_not_captured(step)]
    assert len(steps) >= 50
    assert set(alone) == AT_THE_BEGINNING
