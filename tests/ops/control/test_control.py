"""If and While, and the gradient of If."""

import numpy as np
import pytest

from checks import DEVICES, placed
from netbuilder.graph.gradients import differentiate
from netbuilder.ops.control.control import If, While
from netbuilder.proto import ArgumentError, GradientError, NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, refusal

X, W = np.float32([1, 2, 3]), np.float32([2, -1, 4])


def net(*ops, name="net", inputs=(), outputs=()):
    return NetDef(name=name, op=ops, external_input=inputs, external_output=outputs)


PRODUCT = net(
    make_op("Mul", ["x", "w"], ["h"]), make_op("Mul", ["h", "x"], ["y"]), name="then", inputs=["x", "w"], outputs=["y"]
)
COPY = net(make_op("Copy", ["x"], ["y"]), name="else", inputs=["x"], outputs=["y"])


def run(proto, device="cpu", **blobs):
    workspace = Workspace()
    for name, value in blobs.items():
        workspace.feed(name, value)
    proto = placed(proto, device)
    workspace.create_net(proto, observable="all")
    workspace.run_net(proto.name)
    return workspace


class TestIf(OperatorSuite):
    operator = If
    no_gradient = "its own tests below: the nets it holds decide"
    refusals = (refusal(If(), [f32(1)], "the argument then_net, a net, must be given", ArgumentError),)

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("shape", [(), (1,)])
    def test_forward(self, device, shape):
        outer = net(
            make_op("If", ["c", "x", "w"], ["y"], then_net=PRODUCT, else_net=COPY), make_op("Negative", ["y"], ["z"])
        )
        for value, expected in ((True, -X * W * X), (False, -X)):
            workspace = run(outer, device, c=np.full(shape, value), x=X, w=W)
            np.testing.assert_allclose(workspace.fetch("z"), expected)

    def test_inplace(self):
        outer = net(make_op("If", ["c", "x"], ["x"], then_net=net(make_op("Negative", ["x"], ["x"]))))
        np.testing.assert_array_equal(run(outer, c=np.array([True]), x=X).fetch("x"), -X)
        np.testing.assert_array_equal(run(outer, c=np.array([False]), x=X).fetch("x"), X)

    def test_flops(self):
        assert If(then_net=PRODUCT).flops(f32(1)) == 0


class TestWhile(OperatorSuite):
    operator = While
    no_gradient = "tests/ops/control/test_loop_gradient.py: the nets it holds decide"
    refusals = (refusal(While(), [f32(1)], "the argument loop_net, a net, must be given", ArgumentError),)

    @pytest.mark.parametrize("device", DEVICES)
    def test_forward(self, device):
        """Doubles x as long as its sum is below a bound; the condition net runs first."""
        condition = net(make_op("SumElements", ["x"], ["s"]), make_op("LT", ["s", "bound"], ["c"]))
        outer = net(
            make_op("While", ["c", "x"], ["x"], cond_net=condition, loop_net=net(make_op("Add", ["x", "x"], ["x"]))),
            make_op("Negative", ["x"], ["z"]),
        )
        for bound, times in ((100, 5), (3, 0)):
            workspace = run(outer, device, c=np.array(False), x=X, bound=np.array(bound, np.float32))
            np.testing.assert_array_equal(workspace.fetch("z"), -X * 2**times)

    def test_inplace(self):
        assert self.operator.inplace == "one-to-one"

    def test_flops(self):
        assert While(loop_net=PRODUCT).flops(f32(1)) == 0


def test_while_without_a_condition_net_looks_at_the_blob():
    loop = net(
        make_op("Add", ["x", "x"], ["x"]), make_op("SumElements", ["x"], ["s"]), make_op("LT", ["s", "b"], ["c"])
    )
    outer = net(make_op("While", ["c", "x"], ["x", "c"], loop_net=loop))
    for start, expected in ((True, X * 2**4), (False, X)):
        workspace = run(outer, c=np.array(start), x=X, b=np.array(50, np.float32))
        np.testing.assert_array_equal(workspace.fetch("x"), expected)


def test_the_nets_may_change_the_shape_of_blobs():
    then = net(make_op("Concat", ["x", "x"], ["twice", "info"], axis=0), make_op("Copy", ["twice"], ["x"]))
    outer = net(make_op("If", ["c", "x"], ["x"], then_net=then), make_op("Negative", ["x"], ["z"]), name="grow")
    workspace = run(outer, c=np.array(True), x=X)
    workspace.run_net("grow")
    assert workspace.fetch("z").shape == (12,)


def test_a_condition_of_several_values_is_refused():
    with pytest.raises(ValueError, match=r"If: the condition must hold one value, got shape \(2,\)"):
        run(net(make_op("If", ["c"], [], then_net=PRODUCT)), c=np.array([True, False]))


CONDITIONS = {
    "If": make_op("If", ["c"], [], then_net=PRODUCT),
    "While": make_op("While", ["c"], [], loop_net=PRODUCT),
    "ONNXWhile": make_op(
        "ONNXWhile",
        ["n", "c"],
        [],
        body=net(make_op("Copy", ["k"], ["next"]), inputs=["i", "k"], outputs=["next"]),
        has_cond=1,
    ),
}


@pytest.mark.parametrize("value", [np.float32(0.5), np.int32(1), np.array([0.0])])
@pytest.mark.parametrize("kind", CONDITIONS)
def test_a_condition_that_is_no_bool_is_refused(kind, value):
    with pytest.raises(ValueError, match=f"operator 0: {kind}.*must be of type bool, got .*; compare it with a number"):
        run(net(CONDITIONS[kind]), c=value, n=np.array(1))


def test_an_error_in_a_held_net_names_it():
    with pytest.raises(ValueError, match="'then', operator 0: Mul.*'w'"):
        run(net(make_op("If", ["c", "x"], ["y"], then_net=PRODUCT)), c=np.array(True), x=X)


def gradients(outer, losses, **blobs):
    """Run a net and its backward pass; return the gradient of each blob."""
    backward = differentiate(outer, losses)
    whole = net(*outer.op, *backward.net.op, name="whole")
    workspace = run(whole, **blobs)
    return {blob: workspace.fetch(g) for blob, g in backward.gradients.items()}, backward.net.op


@pytest.mark.parametrize(("value", "dx", "dw"), [(True, 2 * X * W, X * X), (False, np.ones(3), np.zeros(3))])
def test_the_gradient_of_if_is_an_if_of_gradients(value, dx, dw):
    outer = net(
        make_op("If", ["c", "x", "w"], ["y"], then_net=PRODUCT, else_net=COPY), make_op("SumElements", ["y"], ["loss"])
    )
    got, ops = gradients(outer, ["loss"], c=np.array([value]), x=X, w=W)
    np.testing.assert_allclose(got["x"], dx)
    np.testing.assert_allclose(got["w"], dw)
    op = ops[-1]
    assert op.type == "If"
    assert op.is_gradient_op
    assert op.input[0] == "c"
    assert set(op.input) == {"c", "x", "w", "y_grad"}
    assert list(op.output) == ["x_grad", "w_grad"]
    assert [argument.name for argument in op.arg] == ["then_net", "else_net"]


@pytest.mark.parametrize("value", [True, False])
def test_a_blob_read_inside_and_outside_gets_the_sum(value):
    outer = net(
        make_op("If", ["c", "x", "w"], ["y"], then_net=PRODUCT, else_net=COPY),
        make_op("Mul", ["x", "y"], ["z"]),
        make_op("SumElements", ["z"], ["loss"]),
    )
    got, _ = gradients(outer, ["loss"], c=np.array([value]), x=X, w=W)
    np.testing.assert_allclose(got["x"], 3 * X * X * W if value else 2 * X)
    np.testing.assert_allclose(got["w"], X**3 if value else 0 * X)


@pytest.mark.parametrize(("value", "factor"), [(True, -1), (False, 1)])
def test_without_an_else_net_the_gradient_goes_through(value, factor):
    then = net(make_op("Negative", ["h"], ["h"]), name="flip")
    outer = net(
        make_op("Mul", ["x", "w"], ["h"]),
        make_op("If", ["c", "h"], ["h"], then_net=then),
        make_op("SumElements", ["h"], ["loss"]),
    )
    got, _ = gradients(outer, ["loss"], c=np.array([value]), x=X, w=W)
    np.testing.assert_allclose(got["x"], factor * W)


def test_an_output_without_gradient_is_omitted():
    then = net(make_op("Mul", ["x", "w"], ["y"]), make_op("Negative", ["x"], ["extra"]), name="two")
    outer = net(make_op("If", ["c", "x", "w"], ["y", "extra"], then_net=then), make_op("SumElements", ["y"], ["loss"]))
    got, _ = gradients(outer, ["loss"], c=np.array([True]), x=X, w=W)
    np.testing.assert_allclose(got["x"], W)


def test_sparse_gradients_do_not_leave_an_if():
    then = net(make_op("Gather", ["table", "i"], ["y"]), name="pick")
    outer = net(make_op("If", ["c", "table", "i"], ["y"], then_net=then), make_op("SumElements", ["y"], ["loss"]))
    with pytest.raises(GradientError, match="gradient of 'table' in net 'pick' is sparse"):
        differentiate(outer, ["loss"])
