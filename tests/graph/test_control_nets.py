"""Values and gradients of random nets of branches, loops, devices and sequences, against NumPy in float64.

``python -m control_nets`` tries more of them.
"""

import pytest

import control_nets
from netbuilder.proto import GradientError

SHARES = 10  # of the seeds, so that processes can divide them


def refused(nets, **options):
    """Check nets; return how many are refused because an operator overwrites what a gradient needs."""
    count = 0
    for net in nets:
        try:
            control_nets.check(net, **options)
        except GradientError as error:
            assert "overwrites" in str(error)
            count += 1
    return count


@pytest.mark.one_in(10)
@pytest.mark.parametrize("share", range(SHARES))
def test_operators_with_nets(share):
    nets = [control_nets.RandomNet(seed) for seed in range(share, 60, SHARES)]
    assert refused(nets) < len(nets) / 2


def test_helpers_on_all_executors():
    nets = [control_nets.RandomNet(seed, helpers=True) for seed in range(102, 106)]
    assert refused(nets, executors=control_nets.EXECUTORS) < len(nets) / 3


def test_flat_nets():
    nets = [control_nets.RandomNet(seed, flat=True) for seed in range(200, 207)]
    assert refused(nets) < len(nets) / 2


@pytest.mark.slow
@pytest.mark.parametrize("share", range(20))
def test_many_nets(share):
    nets = [control_nets.RandomNet(seed, helpers=seed % 2 > 0) for seed in range(1000 + share, 3000, 20)]
    assert refused(nets, executors=("simple", "dag")) < len(nets) / 3
