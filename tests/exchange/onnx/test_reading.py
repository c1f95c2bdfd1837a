"""What is inferred, folded, expanded and refused while a model is read."""

import warnings

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import helper, numpy_helper  # noqa: E402

from netbuilder.exchange.onnx import read_onnx  # noqa: E402
from netbuilder.proto import OperatorError  # noqa: E402

FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def node(kind, inputs="x", outputs="y", **attributes):
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


def model_of(nodes, constants=None, kinds=None, opset=18, **inputs):
    """A model of inputs of these shapes, with the output y of unknown shape."""
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(name, (kinds or {}).get(name, FLOAT), shape) for name, shape in inputs.items()],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def run(model, **feeds):
    """Return the imported model and y, without a node that ONNX runs."""
    read = read_onnx(model, reference=False)
    return read, read.predictor().run(feeds)["y"]


X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)


def test_shapes_follow_from_our_operators():
    """A shape that ONNX does not infer: Reshape by a product of extents, whose parts are then known."""
    nodes = [
        node("Shape", "x", "s"), node("Gather", "s two", "last", axis=0), node("Div", "last half", "part"),
        node("Concat", "zero minus part", "shape", axis=0), node("Reshape", "x shape", "r"),
        node("Shape", "r", "t"), node("ReduceProd", "t", "n", keepdims=1), node("Reshape", "r n", "flat"),
        node("MatMul", "flat w", "y"),
    ]  # fmt: skip
    constants = {"two": np.int64([2]), "half": np.int64([2]), "zero": np.int64([0]), "minus": np.int64([-1])}
    read, y = run(model_of(nodes, {**constants, "w": np.ones(24, np.float32)}, x=(2, 3, 4)), x=X)
    assert [op.type for op in read.net.op][:2] == ["Reshape", "Reshape"]
    assert y == pytest.approx(X.sum(), rel=1e-5)


def test_the_branch_of_a_constant_condition_is_read():
    made = [helper.make_empty_tensor_value_info("b")]
    branches = [helper.make_graph([node(kind, "x", "b")], kind, [], made) for kind in ("Exp", "Neg")]
    nodes = [node("Shape", "x", "s"), node("Size", "s", "n"), node("Equal", "n three", "yes")]
    nodes.append(node("If", "yes", "y", then_branch=branches[0], else_branch=branches[1]))
    read, y = run(model_of(nodes, {"three": np.int64(3)}, x=(2, 3, 4)), x=X)
    assert [op.type for op in read.net.op] == ["Exp"]
    np.testing.assert_allclose(y, np.exp(X), rtol=1e-6)


def test_sequences_are_followed():
    nodes = [
        node("SequenceEmpty", "", "none"), node("Exp", "x", "e"), node("SequenceInsert", "none x", "one"),
        node("SequenceInsert", "one e zero", "two"), node("ConcatFromSequence", "two", "y", axis=1, new_axis=1),
    ]  # fmt: skip
    del nodes[0].input[:]
    _, y = run(model_of(nodes, {"zero": np.int64(0)}, x=(2, 3, 4)), x=X)
    np.testing.assert_allclose(y, np.stack([np.exp(X), X], 1), rtol=1e-6)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bhwc,hkc->bhwk", [(2, 3, 4, 5), (3, 6, 5)]),
        ("...i,ij->...j", [(2, 3, 4), (4, 5)]),
        ("ij,ij->i", [(3, 4), (3, 4)]),
        ("ij->ji", [(3, 4)]),
        ("ijk->k", [(2, 3, 4)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("bij,bjk", [(2, 3, 4), (2, 4, 5)]),
        ("i,j->ij", [(3,), (4,)]),
        ("bki,jbk->bij", [(2, 3, 4), (5, 2, 3)]),
    ],
)
def test_einsum(equation, shapes):
    rng = np.random.default_rng(1)
    feeds = {f"x{i}": rng.standard_normal(shape).astype(np.float32) for i, shape in enumerate(shapes)}
    model = model_of([node("Einsum", " ".join(feeds), equation=equation)], **{n: x.shape for n, x in feeds.items()})
    _, y = run(model, **feeds)
    np.testing.assert_allclose(y, np.einsum(equation, *feeds.values()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "shapes", "types"),
    [
        ("btd,dhe->bthe", [("N", 5, 6), (6, 2, 3)], ["Reshape", "BatchMatMul", "Reshape"]),  # projections to heads
        ("bqhe,hed->bqd", [("N", 5, 2, 3), (2, 3, 6)], ["Reshape", "Reshape", "BatchMatMul"]),
        ("bqhd,bkhd->bhqk", [("N", "T", 3, 4), ("N", "T", 3, 4)], ["Transpose", "Transpose", "BatchMatMul"]),
        ("bhqk,bkhd->bqhd", [("N", 3, 5, "T"), ("N", "T", 3, 4)], ["Transpose", "BatchMatMul", "Transpose"]),
        # two heads of queries for each of the keys: scores are not transposed
        ("bqngd,bknd->bngqk", [("N", 5, 2, 2, 3), ("N", 5, 2, 3)],
         ["Transpose", "Reshape", "Transpose", "BatchMatMul", "Reshape"]),
        ("bhij,bhjd->bhdi", [("N", 3, 5, 5), ("N", 3, 5, 4)], ["Transpose", "BatchMatMul"]),
        ("bqc,bchw->bqhw", [("N", 5, 3), ("N", 3, 4, 2)], ["Reshape", "BatchMatMul", "Reshape"]),  # masks of queries
    ],
)  # fmt: skip
def test_einsum_with_dynamic_extents(equation, shapes, types):
    rng, sizes = np.random.default_rng(3), {"N": 2, "T": 5}
    feeds = {
        f"x{i}": rng.standard_normal([sizes.get(n, n) for n in shape]).astype(np.float32)
        for i, shape in enumerate(shapes)
    }
    given = dict(zip(feeds, shapes))
    read, y = run(model_of([node("Einsum", " ".join(feeds), equation=equation)], **given), **feeds)
    np.testing.assert_allclose(y, np.einsum(equation, *feeds.values()), rtol=1e-4, atol=1e-5)
    assert [op.type for op in read.net.op if op.type != "Copy"] == types


@pytest.mark.parametrize(
    ("scores", "sums", "shape"),
    [
        ("bhqd,bhkd->bhqk", "bhqk,bhkd->bhqd", (2, 3, 5, 4)),
        ("bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", (2, 5, 3, 4)),
        ("...qd,...kd->...qk", "...qk,...kd->...qd", (2, 5, 4)),
    ],
)
def test_attention_written_with_einsum(scores, sums, shape):
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal(shape) for _ in range(3))
    nodes = [
        node("Einsum", "q k", "s", equation=scores), node("Mul", "s half", "t"), node("Softmax", "t", "w", axis=-1),
        node("Einsum", "w v", equation=sums),
    ]  # fmt: skip
    feeds = {name: value.astype(np.float32) for name, value in zip("qkv", (q, k, v))}
    read, y = run(model_of(nodes, {"half": np.float32(0.5)}, **dict.fromkeys("qkv", shape)), **feeds)
    types = [op.type for op in read.net.op]
    assert "Attention" in types and "BatchMatMul" not in types
    weights = np.exp(np.einsum(scores, q, k) / 2)
    want = np.einsum(sums, weights / weights.sum(-1, keepdims=True), v)
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


def test_a_node_is_what_onnx_defines_it_by():
    read, y = run(model_of([node("MeanVarianceNormalization", axes=[1])], x=(2, 3, 4)), x=X)
    want = (X - X.mean(1, keepdims=True)) / (X.std(1, keepdims=True) + 1e-9)
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)
    assert "ReduceMean" in {op.type for op in read.net.op}


@pytest.mark.parametrize(
    ("indices", "types"),
    [
        ([[0, 2], [1, -1], [-2, 0]], ["Reshape", "Gather"]),
        ([[[i, j] for j in range(3)] for i in range(2)], ["Reshape"]),  # all
        ([[1], [0]], ["Reshape", "Gather"]),
    ],
)
def test_gather_nd_by_constants(indices, types):
    read, y = run(model_of([node("GatherND", "x i")], {"i": np.int64(indices)}, x=(2, 3, 4)), x=X)
    np.testing.assert_array_equal(y, X[tuple(np.moveaxis(np.int64(indices), -1, 0))])
    assert [op.type for op in read.net.op if op.type != "Copy"] == types


def test_gathered_constants_of_fewer_rows():
    nodes = [node("GatherElements", "c i", "g", axis=1), node("Add", "x g", "y")]
    constants = {"c": np.arange(12, dtype=np.float32).reshape(4, 3), "i": np.int64([[2, 0, 1, -1]])}
    _, y = run(model_of(nodes, constants, x=(1, 4)), x=np.zeros((1, 4), np.float32))
    assert y.tolist() == [[2, 0, 1, 2]]


def test_equal_nodes_of_constants_are_computed_once_and_forgotten():
    """A weight that several layers transpose; and a chain of constants, each as large as the budget."""
    w = np.arange(12, dtype=np.float32).reshape(3, 4)
    nodes = [
        node("Transpose", "w", "a"),
        node("Transpose", "w", "b"),
        node("MatMul", "x a", "p"),
        node("Neg", "w", "v"),
    ]
    nodes += [node("Neg", f"{'v' if i == 0 else f'c{i}'}", f"c{i + 1}") for i in range(9)]
    nodes += [node("MatMul", "p c9", "q"), node("MatMul", "q b", "y")]
    read = read_onnx(model_of(nodes, {"w": w}, x=(2, 4)), most_folded=36)
    assert read.parameters["a"] is read.parameters["b"]
    y = read.predictor().run(x=np.ones((2, 4), np.float32))["y"]
    np.testing.assert_allclose(y, np.ones((2, 4), np.float32) @ w.T @ w @ w.T)


def test_a_constant_beyond_the_limit_that_is_not_larger_than_its_source_is_left_to_the_net():
    nodes = [node("Transpose", "w", "t"), node("MatMul", "x t", "y")]
    model = model_of(nodes, {"w": np.ones((3, 4), np.float32)}, x=(2, 4))
    assert [op.type for op in read_onnx(model, most_folded=11).net.op] == ["Transpose", "MatMul"]
    assert [op.type for op in read_onnx(model).net.op] == ["MatMul"]


def test_what_onnx_cannot_run_is_refused():
    """ONNX's own implementation takes no such node: Det of a matrix that is not square."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(OperatorError, match=r"'g', node '' Det .*: Det is not supported; onnx cannot run the node"):
            read_onnx(model_of([node("Det")], x=(2, 3, 4)))


@pytest.mark.parametrize("opset", [18])
@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([node("Slice", "x lo hi ax by")], X[:, ::-1, 3:0:-2]),
        ([node("Pad", "x pads", mode="wrap")], np.pad(X[1:], ((0, 0), (0, 0), (1, 2)), mode="wrap")),
        ([node("CumSum", "x one", exclusive=1)], np.cumsum(X, 1) - X),
        ([node("Trilu", "x", upper=0)], np.tril(X)),
        ([node("Mod", "x two", fmod=1)], np.fmod(X, 2)),
        ([node("ReduceLogSumExp", "x ax1", keepdims=0)], np.log(np.exp(X).sum(1))),
        ([node("IsNaN", "x", "n"), node("Where", "n two x", "y")], X),
        ([node("TopK", "x k", "y i", largest=0, axis=2)], np.sort(X, 2)[:, :, :2]),
    ],
    ids=lambda value: value[0].op_type if isinstance(value, list) else "",
)
def test_nodes(nodes, expected, opset):
    constants = {
        "lo": np.int64([-1, 3]), "hi": np.int64([-9, 0]), "ax": np.int64([1, 2]), "by": np.int64([-1, -2]),
        "pads": np.int64([-1, 0, 1, 0, 0, 2]), "one": np.int64(1), "two": np.float32(2), "ax1": np.int64([1]),
        "k": np.int64([2]),
    }  # fmt: skip
    used = {name for each in nodes for name in each.input}
    given = {name: value for name, value in constants.items() if name in used}
    _, y = run(model_of(nodes, given, opset=opset, x=(2, 3, 4)), x=X)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
