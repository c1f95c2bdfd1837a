"""DataParallel on GPUs trains as on the CPU."""

import numpy as np
import pytest

from netbuilder import DataParallel, Workspace, brew
from netbuilder.engines.arrays import gpu_count
from netbuilder.optimizers import build_sgd
from toy_models import softmax_loss


def scores(helper, image):
    return brew.fc(helper, brew.relu(helper, brew.fc(helper, image, "fc1", 6, 8), "relu1"), "fc2", 8, 4)


def loss(helper, scores, label):
    return softmax_loss(helper, scores, label)


def train(devices, steps=3, parts=((0, 8),), **options):
    rng = np.random.default_rng(3)
    net = DataParallel(
        scores, devices, loss=loss, optimizer=lambda helper: build_sgd(helper, 0.1), workspace=Workspace(threads=2),
        **options,
    )  # fmt: skip
    losses = []
    for _ in range(steps):
        image, label = rng.random((8, 6), np.float32), rng.integers(0, 4, 8).astype(np.int32)
        for a, b in parts:
            net(image[a:b])
            losses.append(net.loss(label[a:b]))
            net.backward()
        net.step()
    net.wait()
    return net, [[float(each) for each in of_step] for of_step in losses]


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 2])
def test_gradients_of_several_calls_add_up_on_gpus(count):
    """One of the calls has a sample for the first device only."""
    if gpu_count() < count:
        pytest.skip(f"needs {count} GPUs")
    net, _ = train(list(range(count)), parts=((0, 4), (4, 5), (5, 8)))
    want, _ = train([0], cpu_device=True)
    for name, value in want.parameters().items():
        np.testing.assert_allclose(net.parameters()[name], value, rtol=1e-3, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 2])
def test_steps_on_gpus_are_those_on_cpus(count):
    if gpu_count() < count:
        pytest.skip(f"needs {count} GPUs")
    net, losses = train(list(range(count)))
    parameters = net.parameters()
    assert repr(net) == f"DataParallel(scores, GPU {', '.join(map(str, range(count)))}; training)"
    net.close()
    want, wanted = train(list(range(count)), cpu_device=True)
    np.testing.assert_allclose(losses, wanted, rtol=1e-3)
    for name, value in want.parameters().items():
        np.testing.assert_allclose(parameters[name], value, rtol=1e-3, atol=1e-5)
