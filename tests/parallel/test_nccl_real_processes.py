"""Processes with emulated GPUs that exchange values by NCCL train what one process does, without MPI."""

import re

import numpy as np
import pytest

import nccl_training
from nccl_training import NAMES, launched, on_gpus
from parallel_models import distance
from process_training import train_case

pytestmark = pytest.mark.emulated
SECONDS = 240


# One GPU in each process is what test_trainer_nccl has.
@pytest.fixture(
    scope="module", params=[pytest.param((2, 1), id="2 x 1", marks=pytest.mark.slow), pytest.param((2, 2), id="2 x 2")]
)
def trained(request, tmp_path_factory):
    """What each of the processes, started by the launcher, has after each case; their numbers, and what they print."""
    processes, count = request.param
    folder = tmp_path_factory.mktemp("trained")
    process = launched(folder, processes, nccl_training.__file__, folder, count)
    printed, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, printed
    assert printed.count("has finished") == processes
    found = {name: [dict(np.load(folder / f"{name} {rank}.npz")) for rank in range(processes)] for name in NAMES}
    return found, processes * count, printed


@pytest.mark.parametrize("name", NAMES)
def test_they_train_what_one_process_does(trained, name):
    found, devices, _ = trained
    want = train_case(on_gpus(name), devices)[-1]
    for got in found[name]:
        assert got.keys() == want.keys()
        for each, value in want.items():
            if not ("bn_s" in want and each == "conv_b"):  # its gradient is zero, but for rounding
                assert distance([got[each]], [value]) < 1e-5, each
            assert np.array_equal(got[each], found[name][0][each]), each


def test_communicators_are_made_once(trained):
    """One over the first GPU of each process, for a ProcessGroup, too; where they have several, one over all GPUs."""
    _, devices, printed = trained
    assert re.search(r"rank 0 has finished, communicators of (\d+) ids", printed)[1] == ("1" if devices == 2 else "2")
