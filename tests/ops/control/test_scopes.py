"""Do, CreateScope, HasScope, and the gradient of Do."""

import numpy as np
import pytest

from checks import DEVICES, placed
from netbuilder.graph.gradients import differentiate
from netbuilder.ops.control.scopes import CreateScope, Do, HasScope, Scope
from netbuilder.proto import ArgumentError, GradientError, NetDef, NetError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, refusal

A, B = np.float32([1, -2, 3]), np.float32([4, 5, 6])


def net(*ops, name="net"):
    return NetDef(name=name, op=ops)


# y = (a * b) * a; h is the net's own.
INNER = net(make_op("Mul", ["ia", "ib"], ["h"]), make_op("Mul", ["h", "ia"], ["iy"]), name="inner")


def do_op(inner=INNER, inputs=("a", "b"), outputs=("y",), names=("ia", "ib", "iy"), places=(0, 1, 2)):
    scoped = [[*blobs, "scope"] for blobs in (inputs, outputs)]
    return make_op("Do", *scoped, net=inner, inner_blobs=list(names), outer_blobs_idx=list(places))


def run(proto, device="cpu", **blobs):
    workspace = Workspace()
    for name, value in blobs.items():
        workspace.feed(name, value)
    proto = placed(proto, device)
    workspace.run_operator_once(make_op("CreateScope", [], ["scope"]))
    workspace.create_net(proto)
    workspace.run_net(proto.name)
    return workspace


class TestCreateScope(OperatorSuite):
    operator = CreateScope
    no_gradient = "makes an object"
    refuses_nothing = "it takes no input"

    def draw(self, data):
        return CreateScope(), []

    def test_forward(self):
        workspace = Workspace()
        workspace.run_operator_once(make_op("CreateScope", [], ["scope"]))
        assert isinstance(workspace.fetch("scope"), Scope)


class TestHasScope(OperatorSuite):
    operator = HasScope
    no_gradient = "looks at an object"
    refusals = (refusal(HasScope(), [f32(1)], "input 0 must be a scope"),)

    def draw(self, data):
        return HasScope(), [Scope()]

    def reference(self, op, scope):
        return [np.array([False])]


class TestDo(OperatorSuite):
    operator = Do
    no_gradient = "its own tests below: the net it holds decides"
    refusals = (
        refusal(Do(), [f32(1)], "the argument net must be given", ArgumentError),
        refusal(Do(net=INNER, inner_blobs=("h",)), [f32(1)], "one number for each", ArgumentError),
        refusal(
            Do(net=INNER, inner_blobs=("h", "h"), outer_blobs_idx=(0, 0)),
            [f32(1)] * 2,
            "distinct names",
            ArgumentError,
        ),
        refusal(
            Do(net=INNER, inner_blobs=("h",), outer_blobs_idx=(1,)),
            [f32(1)] * 2,
            r"must lie in \[0, 1\)",
            ArgumentError,
        ),
    )

    @pytest.mark.parametrize("device", DEVICES)
    def test_forward(self, device):
        workspace = run(net(do_op(), make_op("Negative", ["y"], ["z"]), name="outer"), device, a=A, b=B)
        np.testing.assert_array_equal(workspace.fetch("z"), -A * B * A)
        assert not workspace.has("h")
        workspace.run_operator_once(make_op("HasScope", ["scope"], ["has"]))
        assert workspace.fetch("has").tolist() == [True]

    def test_inplace(self):
        doubles = net(make_op("Add", ["v", "v"], ["v"]))
        workspace = run(net(do_op(doubles, ["a"], ["a"], ["v"], [0]), name="outer"), a=A)
        np.testing.assert_array_equal(workspace.fetch("a"), 2 * A)

    def test_flops(self):
        assert Do(net=INNER).flops(f32(1)) == 0


def test_nets_within_a_net_have_blobs_of_their_own():
    inner = do_op(inputs=["p", "q"], outputs=["h"])
    middle = net(make_op("CreateScope", [], ["scope"]), inner, make_op("Negative", ["h"], ["r"]), name="middle")
    workspace = run(net(do_op(middle, names=["p", "q", "r"]), name="outer"), a=A, b=B)
    np.testing.assert_array_equal(workspace.fetch("y"), -A * B * A)


def test_a_branch_within_a_net():
    branch = make_op("If", ["c", "ia"], ["iy"], then_net=net(make_op("Add", ["ia", "ia"], ["iy"]), name="then"))
    held = do_op(net(branch, name="held"), ["a", "c"], ["y"], ["ia", "c", "iy"], [0, 1, 2])
    workspace = run(net(held, name="outer"), a=A, c=np.array([True]))
    np.testing.assert_array_equal(workspace.fetch("y"), 2 * A)


def gradient(*ops, loss="y"):
    return differentiate(net(*ops, name="outer"), {loss: "dy"})


@pytest.mark.parametrize("device", DEVICES)
def test_gradient(device):
    done = gradient(do_op())
    dy = np.float32([1, 10, 100])
    both = NetDef(name="both", op=[do_op(), *done.net.op])
    workspace = run(both, device, a=A, b=B, dy=dy)
    np.testing.assert_allclose(workspace.fetch(done.gradients["a"]), 2 * A * B * dy)
    np.testing.assert_allclose(workspace.fetch(done.gradients["b"]), A * A * dy)
    workspace.run_operator_once(make_op("HasScope", ["scope"], ["has"]))
    assert workspace.fetch("has").tolist() == [False]
    workspace.run_net("both")
    np.testing.assert_allclose(workspace.fetch(done.gradients["b"]), A * A * dy)


def test_the_gradient_operator_is_caffe2s():
    (op,) = gradient(do_op(net(make_op("Mul", ["ia", "ib"], ["ic"]), name="inner"), names=["ia", "ib", "ic"])).net.op
    assert (op.type, list(op.input), list(op.output)) == (
        "Do",
        ["dy", "a", "b", "scope"],
        ["a_grad", "b_grad", "scope"],
    )
    held = {argument.name: argument for argument in op.arg}
    assert [inner.type for inner in held["net"].n.op] == ["MulGradient", "Copy", "Copy"]
    assert list(held["outer_blobs_idx"].ints) == [3, 4, 0, 1, 2]
    assert list(held["inner_blobs"].strings) == [
        b"ia/_DO_OPERATOR_INNER_GRAD_COPY_",
        b"ib/_DO_OPERATOR_INNER_GRAD_COPY_",
        b"ic/_DO_OPERATOR_INNER_GRAD_",
        b"ia",
        b"ib",
    ]


def test_a_second_gradient_of_one_run_is_refused():
    done = gradient(do_op())
    workspace = run(net(do_op(), name="outer"), a=A, b=B, dy=A)
    workspace.create_net(NetDef(name="back", op=done.net.op))
    workspace.run_net("back")
    with pytest.raises(NetError, match="loops over Do operators have no gradient"):
        workspace.run_net("back")


def test_one_blob_passed_twice_has_no_gradient():
    twice = do_op(inputs=["a", "a"], places=[0, 1, 2])
    with pytest.raises(GradientError, match="two of inner_blobs stand for 'a'"):
        gradient(twice)


def test_the_scope_is_the_last_input_and_output():
    with pytest.raises(NetError, match="last output must be the scope, the last input 'scope', got 'other'"):
        op = do_op()
        op.output[-1] = "other"
        run(net(op, name="outer"), a=A, b=B)
    with pytest.raises(NetError, match="last input must be what CreateScope makes, got ndarray"):
        workspace = Workspace()
        for name, value in {"a": A, "b": B, "scope": A}.items():
            workspace.feed(name, value)
        workspace.run_net_once(net(do_op(), name="outer"))
