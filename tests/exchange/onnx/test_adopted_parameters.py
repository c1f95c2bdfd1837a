"""Predictors of imported models use the arrays that were read, which no run and no feed changes."""

import dataclasses

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import helper, numpy_helper  # noqa: E402

from netbuilder.engines.arrays import aligned_zeros  # noqa: E402
from netbuilder.exchange import predictor as predictor_module  # noqa: E402
from netbuilder.exchange.onnx import read_onnx  # noqa: E402
from netbuilder.proto import NetDef  # noqa: E402
from netbuilder.proto.arguments import make_op  # noqa: E402

W = np.random.default_rng(0).standard_normal((64, 64), np.float32)
X = np.random.default_rng(1).standard_normal((3, 64), np.float32)


@pytest.fixture
def read(tmp_path):
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (3, 64))
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (3, 64))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "w0"], ["y"])]
    tensors = [numpy_helper.from_array(W, "w"), numpy_helper.from_array(np.repeat(W[:1], 3, 0), "w0")]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return read_onnx(path)


def expected(w):
    return X.astype(np.float64) @ w + W[0]


def test_two_predictors_of_a_model(read):
    one, other = read.predictor(), read.predictor()
    w = read.parameters["w"]
    assert all(np.shares_memory(each.workspace.get("w").plain(), w) for each in (one, other))
    for predictor in (one, other):
        np.testing.assert_allclose(predictor.run(x=X)["y"], expected(W), rtol=1e-5, atol=1e-5)
    one.workspace.feed("w", 2 * W)
    np.testing.assert_allclose(one.run(x=X)["y"], expected(2 * W), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(other.run(x=X)["y"], expected(W), rtol=1e-5, atol=1e-5)
    assert np.array_equal(w, W)


def test_the_arrays_cannot_be_written_to(read):
    with pytest.raises(ValueError, match="read-only"):
        read.parameters["w"][:] = 0


def test_parameters_of_the_caller_are_copied(read):
    w = aligned_zeros(W.nbytes).view(np.float32).reshape(W.shape)
    w[...] = 2 * W
    seen = w.view()
    seen.flags.writeable = False
    predictor = read.predictor(parameters={**read.parameters, "w": seen})
    w[...] = 0
    np.testing.assert_allclose(predictor.run(x=X)["y"], expected(2 * W), rtol=1e-5, atol=1e-5)


def test_parts_are_joined_once(read, monkeypatch):
    def fail(*given, **options):
        raise AssertionError("joined again")

    monkeypatch.setattr(predictor_module, "join_parts", fail)
    softmax = NetDef()
    softmax.CopyFrom(read.net)
    softmax.op.append(make_op("Softmax", ["y"], ["z"], axis=1))  # with which parts are looked for
    model = dataclasses.replace(read, net=softmax)
    model.predictor()
    with pytest.raises(AssertionError, match="joined again"):
        dataclasses.replace(model, joined=False).predictor()
