"""The older names: a model and a criterion, which train as DataParallel does; arrays split over devices."""

import numpy as np
import pytest

from netbuilder import NetError, Workspace, brew
from netbuilder.optimizers import build_sgd
from netbuilder.parallel import DataParallel
from netbuilder.parallel.compat import (
    DataParallelCriterion,
    DataParallelModel,
    parallel_backward,
    split_and_load,
    split_load_kwargs,
)
from netbuilder.proto import ShapeError, UsageError
from toy_models import softmax_loss


def hidden_and_scores(helper, image):
    hidden = brew.relu(helper, brew.fc(helper, image, "fc1", 6, 8), "relu1")
    return hidden, brew.fc(helper, hidden, "fc2", 8, 4)


def loss_of(helper, hidden, scores, label):
    return softmax_loss(helper, scores, label)


def sgd(helper):
    return build_sgd(helper, 0.1)


def batches(count=3, samples=8):
    rng = np.random.default_rng(3)
    for _ in range(count):
        yield rng.random((samples, 6), np.float32), rng.integers(0, 4, samples).astype(np.int32)


def make(devices=(0, 1), **options):
    return DataParallelModel(hidden_and_scores, devices, **{"optimizer": sgd, "cpu_device": True, **options})


@pytest.mark.one_in(3)
@pytest.mark.parametrize("devices", [[0], [0, 1], [0, 1, 2]])
@pytest.mark.parametrize("sync", [False, True])
def test_a_loop_as_in_gluon_cv(devices, sync):
    model, criterion = make(devices, sync=sync), DataParallelCriterion(loss_of, devices, sync=sync)
    want = DataParallel(
        hidden_and_scores, devices, loss=lambda helper, outputs, label: loss_of(helper, *outputs, label), optimizer=sgd,
        cpu_device=True, workspace=Workspace(),
    )  # fmt: skip
    for image, label in batches():
        outputs = model(image)
        losses = criterion(outputs, label)
        parallel_backward(losses, sync)
        model.step(len(label))
        want(image)
        wanted = want.loss(label)
        want.backward()
        want.step()
        assert [len(of_device) for of_device in outputs] == [2] * len(devices)
        assert list(map(float, losses)) == list(map(float, wanted))
    for name, value in want.parameters().items():
        np.testing.assert_allclose(model.wrapper.parameters()[name], value, rtol=1e-6)


def test_losses_of_two_models_are_differentiated_together():
    models = [make(), make()]
    criterion = DataParallelCriterion(loss_of)
    image, label = next(batches(1))
    parallel_backward([criterion(model(image), label) for model in models])
    for model in models:
        model.step()
    first, second = (model.wrapper.parameters() for model in models)
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value)


def test_without_a_device_list_the_call_is_passed_through():
    model = DataParallelModel(hidden_and_scores, optimizer=sgd)
    outputs = model(next(batches(1, 1))[0])
    assert outputs[1].shape == (1, 4)
    loss = DataParallelCriterion(loss_of)(outputs, np.int32([2]))
    parallel_backward(loss)
    model.step()


def test_errors_of_the_pair():
    image, label = next(batches(1))
    criterion = DataParallelCriterion(loss_of)
    for wrong in (image, [1.0], DataParallel(hidden_and_scores, [0, 1], cpu_device=True)(image)):
        with pytest.raises(NetError, match="give it what a DataParallelModel returned"):
            criterion(wrong, label)
    with pytest.raises(UsageError, match="give it losses of a DataParallelCriterion, got 3.0"):
        parallel_backward(3.0)
    model = make()
    outputs = model(image)
    with pytest.raises(UsageError, match=r"backward\(\) must follow loss\(\)"):
        parallel_backward(outputs)
    criterion(outputs, label)

    def another(helper, hidden, scores, label):
        return loss_of(helper, hidden, scores, label)

    with pytest.raises(NetError, match="trained with the loss 'loss_of' already"):
        DataParallelCriterion(another)(model(image), label)
    with pytest.raises(TypeError, match="module must be a function"):
        DataParallelCriterion(None)
    with pytest.raises(NetError, match=r"\['gather'\] cannot be given; use DataParallel"):
        make(gather=True)
    with pytest.raises(UsageError, match="loss.. needs a wrapper that was made with optimizer="):
        untrained = make(optimizer=None)
        untrained.wrapper.train()
        criterion(untrained(image), label)
    assert repr(model) == "DataParallelModel(hidden_and_scores, CPU 0, 1; training)"
    assert repr(criterion) == "DataParallelCriterion(loss_of)"


@pytest.mark.parametrize("samples, even", [(8, True), (9, False), (3, False)])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_split_and_load(samples, even, axis):
    data = np.moveaxis(np.arange(samples * 10).reshape(samples, 2, 5), 0, axis)
    parts = split_and_load(data, [0, 1], axis, even)
    np.testing.assert_array_equal(np.concatenate(parts, axis), data)
    assert abs(parts[0].shape[axis] - parts[1].shape[axis]) <= 1
    assert all(part.base is not None for part in parts)


@pytest.mark.parametrize(
    "arguments, match",
    [
        (
            (np.zeros((7, 2)), [0, 1]),
            r"7 samples along axis 0, which cannot be split evenly over 2 devices; give a multip",
        ),
        (
            (np.zeros((0, 2)), [0, 1], 0, False),
            "0 samples along axis 0, which cannot be split over 2 devices; give at least one",
        ),
        ((np.zeros(1), [0, 1]), "1 sample along axis 0, which cannot be split evenly over 2 devices"),
        ((np.zeros((4, 2)), [0, 1], 2), "0 samples along axis 2"),
        ((np.float32(1), [0, 1]), "0 samples along axis 0"),
    ],
)
def test_arrays_that_cannot_be_split(arguments, match):
    with pytest.raises(ShapeError, match=match):
        split_and_load(*arguments)
    with pytest.raises(NetError, match="at least one device"):
        split_and_load(np.zeros(2), [])


def test_fewer_samples_than_devices():
    x = np.arange(4).reshape(2, 2)
    assert [part.tolist() for part in split_and_load(x, [0, 1, 2], even_split=False)] == [[[0, 1]], [[2, 3]]]
    args, kwargs = split_load_kwargs((x, "text"), {"y": x[:, 0]}, [0, 1, 2])
    assert [(a[0].tolist(), a[1]) for a in args] == [([[0, 1]], "text"), ([[2, 3]], "text")]
    assert [k["y"].tolist() for k in kwargs] == [[0], [2]]


def test_split_load_kwargs():
    x, y = np.arange(10).reshape(5, 2), np.arange(5)
    args, kwargs = split_load_kwargs((x, [y, "text"], np.float32(2)), {"mask": {"a": (y,)}, "by": 3}, [0, 1])
    assert [len(a) for a in args] == [3, 3] and [set(k) for k in kwargs] == [{"mask", "by"}] * 2
    np.testing.assert_array_equal(np.concatenate([a[0] for a in args]), x)
    np.testing.assert_array_equal(np.concatenate([a[1][0] for a in args]), y)
    np.testing.assert_array_equal(np.concatenate([k["mask"]["a"][0] for k in kwargs]), y)
    assert all(a[1][1] == "text" and a[2] == 2 and k["by"] == 3 for a, k in zip(args, kwargs))
    assert split_load_kwargs((), {}, [0, 1]) == (((), ()), ({}, {}))
    assert split_load_kwargs((), {"n": 1}, [0, 1, 2]) == (((),) * 3, ({"n": 1},) * 3)
    with pytest.raises(ShapeError, match=r"must have the same number of samples, got {'0': 5, 'label': 4}"):
        split_load_kwargs((x,), {"label": y[:4]}, [0, 1])
