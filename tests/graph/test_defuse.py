"""Def-use analysis: versions, dependencies, what a net needs, paths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost import cpu_seconds
from netbuilder.graph import (
    Net,
    dependencies,
    get_op_ids_in_path,
    get_output_producers,
    get_ssa,
    get_undefined_blobs,
    operators_between,
    undefined_inputs,
)
from netbuilder.graph.versions import EXTERNAL, number_versions
from netbuilder.proto import NetDef, OperatorDef
from netbuilder.proto.arguments import make_argument


def ops(*rows) -> NetDef:
    """Return a net of operators given as "a b -> c d"; "a > c" after a semicolon are control inputs."""
    net = NetDef()
    for row in rows:
        blobs, _, controls = row.partition(";")
        reads, writes = blobs.split("->")
        net.op.add(type="Sum", input=reads.split(), output=writes.split(), control_input=controls.split())
    return net


@pytest.mark.parametrize(
    ("net", "waits"),
    [
        (ops("x -> a", "a -> b", "x -> c"), [set(), {0}, set()]),  # read after write
        (ops("x -> a", "y -> x"), [set(), {0}]),  # write after read
        (ops("x -> a", "y -> a", "a -> b"), [set(), {0}, {1}]),  # write after write
        (ops("x -> a", "a -> a", "a -> b", "a -> a"), [set(), {0}, {1}, {1, 2}]),  # in place
        (ops("x -> a", "y -> b; a", "z -> c; q"), [set(), {0}, set()]),  # control inputs
        (ops("x -> a", "y -> b; a", "z -> a"), [set(), {0}, {0, 1}]),  # and what overwrites them
        (ops("x x -> a", "x -> x"), [set(), {0}]),
        (ops("-> a", "->", "a -> a b", "b a -> c"), [set(), set(), {0}, {2}]),
        (NetDef(), []),
    ],
)
def test_dependencies(net, waits):
    assert dependencies(net) == waits
    assert dependencies(list(net.op)) == waits


def test_operators_wait_for_what_nets_they_hold_read_and_write():
    net = ops("x -> a", "c -> y", "a -> b")
    held = NetDef(external_input=["a"], external_output=["b"])
    net.op[1].arg.append(make_argument("then_net", held))
    assert dependencies(net) == [set(), {0}, {0, 1}]


NETS = st.lists(
    st.tuples(
        st.lists(st.sampled_from("abcd"), max_size=3), st.lists(st.sampled_from("abcd"), max_size=2, unique=True)
    ),
    max_size=12,
)


@given(NETS)
def test_every_conflict_is_ordered(rows):
    """By definition: two operators are ordered if one writes what the other reads or writes."""
    net = NetDef(op=[OperatorDef(type="Sum", input=reads, output=writes) for reads, writes in rows])
    waits = dependencies(net)
    before: list[set[int]] = []  # all that an operator waits for, directly or not
    for index, wait in enumerate(waits):
        assert all(i < index for i in wait)
        before.append(wait.union(*(before[i] for i in wait)))
        for other in range(index):
            (r1, w1), (r2, w2) = (map(set, rows[i]) for i in (other, index))
            if w1 & r2 or w1 & w2 or r1 & w2:
                assert other in before[index]
    for index, wait in enumerate(waits):
        for other in wait:
            (r1, w1), (r2, w2) = (map(set, rows[i]) for i in (other, index))
            assert w1 & r2 or w1 & w2 or r1 & w2  # and nothing else is


def test_versions():
    versions = number_versions(ops("x -> a", "a x -> a", "a -> x").op)
    named = [f"{name}{version}" for name, version in zip(versions.names, versions.versions)]
    assert named == ["x0", "a0", "a1", "x1"]
    assert versions.writers == [EXTERNAL, 0, 1, 2]
    assert versions.readers == [[0, 1], [1], [2], []]
    assert versions.inputs == [[0], [1, 0], [2]] and versions.outputs == [[1], [2], [3]]
    assert versions.last == {"x": 3, "a": 2}


def test_what_a_net_needs():
    assert undefined_inputs(ops("x w -> a", "a w b -> a", "a -> c", "-> b").op) == ["x", "w", "b"]


def test_operators_between_blobs():
    net = ops("x w -> h", "h -> h", "h -> y", "h v -> z", "q -> r")
    assert operators_between(net.op, ["x"], ["y"]) == [0, 1, 2]
    assert operators_between(net.op, ["h"], ["y", "z"]) == [2, 3]
    assert operators_between(net.op, [], ["r", "unknown"]) == [4]
    assert operators_between(net.op, ["y"], ["y"]) == []


def test_ssa_as_caffe2_numbers_it():
    net = Net("n")
    net.AddExternalInput("unused")
    net.FC(["x", "w", "b"], "h")
    net.Relu("h", "h")
    net.Softmax("h", "y")
    for given_net in (net, net.Proto()):
        ssa, last = get_ssa(given_net)
        assert ssa == [
            ([("x", 0), ("w", 0), ("b", 0)], [("h", 1)]),
            ([("h", 1)], [("h", 2)]),
            ([("h", 2)], [("y", 1)]),
        ]
        assert last == {"unused": 0, "x": 0, "w": 0, "b": 0, "h": 2, "y": 1}
    assert get_undefined_blobs(ssa) == {"x", "w", "b"}
    assert get_output_producers(ssa) == {("h", 1): 0, ("h", 2): 1, ("y", 1): 2}
    assert get_op_ids_in_path(ssa, last, ["x"], ["y"]) == [0, 1, 2]
    assert get_op_ids_in_path(ssa, last, ["h"], ["y"]) == [2]
    assert get_ssa(net, {"h": 5})[0][1] == ([("h", 6)], [("h", 7)])


def _seconds(count):
    net = NetDef()
    for i in range(count):
        net.op.add(type="Sum", input=["w", f"a{i}"], output=[f"a{i + 1}"])  # one blob is read by all ...
    net.op.add(type="Sum", input=["w"], output=["w"])  # ... and overwritten at the end
    assert len(dependencies(net)[-1]) == count
    return cpu_seconds(lambda: dependencies(net)) / count


@pytest.mark.slow
def test_the_cost_is_linear():
    assert min(_seconds(40_000) for _ in range(2)) < 8 * min(_seconds(2000) for _ in range(3))
