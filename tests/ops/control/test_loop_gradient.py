"""The gradient of While, against slopes by differences of whole nets."""

import numpy as np
import pytest

from netbuilder.graph import Net
from netbuilder.graph.gradients import differentiate
from netbuilder.ops.control.loop_gradient import WhileGradient
from netbuilder.proto import ArgumentError, GradientError, NetDef, NetError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, refusal

X, Y = np.array([1.2, -0.7]), np.array([0.3, 0.5])
COUNT = make_op("Add", ["i", "one"], ["i"])
CONDITION = NetDef(name="condition", op=[make_op("LT", ["i", "n"], ["c"])])


def loop_of(*ops):
    return NetDef(name="loop", op=[*ops, COUNT])


def net_of(loop, outputs=("y",), name="outer", cond_net=CONDITION):
    net = Net(name)
    held = {"loop_net": loop} if cond_net is None else {"loop_net": loop, "cond_net": cond_net}
    net.While(["c", "x", "y", "i", "one", "n"], [*outputs, "i"], **held)
    net.SumElements(net.Sqr("y", "square"), "loss")
    return net, net.AddGradientOperators(["loss"])


def run(net, n, x=X, y=Y, prefix=""):
    workspace = Workspace()
    counters = {"i": np.zeros(1), "one": np.ones(1), "n": np.array([float(n)]), "c": np.array([False])}
    for blob, value in {"x": x, "y": y, **counters}.items():
        workspace.feed(prefix + blob, value)
    workspace.create_net(net)
    workspace.run_net(net)
    return workspace


def slopes_of(net, n, blob, prefix=""):
    """Return the slopes of the loss by differences."""
    values, step = {"x": X, "y": Y}, 1e-6
    made = []
    for k in range(2):
        losses = []
        for sign in (1, -1):
            moved = {**values, blob: values[blob] + sign * step * np.eye(2)[k]}
            losses.append(run(net, n, prefix=prefix, **moved).fetch(prefix + "loss"))
        made.append((losses[0] - losses[1]) / (2 * step))
    return made


BRANCH = make_op(
    "If",
    ["first", "x", "y"],
    ["y"],
    then_net=NetDef(name="then", op=[make_op("Mul", ["x", "y"], ["y_new"]), make_op("Copy", ["y_new"], ["y"])]),
    else_net=NetDef(name="else", op=[make_op("Tanh", ["y"], ["y_other"]), make_op("Copy", ["y_other"], ["y"])]),
)
LOOPS = {
    "in place": loop_of(make_op("Mul", ["y", "x"], ["y"])),
    "several values under one name": loop_of(
        make_op("Mul", ["y", "x"], ["t"]), make_op("Tanh", ["t"], ["t"]), make_op("Add", ["t", "y"], ["y"])
    ),
    "a value that the next iteration does not read": loop_of(make_op("Sqr", ["x"], ["y"])),
    "what does not repeat, off the way to the loss": loop_of(
        make_op("UniformFill", [], ["noise"], shape=[2]), make_op("Mul", ["y", "x"], ["y"])
    ),
}


@pytest.mark.parametrize("n", [0, 1, 4])
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.one_in(4)
def test_slopes(loop, n):
    net, gradients = net_of(LOOPS[loop])
    workspace = run(net, n)
    for _ in range(2):  # a second run keeps its own iterations
        for blob in ("x", "y"):
            if blob in gradients:
                found = workspace.fetch(str(gradients[blob]))
                np.testing.assert_allclose(found, slopes_of(net, n, blob), atol=1e-7)
        for blob, value in {"y": Y, "i": np.zeros(1)}.items():
            workspace.feed(blob, value)
        workspace.run_net(net)
    assert "x" in gradients


def test_a_loop_in_a_loop():
    inner = NetDef(name="inner", op=[make_op("Mul", ["y", "x"], ["y"]), make_op("Add", ["j", "one"], ["j"])])
    look = NetDef(name="look", op=[make_op("LT", ["j", "two"], ["d"])])
    loop = loop_of(
        make_op("Sub", ["one", "one"], ["j"]),
        make_op("Add", ["one", "one"], ["two"]),
        make_op("LT", ["j", "two"], ["d"]),
        make_op("While", ["d", "x", "y", "j", "one", "two"], ["y", "j"], loop_net=inner, cond_net=look),
        make_op("Tanh", ["y"], ["y"]),
    )
    net, gradients = net_of(loop)
    workspace = run(net, 3)
    for blob in ("x", "y"):
        np.testing.assert_allclose(workspace.fetch(str(gradients[blob])), slopes_of(net, 3, blob), atol=1e-7)


def test_a_branch_in_a_loop():
    net, gradients = net_of(loop_of(make_op("LT", ["i", "one"], ["first"]), BRANCH))
    workspace = run(net, 3)
    for blob in ("x", "y"):
        np.testing.assert_allclose(workspace.fetch(str(gradients[blob])), slopes_of(net, 3, blob), atol=1e-7)


def test_loops_in_equal_branches():
    loop = NetDef(op=[make_op("Mul", ["y", "x"], ["y"]), make_op("Copy", ["no"], ["c"])])
    branch = NetDef(op=[make_op("While", ["c", "x", "y", "no"], ["y", "c"], loop_net=loop)])
    net = Net("outer")
    for _ in range(2):
        net.Copy("yes", "c")
        net.If(["yes", "x", "y", "c", "no"], ["y", "c"], then_net=branch)
    gradients = net.AddGradientOperators([net.SumElements("y", "loss")])
    workspace = Workspace()
    for blob, value in {"x": X, "y": Y, "yes": np.array([True]), "no": np.array([False])}.items():
        workspace.feed(blob, value)
    workspace.run_net_once(net)
    np.testing.assert_allclose(workspace.fetch(str(gradients["x"])), 2 * X * Y)
    np.testing.assert_allclose(workspace.fetch(str(gradients["y"])), X**2)


def test_without_a_condition_net():
    loop = NetDef(name="loop", op=[make_op("Mul", ["y", "x"], ["y"]), COUNT, make_op("LT", ["i", "n"], ["c"])])
    net, gradients = net_of(loop, ("y", "c"), cond_net=None)
    workspace = Workspace()
    for blob, value in {"x": X, "y": Y, "i": [0.0], "one": [1.0], "n": [3.0]}.items():
        workspace.feed(blob, np.array(value))
    workspace.feed("c", np.array([True]))
    workspace.run_net_once(net)
    np.testing.assert_allclose(workspace.fetch(str(gradients["y"])), 2 * Y * X**6)


def test_the_blobs_of_a_copied_net_have_its_names():
    net, gradients = net_of(LOOPS["in place"])
    names = {blob: f"copy/{blob}" for op in net.Proto().op for blob in (*op.input, *op.output)}
    copy = net.Clone("copy", names)
    workspace = run(copy, 3, prefix="copy/")
    np.testing.assert_allclose(workspace.fetch(f"copy/{gradients['x']}"), slopes_of(copy, 3, "x", "copy/"), atol=1e-7)
    assert not workspace.has("y")


def test_without_its_gradient_a_loop_keeps_nothing():
    net = Net("forward")
    net.While(["c", "x", "y", "i", "one", "n"], ["y", "i"], loop_net=LOOPS["in place"], cond_net=CONDITION)
    assert set(run(net, 3).blobs()) == {"x", "y", "i", "one", "n", "c"}


REFUSED = {
    "random numbers": (
        loop_of(make_op("UniformFill", [], ["u"], shape=[2]), make_op("Mul", ["y", "u"], ["y"])),
        CONDITION,
        r"UniformFill may give other results; compute \['y_while_\d+/u_\d'\] outside of the loop",
    ),
    "a sparse gradient": (
        loop_of(make_op("Gather", ["x", "rows"], ["r"]), make_op("Add", ["y", "r"], ["y"])),
        CONDITION,
        "While: the gradient of 'x' is sparse; a While can only return dense ones",
    ),
    "a blob of the condition": (
        loop_of(),
        NetDef(op=[*CONDITION.op, make_op("Copy", ["x"], ["y"])]),
        r"the loss depends on \['y'\], which cond_net writes; write it in loop_net",
    ),
    "no gradient": (loop_of(make_op("Floor", ["y"], ["y"])), CONDITION, "operator 'Floor' has no gradient"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    loop, condition, match = REFUSED[case]
    outer = NetDef(op=[make_op("While", ["c", "x", "y"], ["y", "i"], loop_net=loop, cond_net=condition)])
    before = outer.SerializeToString()
    with pytest.raises(GradientError, match=match):
        differentiate(outer, {"y": "dy"})
    assert outer.SerializeToString() == before


class TestWhileGradient(OperatorSuite):
    operator = WhileGradient
    no_gradient = "there are no gradients of gradients"
    refusals = (refusal(WhileGradient(), [f32(1)], "the argument net, made by the gradient of While", ArgumentError),)

    def test_forward(self):
        op = make_op("WhileGradient", ["dy"], ["dx"], net=NetDef(name="n"), record="no_such_record")
        workspace = Workspace()
        workspace.feed("dy", np.ones(1))
        with pytest.raises(NetError, match="the loop has stored no iterations in blob 'no_such_record'"):
            workspace.run_operator_once(op)

    def test_inplace(self):
        assert self.operator.inplace == "one-to-one"

    def test_flops(self):
        assert WhileGradient(net=NetDef(name="n")).flops(f32(1)) == 0
