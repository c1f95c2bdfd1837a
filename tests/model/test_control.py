"""Branches and loops built by brew.cond and brew.loop."""

import numpy as np
import pytest

from netbuilder.model import ModelHelper, brew
from netbuilder.ops.core.renaming import subgraphs
from netbuilder.proto import NetError
from netbuilder.runtime import Workspace

X = np.float32([1, 2, 3])


def run(model, **blobs):
    workspace = Workspace(threads=1)
    for name, value in blobs.items():
        workspace.feed(name, value)
    workspace.run_net_once(model.net)
    return workspace


def squared(name, op_type):
    branch = ModelHelper(name)
    branch.net.Sqr("x", "h")
    getattr(branch.net, op_type)("h", "y")
    return branch


def test_one_of_two_nets_runs_and_has_a_gradient():
    model = ModelHelper("branches")
    y = brew.cond(model, "c", ["x", "y"], squared("then", "Negative"), squared("else", "Copy"))
    model.AddGradientOperators([model.net.AveragedLoss(y, "loss")])
    for value, sign in ((True, -1), (False, 1)):
        workspace = run(model, c=np.array(value), x=X)
        np.testing.assert_allclose(workspace.fetch("y"), sign * X * X)
        np.testing.assert_allclose(workspace.fetch("x_grad"), sign * 2 * X / 3, rtol=1e-6)


def test_without_else_the_blob_stays_as_it_was():
    model = ModelHelper("maybe")
    model.net.Scale("x", "y", scale=3.0)
    branch = ModelHelper("then")
    branch.net.Scale("y", "h", scale=5.0)
    branch.net.Negative("h", "y")
    brew.cond(model, "c", ["y"], branch)
    model.AddGradientOperators([model.net.AveragedLoss("y", "loss")])
    for value, factor in ((True, -15), (False, 3)):
        workspace = run(model, c=np.array(value), x=X)
        np.testing.assert_allclose(workspace.fetch("y"), factor * X)
        np.testing.assert_allclose(workspace.fetch("x_grad"), np.full(3, factor / 3), rtol=1e-6)


def test_blobs_of_a_net_are_its_own():
    model = ModelHelper("own")
    model.net.Copy("x", "h")
    brew.cond(model, "c", ["x", "y"], squared("then", "Negative"))
    model.net.Copy("h", "z")
    workspace = run(model, c=np.array(True), x=X, y=X)
    np.testing.assert_array_equal(workspace.fetch("z"), X)


def test_a_loop_ends_when_its_condition_does():
    model = ModelHelper("loops")
    body, check = ModelHelper("body"), ModelHelper("check")
    body.net.Add(["x", "x"], "x")
    check.net.SumElements("x", "total")
    check.net.LT(["total", "bound"], "go")
    brew.loop(model, "go", ["x", "bound"], body, check)
    workspace = run(model, x=X, bound=np.float32(100), go=np.array(False))
    np.testing.assert_array_equal(workspace.fetch("x"), 32 * X)


def test_a_loop_may_decide_in_its_body():
    model = ModelHelper("loops")
    body = ModelHelper("body")
    body.net.Add(["x", "x"], "x")
    body.net.SumElements("x", "total")
    body.net.LT(["total", "bound"], "go")
    brew.loop(model, "go", ["x", "bound"], body.net)
    assert run(model, x=X, bound=np.float32(100), go=np.array(True)).fetch("x").tolist() == (32 * X).tolist()
    assert run(model, x=X, bound=np.float32(100), go=np.array(False)).fetch("x").tolist() == X.tolist()


def kept_for_the_gradient(x, y):
    """A branch whose gradient reads its local blob."""
    branch = ModelHelper("then")
    branch.net.Tanh(x, "h")
    branch.net.Sqr("h", y)
    return branch


def test_two_branches_do_not_share_local_blobs():
    model = ModelHelper("two")
    model.net.Copy("x", "y")
    brew.cond(model, "c", ["x", "y"], kept_for_the_gradient("x", "y"))
    model.net.Scale("y", "z", scale=1.0)
    brew.cond(model, "c", ["y", "z"], kept_for_the_gradient("y", "z"))
    model.AddGradientOperators([model.net.AveragedLoss("z", "loss")])
    inner = np.tanh(X)
    outer = np.tanh(inner**2)
    wanted = 2 * outer * (1 - outer**2) * 2 * inner * (1 - inner**2) / 3
    np.testing.assert_allclose(run(model, c=np.array(True), x=X).fetch("x_grad"), wanted, rtol=1e-5)


def test_a_branch_within_branches_does_not_share_local_blobs():
    model, outer = ModelHelper("nested"), ModelHelper("outer")
    outer.net.Copy("x", "y")
    brew.cond(outer, "c", ["x", "y"], kept_for_the_gradient("x", "y"))
    local = []
    for _ in range(2):
        brew.cond(model, "c", ["c", "x", "y"], outer, outer)
        local += [
            op.output[0] for net in subgraphs(model.net.Proto().op[-1]) for inner in subgraphs(net.op[1])
            for op in inner.op if op.type == "Tanh"
        ]  # fmt: skip
    assert len(local) == len(set(local)) == 4, local


def test_two_loops_do_not_share_local_blobs():
    model = ModelHelper("loops")
    for name in ("x", "y"):
        body, check = ModelHelper("body"), ModelHelper("check")
        body.net.Add([name, name], name)
        check.net.SumElements(name, "total")
        check.net.LT(["total", "bound"], "go")
        brew.loop(model, "go", [name, "bound"], body, check)
    totals = [op.output[0] for loop in model.net.Proto().op for net in subgraphs(loop) for op in net.op[:1]]
    assert len(set(totals) - {"x", "y"}) == 2, totals


def test_refusals():
    model = ModelHelper("refused")
    with pytest.raises(
        NetError, match=r"net 'then\w*' reads \['x'\] before it writes them; add them to external_blobs"
    ):
        brew.cond(model, "c", ["y"], squared("then", "Negative"))
    with pytest.raises(NetError, match="does not write the condition 'go'"):
        brew.loop(model, "go", ["x", "y"], squared("body", "Negative"))
    with pytest.raises(TypeError, match="cond: external_blobs must be a list of blobs, got 'x'"):
        brew.cond(model, "c", "x", squared("then", "Negative"))
    with pytest.raises(TypeError, match="a branch or loop must be a Net or a model, got None"):
        brew.loop(model, "go", ["x"], None)
    assert len(model.net.Proto().op) == 0
