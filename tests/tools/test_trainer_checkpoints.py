"""netbuilder-train: checkpoints by steps and epochs, resumed bit-identically; signals; errors."""

import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from netbuilder.exchange import Checkpoint, CheckpointFolder, read_checkpoint, write_checkpoint
from netbuilder.tools.imagenet_trainer import main
from netbuilder.tools.progress import EpochProgress
from netbuilder.tools.training.images import load_images
from netbuilder.tools.training.input_options import InputOptions
from netbuilder.tools.training.options import parse
from netbuilder.tools.training.run import Run
from small_training import train_until

STEPS = 23  # of an epoch of 1438 samples, 64 a step, 30 the last


def arguments(folder, epochs=2, *more, model="mlp"):
    return ["--cpu", f"--model={model}", f"--epochs={epochs}", f"--checkpoint={folder}", *more]


def train(folder, epochs=2, *more, model="mlp"):
    return main(arguments(folder, epochs, *more, model=model))


def names(folder):
    return [path.name for path in CheckpointFolder(folder).paths()]


def newest(folder):
    return read_checkpoint(CheckpointFolder(folder).paths()[-1])


def assert_same(folder, other):
    """The same blobs, draws and position, bit by bit."""
    got, want = newest(folder), newest(other)
    assert got.blobs.keys() == want.blobs.keys()
    for name, value in want.blobs.items():
        np.testing.assert_array_equal(got.blobs[name], value, err_msg=name)
    assert (got.step, got.metric, got.state) == (want.step, want.metric, want.state)


def stop_after(monkeypatch, steps, number=signal.SIGTERM):
    """Raise a signal in the middle of a step."""
    counted = []

    def step(self, images, loss, top1=None):
        counted.append(loss)
        if len(counted) == steps:
            signal.raise_signal(number)

    monkeypatch.setattr(EpochProgress, "step", step)


# Resumed.


@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", [(), ("--devices=0,1", "--policy=step", "--step-epochs=1", "--gamma=0.5")])
def test_two_epochs_and_two_more_equal_four(tmp_path, options, capfd):
    assert train(tmp_path / "whole", 4, *options) == 0
    assert train(tmp_path / "parts", 2, *options) == 0
    capfd.readouterr()
    assert train(tmp_path / "parts", 4, "--resume=auto", *options) == 0
    said = capfd.readouterr().out
    assert f"step-{2 * STEPS:08d}.minidb: 2 epochs and 0 of {STEPS} steps are done" in said
    assert "changed since" not in said
    assert "epoch 3/4" in said
    assert "epoch 2/4" not in said
    assert_same(tmp_path / "parts", tmp_path / "whole")


def test_resumed_in_the_middle_of_an_epoch(tmp_path, monkeypatch, capfd):
    assert train(tmp_path / "whole", 2) == 0
    whole = capfd.readouterr().out
    with monkeypatch.context() as patched:
        stop_after(patched, STEPS + 5)
        assert train(tmp_path / "parts", 2) == 128 + signal.SIGTERM
    assert names(tmp_path / "parts")[-1] == f"step-{STEPS + 5:08d}.minidb"
    assert train(tmp_path / "parts", 2, "--resume", "auto") == 0
    assert_same(tmp_path / "parts", tmp_path / "whole")
    shown = [
        re.search(r"epoch 2/2: loss.*?held-out accuracy \S+%", text)[0] for text in (whole, capfd.readouterr().out)
    ]
    assert shown[0] == shown[1]


def test_resumed_after_the_last_step_of_an_epoch(tmp_path, capfd):
    """Ended between the checkpoint of the last step and that of the epoch: only its evaluation remains to be done."""
    assert train(tmp_path / "whole", 2) == 0
    run = Run(parse(arguments(tmp_path / "run", 2)), *load_images("digits", InputOptions()))
    train_until(run, 1, STEPS)
    (tmp_path / "parts").mkdir()
    write_checkpoint(tmp_path / "parts" / f"step-{STEPS:08d}.minidb", run.checkpoint())
    capfd.readouterr()
    assert train(tmp_path / "parts", 2, "--resume=auto", f"--metrics={tmp_path / 'lines'}") == 0
    assert f"0 epochs and {STEPS} of {STEPS} steps are done" in capfd.readouterr().out
    assert_same(tmp_path / "parts", tmp_path / "whole")
    epochs = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines() if '"epoch"' in line]
    assert [(epoch["epoch"], epoch["learning_rate"]) for epoch in epochs] == [
        (1, pytest.approx(0.1)),
        (2, pytest.approx(0.1)),
    ]


@pytest.mark.slow
def test_a_net_with_statistics(tmp_path):
    assert train(tmp_path / "whole", 2, "--devices=0,1", "--batch=512", model="resnet8-cifar") == 0
    assert train(tmp_path / "parts", 1, "--devices=0,1", "--batch=512", model="resnet8-cifar") == 0
    assert train(tmp_path / "parts", 2, "--devices=0,1", "--batch=512", "--resume=auto", model="resnet8-cifar") == 0
    got, want = newest(tmp_path / "parts").blobs, newest(tmp_path / "whole").blobs
    assert any(name.endswith("_rm") for name in want)
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


def test_on_other_devices(tmp_path, capfd):
    """The tolerance between different numbers of devices."""
    assert train(tmp_path / "whole", 2, "--learning-rate=0.02") == 0
    assert train(tmp_path / "parts", 1, "--learning-rate=0.02") == 0
    assert train(tmp_path / "parts", 2, "--learning-rate=0.02", "--devices=1,2", "--resume=auto") == 0
    assert "changed since the checkpoint: number of devices was 1, now 2" in capfd.readouterr().out
    got, want = newest(tmp_path / "parts").blobs, newest(tmp_path / "whole").blobs
    for name, value in want.items():
        assert np.linalg.norm(got[name] - value) <= 1e-5 * max(np.linalg.norm(value), 1e-6), name


def test_a_run_that_is_over_evaluates_and_exports(tmp_path, capfd):
    assert train(tmp_path / "c", 1) == 0
    first = capfd.readouterr().out
    assert train(tmp_path / "c", 1, "--resume=auto", f"--export={tmp_path / 'p'}") == 0
    said = capfd.readouterr().out
    accuracy = re.compile(r"accuracy on 359 held-out images: (\S+)%")
    assert accuracy.search(said)[1] == accuracy.search(first)[1]
    assert (tmp_path / "p" / "predict_net.pb").is_file()


# When they are written.


def test_by_epochs_with_the_best(tmp_path):
    assert train(tmp_path / "c", 4, "--keep=1", "--learning-rate=0.5") == 0
    found = {name: read_checkpoint(tmp_path / "c" / name) for name in names(tmp_path / "c")}
    assert f"step-{4 * STEPS:08d}.minidb" in found
    assert len(found) in (1, 2)
    assert all(0 < checkpoint.metric <= 1 for checkpoint in found.values())


def test_by_steps(tmp_path):
    assert train(tmp_path / "c", 1, "--checkpoint-every-steps=10", "--keep=9") == 0
    assert names(tmp_path / "c") == [f"step-{n:08d}.minidb" for n in (10, 20, STEPS)]
    assert [read_checkpoint(tmp_path / "c" / name).metric is None for name in names(tmp_path / "c")] == [1, 1, 0]


def test_by_both(tmp_path):
    more = ("--checkpoint-every-steps=11", "--checkpoint-every-epochs=2", "--keep=9")
    assert train(tmp_path / "c", 3, *more) == 0
    steps = sorted({*range(11, 3 * STEPS, 11), 2 * STEPS, 3 * STEPS})
    assert names(tmp_path / "c") == [f"step-{n:08d}.minidb" for n in steps]


def test_a_full_disk_does_not_end_the_run(tmp_path, monkeypatch, capfd):
    real = os.fsync
    calls = []

    def full_at_first(number):
        calls.append(number)
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(number)

    monkeypatch.setattr(os, "fsync", full_at_first)
    assert train(tmp_path / "c", 2) == 0
    said = capfd.readouterr()
    assert "a checkpoint could not be written: " in said.err
    assert "No space left on device" in said.err
    assert "training continues, and there is no checkpoint yet" in said.err
    assert names(tmp_path / "c") == [f"step-{2 * STEPS:08d}.minidb"]


def test_a_last_checkpoint_that_is_not_written_shows_in_the_status(tmp_path, monkeypatch, capfd):
    def full(number):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert train(tmp_path / "c", 1) == 1
    said = capfd.readouterr()
    assert "accuracy on" in said.out
    assert "the last checkpoint could not be written" in said.err
    assert names(tmp_path / "c") == []


# Signals.


@pytest.mark.one_in(2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_step_saves_and_says_how_to_resume(tmp_path, monkeypatch, capfd, number):
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patched:
        stop_after(patched, 7, number)
        assert train(tmp_path / "with space", 1, "--resume", "auto") == 128 + number
    said = capfd.readouterr()
    assert "there is no checkpoint in" in said.out
    assert f"{number.name}: finishing this step; send it again to end at once" in said.err
    assert f"stopped by {number.name} after 7 steps, saved to" in said.out
    command = shlex.split(said.out.strip().splitlines()[-1])
    assert command == ["netbuilder-train", *arguments(tmp_path / "with space", 1), "--resume", "auto"]
    assert main(command[1:]) == 0
    assert newest(tmp_path / "with space").step == STEPS
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_without_a_folder_nothing_is_saved(monkeypatch, capfd):
    stop_after(monkeypatch, 2, signal.SIGINT)
    assert main(["--cpu", "--model=mlp", "--epochs=1"]) == 130
    assert "stopped by SIGINT after 2 steps; nothing is saved without --checkpoint FOLDER" in capfd.readouterr().out


def test_a_process_that_is_ended_goes_on_as_if_it_had_not_been(tmp_path):
    """The signal is sent by another process, at a random moment."""
    epochs = 100_000
    command = [sys.executable, "-m", "netbuilder.tools.imagenet_trainer", *arguments(tmp_path / "parts", epochs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("epoch 2/"):
                break
        time.sleep(0.02)
        process.terminate()
        rest = process.stdout.read()
    assert process.returncode == 128 + signal.SIGTERM, rest
    assert "netbuilder-train --cpu" in rest
    stopped = newest(tmp_path / "parts").step
    assert 2 * STEPS <= stopped < epochs * STEPS
    until = stopped // STEPS + 1
    assert train(tmp_path / "parts", until, "--resume=auto") == 0
    assert train(tmp_path / "whole", until) == 0
    assert_same(tmp_path / "parts", tmp_path / "whole")


# Refused.


def test_a_folder_of_another_run(tmp_path, capsys):
    assert train(tmp_path / "c", 1) == 0
    capsys.readouterr()
    assert train(tmp_path / "c", 1) == 1
    said = capsys.readouterr()
    assert "of a later step than 0, so of another run; resume from it, remove it, or give another folder" in said.err
    assert "epoch" not in said.out
    assert names(tmp_path / "c") == [f"step-{STEPS:08d}.minidb"]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--batch=32"], "--batch was 64, now 32"),
        (["--seed=3"], "--seed was 0, now 3"),
        (["--model=resnet8-cifar"], "--model was 'mlp', now 'resnet8-cifar'"),
    ],
)
def test_a_checkpoint_of_other_options(tmp_path, capsys, more, message):
    assert train(tmp_path / "c", 1) == 0
    assert train(tmp_path / "c", 2, "--resume=auto", *more) == 1
    assert f"is a checkpoint of another run: {message}" in capsys.readouterr().err


def test_what_may_change_is_said(tmp_path, capsys):
    assert train(tmp_path / "c", 1) == 0
    assert train(tmp_path / "d", 2, f"--resume={tmp_path / 'c'}", "--learning-rate=0.01") == 0
    assert "changed since the checkpoint: --learning-rate was 0.1, now 0.01" in capsys.readouterr().out


def test_damaged_missing_and_foreign_checkpoints(tmp_path, capsys):
    assert train(tmp_path / "c", 2) == 0
    old, new = CheckpointFolder(tmp_path / "c").paths()
    new.write_bytes(new.read_bytes()[:-9])
    capsys.readouterr()
    for place, message in (
        (new, "is not a complete checkpoint; nothing is loaded from it"),
        (tmp_path / "none", "none"),
        (tmp_path, "holds no checkpoint"),
    ):
        assert main(["--cpu", "--model=mlp", f"--resume={place}"]) == 1
        assert message in capsys.readouterr().err, place
    write_checkpoint(tmp_path / "other", Checkpoint({"w": np.zeros(2)}))
    assert main(["--cpu", "--model=mlp", f"--resume={tmp_path / 'other'}"]) == 1
    assert "is not a checkpoint of netbuilder-train" in capsys.readouterr().err
    new.with_name("moved").write_bytes(new.read_bytes())
    assert train(tmp_path / "d", 2, f"--resume={old}") == 0
    assert newest(tmp_path / "d").step == 2 * STEPS


def test_auto_passes_over_a_damaged_one(tmp_path, capsys):
    assert train(tmp_path / "c", 2) == 0
    _, new = CheckpointFolder(tmp_path / "c").paths()
    new.write_bytes(b"")
    assert train(tmp_path / "c", 2, "--resume=auto") == 0
    assert "skipped: " in capsys.readouterr().out
    assert newest(tmp_path / "c").step == 2 * STEPS
    assert new.with_name(f"{new.name}.damaged").is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--checkpoint-every-steps=3"], "--checkpoint-every-steps needs --checkpoint FOLDER"),
        (["--checkpoint=c", "--checkpoint-every-epochs=0"], "--checkpoint-every-epochs must be positive"),
        (["--checkpoint=c", "--keep=0"], "--keep must be positive"),
        (["--resume=auto"], "--resume auto needs --checkpoint FOLDER"),
    ],
)
def test_wrong_options(options, message, capsys):
    with pytest.raises(SystemExit):
        main(["--cpu", *options])
    assert message in capsys.readouterr().err


def test_a_file_in_place_of_the_folder(capsys):
    assert main(["--cpu", f"--checkpoint={__file__}"]) == 1
    assert "is a file; give a folder" in capsys.readouterr().err
