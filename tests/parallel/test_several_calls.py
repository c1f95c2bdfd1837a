"""DataParallel: batches smaller than the list of devices, losses for each sample, several calls in a step, pools."""

import threading

import numpy as np
import pytest

from netbuilder import NetError, Workspace, brew
from netbuilder.model import Initializer
from netbuilder.optimizers import build_adagrad, build_sgd
from netbuilder.parallel import DataParallel, GetLearningRateBlobNames, Parallel, Parallelizable
from netbuilder.parallel.compat import DataParallelCriterion, DataParallelModel, parallel_backward
from netbuilder.proto import UsageError
from parallel_models import distance
from thread_ranks import on_ranks
from toy_models import softmax_loss

RATE = 0.1
RNG = np.random.default_rng(5)
IMAGE, LABEL = RNG.random((24, 6), np.float32), RNG.integers(0, 4, 24).astype(np.int32)
WORDS = RNG.integers(0, 9, (24, 2)).astype(np.int32)


def linear(helper, image):
    return brew.fc(helper, image, "fc", 6, 4)


def hidden(helper, image):
    return brew.fc(helper, brew.relu(helper, brew.fc(helper, image, "fc1", 6, 8), "relu"), "fc2", 8, 4)


def random(helper, image):
    x = brew.dropout(helper, brew.fc(helper, image, "fc1", 6, 8), "dropped", ratio=0.25, is_test=0)
    x = brew.spatial_bn(helper, helper.net.Reshape(x, ["planes", "shape"], shape=[-1, 2, 2, 2])[0], "bn", 2)
    return brew.fc(helper, x, "fc2", 8, 4)


def normalized(helper, image):
    x = helper.net.Reshape(brew.fc(helper, image, "fc1", 6, 8), ["planes", "shape"], shape=[-1, 2, 2, 2])[0]
    return brew.fc(helper, brew.spatial_bn(helper, x, "bn", 2), "fc2", 8, 4)


def looked_up(helper, words):
    table = helper.create_param("table", [9, 3], Initializer("UniformFill", min=-0.5, max=0.5))
    rows = helper.net.Gather([table, words], "rows")
    return brew.fc(helper, rows, "fc", 6, 4)


def mean_loss(helper, scores, label):
    return softmax_loss(helper, scores, label)


def each_loss(helper, scores, label):
    return helper.net.LabelCrossEntropy([helper.net.Softmax(scores, "softmax"), label], "losses")


def sgd(helper):
    return build_sgd(helper, RATE, momentum=0.9)


LOSSES = {"a mean": mean_loss, "for each sample": each_loss}


def wrapper(devices=(0, 1), model=hidden, loss=mean_loss, optimizer=None, **options):
    return DataParallel(
        model, list(devices), loss=loss, optimizer=optimizer or sgd, cpu_device=True,
        workspace=Workspace(threads=2, seed=0), **options,
    )  # fmt: skip


def call(net, image, label):
    outputs, losses = net(image), net.loss(label)
    net.backward()
    return outputs, losses


def step(net, image, label, *batch_size):
    found = call(net, image, label)
    net.step(*batch_size)
    return found


def apart(net, other):
    got, want = net.parameters(), other.parameters()
    assert got.keys() == want.keys()
    return distance([got[name] for name in want], list(want.values()))


# Batches smaller than the list of devices.


@pytest.mark.one_in(3)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize(
    "model, options", [(hidden, {}), (normalized, {"combine_spatial_bn": True})], ids=["plain", "normalized"]
)
def test_a_batch_smaller_than_the_list_of_devices(loss, model, options):
    with wrapper([0], model, loss) as one, wrapper([0, 1, 2], model, loss, **options) as net:
        for count in (24, 2, 1, 3, 7, 2):
            first, second = step(one, IMAGE[:count], LABEL[:count]), step(net, IMAGE[:count], LABEL[:count])
            outputs, losses = second
            assert len(outputs) == len(losses) == min(count, 3)
            np.testing.assert_allclose(np.concatenate([o[0] for o in outputs]), first[0][0][0], rtol=1e-4, atol=1e-5)
        assert apart(net, one) < (1e-6 if model is hidden else 1e-5)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("training", [True, False])
def test_gathered_results_of_a_small_batch(loss, training):
    with wrapper([0], loss=loss, gather=True) as one, wrapper([0, 1, 2], loss=loss, gather=True) as net:
        for count in (2, 1, 5):
            found = [
                (each.train(training)(IMAGE[:count]).numpy(), each.loss(LABEL[:count]).numpy()) for each in (one, net)
            ]
            assert found[1][0].shape == (count, 4) and found[1][1].shape == found[0][1].shape
            for want, got in zip(*found):
                np.testing.assert_allclose(got, want, rtol=1e-5)


# Losses for each sample.


def gradient(weight, bias, image, label):
    """The gradient of the sum of the losses, in float64."""
    x, scores = image.astype(np.float64), image.astype(np.float64) @ weight.T.astype(np.float64) + bias
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    d = p / p.sum(axis=1, keepdims=True) - np.eye(4)[label]
    return d.T @ x, d.sum(axis=0)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [None, 24, 10, 1, 2.5])
def test_the_sum_of_losses_for_each_sample_is_divided_by_the_batch_size(devices, batch_size):
    for parts in ([(0, 24)], [(0, 1)], [(0, 10), (10, 12), (12, 24)]):
        with wrapper(range(devices), linear, each_loss, lambda helper: build_sgd(helper, RATE)) as net:
            step(net, IMAGE, LABEL)
            before = net.parameters()
            losses = [call(net, IMAGE[a:b], LABEL[a:b])[1] for a, b in parts]
            net.step(batch_size)
            count = sum(len(each) for of_call in losses for each in of_call)
            dw, db = gradient(before["fc_w"], before["fc_b"], IMAGE[:count], LABEL[:count])
            for name, slope in (("fc_w", dw), ("fc_b", db)):
                want = before[name] - RATE * slope / (batch_size or count)
                np.testing.assert_allclose(net.parameters()[name], want, rtol=1e-5, atol=1e-6)


def test_a_first_batch_of_one_sample_shows_the_kind_of_losses_too():
    for loss, shape in ((each_loss, (2,)), (mean_loss, ())):
        with wrapper(loss=loss) as net:
            step(net, IMAGE[:1], LABEL[:1])
            assert step(net, IMAGE[:4], LABEL[:4])[1][0].shape == shape


def test_the_batch_size_does_not_change_means():
    with wrapper() as net, wrapper() as other:
        step(net, IMAGE, LABEL, 3)
        step(other, IMAGE, LABEL)
        assert apart(net, other) == 0


def test_losses_of_different_kinds_are_refused():
    def both(helper, scores, label):
        return [each_loss(helper, scores, label), softmax_loss(helper, scores, label)]

    net = wrapper(loss=both)
    net(IMAGE)
    with pytest.raises(NetError, match="'cpu_0/losses' has a number for each sample, and another has not; let all"):
        net.loss(LABEL)


# Several calls in a step.

PARTS = [(0, 9), (9, 18), (18, 20), (20, 21), (21, 24)]
READS = {
    "not": lambda number: False,
    "all": lambda number: True,
    "the first": lambda number: number == 0,
    "the last": lambda number: number == 4,
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("reads", READS.values(), ids=READS)
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(
    "model, given, optimizer",
    [(hidden, IMAGE, None), (looked_up, WORDS, lambda helper: build_adagrad(helper, RATE))],
    ids=["dense", "sparse"],
)
def test_gradients_of_several_calls_add_up(reads, devices, model, given, optimizer):
    """They give the parameters of one device that has all samples in one call, whatever is read before the step."""
    with wrapper([0], model, optimizer=optimizer) as one, wrapper(range(devices), model, optimizer=optimizer) as net:
        for number in range(4):
            want = step(one, given, LABEL)[0][0][0].numpy()
            if number == 2:  # between two such steps
                step(net, given, LABEL)
                continue
            found = []
            for k, (a, b) in enumerate(PARTS):
                found.append(call(net, given[a:b], LABEL[a:b])[0])
                if reads(k):
                    found[-1][0][0].numpy()
            net.step()
            rows = np.concatenate([part[0] for outputs in found for part in outputs])
            np.testing.assert_allclose(rows, want, rtol=1e-4, atol=1e-6)
        assert apart(net, one) < 1e-6


@pytest.mark.one_in(3)
@pytest.mark.parametrize("reads", READS.values(), ids=READS)
def test_each_call_draws_and_normalizes_once(reads):
    found = []
    for when in (READS["not"], reads):
        with wrapper(model=random) as net:
            for _ in range(2):
                for k, (a, b) in enumerate(PARTS):
                    outputs, losses = call(net, IMAGE[a:b], LABEL[a:b])
                    if when(k):
                        (losses[0] if k % 2 else outputs[0][0]).numpy()
                net.step()
            found.append(net.parameters())
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("early", [False, True])
def test_each_call_is_normalized_over_all_devices(early):
    with wrapper([0], normalized) as one, wrapper([0, 1], normalized, combine_spatial_bn=True) as net:
        for _ in range(3):
            for a, b in ((0, 8), (8, 18), (18, 24)):
                call(one, IMAGE[a:b], LABEL[a:b])
                losses = call(net, IMAGE[a:b], LABEL[a:b])[1]
                if early:
                    losses[0].numpy()
            one.step()
            net.step()
        assert apart(net, one) < 1e-6


def test_the_learning_rate_is_that_of_the_last_step():
    rate = {"policy": "step", "stepsize": 2, "gamma": 0.5}
    rates = []
    for parts in ([(0, 24)], [(0, 9), (9, 24)]):
        with wrapper(optimizer=lambda helper: build_sgd(helper, RATE, **rate)) as net:
            for _ in range(4):
                for a, b in parts:
                    call(net, IMAGE[a:b], LABEL[a:b])
                net.step()
                (blob,) = GetLearningRateBlobNames(net.model)
                rates.append(abs(float(net.workspace.fetch(blob))))
    assert rates[:4] == rates[4:] and len(set(rates)) > 1


def test_a_failed_call_drops_the_step_and_the_wrapper_works_again():
    with wrapper() as net, wrapper() as other:
        for each in (net, other):
            step(each, IMAGE, LABEL)
        call(net, IMAGE[:9], LABEL[:9])
        call(net, IMAGE[9:], LABEL[9:] + 100)
        with pytest.raises(NetError, match="label"):
            net.step()
        assert apart(net, other) == 0
        with pytest.raises(NetError, match=r"step\(\): an operator failed in this call; call the wrapper again"):
            net.step()
        for a, b in ((0, 9), (9, 24)):
            call(net, IMAGE[a:b], LABEL[a:b])
        net.step()
        step(other, IMAGE, LABEL)
        assert apart(net, other) < 1e-6


def test_means_whose_divisor_the_data_determine_are_refused():
    def weighted(helper, scores, label, weight):
        return helper.net.SoftmaxWithLoss([scores, label, weight], ["softmax", "loss"])[1]

    net = wrapper(loss=weighted)
    for _ in range(2):
        net(IMAGE)
        net.loss(LABEL, np.ones(24, np.float32))
        net.backward()
    with pytest.raises(NetError, match="several calls cannot add up, because the loss is a mean whose divisor"):
        net.step()


# Threads.


class Task(Parallelizable):
    """What a thread of the pool does with a part of the batch; ``reads`` its losses at once."""

    def __init__(self, model, criterion, reads):
        self.model, self.criterion, self.reads = model, criterion, reads

    def forward_backward(self, part):
        losses = self.criterion(self.model(part[0]), part[1])
        parallel_backward(losses)
        return [loss.numpy() for loss in losses] if self.reads else losses


@pytest.mark.one_in(3)
@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("serial", [False, True])
def test_a_pool_and_one_step(reads, serial):
    model = DataParallelModel(hidden, [0, 1], optimizer=sgd, cpu_device=True, workspace=Workspace(threads=2, seed=0))
    task = Task(model, DataParallelCriterion(each_loss), reads)
    with wrapper([0], loss=each_loss) as one, Parallel(2, task, serial_init=serial) as pool:
        for _ in range(4):
            want = step(one, IMAGE, LABEL)[1][0].numpy()
            for a, b in PARTS:
                pool.put((IMAGE[a:b], LABEL[a:b]))
            losses = [pool.get() for _ in PARTS]
            model.step(len(IMAGE))
            got = np.concatenate([loss for of_call in losses for loss in of_call])
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
        assert apart(model.wrapper, one) < 1e-6
    with pytest.raises(UsageError, match=r"step\(\) must follow backward\(\)"):
        model.step(1)


def test_threads_have_steps_of_their_own():
    with wrapper() as net, wrapper() as other:
        step(net, IMAGE, LABEL)
        step(other, IMAGE, LABEL)
        begun, go_on = threading.Event(), threading.Event()

        def run(rank):
            if rank == 0:
                call(net, IMAGE[:9], LABEL[:9])
                begun.set()
                go_on.wait(60)
                net.step()
            else:
                begun.wait(60)
                call(net, IMAGE[9:], LABEL[9:])[1][0].numpy()
                net.step()
                go_on.set()

        on_ranks(2, run)
        step(other, IMAGE[9:], LABEL[9:])
        step(other, IMAGE[:9], LABEL[:9])
        assert apart(net, other) == 0
