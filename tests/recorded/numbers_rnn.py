"""Runs of recurrent nets with fixed inputs and parameters: losses and gradients, on Caffe2 or on this library."""

import numpy as np

__all__ = ["NETS", "numbers_of"]

STEPS, SAMPLES, WIDTH, HIDDEN, READ = 4, 3, 3, 4, 5


def _layer(module, function, states):
    def build(caffe2, model, blob):
        layer = getattr(getattr(caffe2, module), function)
        return layer(model, blob("x"), blob("lens"), [blob(s) for s in states], WIDTH, HIDDEN, "l")

    return build


def _attention(kind):
    def build(caffe2, model, blob):
        given = [blob(name) for name in ("x", "lens", "s0", "s1", "ctx")]
        return caffe2.rnn_cell.LSTMWithAttention(
            model, *given, READ, "enc", "enc_lens", WIDTH, HIDDEN, "a",
            attention_type=getattr(caffe2.attention.AttentionType, kind), outputs_with_grads=(0,),
        )  # fmt: skip

    return build


NETS = {
    "lstm": _layer("rnn_cell", "LSTM", ["s0", "s1"]),
    "gru": _layer("gru_cell", "GRU", ["s0"]),
    "layer_norm_lstm": _layer("rnn_cell", "LayerNormLSTM", ["s0", "s1"]),
    "milstm": _layer("rnn_cell", "MILSTM", ["s0", "s1"]),
    **{kind: _attention(kind) for kind in ("Regular", "Recurrent", "Dot", "SoftCoverage")},
}


def _inputs():
    draws = np.random.RandomState(0)
    shapes = {
        "x": (STEPS, SAMPLES, WIDTH),
        "s0": (1, SAMPLES, HIDDEN),
        "s1": (1, SAMPLES, HIDDEN),
        "ctx": (1, SAMPLES, READ),
        "enc": (6, SAMPLES, READ),
        "slope": (STEPS, SAMPLES, HIDDEN),
    }
    made = {name: draws.randn(*shape).astype("f") for name, shape in shapes.items()}
    return dict(made, lens=np.array([4, 2, 1], np.int32), enc_lens=np.array([6, 3, 5], np.int32))


def numbers_of(caffe2, name):
    """Return the loss of a net, and the gradients of its parameters by their names."""
    workspace = caffe2.workspace
    workspace.ResetWorkspace()
    model = caffe2.model_helper.ModelHelper(name="m")
    results = NETS[name](caffe2, model, caffe2.core.BlobReference)
    loss = model.net.AveragedLoss(model.net.Mul([results[0], "slope"], "product"), "loss")
    model.AddGradientOperators([loss])
    workspace.RunNetOnce(model.param_init_net)
    draws = np.random.RandomState(1)
    for parameter in sorted(map(str, model.GetParams(""))):
        shape = workspace.FetchBlob(parameter).shape
        workspace.FeedBlob(parameter, (0.5 * draws.randn(*shape)).astype("f"))
    for blob, value in _inputs().items():
        workspace.FeedBlob(blob, value)
    workspace.RunNetOnce(model.net)
    found = {str(p): workspace.FetchBlob(str(gradient)) for p, gradient in model.param_to_grad.items()}
    return dict(found, loss=workspace.FetchBlob("loss"))
