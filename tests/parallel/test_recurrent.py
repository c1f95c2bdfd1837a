"""Recurrent nets under data parallelism: the same parameters on any number of devices, names scoped exactly once."""

import numpy as np
import pytest

from netbuilder import parallel
from netbuilder.model import brew, rnn
from netbuilder.ops.core.operator import decode
from netbuilder.ops.core.registry import find
from netbuilder.ops.core.renaming import blob_names
from netbuilder.passes import check_devices
from netbuilder.passes.share_memory import share_memory
from netbuilder.runtime import Workspace
from parallel_models import OPTIMIZERS, distance, parallelize
from switches import single
from toy_models import scaled_loss

STEPS, SAMPLES, WIDTH, HIDDEN = 5, 12, 3, 4


def lstm(model, loss_scale):
    """An LSTM over sequences of different lengths: seq (steps, N, 3), label (steps N,) of 4 classes."""
    states, *_ = rnn.LSTM(model, "seq", "lengths", ["h0", "c0"], WIDTH, HIDDEN, scope="lstm", outputs_with_grads=(0,))
    rows, _ = model.net.Reshape(states, ["rows", "rows_shape"], shape=[-1, HIDDEN])
    scores = brew.fc(model, rows, "scores", HIDDEN, 4)
    return scaled_loss(model, scores, loss_scale)


def dropout_rnn(model, loss_scale):
    """Two layers with dropout between them, which draws the same for a sample on whichever device it is."""
    below = rnn.LSTMCell(WIDTH, HIDDEN, 0.0, memory_optimization=True, name="below")
    above = rnn.LSTMCell(HIDDEN, HIDDEN, 0.0, memory_optimization=True, name="above")
    dropped = rnn.DropoutCell(below, 0.5, name="drop", is_test=False)
    cell = rnn.MultiRNNCell([dropped, above], name="two")
    states, _ = cell.apply_over_sequence(model, "seq", "lengths", ["h0", "c0"] * 2)
    rows, _ = model.net.Reshape(states, ["rows", "rows_shape"], shape=[-1, HIDDEN])
    return scaled_loss(model, brew.fc(model, rows, "scores", HIDDEN, 4), loss_scale)


def dropout_behind(model, loss_scale):
    """An LSTM whose outputs of all steps, (steps, N, 4), go through dropout."""
    cell = rnn.DropoutCell(rnn.LSTMCell(WIDTH, HIDDEN, 0.0, False, name="lstm"), 0.5, name="drop", is_test=False)
    states, _ = cell.apply_over_sequence(model, "seq", "lengths", ["h0", "c0"])
    rows, _ = model.net.Reshape(states, ["rows", "rows_shape"], shape=[-1, HIDDEN])
    return scaled_loss(model, brew.fc(model, rows, "scores", HIDDEN, 4), loss_scale)


def trained(devices, forward=lstm, optimizer="momentum", shared_model=False, **options):
    model, record = parallelize(devices, forward, OPTIMIZERS[optimizer], shared_model=shared_model)
    workspace, r = Workspace(threads=2, **options), np.random.default_rng(5)
    for number in range(4):
        batch = {
            "seq": r.normal(size=(STEPS, SAMPLES, WIDTH)).astype(np.float32),
            "h0": r.normal(size=(1, SAMPLES, HIDDEN)).astype(np.float32),
            "c0": r.normal(size=(1, SAMPLES, HIDDEN)).astype(np.float32),
            "label": r.integers(0, 4, (STEPS, SAMPLES)).astype(np.int32),
            "lengths": r.integers(0, STEPS + 1, SAMPLES).astype(np.int32),
        }
        for name, whole in batch.items():
            axis = 0 if name == "lengths" else 1
            for blob, part in zip(record.devices.copies(name), np.split(whole, len(record), axis)):
                workspace.feed(blob, part.reshape(-1) if name == "label" else part)
        if number == 0:
            parallel.RunInitNet(model, workspace=workspace)
        parallel.RunNet(model, workspace=workspace)
    return model, record, [workspace.fetch(record.blobs(name)[0]) for name in record.parameters]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adagrad", "adam"])
def test_equal_over_device_counts(optimizer):
    _, _, one = trained([0], optimizer=optimizer)
    for count in (2, 3, 4):
        assert distance(trained(range(count), optimizer=optimizer)[2], one) < 1e-5, count


def test_parameters_of_a_shared_model():
    """Step nets, and the arguments that name their blobs, read the one copy of the parameters, too."""
    model, record, shared = trained([0, 1, 2], shared_model=True)
    assert distance(shared, trained([0])[2]) < 1e-5
    others = {scope + name for scope in record.devices.scopes[1:] for name in record.parameters}
    assert others and all(others.isdisjoint(blob_names(op)) for op in model.net.Proto().op)


def test_uneven_shares():
    """Seven sequences, the samples first, on three devices give what they give on one."""

    def forward(model, loss_scale):
        model.net.Transpose("data", "seq", axes=[1, 0, 2])
        last = rnn.GRU(model, "seq", "lengths", None, WIDTH, HIDDEN, "gru", outputs_with_grads=(1,))[1]
        rows, _ = model.net.Reshape(last, ["rows", "rows_shape"], shape=[-1, HIDDEN])
        return scaled_loss(model, brew.fc(model, rows, "scores", HIDDEN, 4), loss_scale)

    rng, found = np.random.default_rng(2), []
    batch = {
        "data": rng.normal(size=(7, STEPS, WIDTH)).astype(np.float32),
        "lengths": rng.integers(0, STEPS + 1, 7).astype(np.int32),
        "label": rng.integers(0, 4, 7).astype(np.int32),
    }
    for count in (1, 3):
        model, record = parallelize(range(count), forward, OPTIMIZERS["adagrad"], weighted_shares=True)
        workspace = Workspace(threads=1, seed=1)
        next(parallel.feed_shares(model, batch, workspace=workspace))
        parallel.RunInitNet(model, workspace=workspace)  # which begins with equal weights
        for _ in range(3):
            for _ in parallel.feed_shares(model, batch, workspace=workspace):
                parallel.RunNet(model, workspace=workspace)
        found.append([workspace.fetch(record.blobs(name)[-1]) for name in record.parameters])
    assert distance(found[1], found[0]) < 1e-5


@pytest.mark.one_in(4)
@pytest.mark.parametrize("forward", [dropout_rnn, dropout_behind])
@pytest.mark.parametrize("engines", [None, ()])
def test_equal_with_dropout(forward, engines):
    one = trained([0], forward)[2]
    for count in (2, 3):
        assert distance(trained(range(count), forward, engines=engines)[2], one) < 1e-5, count


def test_plain_dropout_draws_what_the_bound_one_draws():
    one, other = (trained([0, 1], dropout_behind, without=without)[2] for without in ((), single("bound_kernels")))
    assert distance(other, one) < 1e-5


def test_equal_without_the_library():
    assert distance(trained([0, 1], engines=())[2], trained([0])[2]) < 1e-5


def test_names_are_scoped_exactly_once():
    model, record, _ = trained([0, 1])
    recurrent = [op for op in model.net.Proto().op if op.type.startswith("RecurrentNetwork")]
    assert len(recurrent) == 4
    for op in recurrent:
        names = {name.lstrip("_") for name in blob_names(op)}
        scope = next(scope for scope in record.devices.scopes if op.input[0].startswith(scope))
        wrong = [name for name in names if scope not in name or name.count("cpu_") != 1]
        assert not wrong


def test_devices_of_step_nets():
    model, record, _ = trained([0, 1])
    proto = model.net.Proto()
    check_devices(proto, devices=record.devices)
    op = next(op for op in proto.op if op.type == "RecurrentNetwork" and op.input[0].startswith("cpu_1/"))
    step = next(argument.n for argument in op.arg if argument.name == "step_net")
    step.op[0].input[1] = "cpu_0/lstm/gates_t_w"
    with pytest.raises(Exception, match=r"input 'cpu_0/lstm/gates_t_w' is on CPU 0"):
        check_devices(proto, devices=record.devices)


def test_shared_memory_keeps_the_links():
    """The pass also renames blobs in the arguments that link the step net; the results are the same."""
    model, record, want = trained([0])
    net, names = share_memory(model.net.Proto(), lambda name: "i2h" in name or "rows" in name or "hidden" in name)
    assert names
    for op in net.op:
        if op.type.startswith("RecurrentNetwork"):
            assert not names.keys() & set(blob_names(op))
            decode(find(op.type), op)
