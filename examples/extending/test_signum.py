"""Signum."""

import numpy as np
import pytest
from signum import SignumOptimizer

from netbuilder.graph import Net
from netbuilder.optimizers import optimizer_by_name
from netbuilder.proto import ArgumentError
from netbuilder.runtime import Workspace


def test_two_steps():
    net, init = Net("train"), Net("init")
    optimizer = SignumOptimizer(alpha=0.5, beta=0.75)
    optimizer(net, init, "w", "g")
    assert [str(blob) for blob in optimizer.get_auxiliary_parameters().local] == ["w_mean"]
    workspace = Workspace()
    workspace.feed("w", np.float32([1, 1, 1]))
    workspace.run_net_once(init)
    for gradient in ([4, -4, 0], [-1, 1, 2]):
        workspace.feed("g", np.float32(gradient))
        workspace.run_net_once(net, overwrite=True)
    np.testing.assert_array_equal(workspace.fetch("w_mean"), [0.5, -0.5, 0.5])
    np.testing.assert_array_equal(workspace.fetch("w"), [0, 2, 0.5])


def test_it_has_a_name():
    assert optimizer_by_name("signum", 0.1, beta=0.5).attributes["beta"] == 0.5
    with pytest.raises(ArgumentError, match=r"beta must lie in \[0, 1\), got 1"):
        optimizer_by_name("signum", beta=1)
