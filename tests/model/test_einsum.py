"""einsum, against NumPy's: results, and gradients by their definition."""

import numpy as np
import pytest

from netbuilder.model import ModelHelper, brew
from netbuilder.proto import ArgumentError
from netbuilder.runtime import Workspace

EXTENTS = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 1, "f": 2}


@pytest.mark.parametrize(
    "subscripts, operators",
    [
        ("abcd,abfd->abcf", 1),
        ("ab,bc->ac", 1),
        ("ba,cb->ac", 1),
        ("abc,acd->abd", 1),
        ("abc,cd->abd", None),
        ("abcd,cdf->abf", None),
        ("ab,cb->ca", None),
        ("abc,abc->ab", None),
        ("ab,ab->", None),
        ("a,b->ab", None),
        ("ab,b->a", None),
        ("abc,def->ad", None),
        ("abcd,ebfd->ceabf", None),
    ],
)
def test_einsum(subscripts, operators):
    terms, out = subscripts.split("->")
    rng = np.random.default_rng(0)
    values = [rng.standard_normal([EXTENTS[c] for c in term]).astype(np.float32) for term in terms.split(",")]
    model, workspace = ModelHelper("einsum"), Workspace()
    brew.einsum(model, ["x", "y"], "z", subscripts)
    assert operators in (None, model.net.op_len)
    weight = rng.standard_normal([EXTENTS[c] for c in out]).astype(np.float32)
    loss = model.net.SumElements(model.net.Mul(["z", "weight"], "weighted"), "loss")
    gradients = model.net.AddGradientOperators([loss])
    for name, value in (("x", values[0]), ("y", values[1]), ("weight", weight)):
        workspace.feed(name, value)
    workspace.run_net_once(model.net)
    np.testing.assert_allclose(workspace.fetch("z"), np.einsum(subscripts, *values), rtol=1e-4, atol=1e-5)
    for name, (value, other), (own, others) in (
        ("x", values, terms.split(",")),
        ("y", values[::-1], terms.split(",")[::-1]),
    ):
        want = np.einsum(f"{out},{others},{own}->{own}", weight, other, np.ones_like(value))
        np.testing.assert_allclose(workspace.fetch(str(gradients[name])), want, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    "blobs, subscripts, match",
    [
        (["x"], "ab->ba", r"takes two blobs, got \['x'\]"),
        (["x", "y"], "ab,bc", "must have the form 'ij,jk->ik', got 'ab,bc'"),
        (["x", "y"], "a...,ab->b", "must have the form"),
        (["x", "y"], "aa,ab->b", "letters must be in a blob once, .* got 'aa,ab->b'"),
        (["x", "y"], "ab,bc->ad", "those of the result in a blob, got 'ab,bc->ad'"),
    ],
)
def test_refusals(blobs, subscripts, match):
    with pytest.raises(ArgumentError, match=match):
        brew.einsum(ModelHelper("refused"), blobs, "z", subscripts)
