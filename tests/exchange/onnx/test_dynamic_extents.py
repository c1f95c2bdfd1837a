"""ONNX models with dynamic extents give what ONNX Runtime gives, for inputs of any size, and never take one for 1."""

import importlib.util

import numpy as np
import pytest

if not all(importlib.util.find_spec(package) for package in ("onnx", "onnxruntime")):
    pytest.skip("needs the packages onnx and onnxruntime", allow_module_level=True)

import onnx
import onnxruntime
from onnx import helper

from netbuilder import Predictor
from netbuilder.exchange.onnx import ReferenceNodeWarning, read_onnx
from netbuilder.ops.core.signatures import Form, parsed
from netbuilder.ops.math.pow import Pow
from netbuilder.ops.windows.pool import MaxPool
from netbuilder.proto import NetError, OperatorError

RANDOM = np.random.default_rng(0)
FLOAT = onnx.TensorProto.FLOAT


def node(kind, inputs="x", outputs="y", **attributes):
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


def model_of(nodes, opset=17, kind=FLOAT, constants=None, outputs=("y",), **inputs):
    """A model of inputs with these extents (names for dynamic ones, None in place of all)."""
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [onnx.numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )  # fmt: skip
    for output in graph.output:
        output.type.tensor_type.elem_type = kind
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def f(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def check(model, *feeds, reference=False, **options):
    """Compare one predictor with ONNX Runtime on inputs of several sizes; return the imported model."""
    read = read_onnx(model, reference=reference, **options)
    predictor = read.predictor()
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for feed in feeds:
        found = predictor.run(feed)
        for name, want in zip(read.outputs, session.run(None, feed)):
            assert (found[name].shape, found[name].dtype) == (want.shape, want.dtype), name
            np.testing.assert_allclose(found[name], want, rtol=1e-4, atol=1e-5, err_msg=f"{name} of {feed}")
    return read


IMAGES = ("n", 3, "h", "w")
SIZES = [{"x": f(2, 3, 28, 28)}, {"x": f(1, 3, 7, 12)}, {"x": f(1, 3, 5, 9)}]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("axis", range(-4, 4))
@pytest.mark.parametrize("opset", [11, 17])
def test_softmax(axis, opset):
    check(model_of([node("Softmax", axis=axis)], opset, x=("a", "b", "c", "d")), {"x": f(2, 3, 4, 5)}, *SIZES)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("window", [(2, 2, 0), (3, 2, 0), (3, 2, 1), (3, 1, 1), (3, 3, 1), (2, 2, 1)], ids=str)
def test_pools_that_round_up(kind, window):
    k, s, p = window
    made = node(kind, kernel_shape=[k, k], strides=[s, s], pads=[p] * 4, ceil_mode=1)
    check(model_of([made], x=IMAGES), *SIZES)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool", "Conv"])
@pytest.mark.parametrize("window", [(3, 2), (2, 2), (3, 1), (2, 1), (5, 3)], ids=str)
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_padding_that_depends_on_the_extents(kind, window, auto_pad):
    k, s = window
    made = node(kind, "x w" if kind == "Conv" else "x", kernel_shape=[k, k], strides=[s, s], auto_pad=auto_pad)
    constants = {"w": f(4, 3, k, k)} if kind == "Conv" else {}
    stays = auto_pad == "SAME_UPPER" or s == 1
    model = model_of([made], 22, constants=constants, x=IMAGES)
    if stays:
        check(model, *SIZES)
    else:
        with pytest.warns(ReferenceNodeWarning, match=f"{kind} need not, if shapes= gives the extents"):
            read_onnx(model)
        for feed in SIZES:
            check(model, feed, shapes={"x": feed["x"].shape})


def test_windows_that_skip_elements_go_to_onnx():
    made = node("MaxPool", kernel_shape=[1, 2], strides=[3, 3], ceil_mode=1)
    with pytest.raises(OperatorError, match=r"extents of 'x' along the axes \[2, 3\] are dynamic.*give shapes="):
        read_onnx(model_of([made], x=IMAGES), reference=False)


@pytest.mark.parametrize("attributes", [{"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}, {}], ids=str)
def test_transposed_convolutions(attributes):
    made = node("ConvTranspose", "x w", strides=[2, 3], kernel_shape=[3, 4], **attributes)
    check(model_of([made], constants={"w": f(3, 2, 3, 4)}, x=IMAGES), *SIZES)


def test_equal_parts():
    made = node("Split", "x", "y z", axis=2)
    check(model_of([made], 13, outputs=("y", "z"), x=("n", 3, "h")), {"x": f(1, 3, 8)}, {"x": f(2, 3, 6)})
    last = node("Split", "x", "y z", axis=1, num_outputs=2)
    check(model_of([last], 18, outputs=("y", "z"), x=("n", 5, "h")), {"x": f(1, 5, 8)}, {"x": f(2, 5, 6)})
    unknown = model_of([node("Split", "x", "y z", axis=2, num_outputs=2)], 18, outputs=("y", "z"), x=("n", 5, "h"))
    with pytest.warns(ReferenceNodeWarning, match="Split"):
        check(unknown, {"x": f(1, 5, 7)}, {"x": f(2, 5, 6)}, reference=True)


def test_operands_that_may_differ_in_shape():
    for kind in ("Max", "Min", "Mean"):
        model = model_of([node(kind, "a b")], a=(None, 3), b=(None, 3))
        check(model, {"a": f(2, 3), "b": f(1, 3)}, {"a": f(4, 3), "b": f(4, 3)})
        check(model_of([node(kind, "a b")], a=("n", 3), b=("n", 3)), {"a": f(2, 3), "b": f(2, 3)})
    check(model_of([node("Sum", "a b c")], a=(None, 3), b=(None, None), c=(3,)),
          {"a": f(2, 3), "b": f(1, 1), "c": f(3)}, {"a": f(1, 3), "b": f(4, 3), "c": f(3)})  # fmt: skip


def test_biases_that_may_be_broadcast():
    model = model_of([node("Gemm", "a b c")], a=("n", 4), b=(4, "m"), c=("k",))
    check(model, *({"a": f(2, 4), "b": f(4, 3), "c": f(k)} for k in (1, 3)))
    fixed = read_onnx(model_of([node("Gemm", "a b c")], constants={"b": f(4, 3), "c": f(3)}, a=("n", 4)))
    assert [op.type for op in fixed.net.op] == ["FCTransposed"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("shape", [(3, 1, 1), (1, 3, 1, 1), (1,), (3,), (1, 3, 1), (1, 1, 3)], ids=str)
@pytest.mark.parametrize("extents", [("n", 3, 3, 3), ("n", "c", "h", "w"), (1, 3, 3, 3)], ids=str)
def test_slopes_are_broadcast_along_their_own_axis(shape, extents):
    """Also where other axes have as many elements as there are channels."""
    model = model_of([node("PRelu", "x s")], 16, constants={"s": f(*shape)}, x=extents)
    if shape[-3:] == (3, 1, 1) or shape == (1,) or extents[0] == 1:
        check(model, {"x": f(1, 3, 3, 3)})
    else:
        with pytest.warns(ReferenceNodeWarning, match="PRelu"):
            check(model, {"x": f(1, 3, 3, 3)}, reference=True)


def test_scales_that_are_broadcast():
    made = node("LayerNormalization", "x s b", axis=-1)
    model = model_of([made], constants={"s": f(1), "b": f(1)}, x=("n", "c"))
    with pytest.warns(ReferenceNodeWarning, match="LayerNormalization"):
        check(model, {"x": f(2, 5)}, {"x": f(3, 1)}, reference=True)
    check(model_of([made], constants={"s": f(5), "b": f(5)}, x=("n", "c")), {"x": f(2, 5)})


def test_reductions_over_no_axes():
    made = node("ReduceSum", "x a", noop_with_empty_axes=1)
    model = model_of([made], 18, constants={"a": np.zeros(0, np.int64)}, x=("n", "c"))
    check(model, {"x": f(2, 5)})


@pytest.mark.parametrize("shape", [("n",), ("n", "c", "h"), None], ids=str)
def test_types_that_an_operator_does_not_take(shape):
    """Sign takes floating-point numbers; the rank, where it is known, is compared, too."""
    kind = onnx.TensorProto.INT8
    model = model_of([node("Sign", "x")], 13, kind, x=shape)
    x = np.arange(-4, 4, dtype=np.int8).reshape((-1,) + (1,) * (len(shape or "n") - 1))
    with pytest.warns(ReferenceNodeWarning, match="Sign"):
        check(model, {"x": x}, reference=True)


def test_what_signatures_take():
    pool, power = parsed(MaxPool.signature), parsed(Pow.signature)
    f4, i4 = np.dtype(np.float32), np.dtype(np.int32)
    assert "X has 2 axes" not in pool.mismatch([Form(f4, 4)]) and pool.mismatch([Form()]) == ""
    assert "X has 1 axes, must have the shape" in pool.mismatch([Form(f4, 1)])
    assert "X has elements of type int32, must have one of float16" in pool.mismatch([Form(i4)])
    assert power.mismatch([Form(f4), Form(f4)]) == power.mismatch([Form(None), Form(i4)]) == ""
    assert "E has elements of type int32, must have those of X, float32" in power.mismatch([Form(f4), Form(i4)])
    assert power.made([Form(f4), Form(f4)], 1) == [Form(f4)] and pool.made([Form()], 1) == [Form()]


class TestShapes:
    MODEL = model_of(
        [node("Resize", "x  s", mode="nearest"), node("Add", "y z", "w")],
        constants={"s": np.float32([1, 1, 1.5, 1.5])},
        outputs=("w",), x=("n", 3, "h", "w"), z=("n", 3, "h2", "w2"),
    )  # fmt: skip
    MODEL.graph.node[0].input[:] = ["x", "", "s"]

    def test_extents_are_known_then(self):
        with pytest.warns(ReferenceNodeWarning, match=r"Resize \(1\) run in .*; Resize need not, if shapes= gives"):
            general = read_onnx(self.MODEL)
        assert general.dynamic_nodes == tuple(general.reference_nodes) == ("Resize",)
        assert general.extents == {"x": ("n", 3, "h", "w"), "z": ("n", 3, "h2", "w2")} and general.specs == {}
        read = check(self.MODEL, {"x": f(2, 3, 4, 6), "z": f(2, 3, 6, 9)}, shapes={"x": (None, 3, 4, 6)})
        assert read.extents["x"] == ("n", 3, 4, 6) and read.specs["x"].shape == (1, 3, 4, 6)
        assert self.MODEL.graph.input[0].type.tensor_type.shape.dim[2].dim_param == "h"  # left unchanged

    def test_names_stand_for_one_extent(self):
        read = read_onnx(self.MODEL, shapes={"x": (2, 3, 4, 6), "z": (None, 3, 6, 9)}, reference=False)
        assert read.extents["z"] == (2, 3, 6, 9)
        with pytest.raises(NetError, match="'z' of the ONNX model has the shape n x 3 x h2 x w2, got 1 x 3 x 6 x 9; "):
            read_onnx(self.MODEL, shapes={"x": (2, 3, 4, 6), "z": (1, 3, 6, 9)})

    def test_a_number_of_axes_that_is_not_stated(self):
        model = model_of([node("Softmax", axis=0)], 13, x=None)
        assert read_onnx(model, shapes={"x": (4, None)}, reference=False).extents == {"x": (4, None)}

    @pytest.mark.parametrize(
        ("shapes", "message"),
        [
            ({"y": (1,)}, "no input 'y' .*; the inputs are x, z$"),
            ({"X": (1,)}, r"no input 'X' .*; did you mean 'x'\?"),
            ({"x": (1, 3, 4)}, "got 1 x 3 x 4; numbers in it are fixed"),
            ({"x": (1, 4, 4, 4)}, "the input 'x' .* has the shape n x 3 x h x w, got 1 x 4 x 4 x 4"),
            ({"x": (-1, 3, 4, 4)}, "got -1 x 3 x 4 x 4"),
        ],
    )
    def test_refusals(self, shapes, message):
        with pytest.raises(NetError, match=message):
            read_onnx(self.MODEL, shapes=shapes)

    def test_constants_are_not_among_the_inputs_that_are_named(self):
        model = model_of([node("MatMul", "x w")], constants={"w": f(256, 256)}, x=("n", 256))
        with pytest.raises(NetError, match="no input 'w2' .*; the inputs are x$"):
            read_onnx(model, shapes={"w2": (1, 256)})

    def test_a_scalar_input(self):
        read = check(model_of([node("Add", "a b")], a=(), b=("n",)), {"a": f(), "b": f(3)})
        assert read.specs["a"].shape == () and isinstance(read.predictor(), Predictor)
