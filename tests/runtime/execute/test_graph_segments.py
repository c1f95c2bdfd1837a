"""CUDA graphs of plans, on the double of CuPy: what they compute, when they are captured, what they refuse."""

import numpy as np
import pytest

from cupy_double import gpus
from gpu_engine import CapturableEngine, installed
from netbuilder import parallel
from netbuilder.graph.net_names import reset_names
from netbuilder.model import ModelHelper
from netbuilder.optimizers import reset_optimizer_instance_count
from netbuilder.proto import PROTO_CUDA, NetDef
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from parallel_models import OPTIMIZERS, Task, convnet, mlp, no_input

TASKS = {"mlp": Task(mlp, steps=6), "convnet": Task(convnet, (8, 3, 8, 8), steps=6)}
X = np.float32([[1, -2, 3], [-4, 5, -6]])


def on(number, *args, **kwargs):
    return make_op(*args, device_option=make_device_option(PROTO_CUDA, number), **kwargs)


def net(*ops, type="simple"):
    return NetDef(name="net", type=type, num_workers=8, op=ops)


def trained(name, count, *, without=(), net_type="dag"):
    """Train on GPUs; return the values of all blobs, and what became of the steps of the plan."""
    reset_names()
    reset_optimizer_instance_count()
    task, model = TASKS[name], ModelHelper("net")
    record = parallel.Parallelize_GPU(
        model,
        no_input,
        task.forward,
        optimizer_builder_fun=OPTIMIZERS["momentum"],
        devices=list(range(count)),
        net_type=net_type,
    )
    workspace = Workspace(threads=4, without=without)
    first = True
    for batch in task.batches():
        for blobs, whole in batch.items():
            parts = np.split(whole, count)
            for blob, part, option in zip(record.devices.copies(blobs), parts, record.devices.options):
                workspace.feed(blob, part, option)
        if first:
            parallel.RunInitNet(model, workspace=workspace)
        first = False
        parallel.RunNet(model, workspace=workspace)
    tensors = [name for name in workspace.blobs() if workspace.get(name).spec is not None]
    values = {name: workspace.fetch(name) for name in tensors}
    (plan,) = workspace.net(model.net.Name()).plan_ahead()
    return values, plan.captured()


@pytest.mark.parametrize("net_type", ["simple", "dag"])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("name", TASKS)
def test_replayed_steps_equal_eager_ones(monkeypatch, name, count, net_type):
    """To the bit, for all blobs that can be fetched, over one GPU and several."""
    with installed(monkeypatch, CapturableEngine):
        with gpus(count) as machine:
            eager, _ = trained(name, count, without=["cuda_graphs"], net_type=net_type)
            assert not machine.counts["replays"]
        with gpus(count) as machine:
            replayed, captured = trained(name, count, net_type=net_type)
            assert machine.counts["replays"] >= 4 * count
            assert {each.graph for each in captured} >= set(range(count))
    assert eager.keys() == replayed.keys()
    for blob in eager:
        np.testing.assert_array_equal(eager[blob], replayed[blob], err_msg=blob)
