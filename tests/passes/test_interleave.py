"""Interleaving of the replicas' operators."""

import pytest

from netbuilder.passes import Devices
from netbuilder.passes.interleave import interleave
from netbuilder.proto import PROTO_CPU, NetDef, NetError
from netbuilder.proto.arguments import make_op

DEVICES = Devices(PROTO_CPU, (4, 1))


def net(*ops):
    """A net of operators, each given as type, inputs, outputs; "a" is cpu_4, "b" is cpu_1, other blobs are shared."""
    made = NetDef(name="net")
    for kind, inputs, outputs, *controls in ops:
        op = make_op(kind, *([named(blob) for blob in blobs.split()] for blobs in (inputs, outputs)))
        op.control_input.extend(map(named, controls))
        made.op.append(op)
    return made


def named(blob):
    return {"a": "cpu_4/", "b": "cpu_1/"}[blob[0]] + blob[1:] if blob[0] in "ab" else blob


def outputs(made):
    return [op.output[0].replace("cpu_4/", "a").replace("cpu_1/", "b") for op in made.op]


def test_operators_of_the_replicas_alternate():
    ops = net(("Exp", "a1", "a2"), ("Relu", "a2", "a3"), ("Exp", "b1", "b2"), ("Relu", "b2", "b3"))
    before = ops.SerializeToString()
    assert outputs(interleave(ops, DEVICES)) == ["a2", "b2", "a3", "b3"]
    assert ops.SerializeToString() == before


def test_operators_outside_the_replicas_keep_their_order_and_come_where_they_are_needed():
    ops = net(
        ("Exp", "x", "table"),
        ("Exp", "x", "other"),
        ("Exp", "a1", "a2"), ("Mul", "a2 table", "a3"), ("Exp", "a3", "a4"),
        ("Exp", "b1", "b2"), ("Mul", "b2 table", "b3"), ("Exp", "b3", "b4"),
        ("Sum", "a4 b4", "total"),
        ("Relu", "total", "total"),
        ("Mul", "a4 total", "a5"), ("Mul", "b4 total", "b5"),
        ("Exp", "a2 b2", "late"),
    )  # fmt: skip
    assert outputs(interleave(ops, DEVICES)) == [
        "a2", "b2", "table", "a3", "b3", "a4", "b4", "other", "total", "total", "a5", "b5", "late"
    ]  # fmt: skip


def exps(text):
    """Operators Exp, one for each word: input, ">", output and possibly "|", the operator that it waits for."""
    words = (word.replace("|", ">").split(">") for word in text.split())
    return [("Exp", inputs, outputs, *after) for inputs, outputs, *after in words]


@pytest.mark.parametrize(
    "ops, order",
    [
        ("t>a2 a2>a3 t>b2 b2>b3 x>t", "a2 b2 a3 b3 t"),
        ("a1>a2 b1>b2 x>t a1>a3|t b1>b3|t", "a2 b2 t a3 b3"),
        ("x>t t>a2 t>b2 x>t t>a3 t>b3", "t a2 b2 t a3 b3"),
    ],
    ids=["written after it is read", "control inputs", "written twice"],
)
def test_dependencies_are_kept(ops, order):
    assert outputs(interleave(net(*exps(ops)), DEVICES)) == order.split()


def test_different_operators_are_refused_with_their_numbers():
    ops = net(("Exp", "a1", "a2"), ("Exp", "b1", "b2"), ("Exp", "b2", "b3"))
    with pytest.raises(NetError, match=r"there are 1 operator on device 4, 2 operators on device 1; the builders must"):
        interleave(ops, DEVICES)
    ops = net(("Exp", "a1", "a2"), ("Relu", "b1", "b2"))
    with pytest.raises(NetError, match="each has 1 operator, but number 0 is Exp on device 4, Relu on device 1"):
        interleave(ops, DEVICES)


@pytest.mark.parametrize(
    "ops, kind",
    [
        ([("Exp", "a1", "a2"), ("Exp", "a2", "t"), ("Mul", "b1 t", "b2"), ("Exp", "b2", "b3")], "Mul"),
        ([("Mul", "a1 x", "a2"), ("Sum", "a2 b9", "t"), ("Mul", "b1 t", "b2")], "Sum"),
    ],
    ids=["a shared blob", "an operator outside"],
)
def test_replicas_that_wait_for_one_another_are_refused(ops, kind):
    with pytest.raises(NetError, match=f"{kind} .* makes a replica wait for a later operator of another one"):
        interleave(net(*ops), DEVICES)
