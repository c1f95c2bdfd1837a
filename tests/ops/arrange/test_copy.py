"""Copies, Alias, StopGradient."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.arrange.copy import (
    Alias,
    AliasWithName,
    Copy,
    CopyCPUToGPU,
    CopyFromCPUInput,
    CopyGPUToCPU,
    CopyOnDeviceLike,
    EnsureCPUOutput,
    EnsureDense,
    NegateGradient,
    StopGradient,
)
from netbuilder.ops.core.contexts import Sparse
from netbuilder.ops.core.operator import STRING
from netbuilder.proto import GradientError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, floats


class _Copying(OperatorSuite):
    refuses_nothing = "every tensor can be copied"

    def draw(self, data):
        shape = data.draw(st.sampled_from([(), (3,), (0, 2), (2, 1, 2)]))
        return self.operator(), [data.draw(floats(*shape))]

    def reference(self, op, x, *like):
        return [x]


class TestCopy(_Copying):
    operator = Copy


class TestNegateGradient(_Copying):
    operator = NegateGradient
    no_gradient = "it is that of Y with its sign turned, not that of the copy; see below"


def test_the_gradient_is_turned():
    ops, where = operator_gradient(make_op("NegateGradient", ["x"], ["y"]), {0: "dy"})
    assert [(op.type, op.input[:], op.output[:]) for op in ops] == [("Negative", ["dy"], [where[0]])]


class TestCopyOnDeviceLike(_Copying):
    operator = CopyOnDeviceLike
    no_gradient = "it has none"

    def draw(self, data):
        op, inputs = super().draw(data)
        return op, [*inputs, data.draw(floats(2))]


class TestCopyCPUToGPU(_Copying):
    operator = CopyCPUToGPU


class TestCopyGPUToCPU(_Copying):
    operator = CopyGPUToCPU


class TestCopyFromCPUInput(_Copying):
    operator = CopyFromCPUInput
    no_gradient = "it has none"


class TestEnsureCPUOutput(_Copying):
    operator = EnsureCPUOutput
    no_gradient = "no gradient passes"


class TestAlias(_Copying):
    operator = Alias


class TestAliasWithName(_Copying):
    operator = AliasWithName


class TestEnsureDense(_Copying):
    operator = EnsureDense

    def test_a_sparse_gradient_becomes_dense(self):
        given = {0: Sparse("i", "v")}
        made, where = operator_gradient(make_op("EnsureDense", ["x"], ["y"]), given)
        assert [(op.type, list(op.input), list(op.output)) for op in made] == [
            ("SparseToDense", ["i", "v", "x"], ["x_grad"])
        ]
        assert where == {0: "x_grad"}


class TestStopGradient(_Copying):
    operator = StopGradient
    no_gradient = "no gradient passes"


def gradient(op_type):
    ops, where = operator_gradient(make_op(op_type, ["x"], ["y"]), {0: "y_grad"})
    return [(op.type, list(op.input), list(op.output)) for op in ops], where


def test_gradients_go_back_the_way_the_value_came():
    assert gradient("Copy") == ([("CopyOnDeviceLike", ["y_grad", "x"], ["x_grad"])], {0: "x_grad"})
    assert gradient("CopyCPUToGPU") == ([("CopyGPUToCPU", ["y_grad"], ["x_grad"])], {0: "x_grad"})
    assert gradient("CopyGPUToCPU") == ([("CopyCPUToGPU", ["y_grad"], ["x_grad"])], {0: "x_grad"})
    assert gradient("Alias") == ([], {0: "y_grad"})


@pytest.mark.parametrize("op_type", ["StopGradient", "EnsureCPUOutput"])
def test_no_gradient_passes(op_type):
    assert gradient(op_type) == ([], {})


@pytest.mark.parametrize("op_type", ["CopyOnDeviceLike", "CopyFromCPUInput"])
def test_no_gradient_is_known(op_type):
    inputs = ["x", "like"] if op_type == "CopyOnDeviceLike" else ["x"]
    with pytest.raises(GradientError, match="has no gradient"):
        operator_gradient(make_op(op_type, inputs, ["y"]), {0: "y_grad"})


@pytest.mark.parametrize("op_type", ["Copy", "StopGradient", "CopyGPUToCPU"])
@pytest.mark.parametrize(
    "x", [np.array([b"a", b""], STRING), np.uint8([1, 255]), np.bool_([True, False])], ids=["strings", "uint8", "bool"]
)
def test_any_type(op_type, x):
    workspace = Workspace()
    workspace.feed("x", x)
    workspace.run_operator_once(make_op(op_type, ["x"], ["y"]))
    y = workspace.fetch("y")
    assert y.dtype == x.dtype
    assert y.tolist() == x.tolist()


def test_a_copy_is_apart_from_its_source():
    x = np.float32([1, 2])
    (y,) = run_plain(Copy(), [x])
    x[0] = 5
    assert y.tolist() == [1, 2]
