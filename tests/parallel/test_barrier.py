"""The barrier between threads; batch normalization over several workers is made with it."""

import threading
import time

import numpy as np
import pytest

from netbuilder import NetError, Workspace
from netbuilder.parallel import Parallel, Parallelizable
from netbuilder.parallel.barrier import AllReduce, ParallelState
from netbuilder.proto import UsageError
from netbuilder.proto.arguments import make_op


def at_once(workers, function):
    """Call ``function(worker)`` in a thread for each worker; return results or errors."""
    found = [None] * workers

    def work(worker):
        try:
            found[worker] = function(worker)
        except Exception as error:
            found[worker] = error

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return found


def test_each_round_reduces_once_in_the_order_of_the_workers():
    rounds = []

    def reduce(values):
        rounds.append(values)
        return [(sum(values), worker) for worker in range(len(values))]

    state = ParallelState(3, reduce)

    def work(worker):
        found = []
        for turn in range(20):
            time.sleep(0.0005 * ((worker + turn) % 3))
            found.append(state.exchange(worker, 10 * turn + worker))
        return found

    assert at_once(3, work) == [[(30 * turn + 3, worker) for turn in range(20)] for worker in range(3)]
    assert rounds == [[10 * turn + worker for worker in range(3)] for turn in range(20)]
    assert len(state) == 3


def test_a_master_pulls_for_all_and_the_next_round_is_clean():
    state = ParallelState(2, lambda values: [values[1], values[0]])
    for first, second in (("a", "b"), ("c", "d")):
        state.push(1, second)
        assert "1 values pushed" in repr(state)
        state.push(0, first)
        assert (state.pull(0), state.pull(1)) == (second, first)


def test_what_an_identity_returns_is_equal_to_the_bit():
    values = [np.random.default_rng(k).random(100) * 1e-300 for k in range(3)]
    state = ParallelState(3, lambda values: values)
    for got, value in zip(at_once(3, lambda worker: state.exchange(worker, values[worker])), values):
        assert got.tobytes() == value.tobytes()


def test_a_sum_and_a_mean():
    for mean, want in ((False, 6), (True, 2)):
        total = AllReduce(3, mean=mean)
        assert at_once(3, lambda worker, total=total: total(worker, np.float64(worker + 1))) == [want] * 3
        assert len(total) == 3


def test_errors_of_the_reducer_reach_all_workers():
    def reduce(values):
        raise ZeroDivisionError("nothing")

    state = ParallelState(3, reduce)
    found = at_once(3, lambda worker: state.exchange(worker, 1))
    assert sorted(type(error).__name__ for error in found) == ["NetError", "NetError", "ZeroDivisionError"]
    assert sum("another one failed: nothing" in str(error) for error in found) == 2
    with pytest.raises(NetError, match=r"call reset\(\) before the next round"):
        state.push(0, 1)


def test_a_worker_that_fails_ends_the_others_and_a_reset_starts_again():
    state = ParallelState(2, lambda values: values)

    def work(worker):
        if worker == 0:
            time.sleep(0.02)
            state.abort(OSError("no disk"))
            return None
        return state.exchange(worker, 1)

    error = at_once(2, work)[1]
    assert isinstance(error, NetError) and isinstance(error.__cause__, OSError) and "no disk" in str(error)
    state.reset()
    assert at_once(2, lambda worker: state.exchange(worker, worker)) == [0, 1]


def test_a_missing_worker_is_named_after_the_time_limit():
    state = ParallelState(3, lambda values: values, time_limit=0.05)
    state.push(0, 1)
    with pytest.raises(NetError, match=r"has waited for 0.05 seconds, but the value of the workers \[1, 2\] has"):
        state.pull(0)
    state = ParallelState(2, lambda values: values, time_limit=0.05)
    for worker in range(2):
        state.push(worker, 1)
    state.pull(0)
    with pytest.raises(NetError, match=r"the value of the workers \[1\] has not been pulled"):
        state.push(0, 2)


def test_wrong_uses():
    state = ParallelState(2, lambda values: values[:1])
    state.push(0, 1)
    with pytest.raises(UsageError, match="worker 0 has pushed a value already; pull its result first"):
        state.push(0, 1)
    with pytest.raises(NetError, match="one result for each of the 2 workers, got 1"):
        state.push(1, 1)
    for worker in (2, -1, True, "a"):
        with pytest.raises(NetError, match="numbered from 0 to 1, got"):
            state.push(worker, 1)
    for arguments in ((0, max), (True, max), (1.5, max)):
        with pytest.raises(NetError, match="workers must be a whole number"):
            ParallelState(*arguments)
    with pytest.raises(TypeError, match="reducer must be a function"):
        ParallelState(2, None)
    with pytest.raises(NetError, match="time_limit must be a positive"):
        ParallelState(2, max, time_limit=0)


class SyncBatchNorm(Parallelizable):
    """Batch normalization of parts of a batch, of any sizes, by one thread each."""

    def __init__(self, workers):
        self.sums, self.grads = AllReduce(workers), AllReduce(workers)

    def forward_backward(self, part):
        worker, x, dy, scale, bias = part
        count, total, squares = self.sums(worker, np.array([x[:, 0].size, x.sum((0, 2)), (x * x).sum((0, 2))], object))
        mean, inv_std = total / count, 1 / np.sqrt(squares / count - (total / count) ** 2 + 1e-5)
        hat = (x - mean[:, None]) * inv_std[:, None]
        dscale, dbias = self.grads(worker, np.array([(dy * hat).sum((0, 2)), dy.sum((0, 2))]))
        dx = (scale * inv_std)[:, None] * (dy - (hat * dscale[:, None] + dbias[:, None]) / count)
        return hat * scale[:, None] + bias[:, None], dx, dscale, dbias


def whole_batch(x, dy, scale, bias):
    """Forward and backward pass of batch normalization, from its definition."""
    mean, var = x.mean((0, 2), keepdims=True), x.var((0, 2), keepdims=True)
    inv_std = 1 / np.sqrt(var + 1e-5)
    hat, count = (x - mean) * inv_std, x.shape[0] * x.shape[2]
    d_hat = dy * scale[:, None]
    d_var = (d_hat * (x - mean) * -0.5 * inv_std**3).sum((0, 2), keepdims=True)
    d_mean = (-d_hat * inv_std).sum((0, 2), keepdims=True) + d_var * (-2 * (x - mean)).mean((0, 2), keepdims=True)
    dx = d_hat * inv_std + d_var * 2 * (x - mean) / count + d_mean / count
    return hat * scale[:, None] + bias[:, None], dx, (dy * hat).sum((0, 2)), dy.sum((0, 2))


def batch(samples=7, channels=3):
    rng = np.random.default_rng(4)
    return (
        rng.normal(2, 3, (samples, channels, 5)),
        rng.normal(size=(samples, channels, 5)),
        rng.random(3),
        rng.random(3),
    )


@pytest.mark.parametrize("cuts", [[], [4], [3, 5], [1, 2, 6]])
def test_batch_normalization_over_workers_is_that_of_the_whole_batch(cuts):
    x, dy, scale, bias = batch()
    workers = len(cuts) + 1
    with Parallel(workers, SyncBatchNorm(workers), serial_init=False) as pool:
        for _ in range(2):
            parts = zip(range(workers), np.split(x, cuts), np.split(dy, cuts))
            found = pool.map([(*part, scale, bias) for part in parts])
    y, dx, dscale, dbias = whole_batch(x, dy, scale, bias)
    np.testing.assert_allclose(np.concatenate([each[0] for each in found]), y, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(np.concatenate([each[1] for each in found]), dx, rtol=1e-9, atol=1e-12)
    for each in found:
        np.testing.assert_allclose(each[2], dscale, rtol=1e-9)
        np.testing.assert_allclose(each[3], dbias, rtol=1e-9)


class OperatorsBatchNorm(Parallelizable):
    """The same with netbuilder's operators: a workspace for each thread, parts of equal sizes."""

    def __init__(self, workers):
        self.workers, self.total = workers, AllReduce(workers)

    def forward_backward(self, part):
        worker, x, dy, scale, bias = part
        workspace = Workspace(threads=1)
        for name, value in {"X": x, "dY": dy, "scale": scale, "bias": bias, "m": 0 * bias, "v": 0 * bias}.items():
            workspace.feed(name, value.astype(np.float32))
        self.sum_over_workers(workspace, worker, "ChannelStats", ["X"], ["sums", "sumsq"])
        inputs, saved = ["X", "scale", "bias", "m", "v", "sums", "sumsq"], ["mean", "inv_std"]
        workspace.run_operator_once(make_op("SpatialBN", inputs, ["Y", "m", "v", *saved], num_batches=self.workers))
        self.sum_over_workers(workspace, worker, "ChannelBackpropStats", ["X", *saved, "dY"], ["dscale", "dbias"])
        inputs = ["X", "scale", "dY", *saved, "dscale", "dbias"]
        outputs = ["dX", "dscale", "dbias"]
        workspace.run_operator_once(make_op("SpatialBNGradient", inputs, outputs, num_batches=self.workers))
        return [workspace.fetch(name) for name in ("Y", *outputs)]

    def sum_over_workers(self, workspace, worker, op, inputs, outputs):
        workspace.run_operator_once(make_op(op, inputs, outputs))
        for name, value in zip(outputs, self.total(worker, np.array([workspace.fetch(name) for name in outputs]))):
            workspace.feed(name, value)


def test_batch_normalization_over_workers_by_operators():
    x, dy, scale, bias = batch(8)
    with Parallel(4, OperatorsBatchNorm(4), serial_init=False) as pool:
        found = pool.map([(k, *part, scale, bias) for k, part in enumerate(zip(np.split(x, 4), np.split(dy, 4)))])
    y, dx, dscale, dbias = whole_batch(x, dy, scale, bias)
    np.testing.assert_allclose(np.concatenate([each[0] for each in found]), y, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.concatenate([each[1] for each in found]), dx, rtol=1e-3, atol=1e-5)
    for each in found:  # the operator returns the mean over the parts, as Caffe2's does
        np.testing.assert_allclose(each[2] * 4, dscale, rtol=1e-4)
        np.testing.assert_allclose(each[3] * 4, dbias, rtol=1e-4)
