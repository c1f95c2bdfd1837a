"""Gradients have the shapes of their inputs, however these are broadcast; for all operators of two tensors."""

import dataclasses

import numpy as np
import pytest

from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.core.operator import decode, spec_of
from netbuilder.ops.core.registry import find, operator_types
from netbuilder.proto import GradientError, NetDef, NetError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace

SHAPES = [
    ((2, 3), (3,)), ((3,), (2, 3)), ((2, 1), (1, 3)), ((1,), (2, 3)), ((2, 3), (1,)), ((), (2, 3)), ((2, 3), ()),
    ((2, 3), (2, 1)), ((1, 3), (2, 3)), ((4, 2, 3), (3,)), ((4, 2, 3), (2, 3)), ((4, 2, 3), (2,)), ((4, 2, 3), (4,)),
    ((2, 2, 2), (2, 2)), ((2, 2), (3, 2, 2)), ((1, 2, 2), (3, 2, 2)), ((3, 2, 2), (1, 2, 2)),
]  # fmt: skip
ARGUMENTS = [{}, {"broadcast": 1}, {"broadcast": 1, "axis": 0}, {"broadcast": 1, "axis": 1}]
BROADCAST = {"Add", "Div", "Mul", "Pow", "Sub"}
NOT_OF_TWO = {"ConstantFill": "the second input is a number"}
REFUSED = {"BatchMatMul": "a matrix and a vector, whose gradient is refused when it runs"}


def operators():
    """Yield the operators that take two tensors of different shapes and are differentiated for both: type, shapes."""
    for kind in sorted(set(operator_types()) - NOT_OF_TWO.keys()):
        known = {field.name for field in dataclasses.fields(find(kind))}
        for args in ARGUMENTS:
            for shapes in SHAPES if args.keys() <= known else ():
                op_def = make_op(kind, ["a", "b"], ["y"], **args)
                xs = [np.random.default_rng(0).uniform(0.5, 1.5, size=shape) for shape in shapes]
                try:
                    (made,) = decode(find(kind), op_def).infer(*map(spec_of, xs))
                    backward, places = operator_gradient(op_def, {0: "dy"})
                except (NetError, GradientError, NotImplementedError, TypeError, ValueError, IndexError):
                    continue  # it takes other inputs, or has no gradient
                dense = {slot: place for slot, place in places.items() if isinstance(place, str)}
                if made is not None and len(dense) == 2:
                    yield kind, xs, made, [op_def, *backward], dense


@pytest.mark.slow
def test_shapes():
    tried = set()
    for kind, xs, made, ops, places in operators():
        workspace = Workspace()
        for blob, value in zip(["a", "b", "dy"], [*xs, np.ones(made.shape, made.dtype)]):
            workspace.feed(blob, value)
        workspace.create_net(NetDef(name="n", op=ops, external_input=["a", "b", "dy"]), observable="all")
        try:
            workspace.run_net("n")
        except NetError:
            assert kind in REFUSED, f"{kind}: {[x.shape for x in xs]}"
            continue
        found = [workspace.fetch(places[slot]).shape for slot in (0, 1)]
        assert found == [x.shape for x in xs], f"{kind} {[x.shape for x in xs]}, {ops[0].arg}"
        tried.add(kind)
    assert tried >= BROADCAST | {"MatMul", "PRelu", "RowMul"}


@pytest.mark.parametrize("kind", sorted(BROADCAST))
@pytest.mark.parametrize("shapes", [((2, 3), (3,)), ((3,), (2, 3)), ((2, 1), (1, 3)), ((), (2, 3))], ids=str)
def test_values(kind, shapes):
    """Against the sums over the axes along which an operand is repeated before."""
    r = np.random.default_rng(1)
    a, b = (r.uniform(0.5, 1.5, size=shape) for shape in shapes)
    whole = [np.broadcast_to(x, (2, 3)).copy() for x in (a, b)]
    dy = r.normal(size=(2, 3))
    found, want = gradients(kind, a, b, dy), gradients(kind, *whole, dy)
    for slope, full, x in zip(found, want, (a, b)):
        axes = tuple(i for i in range(2) if i < 2 - x.ndim or x.shape[i - 2 + x.ndim] == 1)
        np.testing.assert_allclose(slope, full.sum(axis=axes, keepdims=True).reshape(x.shape), rtol=1e-12)


def gradients(kind, a, b, dy):
    op = make_op(kind, ["a", "b"], ["y"])
    backward, places = operator_gradient(op, {0: "dy"})
    workspace = Workspace()
    for blob, value in {"a": a, "b": b, "dy": dy}.items():
        workspace.feed(blob, value)
    workspace.create_net(NetDef(name="n", op=[op, *backward], external_input=["a", "b", "dy"]), observable="all")
    workspace.run_net("n")
    return [workspace.fetch(places[slot]) for slot in (0, 1)]
