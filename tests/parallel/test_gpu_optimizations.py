"""Training on GPUs without an optimization is the same to the bit: graphs, shared memory, reuse; and micro-batches."""

import numpy as np
import pytest

from netbuilder import parallel
from netbuilder.engines.arrays import gpu_count
from netbuilder.model import ModelHelper
from netbuilder.runtime import Workspace
from netbuilder.zoo.layers import NormalizedConv
from netbuilder.zoo.residual import ResNetBuilder
from netbuilder.zoo.resnet import add_scores
from on_gpu import CLOSE, LISTED, with_cudnn
from parallel_models import OPTIMIZERS, Task, distance, no_input
from switches import single
from toy_models import convnet, max_pooled, mlp, softmax_loss

IMAGES = (8, 3, 8, 8)
STEPS = 5  # a graph is captured after the second one


NETS = {"mlp": Task(mlp, steps=STEPS), "convnet": Task(convnet, IMAGES, STEPS),
        "normalized": Task(max_pooled, IMAGES, STEPS)}  # fmt: skip


def trained(task, *, count=1, without=(), net_type="simple", cpu=False, engines=None, **options):
    """Return the parameters and running statistics of the first replica after training.

    It repeats to the bit, also on real GPUs: with NCCL by its order, which does not change, else because it has to.
    """
    model = ModelHelper("net")
    make = parallel.Parallelize_CPU if cpu else parallel.Parallelize_GPU
    record = make(
        model, no_input, task.forward, optimizer_builder_fun=OPTIMIZERS["momentum"], devices=list(range(count)),
        net_type=net_type, deterministic=not options.get("use_nccl", False), **options,
    )  # fmt: skip
    workspace = Workspace(threads=2, without=without, engines=engines)
    for number, batch in enumerate(task.batches()):
        steps = record.accumulate_steps
        for part in range(steps):
            for name, whole in batch.items():
                mine = np.split(whole, steps)[part]
                for blob, share, place in zip(
                    record.devices.copies(name), np.split(mine, count), record.devices.options
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
    assert same(trained(NETS[name], without=single(without)), trained(NETS[name]))


@pytest.mark.parametrize("name", NETS)
def test_sharing_of_gradient_memory_changes_no_bit(one_gpu, name):
    assert same(trained(NETS[name], optimize_gradient_memory=True), trained(NETS[name]))


@pytest.mark.parametrize("without", ["cuda_graphs", "joined_exchanges"])
def test_an_optimization_changes_no_bit_on_two_gpus(two_gpus, without):
    task, options = NETS["normalized"], {"count": 2, "use_nccl": True, "net_type": "dag"}
    assert same(trained(task, without=single(without), **options), trained(task, **options))


@pytest.mark.parametrize("name", ["mlp", "convnet"])
def test_two_gpus_train_as_one(two_gpus, name):
    assert distance(trained(NETS[name], count=2), trained(NETS[name])) < CLOSE


@pytest.mark.parametrize("name", ["mlp", "convnet"])
def test_two_shares_on_one_gpu_train_as_two_replicas_on_the_cpu(one_gpu, name):
    one, two = trained(NETS[name], accumulate_steps=2), trained(NETS[name], count=2, cpu=True)
    assert distance(one, two) < CLOSE


def residual(model, loss_scale):
    """A residual net of two blocks, the second of which halves the image."""
    first = NormalizedConv(model, False, 1e-5, 0.9)("data", "conv1", 3, 4, 3, pad=1)
    builder = ResNetBuilder(model, first, 1, False, 1e-5, 0.9)
    builder.add_simple_block(4, 4)
    builder.add_simple_block(4, 8, down_sampling=True)
    loss = softmax_loss(model, add_scores(builder, 8, 4, 1))
    return [model.net.Scale(loss, "scaled_loss", scale=loss_scale)]


COUNTS = pytest.mark.parametrize("count", [1, 2, pytest.param(4, marks=pytest.mark.slow)])


def residual_task(count):
    """With this seed all inputs of Relus are farther from 0 than 5e-5, so that rounding changes no gradient of one."""
    return Task(residual, (2 * count, 3, 8, 8), steps=3, seed=9)


@COUNTS
def test_two_ways_of_rounding_train_a_residual_net_alike(count):
    task = residual_task(count)
    assert distance(trained(task, count=count, cpu=True), trained(task, count=count, cpu=True, engines=())) < 1e-5


@pytest.mark.gpu
@COUNTS
def test_a_residual_net_trains_as_on_the_cpu(count):
    """So do two steps, and one that CUDA graphs repeat, without graphs and with shared memory of gradients."""
    if gpu_count() < count:
        pytest.skip(f"needs {count} GPUs")
    task = residual_task(count)
    got, want = trained(task, count=count), trained(task, count=count, cpu=True)
    assert distance(got, want) < CLOSE
    assert same(trained(task, count=count, without=single("cuda_graphs"), optimize_gradient_memory=True), got)


@pytest.mark.multi_gpu
def test_a_residual_net_in_graphs_that_hold_those_of_cudnn():
    """The third step repeats them."""
    task = Task(residual, (4, 3, 8, 8), steps=3)
    with with_cudnn(2) as (machine, _):
        got = trained(task, count=2)
        assert not LISTED or machine.counts["replays"] >= 2
        assert same(trained(task, count=2, without=single("cuda_graphs")), got)
    assert distance(got, trained(task, count=2, cpu=True)) < CLOSE
