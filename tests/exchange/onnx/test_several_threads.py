"""ONNX models that several threads run at the same time: each gets the answers that one thread alone gets."""

import importlib.util
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

if not all(importlib.util.find_spec(package) for package in ("onnx", "onnxruntime")):
    pytest.skip("needs the packages onnx and onnxruntime", allow_module_level=True)

import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from netbuilder.exchange.onnx import read_onnx
from netbuilder.runtime import Workspace

RNG = np.random.default_rng(0)
THREADS, ROUNDS = 4, 50


def f(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def model_of(nodes, shape, **constants):
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    initial = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", given, made, initial)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def convolutions():
    """A small net of images, for batches of any size."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1] * 4),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["q"]),
        helper.make_node("Gemm", ["q", "u", "d"], ["z"]),
        helper.make_node("Softmax", ["z"], ["y"]),
    ]
    scale = {"s": abs(f(8)), "m": f(8), "v": abs(f(8)) + 1}
    return model_of(nodes, ["n", 3, 6, 6], w=f(8, 3, 3, 3), b=f(8), u=f(8, 5), d=f(5), **scale)


def dense():
    """A net whose runs take microseconds."""
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("MatMul", ["t", "u"], ["y"]),
    ]
    return model_of(nodes, ["n", 16], w=f(16, 32), b=f(32), u=f(32, 4))


def chosen():
    """A net that doubles or negates its input, as the input says: ONNX's reference implementation runs it."""
    branches = {
        f"{name}_branch": helper.make_graph(
            [node], name, [], [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)]
        )
        for name, node in {
            "then": helper.make_node("Add", ["x", "x"], ["doubled"]),
            "else": helper.make_node("Neg", ["x"], ["negated"]),
        }.items()
    }
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], **branches),
    ]
    return model_of(nodes, ["n", 3], zero=np.float32(0))


MODELS = {
    "convolutions": (convolutions, [(1 + number, 3, 6, 6) for number in range(THREADS)]),
    "dense": (dense, [(1 + number % 2, 16) for number in range(THREADS)]),
    "chosen": (chosen, [(2, 3)] * THREADS),
}


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore::netbuilder.exchange.onnx.ReferenceNodeWarning")
@pytest.mark.parametrize("seats", [2, THREADS])
@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_one_thread(name, seats):
    make, shapes = MODELS[name]
    model = make()
    predictor = read_onnx(model).predictor(workspace=Workspace(threads=1), threads=seats)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = [[f(*shape) for _ in range(3)] for shape in shapes]
    answers = [[predictor.run(x=x)["y"] for x in own] for own in inputs]
    for own, found in zip(inputs, answers):
        for x, y in zip(own, found):
            np.testing.assert_allclose(y, session.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5)

    def serve(number):
        for turn in range(ROUNDS):
            found = predictor.run(x=inputs[number][turn % 3])["y"]
            np.testing.assert_array_equal(found, answers[number][turn % 3])

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(serve, range(THREADS)))
