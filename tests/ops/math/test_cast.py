"""Cast, and the numbers and names of element types."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import check_gradient, run_plain
from netbuilder.graph import Net
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.core.data_types import data_type, numpy_type
from netbuilder.ops.math.cast import Cast, CastGradient
from netbuilder.proto import ArgumentError, GradientError, TensorProto
from netbuilder.proto.arguments import arguments, make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, refusal

TYPES = {
    "float": np.float32,
    "int32": np.int32,
    "bool": np.bool_,
    "uint8": np.uint8,
    "int8": np.int8,
    "uint16": np.uint16,
    "int16": np.int16,
    "int64": np.int64,
    "float16": np.float16,
    "double": np.float64,
}


class TestCast(OperatorSuite):
    operator = Cast
    rtol = 1e-3  # of float16
    no_gradient = "between types its differences are steps; see test_gradient"
    refusals = (
        refusal(Cast(to="nonsense"), [f32(2)], "got 'nonsense'", ArgumentError),
        refusal(Cast(to=99), [f32(2)], "got 99", ArgumentError),
        refusal(Cast(from_type=4), [f32(2)], "from_type must be a numeric type", ArgumentError),
        refusal(Cast(), [f32(2).with_dtype(object)], "only numbers can be cast"),
    )

    def draw(self, data):
        x = data.draw(floats((0, 6), low=0, high=100)).astype(data.draw(st.sampled_from(list(TYPES.values()))))
        return Cast(to=data.draw(st.sampled_from(list(TYPES)))), [x]

    def reference(self, op, x):
        if op.to == "bool":
            return [x != 0]
        return [x.astype(float) if op.to in ("float", "double", "float16") else np.floor(x.astype(float))]


@pytest.mark.parametrize("name", TYPES)
def test_every_type_by_number_and_name(name):
    for to in (name, name.upper(), getattr(TensorProto, name.upper())):
        assert numpy_type(to, "Cast: to") == TYPES[name]
    assert data_type(name, "") == getattr(TensorProto, name.upper())


def test_cut_towards_zero():
    assert run_plain(Cast(to="int32"), [np.float32([1.9, -1.9])])[0].tolist() == [1, -1]


@pytest.mark.parametrize(
    ("x", "texts"),
    [
        (np.int32([[1, -2]]), [[b"1", b"-2"]]),
        (np.float32([1.5, -2e10, 1e-7]), [b"1.500000", b"-20000000000.000000", b"0.000000"]),
        (np.float64([0.1]), [b"0.100000"]),
        (np.array([True, False]), [b"1", b"0"]),
        (np.zeros((0, 2), np.uint8), []),
    ],
    ids=str,
)
def test_numbers_as_strings(x, texts):
    """The strings that Caffe2 makes."""
    workspace = Workspace()
    workspace.feed("x", x)
    workspace.run_operator_once(make_op("Cast", ["x"], ["y"], to="string"))
    assert workspace.fetch("y").tolist() == texts and workspace.fetch("y").shape == x.shape
    with pytest.raises(GradientError, match="strings have no gradient"):
        operator_gradient(make_op("Cast", ["x"], ["y"], to="string", from_type=1), {0: "dy"})


def test_gradient():
    op = make_op("Cast", ["x"], ["y"], to="double", from_type="float")
    made, where = operator_gradient(op, {0: "dy"})
    assert [arguments(o) for o in made] == [{"to": TensorProto.FLOAT, "from_type": TensorProto.DOUBLE}]
    assert where == {0: "x_grad"}
    check_gradient(Cast(to="double", from_type="double"), [np.float32([1, -2])])


class TestCastGradient(OperatorSuite):
    operator = CastGradient
    no_gradient = "a gradient operator"
    rtol = 1e-3  # of float16
    refusals = (refusal(CastGradient(), [f32(2), f32(3)], r"dY must have the shape of X, \(2,\)"),)

    def draw(self, data):
        x, dy = (data.draw(floats(3)) for _ in range(2))
        return CastGradient(), [x.astype(data.draw(st.sampled_from(["f2", "f4", "f8", "i4", "?"]))), dy]

    def reference(self, op, x, dy):
        return [dy if x.dtype.kind == "f" else np.zeros(3)]


@pytest.mark.parametrize("back", [{}, {"from_type": "float"}])
@pytest.mark.parametrize(("to", "said"), [("int32", "a result of type int32 has"), ("string", "strings have")])
def test_a_result_without_a_point_has_no_gradient(to, said, back):
    net = Net("net")
    net.Cast("x", "y", to=to, **back)
    net.Cast("y", "z", to="float")
    net.AveragedLoss("z", "loss")
    with pytest.raises(GradientError, match=f"'y'.*Cast: {said} no gradient. It is on the path to the loss: .*Stop"):
        net.AddGradientOperators(["loss"])


def test_the_gradient_goes_back_to_the_type_of_x():
    made, _ = operator_gradient(make_op("Cast", ["x"], ["y"], to=1), {0: "dy"})
    assert [(o.type, list(o.input), list(o.output)) for o in made] == [("CastGradient", ["x", "dy"], ["x_grad"])]
    check_gradient(Cast(to="double"), [np.float32([1, -2])])
