"""The random state of a workspace, read and set."""

import numpy as np
import pytest

from netbuilder.proto import NetDef, NetError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import RandomState, Workspace, random_state, set_random_state


def made(seed=0, runs=0, net_type="simple"):
    """Return a workspace with a net that draws masks, run so often."""
    workspace = Workspace(seed=seed)
    workspace.feed("x", np.ones(64, np.float32))
    drop = make_op("Dropout", ["x"], ["y", "mask"], ratio=0.5)
    noise = make_op("UniformFill", [], ["noise"], shape=[4], min=0.0, max=1.0)
    workspace.create_net(NetDef(name="net", op=[drop, noise], type=net_type))
    drawn = []
    for _ in range(runs):
        drawn.append(run(workspace))
    return workspace, drawn


def run(workspace):
    workspace.run_net("net")
    return [*workspace.fetch("mask").tolist(), *workspace.fetch("noise").tolist()]


@pytest.mark.parametrize("net_type", ["simple", "dag"])
@pytest.mark.parametrize("ran_before", [0, 2])
def test_draws_go_on_in_another_workspace(net_type, ran_before):
    first, _ = made(seed=5, runs=3, net_type=net_type)
    state = random_state(first)
    assert state == RandomState(5, {"net": 3})
    second, _ = made(seed=1, runs=ran_before, net_type=net_type)
    set_random_state(second, state)
    for _ in range(3):
        assert run(first) == run(second)


def test_each_run_and_seed_draws_otherwise():
    _, drawn = made(runs=2)
    _, others = made(seed=1, runs=2)
    assert len({tuple(row) for row in drawn + others}) == 4


def test_nets_of_one_side_alone_stay_as_they_are():
    workspace, _ = made(runs=2)
    set_random_state(workspace, RandomState(0, {"other": 7}))
    assert random_state(workspace) == RandomState(0, {"net": 2})


def test_a_negative_count_is_refused():
    workspace, _ = made(runs=2)
    with pytest.raises(NetError, match="got {'net': -1}"):
        set_random_state(workspace, RandomState(9, {"net": -1}))
    assert random_state(workspace) == RandomState(0, {"net": 2})
