"""netbuilder-train over processes with emulated GPUs that exchange values by NCCL, without MPI."""

import re
import signal
import time

import numpy as np
import pytest

import nccl_trainer
from nccl_training import launched
from netbuilder.distributed import Rendezvous
from netbuilder.distributed.stores import MemoryStore
from netbuilder.tools import imagenet_trainer
from netbuilder.tools.training import settings
from netbuilder.tools.training.options import parse
from on_gpu import gpus
from parallel_models import distance
from trainer_faults import OPTIONS, STEPS, blobs_at_end, resumable
from trainer_processes import results, start

SECONDS = 240
ENDING = 15  # seconds to the end of the job after a rank was killed, on a machine with more work than cores


# Of two GPUs in each process the killed run has some quick steps, and test_nccl_real_processes the nets.
@pytest.fixture(
    scope="module", params=[pytest.param(1, id="2 x 1"), pytest.param(2, id="2 x 2", marks=pytest.mark.slow)]
)
def trained(request, tmp_path_factory):
    """The folder with what two processes have after each case, and the number of GPUs of both."""
    folder = tmp_path_factory.mktemp("trained")
    process = launched(folder, 2, nccl_trainer.__file__, request.param, folder)
    printed, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, printed
    assert printed.count("has finished") == 2
    return folder, 2 * request.param


@pytest.mark.emulated
@pytest.mark.parametrize("name", nccl_trainer.CASES)
def test_processes_get_what_one_gets(name, trained):
    folder, count = trained
    want = results(start(name, count, folder, cpu=False))
    got = dict(np.load(folder / f"{name}.npz"))
    assert got.keys() == want.keys()
    np.testing.assert_allclose(got.pop("measures"), want.pop("measures"), rtol=1e-6)
    assert distance([got[each] for each in want], list(want.values())) < 1e-6


@pytest.mark.emulated
def test_a_killed_run_ends_soon_and_resumes(tmp_path):
    """Rank 1 is killed; resumed in two processes with two GPUs, and stopped by SIGTERM there, the run ends in one."""
    options = [*(option for option in OPTIONS if option != "--cpu"), "--epochs=1"]
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    killed = launched(tmp_path, 2, nccl_trainer.__file__, 1, "SIGKILL", 1, 7, *options, *resumable(parts))
    printed, _ = killed.communicate(timeout=SECONDS)
    seconds = time.monotonic() - float(re.search(r"FAULT ([\d.]+)", printed)[1])
    assert killed.returncode == 128 + signal.SIGKILL, printed
    assert "rank 1 on" in printed and "was ended by SIGKILL" in printed
    assert seconds < ENDING, printed
    stopped = launched(
        tmp_path, 2, nccl_trainer.__file__, 2, "SIGTERM", 1, 11, *options, "--devices=0,1", *resumable(parts)
    )
    printed, _ = stopped.communicate(timeout=SECONDS)
    assert stopped.returncode == 128 + signal.SIGTERM, printed
    assert printed.count("6 of 23 steps are done") == 1 and printed.count("stopped by SIGTERM after ") == 1, printed
    assert imagenet_trainer.main([*options, "--devices=0,1", *resumable(parts)]) == 0
    assert imagenet_trainer.main([*options, "--devices=0,1", f"--checkpoint={whole}"]) == 0
    got, want = blobs_at_end(parts, STEPS // 2), blobs_at_end(whole, STEPS // 2)
    assert got.keys() == want.keys()
    assert distance([got[name] for name in want], list(want.values())) < 1e-6


@pytest.mark.emulated
def test_processes_meet_over_the_devices_of_the_run(monkeypatch):
    place = Rendezvous(2, 1, "NCCL", store=MemoryStore())
    monkeypatch.setattr(settings, "ProcessGroup", lambda rendezvous, device: (rendezvous, device))
    with gpus(2):
        assert parse(["--model=mlp", "--devices=1"], rendezvous=place).group() == (place, 1)


def test_nccl_does_not_serve_cpus(capsys):
    with pytest.raises(SystemExit):
        parse(["--cpu", "--model=mlp"], rendezvous=Rendezvous(2, 0, "NCCL", store=MemoryStore()))
    assert "--cpu: NCCL exchanges values of GPUs; pip install 'netbuilder-nn[mpi]'" in capsys.readouterr().err
