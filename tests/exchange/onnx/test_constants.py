"""Nodes of constants that NumPy computes, against ONNX's reference implementation."""

import importlib.util

import numpy as np
import pytest

if importlib.util.find_spec("onnx") is None:
    pytest.skip("needs the package onnx", allow_module_level=True)

import onnx
from onnx.reference import ReferenceEvaluator

from netbuilder.exchange.onnx import constants

X = np.random.default_rng(0).integers(-9, 9, (3, 4, 5))
I = np.array

CASES = [
    *((kind, {}, [X, X[:1] * 2]) for kind in ("Add", "Equal", "Mul", "Sub")),
    ("Add", {}, [X.astype(np.float32), np.float32(0.5)]),
    ("ConstantOfShape", {}, [I([2, 0, 3])]),
    ("ConstantOfShape", {"value": onnx.numpy_helper.from_array(np.int64([7]))}, [I([2, 3])]),
    ("ConstantOfShape", {"value": onnx.numpy_helper.from_array(np.array([True]))}, [I([], np.int64)]),
    ("Gather", {}, [X, I([[0, -1], [2, 1]])]),
    ("Gather", {"axis": -1}, [X, I(-5)]),
    ("GatherElements", {"axis": 1}, [X, X % 4]),
    ("GatherND", {}, [X, I([[0, 1], [-1, -4]])]),
    ("GatherND", {"batch_dims": 1}, [X, I([[0], [1], [3]])]),
    ("Not", {}, [X > 0]),
    ("Relu", {}, [X.astype(np.float32)]),
    ("Reshape", {}, [X, I([5, 0, -1])]),
    ("Reshape", {"allowzero": 1}, [X[:0], I([0, 7])]),
    ("ScatterND", {}, [X, I([[0, 1], [-1, -4]]), X[:2, 0]]),
    ("ScatterND", {"reduction": "add"}, [X, I([[0, 1], [0, 1]]), X[:2, 0]]),
    ("Slice", {}, [X, I([1, -9]), I([9, 2])]),
    ("Slice", {}, [X, I([-1, 9]), I([-100, 0]), I([2, 1]), I([-2, -1])]),
    ("Slice", {}, [X, I([0]), I([2**62]), I([-1])]),
    ("Transpose", {}, [X]),
    ("Transpose", {"perm": [2, 0, 1]}, [X]),
    ("Transpose", {}, [I(3.0)]),
    ("Unsqueeze", {}, [X, I([0, -1])]),
    ("Where", {}, [X > 0, X, X[:, :1]]),
]


def node_and_constants(kind, attributes, arrays):
    found = dict(zip("abcde", arrays))
    return onnx.helper.make_node(kind, list(found), ["y"], **attributes), found


def computed(kind, attributes, arrays, opset=21):
    node, found = node_and_constants(kind, attributes, arrays)
    opsets = [onnx.helper.make_opsetid("", opset)]
    (made,) = constants.compute_node(onnx, node, opsets, found, 1 << 20, 1 << 20)
    return made


@pytest.mark.parametrize(("kind", "attributes", "arrays"), CASES)
def test_nodes(kind, attributes, arrays):
    node, found = node_and_constants(kind, attributes, arrays)
    infos = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        for name, each in ((name, np.asarray(each)) for name, each in found.items())
    ]
    graph = onnx.helper.make_graph([node], "one", infos, [onnx.helper.make_empty_tensor_value_info("y")])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
    (want,) = map(np.asarray, ReferenceEvaluator(model).run(None, found))
    got = computed(kind, attributes, arrays)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(got, want)


def test_what_was_an_attribute_in_earlier_opsets():
    np.testing.assert_array_equal(computed("Unsqueeze", {"axes": [1]}, [X], opset=11), X[:, None])
    by_numpy = constants._BY_NUMPY
    np.testing.assert_array_equal(by_numpy["Reshape"]({"shape": [-1, 0]}, X), X.reshape(-1, 4))
    assert by_numpy["Slice"]({"starts": [1], "ends": [9]}, X) is None
    assert by_numpy["Add"]({"broadcast": 1, "axis": 1}, X, X[0, :, 0]) is None


def test_every_function_is_compared():
    assert {kind for kind, _, _ in CASES} == set(constants._BY_NUMPY)


@pytest.mark.parametrize(("kind", "arrays"), [("Gather", [X, I(3)]), ("GatherND", [X, I([[3, 0]])])])
def test_indices_outside_are_errors(kind, arrays):
    with pytest.raises(IndexError, match="out of bounds"):
        computed(kind, {}, arrays)
