"""Exchange in a lane of its own: bit-identical to one lane, on any number of devices."""

import numpy as np
import pytest

from netbuilder.model import Initializer, brew
from netbuilder.ops.core.instructions import Role
from netbuilder.runtime.plan import compiler
from parallel_models import OPTIMIZERS, Task, convnet, mlp, train


def normalized(model, loss_scale):
    """Running statistics are broadcast in each step: data (N, 3, 8, 8)."""
    x = brew.spatial_bn(model, brew.conv(model, "data", "conv", 3, 4, kernel=3, pad=1), "bn", 4, is_test=False)
    x = brew.average_pool(model, brew.relu(model, x, "bn"), "pooled", kernel=8)
    _, loss = model.net.SoftmaxWithLoss([brew.fc(model, x, "fc", 4, 4), "label"], ["softmax", "loss"])
    return [model.Scale(loss, scale=loss_scale)]


def sparse(model, loss_scale):
    """Rows of a table are looked up, so that its gradients are joined: data (N, 6), label (N,)."""
    rows = model.create_param("table", [4, 6], Initializer("UniformFill", min=-0.5, max=0.5))
    looked_up = model.net.Add([model.net.Gather([rows, "label"], "rows"), "data"], "sum")
    _, loss = model.net.SoftmaxWithLoss([brew.fc(model, looked_up, "fc", 6, 4), "label"], ["softmax", "loss"])
    return [model.Scale(loss, scale=loss_scale)]


IMAGES = (24, 3, 8, 8)
CASES = {
    "mlp": Task(mlp),
    "convnet": Task(convnet, IMAGES, steps=3),
    "normalized": Task(normalized, IMAGES, steps=3),
    "sparse": Task(sparse),
    "one copy of the parameters": Task(options={"shared_model": True}),
    "updates on one device": Task(options={"reduce_update_broadcast": True}),
    "micro-batches": Task(options={"accumulate_steps": 2}),
    "shared memory": Task(options={"optimize_gradient_memory": True}),
}


def parameters(workspace, record):
    names = [blob for name in (*record.parameters, *record.computed) for blob in record.blobs(name)]
    return {name: workspace.fetch(name) for name in names}


@pytest.mark.parametrize("count", [2, 3, 4, 8])
@pytest.mark.parametrize("case", CASES)
def test_an_exchange_that_overlaps_changes_no_bit(case, count, monkeypatch):
    monkeypatch.setattr(compiler, "_SMALL_FLOPS", -1)  # no reduction is too small for a lane of its own
    optimizer = OPTIMIZERS["sgd" if case == "sparse" else "momentum"]
    _, record, one = train(range(count), optimizer, CASES[case], threads=1)
    model, _, several = train(range(count), optimizer, CASES[case], threads=count)
    want = parameters(one, record)
    for name, value in parameters(several, record).items():
        np.testing.assert_array_equal(value, want[name], err_msg=name)
    nets = [several.net(name) for name in several.nets() if name.startswith(model.net.Name())]
    steps = [step for net in nets for plans in net._plans.values() for plan in plans for step in plan.steps]
    assert any(step.node.role is Role.EXCHANGE and step.lane == count for step in steps), "no lane for the exchange"
