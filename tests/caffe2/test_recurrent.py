"""The compatibility layer's recurrent modules: parameters by gate, the nets of Caffe2's tests, missing names."""

import numpy as np
import pytest

from netbuilder.caffe2.python import attention, core, gru_cell, model_helper, recurrent, rnn_cell, workspace
from netbuilder.caffe2.python.models.seq2seq import seq2seq_util
from netbuilder.caffe2.python.rnn import rnn_cell_test_util
from netbuilder.proto import NetError


@pytest.fixture(autouse=True)
def _fresh_workspace():
    workspace.ResetWorkspace()


def test_parameters_gate_by_gate():
    model = model_helper.ModelHelper(name="m")
    *_, params = rnn_cell.LSTM(model, "x", "l", ["h", "c"], 2, 3, "lstm", return_params=True, forward_only=True)
    rng = np.random.default_rng(0)
    names = rnn_cell.GetLSTMParamNames()
    assert names["biases"] == ["input_gate_b", "forget_gate_b", "output_gate_b", "cell_b"]
    values = {
        part: {
            **{name: rng.normal(size=(3, width)).astype("f") for name in names["weights"]},
            **{name: rng.normal(size=3).astype("f") for name in names["biases"]},
        }
        for part, width in (("input", 2), ("recurrent", 3))
    }
    rnn_cell.InitFromLSTMParams(params, values)
    found = workspace.FetchBlob("lstm/gates_t_w")
    np.testing.assert_array_equal(found[3:6], values["recurrent"]["forget_gate_w"])
    np.testing.assert_array_equal(workspace.FetchBlob("lstm/i2h_b")[9:], values["input"]["cell_b"])
    del values["input"]["cell_b"]
    with pytest.raises(NetError, match="'input'. must have values for \\['cell_b'\\]"):
        rnn_cell.InitFromLSTMParams(params, values)


@pytest.mark.parametrize("layer, states", [(rnn_cell.LSTM, 2), (gru_cell.GRU, 1)], ids=["lstm", "gru"])
def test_nets_of_the_tests(layer, states):
    found = []
    for steps in (None, 4):
        workspace.ResetWorkspace()
        np.random.seed(2)
        outputs, net, inputs = rnn_cell_test_util._prepare_rnn(
            4, 3, 2, layer, [0], 0.5, T=steps, two_d_initial_states=False, num_states=states
        )
        assert inputs == [*(f"state_{i}/layer_0" for i in range(states)), "test_name_scope/input_blob"]
        assert steps or net.BlobIsDefined("test_name_scope/external/recurrent/i2h")
        for name in [b for b in workspace.Blobs() if b.endswith(("_w", "_b"))]:
            value = workspace.FetchBlob(name)
            workspace.FeedBlob(name, np.linspace(-1, 1, value.size, dtype="f").reshape(value.shape))
        workspace.RunNetOnce(net)
        found.append([workspace.FetchBlob(str(blob)) for blob in outputs])
    for one, other in zip(*found):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_reference_functions():
    x = np.linspace(-3, 3, 7)
    np.testing.assert_allclose(rnn_cell_test_util.tanh(x), np.tanh(x))
    assert rnn_cell_test_util.sigmoid(0.0) == 0.5
    assert attention.s("a", "b") == "a/b" and attention.AttentionType.SoftCoverage == 3
    assert rnn_cell.AttentionType is attention.AttentionType
    assert seq2seq_util.PAD_ID == 0 and seq2seq_util.EOS == "<EOS>"


def test_hints_of_the_executor():
    op = core.CreateOperator("Relu", ["x"], ["y"])
    with pytest.raises(NetError, match="must be a RecurrentNetwork or its gradient, got 'Relu'"):
        recurrent.set_rnn_executor_config(op, num_threads=2)
    model = model_helper.ModelHelper(name="m")
    rnn_cell.LSTM(model, "x", "l", ["h", "c"], 2, 3, "lstm")
    op = next(op for op in model.net.Proto().op if op.type == "RecurrentNetwork")
    recurrent.set_rnn_executor_config(op, num_threads=2, max_cuda_streams=1)
    hints = {a.name: a.i for a in op.arg if a.name.startswith("rnn_executor.")}
    assert hints == {"rnn_executor.num_threads": 2, "rnn_executor.max_cuda_streams": 1}


def test_blobs_of_single_steps():
    model = model_helper.ModelHelper(name="m")
    outputs = rnn_cell.LSTM(model, "x", "l", ["h", "c"], 3, 2, "lstm")
    workspace.FeedBlob("x", np.random.default_rng(0).normal(size=(4, 2, 3)).astype(np.float32))
    workspace.FeedBlob("l", np.array([4, 3], np.int32))
    for name in "hc":
        workspace.FeedBlob(name, np.ones((1, 2, 2), np.float32))
    with pytest.raises(NetError, match="lstm/step_workspaces"):
        recurrent.retrieve_step_blobs(model.net)
    workspace.RunNetOnce(model.param_init_net)
    workspace.RunNetOnce(model.net)
    names = recurrent.retrieve_step_blobs(model.net, "kept")
    assert len(names) == 4 * 7 and names[:2] == [b"kept_timestep0", b"kept_lstm/hidden_t_prev0"]
    hidden, cell = workspace.FetchBlob(outputs[0]), workspace.FetchBlob(outputs[2])
    before = np.ones((1, 2, 2))
    for t in range(4):
        np.testing.assert_array_equal(workspace.FetchBlob(f"kept_lstm/hidden_t_prev{t}"), before)
        before = workspace.FetchBlob(f"kept_lstm/hidden_state{t}")
        np.testing.assert_array_equal(before[0], hidden[t])
        np.testing.assert_array_equal(workspace.FetchBlob(f"kept_lstm/cell_state{t}")[0], cell[t])
        assert workspace.FetchBlob(f"kept_timestep{t}").tolist() == [t]
        np.testing.assert_array_equal(workspace.FetchBlob(f"kept_input_t{t}")[0], workspace.FetchBlob("lstm/i2h")[t])
        assert workspace.FetchBlob(f"kept_lstm/gates_t{t}").shape == (1, 2, 8)
