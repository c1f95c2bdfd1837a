"""netbuilder-train over several processes: the same as one process with all devices, whatever happens on the way."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

import trainer_processes
from netbuilder.data import BatchMixer, image_libraries
from netbuilder.tools import imagenet_trainer
from parallel_models import distance
from trainer_faults import OPTIONS, blobs_at_end, resumable, start_processes
from trainer_processes import CASES, DEVICES, results, start

pytest.importorskip("mpi4py")

SECONDS = 120


@pytest.fixture(scope="module")
def trained(tmp_path_factory, request):
    """What two processes have printed, and a folder with what they have after each case, and the data of one.

    Only the cases whose tests run are trained.
    """
    path = tmp_path_factory.mktemp("trained")
    compared = [item for item in request.session.items if "test_processes_get_what_one_gets[" in item.nodeid]
    names = [item.callspec.params["name"] for item in compared]
    rng = np.random.default_rng(5)
    pixels, labels = rng.integers(0, 256, (41, 6, 6), np.uint8), np.arange(41) % 3
    np.savez(path / "set.npz", x_train=pixels, y_train=labels, x_test=pixels[:7], y_test=labels[:7])
    program = [trainer_processes.__file__, str(path), *names]
    command = [sys.executable, "-m", "netbuilder.tools.launch", "-n", "2", *program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("has finished") == 2
    shutil.copytree(path / "SIGTERM", path / "for three")
    return done, path


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", CASES)
def test_processes_get_what_one_gets(name, trained):
    if name == "decoded" and not image_libraries():
        pytest.skip("needs a library for images")
    folder = trained[1]
    got, want = dict(np.load(folder / f"{name}.npz")), results(start(name, DEVICES, folder / "set.npz"))
    assert got.keys() == want.keys()
    np.testing.assert_allclose(got.pop("measures"), want.pop("measures"), rtol=1e-6)
    assert distance([got[each] for each in want], list(want.values())) < 1e-6


def test_stopped_killed_and_resumed(trained, tmp_path):
    """Rank 1 got SIGTERM; the resumed run is killed; resumed in one process, it ends as a run without all that."""
    out, parts, whole = trained[0].stdout, trained[1] / "SIGTERM", tmp_path / "whole"
    assert out.count("stopped by SIGTERM after 8 steps, saved to") == 1
    assert out.count("speed-up: a step takes") == 1 and " on 2 devices, and " in out
    assert "to resume, in 2 processes or another number of them:\nnetbuilder-train --cpu" in out
    assert sorted(os.listdir(parts)) == [f"step-{number:08d}.minidb" for number in (3, 6, 8)]
    killed = start_processes(parts, fault=("SIGKILL", "1", "29", "0"))
    out, _ = killed.communicate(timeout=SECONDS)
    assert killed.returncode == 128 + signal.SIGKILL, out
    assert out.count("8 of 23 steps are done") == out.count("epoch 1/2: loss") == 1
    arguments = [*OPTIONS, "--devices=0,1"]
    assert imagenet_trainer.main([*arguments, *resumable(parts)]) == 0
    assert imagenet_trainer.main([*arguments, f"--checkpoint={whole}"]) == 0
    got, want = blobs_at_end(parts), blobs_at_end(whole)
    assert got.keys() == want.keys()
    assert distance([got[name] for name in want], list(want.values())) < 1e-6


@pytest.mark.slow
def test_begun_by_two_processes_and_resumed_by_three(trained, tmp_path):
    """The batch of 64 is shared unevenly: the parameters are those of a run in one process, on one device."""
    parts, whole = trained[1] / "for three", tmp_path / "whole"
    resumed = start_processes(parts, processes=3)
    out, _ = resumed.communicate(timeout=SECONDS)
    assert resumed.returncode == 0, out
    assert out.count("8 of 23 steps are done") == 1 and "batches of 64, 22 or 21 on each device" in out
    assert imagenet_trainer.main([*OPTIONS, f"--checkpoint={whole}"]) == 0
    got, want = blobs_at_end(parts), blobs_at_end(whole)
    assert got.keys() == want.keys()
    assert distance([got[name] for name in want], list(want.values())) < 1e-6


def test_the_report_names_the_rank_that_waits_for_its_input(trained):
    out = trained[0].stdout
    assert "ranks, least / median / most: step " in out
    waits = r"the others waited for it for [\d.]+ s, \d+% of the time; it waited for input for [\d.]+ s"
    assert re.search(rf"the slowest is rank 1 on \S+: {waits}", out), out


def test_one_trace_has_the_calls_of_all_processes_on_one_clock(trained):
    events = json.loads((trained[1] / "trace.json").read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {pid: name.split(" on ")[0] for pid, name in names.items()} == {1: "rank 0", 2: "rank 1"}
    slices = [event for event in events if event["ph"] == "X"]
    assert len({(event["pid"], event["tid"], event["ts"]) for event in slices}) == len(slices)
    for step in range(3):
        spans = [event for event in slices if event["name"] == f"step {step}"]
        assert [event["pid"] for event in spans] == [1, 2]
        sums = [event for event in slices if event["name"].startswith("AllreduceBucket")]
        assert min(event["ts"] for event in spans) < max(event["ts"] + event["dur"] for event in spans)
        latest_begin = max(event["ts"] for event in spans)
        assert latest_begin < min(event["ts"] + event["dur"] for event in spans), "steps of both ranks overlap"
    begins = [[event["ts"] for event in sums if event["pid"] == rank] for rank in (1, 2)]
    waits = [event for event in slices if event["name"] == sums[0]["name"].replace("AllreduceBucket", "wait")]
    ends = [[event["ts"] + event["dur"] for event in waits if event["pid"] == rank] for rank in (1, 2)]
    assert [len(each) for each in (*begins, *ends)] == [3] * 4
    assert all(max(begun) < min(ended) for begun, ended in zip(zip(*begins), zip(*ends))), "all begin before one ends"


def test_an_error_in_a_loader_names_its_rank(trained):
    assert "netbuilder-train: rank 1: the disk with the images is gone" in trained[0].stderr
    assert "rank 1 of 2 has failed (OSError: the disk with the images is gone)" in trained[0].stderr


@pytest.mark.parametrize("options", [{"mixup": 0.4}, {"cutmix": 1.0}, {"mixup": 1.0, "cutmix": 1.0}], ids=str)
def test_a_part_of_a_batch_is_mixed_as_in_the_whole(options):
    mixer, rng = BatchMixer(5, smoothing=0.1, **options), np.random.default_rng(0)
    images, labels = rng.normal(size=(9, 3, 6, 6)).astype(np.float32), rng.integers(0, 5, 9)
    for number in range(6):
        place = {"epoch": 2, "number": number}
        whole = mixer(images, labels, **place)
        for own in (np.arange(4), np.array([8]), np.array([7, 1, 3])):
            chosen = np.concatenate([own, mixer.others(9, **place)[own]])
            part = mixer(images[chosen], labels[chosen], count=9, **place)
            for got, want in zip(part, whole):
                np.testing.assert_array_equal(got, want[own])
