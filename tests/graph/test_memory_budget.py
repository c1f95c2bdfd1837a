"""Memory budgets: what is one, what is not, how a net stores it."""

import pytest

from netbuilder.graph import Net
from netbuilder.graph.memory_budget import clear_stored_budget, parse_budget
from netbuilder.proto import NetDef, NetError
from netbuilder.runtime.plan.options import PlanOptions


@pytest.mark.parametrize(
    "value, expected",
    [(1, 1), (1 << 40, 1 << 40), (0.5, 0.5), (1.0, 1.0), ("4GiB", 4 << 30), ("600 MB", 600_000_000), ("2k", 2048),
     (" 1.5 GiB ", 3 << 29), ("60%", 0.6), ("0.25", 0.25), (".5", 0.5), ("1", 1.0), ("4096", 4096), ("7b", 7)],
)  # fmt: skip
def test_budgets(value, expected):
    found = parse_budget(value, "here")
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    "value", [0, -1, 0.0, 1.5, True, None, "", "GiB", "4 GiB more", "-1", "0", "0%", "101%", "1.5", "1e9", [1], b"4GiB"]
)
def test_what_is_no_budget(value):
    with pytest.raises(NetError, match=r"here: memory_budget must be a number of bytes, .* or '60%'; got"):
        parse_budget(value, "here")


@pytest.mark.parametrize("value, meant", [(70, "70%"), ("80", "80%"), (" 2 ", "2%"), (100, "100%")])
def test_a_percentage_without_its_sign(value, meant):
    with pytest.raises(NetError, match=rf"here: memory_budget={meant[:-1]} is .*; did you mean '{meant}'\?$"):
        parse_budget(value, "here")
    assert parse_budget(meant, "here") == int(meant[:-1]) / 100
    assert parse_budget(101, "here") == 101


def test_a_net_stores_its_budget():
    def stored_budget(net):
        return PlanOptions().of_net(net).memory_budget

    net = Net("stores")
    assert stored_budget(net.Proto()) is None
    net.set_memory_budget("4GiB")
    net.set_memory_budget(0.5)
    copy = NetDef.FromString(net.Proto().SerializeToString())
    assert stored_budget(copy) == 0.5
    assert stored_budget(net.Clone("other").Proto()) == 0.5
    with pytest.raises(NetError, match=r"net 'stores': memory_budget must be .*; got 'much'"):
        net.set_memory_budget("much")
    assert stored_budget(net.Proto()) == 0.5
    clear_stored_budget(copy)
    assert stored_budget(copy) is None
