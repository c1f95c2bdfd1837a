"""Training on GPUs without an optimization is the same to the bit: graphs, shared memory, reuse; and micro-batches."""

import numpy as np
import pytest

from netbuilder import parallel
from netbuilder.model import ModelHelper, brew
from netbuilder.runtime import Workspace
from parallel_models import OPTIMIZERS, Task, convnet, distance, mlp, no_input

IMAGES = (8, 3, 8, 8)
STEPS = 5  # a graph is captured after the second one
CLOSE = {"double": 2e-6, "real": 1e-4}


def normalized(model, loss_scale):
    x = brew.conv(model, "data", "conv", 3, 4, kernel=3, pad=1, no_bias=1)
    x = brew.relu(model, brew.spatial_bn(model, x, "bn", 4, epsilon=1e-3, is_test=False), "bn")
    x = brew.fc(model, brew.max_pool(model, x, "pool", kernel=2, stride=2), "fc", 4 * 16, 4)
    _, loss = model.net.SoftmaxWithLoss([x, "label"], ["softmax", "loss"])
    return [model.Scale(loss, scale=loss_scale)]


NETS = {"mlp": Task(mlp, steps=STEPS), "convnet": Task(convnet, IMAGES, STEPS),
        "normalized": Task(normalized, IMAGES, STEPS)}  # fmt: skip


def trained(task, *, gpus=1, without=(), net_type="simple", cpu=False, **options):
    """Return the parameters and running statistics of the first replica after training."""
    model = ModelHelper("net")
    make = parallel.Parallelize_CPU if cpu else parallel.Parallelize_GPU
    record = make(
        model, no_input, task.forward, optimizer_builder_fun=OPTIMIZERS["momentum"], devices=list(range(gpus)),
        net_type=net_type, **options,
    )  # fmt: skip
    workspace = Workspace(threads=2, without=without)
    for number, batch in enumerate(task.batches()):
        steps = record.accumulate_steps
        for part in range(steps):
            for name, whole in batch.items():
                mine = np.split(whole, steps)[part]
                for blob, share, place in zip(
                    record.devices.copies(name), np.split(mine, gpus), record.devices.options
                ):
                    workspace.feed(blob, share, None if cpu else place)
            if number == part == 0:
                parallel.RunInitNet(model, workspace=workspace)
            parallel.RunNet(model, workspace=workspace)
    return [workspace.fetch(record.blobs(name)[0]) for name in (*record.parameters, *record.computed)]


def same(got, want):
    return all(np.array_equal(a, b) for a, b in zip(got, want))


@pytest.mark.parametrize("without", ["cuda_graphs", "reuse", "inplace", "joined_updates"])
@pytest.mark.parametrize("name", NETS)
def test_an_optimization_changes_no_bit(one_gpu, name, without):
    assert same(trained(NETS[name], without=without), trained(NETS[name]))


@pytest.mark.parametrize("name", NETS)
def test_sharing_of_gradient_memory_changes_no_bit(one_gpu, name):
    assert same(trained(NETS[name], optimize_gradient_memory=True), trained(NETS[name]))


@pytest.mark.parametrize("without", ["cuda_graphs", "joined_exchanges"])
def test_an_optimization_changes_no_bit_on_two_gpus(two_gpus, without):
    task, options = NETS["normalized"], {"gpus": 2, "use_nccl": True, "net_type": "dag"}
    assert same(trained(task, without=without, **options), trained(task, **options))


@pytest.mark.parametrize("name", ["mlp", "convnet"])
def test_two_gpus_train_as_one(two_gpus, name):
    close = CLOSE["real" if two_gpus is None else "double"]
    assert distance(trained(NETS[name], gpus=2), trained(NETS[name])) < close


@pytest.mark.parametrize("name", ["mlp", "convnet"])
def test_two_shares_on_one_gpu_train_as_two_replicas_on_the_cpu(one_gpu, name):
    close = CLOSE["real" if one_gpu is None else "double"]
    one, two = trained(NETS[name], accumulate_steps=2), trained(NETS[name], gpus=2, cpu=True)
    assert distance(one, two) < close
