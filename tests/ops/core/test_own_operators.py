"""Mistakes in an operator of a user's own: each is an error that says what to write, where it is made."""

from dataclasses import dataclass

import numpy as np
import pytest

from netbuilder import ModelHelper, Net, Workspace, brew
from netbuilder.ops.core.operator import Operator
from netbuilder.proto import DeviceError, GradientError, NetError, OperatorError
from netbuilder.proto.arguments import make_op

ROW = np.ones((1, 3), np.float32)


def declared(registry, signature="X (*S): float -> Y: as X", kernel=None, gradient=None):
    """Declare an operator as the tutorial does; None: without the kernel, or without the gradient."""
    body = {"signature": signature, "__module__": __name__, "__doc__": "Y of X."}
    cls = registry.register(
        dataclass(frozen=True)(type("Own", (Operator,), body | ({"gradient": gradient} if gradient else {})))
    )
    if kernel is not None:
        registry.kernel(cls)(kernel)
    return cls


def run(registry, **given):
    declared(registry, **given)
    net, workspace = Net("net"), Workspace()
    net.Own("x", "y")
    workspace.feed("x", ROW)
    workspace.run_net_once(net)
    return workspace.fetch("y")


def test_the_right_one(own_operators):
    np.testing.assert_array_equal(run(own_operators, kernel=lambda op, ctx, x: (2 * x,)), 2 * ROW)


@pytest.mark.parametrize(
    "result, message",
    [
        (lambda x: 2 * x, r"returned a ndarray of shape \(1, 3\); it must return a tuple .* such as \(y,\)"),
        (lambda x: None, r"returned None; it must return a tuple"),
        (lambda x: float(x.sum()), r"returned a float; it must return a tuple"),
        (lambda x: (), "returned 0 results for 1 output"),
        (lambda x: (x.sum(),), r"returned shape \(\), and its infer gives \(1, 3\)"),
    ],
)
def test_what_a_kernel_returns(result, message, own_operators):
    with pytest.raises(OperatorError, match=message):
        run(own_operators, kernel=lambda op, ctx, x: result(x))


def test_without_a_kernel(own_operators):
    with pytest.raises(DeviceError, match=r"'Own' is declared without a kernel; write one, under @kernel\(Own\)"):
        run(own_operators)


@pytest.mark.parametrize(
    "signature, message",
    [
        ("X (*S): float -> Y: as Z", r"states 'Y' as 'Z', which is none of its blobs \['X', 'Y'\]"),
        ("X (*S) float -> Y: as X", r"states 'X \(\*S\) float'; write"),
        ("X (*S): flaot -> Y: as X", "with the types float, int"),
    ],
)
def test_signatures(signature, message, own_operators):
    with pytest.raises(NetError, match=message):
        run(own_operators, signature=signature, kernel=lambda op, ctx, x: (x,))


def copied(self, g):
    return make_op("Copy", [g.d_output("Y")], [g.d_input("X")])


@pytest.mark.parametrize(
    "gradient, message",
    [
        (None, "'Own' has no gradient"),
        (copied, r"'Own': its gradient must be a list of operators, got OperatorDef; give \[make_op\(...\)\]"),
        (lambda self, g: None, "must be a list of operators, got NoneType"),
        (lambda self, g: [g.input("Z")], r"asks for 'Z', which is none of \('X',\)"),
    ],
)
def test_gradients(gradient, message, own_operators):
    declared(own_operators, gradient=gradient)
    model = ModelHelper("model")
    loss = model.net.SumElements(model.net.Own(brew.fc(model, "x", "fc", 3, 3), "y"), "loss")
    with pytest.raises(GradientError, match=message):
        model.AddGradientOperators([loss])


def test_classes_that_are_not_declared(own_operators):
    class Own(Operator):
        """Y of X."""

        signature = "X -> Y"

    with pytest.raises(NetError, match=r"'Own' must be a dataclass: put @dataclass\(frozen=True\) below @register"):
        own_operators.register(Own)
    for wrong in (Own, "Own"):
        with pytest.raises(NetError, match="@kernel takes a class that is declared before, under @register, got"):
            own_operators.kernel(wrong)
