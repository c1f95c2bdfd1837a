"""ONNX files that claim more than they hold, loop, or are damaged: one error that names file, node and rule."""

import contextlib
import os
import time
import warnings

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import helper, numpy_helper  # noqa: E402

from netbuilder.exchange.onnx import ReferenceNodeWarning, read_onnx  # noqa: E402
from netbuilder.exchange.onnx.constants import MOST_ELEMENTS  # noqa: E402
from netbuilder.proto import NetError, OperatorError, ParseError  # noqa: E402

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


def test_a_range_that_shape_inference_would_list(tmp_path):
    """ONNX's propagation of data takes memory and time for each number of a Range that a Cast follows."""
    numbers = {"a": np.int64(0), "b": np.int64(1 << 62), "d": np.int64(1)}
    made = [node("Range", ["a", "b", "d"], ["r"]), node("Cast", ["r"], ["c"], to=onnx.TensorProto.FLOAT), ADD]
    with pytest.raises(OperatorError, match="Range .* makes a constant of 4,611,686,018,427,387,904 elements"):
        read_onnx(saved(tmp_path, made, numbers))
    held = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ("n", "m"))]
    branch = helper.make_graph(made, "branch", [], held)
    other = helper.make_graph([node("Identity", ["x"], ["y"])], "other", [], held)
    either = node("If", ["yes"], ["y"], then_branch=branch, else_branch=other)
    with pytest.warns(ReferenceNodeWarning, match="If"):
        read = read_onnx(saved(tmp_path, [either], {**numbers, "yes": np.bool_(True)}))
    assert read.reference_nodes == {"If": ("y",)}


def test_short_ranges_are_still_inferred(tmp_path):
    numbers = {"a": np.int64(0), "b": np.int64(3), "d": np.int64(1)}
    made = [node("Range", ["a", "b", "d"], ["r"]), node("Cast", ["r"], ["c"], to=onnx.TensorProto.FLOAT), ADD]
    read = read_onnx(saved(tmp_path, made, numbers), reference=False)
    assert read.predictor().run(x=np.zeros((2, 3), np.float32))["y"].tolist() == [[0, 1, 2]] * 2


def test_convolutions_of_constants_are_not_computed_while_reading(tmp_path):
    """ONNX's reference takes 70 GiB for this one, of 2,000 by 2,000 and 50 by 50 zeros."""
    shapes = {"s": np.int64([1, 1, 2000, 2000]), "t": np.int64([1, 1, 50, 50])}
    made = [node("ConstantOfShape", [name], [name + "z"]) for name in shapes]
    made += [node("Conv", ["sz", "tz"], ["m"]), node("ReduceMean", ["m"], ["c"]), ADD]
    read = read_onnx(saved(tmp_path, made, shapes), reference=False)
    assert [op.type for op in read.net.op] == ["Conv", "ReduceMean", "Add"]
    small = {"v": np.ones((1, 1, 3, 3), np.float32), "w": np.ones((1, 1, 3, 3), np.float32)}
    read = read_onnx(saved(tmp_path, [node("Conv", ["v", "w"], ["c"]), ADD], small))
    assert [op.type for op in read.net.op] == ["Add"] and read.parameters["c"].item() == 9


def test_many_reads_of_one_constant_are_bounded(tmp_path):
    made = [node("ConstantOfShape", ["s"], ["z"]), *(node("ReduceMax", ["z"], [f"c{k}"]) for k in range(40))]
    path = saved(tmp_path, [*made, node("Add", ["x", "c39"], ["y"])], {"s": np.int64([1 << 25])})
    with pytest.raises(OperatorError, match="ReduceMax .* are too many: over 1,073,741,824 elements"):
        read_onnx(path)


def test_deep_graphs(tmp_path):
    held = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ("n", "m"))]
    graph = helper.make_graph([node("Identity", ["x"], ["y"])], "leaf", [], held)
    for _ in range(20):
        graph = helper.make_graph([node("If", ["yes"], ["y"], then_branch=graph, else_branch=graph)], "g", [], held)
        graph.node[0].attribute[1].g.CopyFrom(graph.node[0].attribute[0].g.__class__(name="e", node=[
            node("Identity", ["x"], ["y"])], output=held))  # fmt: skip
    read = read_onnx(saved(tmp_path, graph.node, {"yes": np.bool_(True)}))
    assert read.reference_nodes == {}
    assert read.predictor().run(x=np.ones((2, 3), np.float32))["y"].shape == (2, 3)


def stored_in(location, length=12):
    """A change of a model: the elements of its first constant are in another file."""

    def change(model):
        tensor = onnx.TensorProto(name="c", data_type=onnx.TensorProto.FLOAT, dims=[3])
        tensor.data_location = tensor.EXTERNAL
        for key, value in (("location", location), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)
        model.graph.initializer.append(tensor)

    return change


@pytest.fixture
def model_folder(tmp_path):
    """A folder for a model, with links out of it, next to a file that does not belong to the model."""
    folder, outside = tmp_path / "model", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    for path in (outside / "secret", folder / "own"):
        path.write_bytes(np.float32([1, 2, 3]).tobytes())
    (folder / "link").symlink_to(outside / "secret")
    (folder / "linked").symlink_to(outside)
    os.mkfifo(folder / "fifo")
    return folder


@pytest.mark.parametrize(
    ("location", "rule"),
    [
        ("../outside/secret", "not in the model's folder"),
        ("no/../../outside/secret", "not in the model's folder"),
        ("/etc/hostname", "not in the model's folder"),
        ("/dev/zero", "not in the model's folder"),
        ("link", "not in the model's folder"),
        ("linked/secret", "not in the model's folder"),
        ("fifo", "is no regular file"),
        ("absent", "does not exist"),
        ("", "is no regular file"),
    ],
)
def test_external_data_are_in_the_models_folder(model_folder, location, rule):
    with pytest.raises(ParseError, match=f"model.onnx': tensor 'c' .* the file '{location}', which .*{rule}"):
        read_onnx(saved(model_folder, [ADD], change=stored_in(location)))


def test_external_data_in_a_nodes_attribute(model_folder):
    def change(model):
        stored_in("link")(model)
        made = node("Constant", [], ["c"])
        made.attribute.add(name="value", type=onnx.AttributeProto.TENSOR, t=model.graph.initializer.pop())
        model.graph.node.insert(0, made)

    with pytest.raises(ParseError, match="tensor 'c' is stored in the file 'link', which is not in the model's folder"):
        read_onnx(saved(model_folder, [ADD], change=change))


def test_external_data_that_are_there(model_folder, monkeypatch):
    path = saved(model_folder, [ADD], change=stored_in("own"))
    assert read_onnx(path).predictor().run(x=np.zeros((2, 3), np.float32))["y"].tolist() == [[1, 2, 3]] * 2
    monkeypatch.chdir(model_folder)  # a model without a file has no folder, not even the current one
    model = onnx.load(path, load_external_data=False)
    with pytest.raises(ParseError, match="give the path of the model's file in place of the model"):
        read_onnx(model)
    assert read_onnx(onnx.load(path)).parameters["c"].tolist() == [1, 2, 3]
    with pytest.raises(ParseError, match=r"model.onnx'.* does not match its data: 4,398,046,511,104 bytes"):
        read_onnx(saved(model_folder, [ADD], change=stored_in("own", 1 << 42)))


@pytest.mark.parametrize("domain", ["com.example", "ai.onnx.ml", "ai.onnx.training"])
def test_operators_of_other_domains(tmp_path, domain):
    made = helper.make_node("Relu", ["x"], ["y"], domain=domain)
    change = lambda model: model.opset_import.append(helper.make_opsetid(domain, 1))  # noqa: E731
    with pytest.raises((NetError, OperatorError), match="model.onnx'"):
        read_onnx(saved(tmp_path, [made], change=change))


def test_many_constants_are_bounded_together(tmp_path):
    shape = np.int64([MOST_ELEMENTS // 4])
    values = [onnx.numpy_helper.from_array(np.float32([k])) for k in range(6)]
    nodes = [node("ConstantOfShape", ["s"], [f"c{k}"], value=value) for k, value in enumerate(values)]
    path = saved(tmp_path, [*nodes, node("Sum", ["x", *(f"c{k}" for k in range(6))], ["y"])], {"s": shape})
    with pytest.raises(OperatorError, match=r"makes a constant of 16,777,216 elements, but only 0 are left"):
        read_onnx(path)


def test_loops_of_constants_are_not_run(tmp_path):
    body = helper.make_graph(
        [node("Identity", ["go"], ["again"]), node("Identity", ["one"], ["row"])], "body",
        [helper.make_tensor_value_info("i", onnx.TensorProto.INT64, ()),
         helper.make_tensor_value_info("go", onnx.TensorProto.BOOL, ())],
        [helper.make_tensor_value_info("again", onnx.TensorProto.BOOL, ()),
         helper.make_tensor_value_info("row", onnx.TensorProto.FLOAT, ())],
    )  # fmt: skip
    loop = node("Loop", ["n", "go"], [], body=body)
    loop.output.append("c")
    path = saved(tmp_path, [loop, ADD], {"n": np.int64(1 << 60), "go": np.bool_(True), "one": np.float32(1)})
    with pytest.raises(NetError, match="holds ONNXWhile -> .*may loop without end"):
        read_onnx(path).predictor()


def test_loops_in_loops_are_read_in_bounded_time(tmp_path):
    kinds = {"i": onnx.TensorProto.INT64, "c": onnx.TensorProto.BOOL, "v": onnx.TensorProto.FLOAT}
    graph = None
    for level in range(6):
        if graph is None:
            made = node("Identity", [f"v{level}"], [f"w{level}"])
        else:
            made = node("Loop", ["n", "go", f"v{level}"], [f"w{level}"], body=graph)
        nodes = [node("Identity", [f"c{level}"], [f"d{level}"]), made]
        infos = [
            helper.make_tensor_value_info(f"{name}{level}", kinds[kind], ())
            for name, kind in zip("icvdw", ("i", "c", "v", "c", "v"))
        ]
        graph = helper.make_graph(nodes, "body", infos[:3], infos[3:])
    loop = node("Loop", ["n", "go", "start"], ["c"], body=graph)
    constants = {"n": np.int64(900), "go": np.bool_(True), "start": np.float32(1)}
    path, began = saved(tmp_path, [loop, ADD], constants), time.process_time()
    with contextlib.suppress(OperatorError), warnings.catch_warnings():
        warnings.simplefilter("ignore", ReferenceNodeWarning)
        read_onnx(path)
    assert time.process_time() - began < 60


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
