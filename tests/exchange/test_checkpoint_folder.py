"""A folder of checkpoints: the last ones and the best, the newest complete one, errors."""

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from netbuilder.exchange import Checkpoint, CheckpointFolder, load_checkpoint
from netbuilder.model import ModelHelper, brew
from netbuilder.proto import NetError, ParseError
from netbuilder.runtime import Workspace


def put(folder, step, metric=None):
    return folder.write(Checkpoint({"w": np.float32([step])}, step=step, metric=metric))


def steps(folder):
    return [int(path.name[5:13]) for path in folder.paths()]


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path / "run" / "checkpoints")


def test_the_last_and_the_best_are_kept(folder):
    for step, metric in enumerate([0.1, 0.9, 0.5, None, 0.2, float("nan"), 0.3]):
        put(folder, step, metric)
    assert steps(folder) == [1, 4, 5, 6]
    assert folder.best_path().name == "step-00000001.minidb"
    lowest = CheckpointFolder(folder.folder, keep=1, best="min")
    put(lowest, 9, 7.0)
    assert steps(lowest) == [4, 9]
    put(CheckpointFolder(folder.folder, keep=1, best=None), 10, -1.0)
    assert steps(folder) == [10]


def test_of_equal_metrics_the_newest_is_the_best(folder):
    for step in range(6):
        put(folder, step, 0.5)
    assert steps(folder) == [3, 4, 5]


def test_a_step_may_be_saved_again(folder):
    put(folder, 3, 0.1)
    put(folder, 3, 0.2)
    assert steps(folder) == [3]
    assert folder.latest()[1].metric == 0.2


def test_the_newest_that_is_whole(folder):
    assert folder.latest() is None
    assert folder.best_path() is None
    for step in (8, 9, 10):
        put(folder, step)
    path, found = folder.latest()
    assert (path.name, found.step) == ("step-00000010.minidb", 10)
    path.write_bytes(path.read_bytes()[:-1])
    (path.parent / "step-00000009.minidb").write_bytes(b"")
    said = []
    path, found = folder.latest(said.append)
    assert found.blobs["w"].tolist() == [8]
    assert [text.partition(":")[0] for text in said] == ["skipped"] * 2
    assert folder.latest(said.append, set_aside=True)[0] == path
    assert steps(folder) == [8]
    assert "step-00000010.minidb.damaged" in os.listdir(folder.folder)
    path.write_bytes(b"")
    with pytest.raises(ParseError, match="checkpoints': no checkpoint is complete"):
        folder.latest()


def test_damaged_files_are_no_hindrance_to_the_next_save(folder):
    put(folder, 1, 0.5)
    put(folder, 2, 0.1).write_bytes(b"damaged")
    put(folder, 3, 0.2)
    assert steps(folder) == [1, 2, 3]


def test_other_files_are_left_alone_and_drafts_of_killed_processes_removed(folder):
    put(folder, 1)
    place = folder.paths()[0].parent
    (place / "notes.txt").touch()
    (place / ".step-00000002.minidb.draft-00112233").touch()
    put(folder, 2)
    assert sorted(os.listdir(place)) == ["notes.txt", "step-00000001.minidb", "step-00000002.minidb"]


def test_a_full_disk_leaves_the_checkpoints_that_were_there(folder, monkeypatch):
    def full(*details):
        raise OSError(errno.ENOSPC, "No space left on device")

    for step in range(3):
        put(folder, step)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="step-00000003.minidb"):
        put(folder, 3)
    assert steps(folder) == [0, 1, 2]
    assert len(os.listdir(folder.folder)) == 3


def test_a_folder_of_another_run_is_not_written_into(folder):
    put(folder, 7)
    with pytest.raises(NetError, match=r"holds step-00000007.minidb, of a later step than 3, so of another run"):
        put(folder, 3)
    assert steps(folder) == [7]


def test_models_are_saved_with_their_metric_and_state(folder):
    model = ModelHelper("scorer")
    brew.fc(model, "data", "fc", 3, 4)
    workspace = Workspace()
    workspace.run_net_once(model.param_init_net)
    path = folder.save(model, workspace=workspace, step=5, metric=0.75, state={"epoch": 1})
    before = workspace.fetch("fc_w")
    workspace.feed("fc_w", before + 1)
    found_path, found = folder.latest()
    assert (found_path, found.step, found.metric, found.state) == (path, 5, 0.75, {"epoch": 1})
    load_checkpoint(found, model, workspace=workspace)
    np.testing.assert_array_equal(workspace.fetch("fc_w"), before)


@pytest.mark.parametrize("options", [{"keep": 0}, {"keep": 1.5}, {"keep": True}, {"best": "most"}])
def test_wrong_options(options):
    with pytest.raises(NetError, match="CheckpointFolder: (keep|best)"):
        CheckpointFolder("x", **options)


def test_a_pipe_is_not_waited_for(folder):
    put(folder, 3)
    os.mkfifo(os.path.join(folder.folder, "step-00000009.minidb"))
    said = []
    assert folder.latest(said.append)[1].step == 3
    assert len(said) == 1
    assert "step-00000009.minidb' is not a complete" in said[0]
    assert "it is not a regular file" in said[0]
    assert folder.best_path() is None


def test_a_name_that_says_another_step_is_mentioned(folder):
    path = put(folder, 3)
    path.rename(path.with_name("step-00000009.minidb"))
    said = []
    assert folder.latest(said.append)[1].step == 3
    assert said == [f"{str(path.with_name('step-00000009.minidb'))!r} holds step 3, not 9, as its name says"]


# Locked.

HOLDER = """
import sys, time
from netbuilder.exchange import CheckpointFolder
with CheckpointFolder(sys.argv[1]).locked():
    print("locked", flush=True)
    time.sleep(100)
"""


def test_a_folder_that_another_run_has_locked(folder):
    """The lock ends with the process, also if it is killed."""
    put(folder, 1)
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(folder.folder)], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"locked\n"
        try:
            for attempt in (folder.locked().__enter__, lambda: put(folder, 2)):
                with pytest.raises(
                    NetError, match=f"another run writes its checkpoints here: process {process.pid} on"
                ):
                    attempt()
            assert folder.latest()[1].step == 1
        finally:
            process.kill()
            process.wait()
    with folder.locked(), folder.locked():
        put(folder, 2)
    assert steps(folder) == [1, 2]
    assert not [name for name in os.listdir(folder.folder) if name.startswith(".")]


def test_a_file_system_without_locks(folder, monkeypatch):
    monkeypatch.setattr("netbuilder.exchange.folder_lock.fcntl", None)
    held = Path(folder.folder) / ".lock-held"
    with folder.locked():
        assert held.exists()
        put(folder, 1)
    assert not held.exists()
    found = {"host": socket.gethostname(), "run": True, "since": "then"}
    held.write_text(json.dumps({**found, "pid": os.getpid()}))
    with pytest.raises(NetError, match=f"process {os.getpid()} on .* since then; .* remove '.*lock-held'"):
        put(folder, 2)
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    held.write_text(json.dumps({**found, "pid": done.pid}))  # of a process that is gone
    put(folder, 2)
    assert sorted(os.listdir(folder.folder)) == [path.name for path in folder.paths()]
