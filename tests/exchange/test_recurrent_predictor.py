"""Predictors of recurrent nets: with the step net, for sequences of any length."""

import numpy as np

from netbuilder.exchange import load_predictor, save_predictor
from netbuilder.model import ModelHelper, brew
from netbuilder.model.rnn import LSTM
from netbuilder.optimizers import build_sgd
from netbuilder.passes import extract_predictor
from netbuilder.runtime import Workspace

LENGTHS = np.array([5, 3], np.int32)


def test_an_lstm_is_exported(tmp_path):
    model = ModelHelper("tagger")
    hidden, *_ = LSTM(model, "x", "lengths", None, 3, [4, 4], "lstm")
    flat, _ = model.net.Reshape(hidden, ["flat", "old_shape"], shape=[-1, 4])
    softmax, loss = model.net.SoftmaxWithLoss([brew.fc(model, flat, "scores", 4, 3), "label"], ["softmax", "loss"])
    model.AddGradientOperators([loss])
    build_sgd(model, 0.1)
    workspace, rng = Workspace(threads=1), np.random.default_rng(0)
    x = rng.normal(size=(5, 2, 3)).astype("f")
    for name, value in (("x", x), ("lengths", LENGTHS), ("label", np.zeros(10, np.int32))):
        workspace.feed(name, value)
    workspace.run_net_once(model.param_init_net)
    workspace.create_net(model.net)
    workspace.run_net(model.net, 3)
    net, parameters = extract_predictor(model.net.Proto(), ["x", "lengths"], [softmax])
    assert not [op for op in net.op if op.is_gradient_op or "label" in op.input]
    save_predictor(tmp_path, net, parameters, inputs=["x", "lengths"], outputs=["softmax"], workspace=workspace)
    predictor = load_predictor(tmp_path)
    got = predictor.run(x=x, lengths=LENGTHS)["softmax"]
    workspace.run_net(model.net)  # its forward pass has the parameters that were saved
    np.testing.assert_allclose(got, workspace.fetch("softmax"), rtol=1e-5, atol=1e-6)
    short = predictor.run(x=x[:3], lengths=np.minimum(LENGTHS, 3))["softmax"]
    np.testing.assert_allclose(short, got[:6], rtol=1e-5, atol=1e-6)
