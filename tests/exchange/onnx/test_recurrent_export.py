"""Recurrent nets as ONNX models: layers as LSTM, GRU and RNN, other cells as Scan; onnxruntime gives the same."""

import importlib.util

import numpy as np
import pytest

from netbuilder.graph import Net
from netbuilder.model import Initializer, ModelHelper, rnn
from netbuilder.model.rnn import AttentionType
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.registry import find, operator_types
from netbuilder.passes import extract_predictor
from netbuilder.proto import OperatorError
from netbuilder.runtime import Workspace

if not all(importlib.util.find_spec(package) for package in ("onnx", "onnxruntime")):
    pytest.skip("needs the packages onnx and onnxruntime", allow_module_level=True)

import onnxruntime

from netbuilder.exchange.onnx import onnx_model, read_onnx
from netbuilder.exchange.onnx.graph import rules
from netbuilder.exchange.onnx.reasons import FAMILIES, GROUPS, reason

RNG = np.random.default_rng(5)
STEPS, SAMPLES = 5, 4
LENGTHS = np.int32([5, 3, 0, 2])


def f(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def check(build, outputs=None, dynamic_batch=True, **feeds):
    """Compare the net that ``build`` adds to a model with onnxruntime and with the net read back; return the nodes.

    ``outputs`` are indices of what ``build`` returns; None: all.
    """
    model = ModelHelper("recurrent")
    made = list(map(str, build(model)))
    names = made if outputs is None else [made[i] for i in outputs]
    net, parameters = extract_predictor(model.net, list(feeds), names)
    workspace = Workspace(threads=1)
    workspace.run_net_once(model.param_init_net)
    for name in parameters:
        workspace.feed(name, workspace.fetch(name) + 0.3 * f(*workspace.fetch(name).shape))
    for name, value in feeds.items():
        workspace.feed(name, value)
    workspace.run_net_once(net)
    want = {name: workspace.fetch(name) for name in names}
    specs = {name: TensorSpec(value.shape, value.dtype) for name, value in feeds.items()}
    exported = onnx_model(
        net, parameters, shapes=specs, workspace=workspace, outputs=names, dynamic_batch=dynamic_batch
    )
    session = onnxruntime.InferenceSession(exported.SerializeToString(), providers=["CPUExecutionProvider"])
    read = read_onnx(exported, reference=False)
    back = read.predictor(trusted=True).run({name: feeds[name] for name in read.inputs})
    for name, found in zip(names, session.run(None, feeds)):
        np.testing.assert_allclose(found, want[name], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(back[name], want[name], rtol=1e-4, atol=1e-5)
    for node in exported.graph.node:
        assert node.op_type != "Scan" or len(node.attribute) == 2
    return [node.op_type for node in exported.graph.node]


LAYERS = {
    "LSTM": (rnn.LSTM, {"forget_bias": 1.0}, (0, 1, 3)),
    "GRU": (rnn.GRU, {}, None),
    "GRU with reset later": (rnn.GRU, {"linear_before_reset": True}, None),
    "RNN": (rnn.BasicRNN, {"activation": "relu"}, None),
    "RNN of tanh": (rnn.BasicRNN, {"activation": "tanh"}, None),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("drop", [False, True], ids=["states kept", "states dropped"])
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "lengths"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, lengths, drop):
    layer, given, outputs = LAYERS[name]
    feeds = {"words": f(STEPS, SAMPLES, 8)} | ({} if lengths is None else {"lengths": lengths})
    kinds = check(
        lambda model: layer(
            model, "words", None if lengths is None else "lengths", None, dim_in=8, dim_out=6, scope="layer",
            drop_states=drop, **given,
        ),
        outputs, **feeds,
    )  # fmt: skip
    kind = name.split()[0]
    assert kinds.count(kind) == 1 and "Scan" not in kinds and "Gemm" not in kinds


def test_stacked_layers():
    kinds = check(
        lambda model: rnn.LSTM(model, "words", "lengths", None, dim_in=8, dim_out=[6, 5], scope="lstm"),
        (0, 1, 3), words=f(STEPS, SAMPLES, 8), lengths=LENGTHS,
    )  # fmt: skip
    assert kinds.count("LSTM") == 2 and "Scan" not in kinds


def test_both_directions():
    def build(model):
        ahead = rnn.LSTM(model, "words", "lengths", None, 8, 6, "ahead")[0]
        turned = model.net.ReversePackedSegs(["words", "lengths"], "turned")
        back = rnn.LSTM(model, turned, "lengths", None, 8, 6, "back", drop_states=True)[0]
        return [model.net.Concat([ahead, model.net.ReversePackedSegs([back, "lengths"])], ["y", "extents"], axis=2)[0]]

    kinds = check(build, words=f(STEPS, SAMPLES, 8), lengths=np.int32([5, 3, 1, 2]))
    assert kinds.count("LSTM") == 2


SCANS = {
    "cell states of all steps": lambda model: rnn.LSTM(model, "words", "lengths", None, 8, 6, "lstm"),
    "layer norm": lambda model: rnn.LayerNormLSTM(model, "words", "lengths", None, 8, 6, "lstm"),
    "multiplicative": lambda model: rnn.MILSTM(model, "words", "lengths", None, 8, 6, "lstm"),
}


@pytest.mark.parametrize("name", SCANS)
def test_other_cells(name):
    assert "Scan" in check(SCANS[name], words=f(STEPS, SAMPLES, 8), lengths=LENGTHS)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ["Regular", "Recurrent", "Dot", "SoftCoverage"])
def test_attention(kind):
    def build(model):
        return rnn.LSTMWithAttention(
            model, "words", "lengths", "h", "c", "context", 7, "encoded", "encoded_lengths", 8, 6, "decoder",
            attention_type=getattr(AttentionType, kind),
        )  # fmt: skip

    states = {"h": f(1, SAMPLES, 6), "c": f(1, SAMPLES, 6), "context": f(1, SAMPLES, 7)}
    feeds = {"encoded": f(3, SAMPLES, 7), "encoded_lengths": np.int32([3, 2, 1, 3])}
    assert "Scan" in check(build, words=f(STEPS, SAMPLES, 8), lengths=LENGTHS, **feeds, **states)


@pytest.mark.parametrize("batch_first, directions, biases", [(0, 1, 1), (1, 2, 1), (0, 2, 0)])
def test_inference_lstm(batch_first, directions, biases):
    def build(model):
        params = []
        for layer in range(2):
            for _ in range(directions):
                width = 3 if layer == 0 else 4 * directions
                for shape in [(16, width), (16, 4), (16,), (16,)][: 4 if biases else 2]:
                    params.append(model.create_param(f"p{len(params)}", shape, Initializer("XavierFill")))
        return model.net.InferenceLSTM(
            ["x", "h", "c", *params], ["y", "h_last", "c_last"], num_layers=2, has_biases=biases,
            batch_first=batch_first, bidirectional=directions - 1,
        )  # fmt: skip

    states = {name: f(2 * directions, 2, 4) for name in "hc"}
    shape = (2, 5, 3) if batch_first else (5, 2, 3)
    check(build, dynamic_batch=not batch_first, x=f(*shape), **states)


def test_what_a_scan_cannot_do_is_refused():
    """A step that reads two rows of a sequence."""
    step = Net("step")
    step.Add(["state", step.ReduceSum("row", axes=[0], keepdims=1)], "after")
    net = Net("windows")
    net.RecurrentNetwork(
        ["x", "first", "z"], ["all", "workspaces"], recurrent_states=["states"], initial_recurrent_state_ids=[1],
        link_internal=["state", "after", "row"], link_external=["states", "states", "z"], link_offset=[0, 1, 0],
        link_window=[1, 1, 2], alias_src=["states"], alias_dst=["all"], alias_offset=[1], step_net=step.Proto(),
    )  # fmt: skip
    with pytest.raises(OperatorError, match=r"RecurrentNetwork.*several rows of a state, or of a sequence"):
        onnx_model(net, {}, shapes={"x": (5, 2, 3), "first": (2, 3), "z": (6, 2, 3)}, outputs=["all"])


# -- reasons --------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["__main__", "mine", "mine.operators", "mine.own.operators"])
def test_an_operator_of_ones_own_has_a_reason(module, monkeypatch):
    monkeypatch.setattr(find("Relu"), "__module__", module)
    assert reason("Relu") == "ONNX has no counterpart"


def test_every_operator_is_written_or_has_a_reason():
    named = [name for _, names in GROUPS for name in names.split()]
    assert len(named) == len(set(named)) and set(named) <= set(operator_types()) - set(rules())
    without = [name for name in operator_types() if name not in rules() and reason(name) == "ONNX has no counterpart"]
    assert without == []


def test_the_families_are_packages_with_operators_that_are_not_written():
    packages = {find(name).__module__.split(".")[2] for name in operator_types() if name not in rules()}
    assert set(FAMILIES) <= packages


@pytest.mark.parametrize(
    ("kind", "inputs", "match"),
    [
        ("BooleanMask", ["x", "m"], "the shape of its result depends on the values of its inputs"),
        ("Adagrad", ["x", "x", "x", "m"], "it updates parameters"),
        ("ReluGradient", ["x", "x"], "it computes gradients"),
    ],
)
def test_the_reason_is_in_the_error(kind, inputs, match):
    net = Net("refused")
    getattr(net, kind)(inputs, ["y", "z"] if kind == "Adagrad" else ["y"])
    with pytest.raises(OperatorError, match=rf"{kind} cannot be exported to ONNX: {match}"):
        onnx_model(net, {}, shapes={name: {"x": (3, 4), "m": (3,)}[name] for name in inputs}, outputs=["y"])


def test_fills_are_written_as_constants():
    net = Net("fills")
    net.GivenTensorFill([], "given", shape=[2, 2], values=[1.0, 2.0, 3.0, 4.0])
    net.Range(["stop"], "range")
    net.Add(["x", "given"], "y")
    net.Copy("range", "z")
    model = onnx_model(net, {"stop": np.int64([3])}, shapes={"x": (2, 2)}, outputs=["y", "z"], dynamic_batch=False)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    y, z = session.run(None, {"x": np.ones((2, 2), np.float32)})
    assert y.tolist() == [[2, 3], [4, 5]] and z.tolist() == [0, 1, 2]
