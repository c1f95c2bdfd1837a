"""Random seeds of a net's operators."""

import pytest

from netbuilder.graph import Net
from netbuilder.proto import NetError
from netbuilder.runtime import Workspace


def two_fills() -> Net:
    net = Net("seeds")
    net.UniformFill([], "a", shape=[3])
    net.UniformFill([], "b", shape=[3])
    return net


def seeds(net: Net) -> list[int]:
    return [op.device_option.random_seed for op in net.Proto().op]


def test_in_sequence_and_all_one():
    net = two_fills()
    net.set_rand_seed(7)
    assert seeds(net) == [7, 8]
    net.set_rand_seed(7, sequence_seed=False)
    assert seeds(net) == [7, 7]


def test_by_operator_the_seeds_stay_when_another_comes_first():
    net = two_fills()
    net.set_rand_seed(7, sequence_seed=False, seed_on_op_def=True)
    before = seeds(net)
    net.insert_op_at_idx(Net("other").Proto().op.add(type="UniformFill", output=["c"]), 0)
    net.set_rand_seed(7, sequence_seed=False, seed_on_op_def=True)
    assert seeds(net)[1:] == before and len(set(seeds(net))) == 3


def test_both_ways_at_once_are_refused():
    with pytest.raises(NetError, match="net seeds.*: give sequence_seed or seed_on_op_def, not both"):
        two_fills().set_rand_seed(7, seed_on_op_def=True)


def test_a_seed_decides_what_a_fill_draws():
    def drawn(seed: int) -> list[float]:
        net, workspace = two_fills(), Workspace()
        net.set_rand_seed(seed)
        workspace.run_net_once(net)
        return workspace.fetch("a").tolist()

    assert drawn(7) == drawn(7) != drawn(8)
