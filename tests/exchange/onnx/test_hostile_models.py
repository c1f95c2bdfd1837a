"""ONNX files that claim more than they hold, loop, or are damaged: one error that names file, node and rule."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import helper, numpy_helper  # noqa: E402

from netbuilder.exchange.onnx import ReferenceNodeWarning, read_onnx  # noqa: E402
from netbuilder.exchange.onnx.constants import MOST_ELEMENTS  # noqa: E402
from netbuilder.proto import NetError, OperatorError  # noqa: E402

node = helper.make_node


def saved(tmp_path, nodes, constants=(), change=None):
    """A file of a model of x of shape (2, 3), and y."""
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (2, 3))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ("n", "m"))],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in dict(constants).items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    if change is not None:
        change(model)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    return tmp_path / "model.onnx"


ADD = node("Add", ["x", "c"], ["y"])
LARGE = np.int64([1 << 20, 1 << 20])


@pytest.mark.parametrize(
    ("made", "constants"),
    [
        (node("ConstantOfShape", ["s"], ["c"]), {"s": LARGE}),
        (node("Expand", ["v", "s"], ["c"]), {"v": np.float32([[1]]), "s": LARGE}),
        (node("Tile", ["v", "s"], ["c"]), {"v": np.zeros((2, 2), np.float32), "s": LARGE}),
        (node("Range", ["a", "b", "d"], ["c"]), {"a": np.int64(0), "b": np.int64(1 << 40), "d": np.int64(1)}),
        (node("Add", ["v", "w"], ["c"]), {"v": np.zeros((20000, 1), np.int8), "w": np.zeros((1, 20000), np.int8)}),
    ],
    ids=lambda value: value.op_type if hasattr(value, "op_type") else "",
)  # fmt: skip
def test_constants_that_grow_are_bounded(tmp_path, made, constants):
    path = saved(tmp_path, [made, ADD], constants)
    with pytest.raises(OperatorError, match=rf"model.onnx': ONNX model 'g', node '' {made.op_type} .* the 67,108,864"):
        read_onnx(path)


def test_many_constants_are_bounded_together(tmp_path):
    shape = np.int64([MOST_ELEMENTS // 4])
    nodes = [node("ConstantOfShape", ["s"], [f"c{k}"]) for k in range(6)]
    path = saved(tmp_path, [*nodes, node("Add", ["x", "c5"], ["y"])], {"s": shape})
    with pytest.raises(OperatorError, match=r"makes a constant of 16,777,216 elements, but only 0 are left"):
        read_onnx(path)


def test_loops_of_constants_are_not_run(tmp_path):
    body = helper.make_graph(
        [node("Identity", ["go"], ["again"])], "body",
        [helper.make_tensor_value_info("i", onnx.TensorProto.INT64, ()),
         helper.make_tensor_value_info("go", onnx.TensorProto.BOOL, ())],
        [helper.make_tensor_value_info("again", onnx.TensorProto.BOOL, ())],
    )  # fmt: skip
    loop = node("Loop", ["n", "go"], [], body=body)
    loop.output.append("c")
    path = saved(tmp_path, [loop, ADD], {"n": np.int64(1 << 60), "go": np.bool_(True)})
    with pytest.warns(ReferenceNodeWarning, match="Loop"):
        read = read_onnx(path)
    with pytest.raises(NetError, match="holds ONNXNode -> .*may loop without end"):
        read.predictor()


def test_small_constants_are_still_computed(tmp_path):
    made = [node("ConstantOfShape", ["s"], ["z"]), node("Add", ["z", "one"], ["c"])]
    read = read_onnx(saved(tmp_path, [*made, ADD], {"s": np.int64([3]), "one": np.float32([1])}))
    assert read.predictor().run(x=np.zeros((2, 3), np.float32))["y"].tolist() == [[1, 1, 1]] * 2


def without_type(model):
    model.graph.input[0].type.tensor_type.elem_type = 0


def other_type(model):
    model.graph.input[0].type.tensor_type.elem_type = 127


def other_dims(model):
    model.graph.initializer[0].dims[0] = 7


def no_text(model):
    model.graph.node[0].attribute.append(helper.make_attribute("mode", b"\xff\xfe"))


@pytest.mark.parametrize("change", [without_type, other_type, other_dims, no_text])
def test_damaged_models_name_the_file(tmp_path, change):
    path = saved(tmp_path, [ADD], {"c": np.float32([1, 2, 3])}, change)
    with pytest.raises((NetError, OperatorError), match="model.onnx'"):
        read_onnx(path)
