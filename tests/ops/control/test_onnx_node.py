"""ONNXNode: a node that the package onnx runs; strings, graphs inside nodes, refusals."""

import numpy as np
import pytest
from hypothesis import strategies as st

from netbuilder.ops.control.onnx_node import ONNXNode, may_loop
from netbuilder.ops.core.operator import decode, encode
from netbuilder.proto import ArgumentError, OperatorError, ShapeError
from suite import OperatorSuite, floats

onnx = pytest.importorskip("onnx")


def node(kind, inputs=("a",), outputs=("b",), **attributes):
    return onnx.helper.make_node(kind, inputs, outputs, **attributes).SerializeToString()


def branch(name, value):
    made = onnx.helper.make_node("Mul", ["x", value], [name])
    return onnx.helper.make_graph([made], name, [], [onnx.helper.make_empty_tensor_value_info(name)])


class TestONNXNode(OperatorSuite):
    operator = ONNXNode
    no_gradient = "ONNX's reference implementation has none"
    refuses_nothing = "what a node takes is known when it runs; see the tests below"

    def draw(self, data):
        x = data.draw(floats((1, 4), 3, 3))
        axis = data.draw(st.integers(0, 2))
        op = ONNXNode(node=node("CumSum", ["a", "axis"]), reads=("a", "axis"), opsets=(":17",))
        return op, [x, np.int64(axis)]

    def reference(self, op, x, axis):
        return [np.cumsum(x, int(axis))]


def run(op, *values, outputs=1):
    from checks import interpret

    names = [f"x{i}" for i in range(len(values))]
    made = [f"y{i}" for i in range(outputs)]
    found = interpret([encode(op, names, made)], dict(zip(names, values)))
    return [found[name] for name in made]


def test_values_that_only_an_inner_graph_reads():
    op = ONNXNode(
        node=node("If", ["go"], ["y"], then_branch=branch("p", "two"), else_branch=branch("q", "three")),
        reads=("go", "x", "two", "three"), opsets=(":17",),
    )  # fmt: skip
    for go, factor in ((True, 2), (False, 3)):
        (y,) = run(op, np.array(go), np.float32([1, 5]), np.float32([2]), np.float32([3]))
        np.testing.assert_array_equal(y, np.float32([1, 5]) * factor)


def test_strings_go_in_and_out():
    op = ONNXNode(node=node("StringConcat", ["a", "b"], ["c"]), reads=("a", "b"), opsets=(":20",))
    assert run(op, np.array([b"ab"], object), np.array([b"c"], object))[0].tolist() == [b"abc"]


def test_what_onnx_cannot_do_is_an_error_with_its_reason():
    with pytest.raises(OperatorError, match="onnx cannot run the node: .*NoSuchOperator"):
        run(ONNXNode(node=node("NoSuchOperator"), reads=("a",), opsets=(":17",)), np.zeros(2))
    with pytest.raises(OperatorError, match="onnx cannot run the node"):
        run(ONNXNode(node=b"\xff\xff", reads=("a",), opsets=(":17",)), np.zeros(2))
    with pytest.raises(OperatorError, match="onnx could not compute the node"):
        run(ONNXNode(node=node("Det"), reads=("a",), opsets=(":17",)), np.zeros((2, 3), np.float32))
    with pytest.raises(OperatorError, match="returned a list, but only tensors can be blobs"):
        run(ONNXNode(node=node("SplitToSequence"), reads=("a",), opsets=(":17",)), np.zeros((2, 3), np.float32))


@pytest.mark.parametrize(
    ("kind", "attributes", "shapes", "message"),
    [
        ("Conv", {"kernel_shape": [2**32, 3]}, [(1, 2, 4, 4), (2, 2, 3, 3)], r"kernel_shape must be .* \(3, 3\), got"),
        ("ConvTranspose", {"kernel_shape": [3, 2]}, [(1, 2, 4, 4), (2, 2, 3, 3)], "kernel_shape must be that of the"),
        ("MaxPool", {"kernel_shape": [2**32, 2**32]}, [(1, 2, 4, 4)], "window of MaxPool cannot have the shape"),
        ("AveragePool", {"kernel_shape": [1], "pads": [0, 2**50]}, [(1, 2, 4)], "the padded input of AveragePool of"),
        ("MaxPool", {"kernel_shape": [1], "pads": [0, -9]}, [(1, 2, 4)], r"pads \(0, -9\) leave nothing of"),
    ],
)
def test_windows_that_do_not_fit_take_no_memory(kind, attributes, shapes, message):
    names = ("a", "w")[: len(shapes)]
    op = ONNXNode(node=node(kind, names, **attributes), reads=names, opsets=(":17",))
    with pytest.raises(ShapeError, match=message):
        run(op, *(np.zeros(shape, np.float32) for shape in shapes))


@pytest.mark.parametrize("size", [2**40, 2**62])
@pytest.mark.parametrize("kind", ["ConstantOfShape", "Expand", "Tile"])
def test_results_that_memory_cannot_hold_are_refused(kind, size):
    given = [np.int64([size, 1])] if kind == "ConstantOfShape" else [np.zeros((1, 2), np.float32), np.int64([size, 1])]
    names = ("a", "b")[: len(given)]
    op = ONNXNode(node=node(kind, names), reads=names, opsets=(":17",))
    with pytest.raises(ShapeError, match=f"ONNXNode: the result of {kind} .*{size}"):
        run(op, *given)


def test_a_result_without_elements_may_have_large_extents():
    op = ONNXNode(node=node("Expand", ("a", "b")), reads=("a", "b"), opsets=(":17",))
    assert run(op, np.zeros((1, 1), np.float32), np.int64([2**40, 0]))[0].shape == (2**40, 0)


def test_arguments_are_checked():
    for op, match in ((ONNXNode(), "node, a serialized NodeProto"), (ONNXNode(node=node("Abs")), "name its 1 inputs")):
        with pytest.raises(ArgumentError, match=match):
            decode(ONNXNode, encode(op, ["x"], ["y"]))


def test_nodes_that_may_loop():
    body = onnx.helper.make_graph([], "body", [], [])
    loop = onnx.helper.make_node("Loop", ["n", "go"], ["y"], body=body)
    inside = onnx.helper.make_graph([loop], "inside", [], [])
    assert may_loop(loop.SerializeToString()) and may_loop(b"\xff") and not may_loop(node("Abs"))
    assert may_loop(node("If", ["go"], ["y"], then_branch=inside, else_branch=body))
