"""Dependencies of operators, and orders that respect them."""

import pytest

from netbuilder.caffe2.operator_order import OperatorGraph, first_come, longest_path_first, reorder_pass
from netbuilder.graph import Net
from netbuilder.proto import NetError


def net_of():
    net = Net("ordered")
    net.Relu("x", "short")  # 0
    net.Relu("x", "a")  # 1
    net.Sigmoid("a", "b")  # 2
    net.Relu("b", "b")  # 3: overwrites what it reads
    net.Sum(["short", "b"], "y")  # 4
    net.Copy("x", "b")  # 5: overwrites what 4 reads
    return net.Proto()


def test_what_comes_before_what():
    graph = OperatorGraph(net_of().op)
    assert [graph.predecessors(number) for number in graph.nodes] == [[], [], [1], [2], [0, 3], [3, 4]]
    assert graph.successors(3) == [4, 5] and len(graph) == 6


def test_control_inputs_come_before():
    net = Net("controlled")
    net.Relu("x", "a")
    net.Relu("x", "b", control_input=["a"])
    graph = OperatorGraph(net.Proto().op)
    assert graph.predecessors(1) == [0]


def test_orders():
    net = net_of()
    before, graph = net.SerializeToString(), OperatorGraph(net.op)
    assert first_come(graph) == graph.nodes
    order = longest_path_first(graph)
    assert order == [1, 2, 0, 3, 4, 5]
    assert [op.output[0] for op in reorder_pass(net, graph=graph, order=order).net.op] == [
        net.op[number].output[0] for number in order
    ]
    assert net.SerializeToString() == before


def test_orders_that_are_wrong():
    net = net_of()
    graph = OperatorGraph(net.op)
    with pytest.raises(NetError, match=r"operator 4 \(Sum\) must run after 3 \(Relu\)"):
        reorder_pass(net, graph=graph, order=[0, 1, 2, 4, 3, 5])
    with pytest.raises(NetError, match="each of its 6 operators once, got"):
        reorder_pass(net, graph=graph, order=[0, 0, 1, 2, 3, 4])
