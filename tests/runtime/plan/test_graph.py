"""The graph of a plan: each phase of the compiler leaves it without faults, and those that there can be are found."""

import dataclasses

import pytest

from netbuilder.runtime.plan import compiler
from netbuilder.runtime.plan.graph import PlanGraph
from netbuilder.runtime.plan.options import PlanOptions
from netbuilder.runtime.plan.values import Node, Value
from netbuilder.tools.bench.ours import Training
from netbuilder.tools.bench.work import Work

WORKS = [
    Work("mlp", 8, observable="outputs"),
    Work("resnet18", 2, size=32, classes=10),
    Work("resnet18", 4, size=32, classes=10, devices=2, combine_bn=True),
    Work("resnet18", 2, size=32, classes=10, observable="outputs", dtype="bfloat16"),
    Work("lstm", 4, size=16, classes=50, decay=0.0),
]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("work", WORKS, ids=lambda work: f"{work.net}-{work.devices}-{work.observable}-{work.dtype}")
def test_every_phase_leaves_a_graph_without_faults(work, monkeypatch):
    ran = []

    def checked(phase):
        def change(graph):
            phase.change(graph)
            assert graph.faults() == [], phase.change.__name__
            ran.append(phase.change.__name__)

        return dataclasses.replace(phase, change=change)

    monkeypatch.setattr(compiler, "PHASES", tuple(map(checked, compiler.PHASES)))
    training = Training(work)
    training.workspace.net(training._name).plan_ahead()
    assert {phase.change.__name__ for phase in compiler.PHASES} == {"change"} and len(set(ran)) == len(compiler.PHASES)


def node(inputs, outputs):
    return Node([], inputs, outputs)


def graph(*nodes):
    return PlanGraph("net", list(nodes), [], {}, {}, frozenset(), PlanOptions(), {}, ())


A, B, C = Value("a", 0), Value("b", 0), Value("a", 1)


@pytest.mark.parametrize(
    "nodes, fault",
    [
        ([node([], [A]), node([A], [B]), node([B], [C])], None),
        ([node([A], [B]), node([], [A])], "reads <value 'a', version 0> before it is made"),
        ([node([], [A]), node([A], [B]), node([A], [B])], "makes <value 'b', version 0> once more"),
        ([node([], [C]), node([C], [A])], "makes <value 'a', version 0> after version 1"),
    ],
)
def test_faults(nodes, fault):
    found = graph(*nodes).faults()
    assert found == [] if fault is None else [fault] == [each[each.index(fault) :] for each in found]


def test_who_makes_and_who_reads_a_value():
    first, second, third = node([A], [B]), node([B, B], [C]), node([B], [])
    made = graph(first, second, third)
    assert made.makers() == {B: first, C: second}
    assert made.readers() == {A: [first], B: [second, second, third]}
    made.replace({second: [], third: [node([], []), node([], [])]})
    assert made.nodes[0] is first and len(made.nodes) == 3 and second not in made.nodes
