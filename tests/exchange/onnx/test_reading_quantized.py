"""Quantized nodes: read as operators, with the integers of onnxruntime."""

import importlib.util

import numpy as np
import pytest

if not all(importlib.util.find_spec(package) for package in ("onnx", "onnxruntime")):
    pytest.skip("needs the packages onnx and onnxruntime", allow_module_level=True)

import onnx
import onnxruntime
from onnx import helper

from netbuilder.exchange.onnx import read_onnx
from netbuilder.proto import OperatorError

RNG = np.random.default_rng(11)


def integers(dtype, *shape):
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)


def f(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def positive(*shape):
    return RNG.uniform(0.5, 1.5, shape).astype(np.float32)


def check(kind, inputs, *, opset=19, constant=(), dynamic=False, **attributes):
    """Return what a node makes here and in onnxruntime.

    Args:
        constant: indices of the inputs that are constants of the model.
        dynamic: the first extent of the first input is.
    """
    names = ["" if value is None else f"x{i}" for i, value in enumerate(inputs)]
    given = {name: np.asarray(value) for name, value in zip(names, inputs) if name}
    fixed = {names[i] for i in constant}
    shapes = {name: list(value.shape) for name, value in given.items()}
    if dynamic and shapes["x0"]:
        shapes["x0"][0] = "n"
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), shapes[name])
        for name, value in given.items() if name not in fixed
    ]  # fmt: skip
    tensors = [onnx.numpy_helper.from_array(given[name], name) for name in fixed]
    made = helper.make_node(kind, names, ["y"], **attributes)
    graph = helper.make_graph([made], "g", infos, [helper.make_empty_tensor_value_info("y")], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    feeds = {name: given[name] for name in (each.name for each in infos)}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, feeds)
    read = read_onnx(model, reference=False)
    found = read.predictor().run({name: feeds[name] for name in read.inputs})["y"]
    assert (found.shape, found.dtype) == (want.shape, want.dtype)
    return found, want


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", ["u1", "i1"])
@pytest.mark.parametrize("of", [(), (1,), (3,)], ids=["scalar", "one", "per axis"])
def test_to_integers_and_back(of, dtype, dynamic):
    x, scale, zero = 90 * f(2, 3, 4), positive(*of), integers(dtype, *of)
    found, want = check("QuantizeLinear", [x, scale, zero], dynamic=dynamic, axis=1)
    np.testing.assert_array_equal(found, want)
    found, want = check("DequantizeLinear", [want, scale, zero], dynamic=dynamic, axis=1)
    np.testing.assert_allclose(found, want, rtol=1e-6)


def test_without_a_zero_point_and_with_weights_that_are_constants():
    np.testing.assert_array_equal(*check("QuantizeLinear", [90 * f(4), positive()]))
    weights = integers("i1", 3, 4)
    found, want = check("DequantizeLinear", [weights, positive(4), None], axis=1, constant=(1,))
    np.testing.assert_allclose(found, want, rtol=1e-6)


@pytest.mark.parametrize("width", [5, 300], ids=["exact in float32", "in float64"])
def test_products_of_integers(width):
    a, b = integers("u1", 2, 3, width), integers("u1", width, 4)
    for zeros in ([None, None], [integers("u1"), integers("u1")], [integers("u1"), integers("u1", 4)]):
        np.testing.assert_array_equal(*check("MatMulInteger", [a, b, *zeros], dynamic=True))


def test_convolutions_of_integers():
    x, w = integers("u1", 2, 3, 5, 5), integers("u1", 4, 3, 3, 3)
    for zeros in ([None, None], [integers("u1"), integers("u1")]):
        np.testing.assert_array_equal(*check("ConvInteger", [x, w, *zeros], pads=[1, 1, 1, 1], strides=[2, 2]))


def test_quantized_products():
    scales = [positive(), positive(), 500 * positive()]
    a, b = integers("u1", 2, 3, 5), integers("u1", 2, 5, 4)
    zeros = [integers("u1") for _ in range(3)]
    inputs = [a, scales[0], zeros[0], b, scales[1], zeros[1], scales[2], zeros[2]]
    found, want = check("QLinearMatMul", inputs)
    assert np.abs(found.astype(int) - want).max() <= 1 and (found == want).mean() > 0.95


@pytest.mark.parametrize("bias", [False, True])
def test_quantized_convolutions(bias):
    weights = RNG.integers(-63, 64, (4, 3, 3, 3)).astype(np.int8)  # onnxruntime saturates sums of two larger products
    inputs = [
        integers("u1", 2, 3, 5, 5), positive(), integers("u1"), weights, positive(4), np.zeros(4, np.int8),
        2000 * positive(), integers("u1"),
    ]  # fmt: skip
    inputs += [RNG.integers(-9999, 9999, 4).astype(np.int32)] if bias else []
    found, want = check("QLinearConv", inputs, constant=(3, 4, 5, 8)[: 3 + bias], dynamic=True, pads=[1, 1, 1, 1])
    assert np.abs(found.astype(int) - want).max() <= 1 and (found == want).mean() > 0.95


def test_refusals():
    made = helper.make_node("QuantizeLinear", ["x", "s"], ["y"], output_dtype=onnx.TensorProto.FLOAT8E5M2)
    infos = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3][: name == "x"]) for name in "xs"]
    graph = helper.make_graph([made], "g", infos, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    with pytest.raises(OperatorError, match="'y' holds elements of type float8_e5m2, which no blob can hold"):
        read_onnx(model)
