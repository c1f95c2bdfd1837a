"""The gradient of one operator: what is copied from it, and the error for inputs that it overwrote."""

import pytest

from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.proto import GradientError
from netbuilder.proto.arguments import make_device_option, make_op


def test_device_engine_line_and_arguments_are_copied():
    op = make_op("Conv", ["x", "w"], ["y"], device_option=make_device_option(0, 3), engine="CUDNN", kernel=3)
    op.debug_info = "train.py:5 in build"
    (gradient,), d_inputs = operator_gradient(op, {0: "y_grad"})
    assert gradient.device_option.device_id == 3
    assert gradient.engine == "CUDNN"
    assert gradient.debug_info == op.debug_info
    assert gradient.is_gradient_op
    assert [a.i for a in gradient.arg if a.name == "kernel"] == [3]
    assert d_inputs == {0: "x_grad", 1: "w_grad"}


def test_an_operator_that_overwrites_what_its_gradient_reads_is_named():
    op = make_op("Mul", ["a", "b"], ["a"])
    op.debug_info = "train.py:7 in build"
    with pytest.raises(GradientError, match=r"Mul \['a', 'b'\].*train.py:7.*overwrites \['a'\].*another name.*a_kept"):
        operator_gradient(op, {0: "a_grad"})
    operator_gradient(make_op("Mul", ["a", "b"], ["c"]), {0: "c_grad"})
    operator_gradient(make_op("Relu", ["a"], ["a"]), {0: "a_grad"})  # reads its output only


def test_an_operator_without_gradient():
    with pytest.raises(GradientError, match="'Accuracy' has no gradient"):
        operator_gradient(make_op("Accuracy", ["p", "label"], ["a"]), {0: "a_grad"})
