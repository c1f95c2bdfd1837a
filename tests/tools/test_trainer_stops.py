"""netbuilder-train stopped by every signal, in every phase, with every output, in one process and in two."""

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import trainer_stops
from netbuilder.exchange import CheckpointFolder, read_checkpoint
from netbuilder.tools.imagenet_trainer import main
from netbuilder.tools.training.stopping import Stopping
from trainer_stops import STEP, signal_in

STEPS = 8  # of an epoch of 1438 samples
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
OUTPUTS = ("metrics", "out", "plot", "tensorboard")
TRAIN = ["--cpu", "--model=mlp", "--batch=192", "--epochs=2", "--learning-rate=0.02", "--keep=9"]
SAVED = {"step": STEP, "evaluation": STEPS, "checkpoint": STEPS}
"""Phase -> steps of the checkpoint that a run stopped in it leaves."""


def options(folder, outputs):
    names = {"metrics": "lines", "out": "out", "plot": "plot.png", "tensorboard": "events"}
    return [*TRAIN, f"--checkpoint={folder / 'c'}", *(f"--{name}={folder / names[name]}" for name in outputs)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The blobs at the end of a run that nothing stops."""
    folder = tmp_path_factory.mktemp("whole")
    assert main(options(folder, ())) == 0
    return read_checkpoint(CheckpointFolder(folder / "c").paths()[-1])


@pytest.fixture(autouse=True)
def usual_handlers():
    """Those of a program in the foreground, whatever has started the tests."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    left = {number: signal.signal(number, handler) for number, handler in before.items()}
    assert left == usual


def covering(*lists):
    """Yield combinations of one of each list: all, but of those not marked as slow only some, with each item."""
    for places in itertools.product(*(range(len(each)) for each in lists)):
        found = [each[place] for each, place in zip(lists, places)]
        yield pytest.param(*found, marks=() if sum(places) % 6 == 0 else pytest.mark.slow)


ALL_OUTPUTS = [of for count in range(5) for of in itertools.combinations(OUTPUTS, count)]
FEW_OUTPUTS = [(), ("metrics",), ("out", "plot", "tensorboard")]


def assert_resumes(folder, outputs, whole, processes=1):
    """The run goes on where it was stopped, to the same bits, and its metrics have every step and epoch."""
    given = [*options(folder, outputs), "--resume=auto"]
    if processes == 1:
        assert main(given) == 0
    else:
        assert launch(given, processes)[0] == 0
    found = read_checkpoint(CheckpointFolder(folder / "c").paths()[-1])
    assert found.step == whole.step
    assert found.blobs.keys() == whole.blobs.keys()
    for name, value in whole.blobs.items():
        if processes == 1:
            np.testing.assert_array_equal(found.blobs[name], value, err_msg=name)
        else:
            np.testing.assert_allclose(found.blobs[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    for name in {"metrics": "lines", "out": "out/metrics.jsonl"}.get(outputs[0] if outputs else "", "").split():
        lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        assert {line["step"] for line in lines if line["kind"] == "step"} == set(range(1, 2 * STEPS + 1))
        assert [line["epoch"] for line in lines if line["kind"] == "epoch"] == [1, 2]


def assert_stopped(folder, phase, name, status, said, errors, more=0):
    """``more``: steps that the processes may run until they all know of a signal that one of them got."""
    number = signal.Signals[name]
    assert status == 128 + number, errors
    assert "Traceback" not in errors
    assert not [path for path in folder.rglob("*") if ".draft-" in path.name or path.name.startswith(".lock")]
    paths = CheckpointFolder(folder / "c").paths()
    if phase in SAVED:
        assert f"{name}: finishing this step" in errors
        step = read_checkpoint(paths[-1]).step
        assert f"stopped by {name} after {step} steps, saved to {paths[-1]}; to resume" in said
        assert SAVED[phase] <= step <= SAVED[phase] + more
    else:
        assert ("interrupted" if name == "SIGINT" else f"ended by {name}") in errors
        assert [read_checkpoint(path).step for path in paths] == {"export": [STEPS, 2 * STEPS]}.get(phase, [])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name, phase, outputs", list(covering(SIGNALS, [*SAVED, "start", "again"], FEW_OUTPUTS)))
def test_a_signal(tmp_path, whole, capfd, name, phase, outputs):
    if (name, phase) == ("SIGHUP", "again"):
        phase = "step"  # a second one has no effect, see below
    with signal_in(phase, signal.Signals[name]):
        status = main(options(tmp_path, outputs))
    assert_stopped(tmp_path, phase, name, status, *capfd.readouterr())
    assert_resumes(tmp_path, outputs, whole)


@pytest.mark.slow
@pytest.mark.parametrize("name, outputs", list(itertools.product(SIGNALS, ALL_OUTPUTS)))
def test_a_signal_with_every_combination_of_outputs(tmp_path, whole, capfd, name, outputs):
    with signal_in("step", signal.Signals[name]):
        status = main(options(tmp_path, outputs))
    assert_stopped(tmp_path, "step", name, status, *capfd.readouterr())
    assert_resumes(tmp_path, outputs, whole)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_during_export(tmp_path, capfd, name):
    with signal_in("export", signal.Signals[name]):
        status = main([*options(tmp_path, ()), f"--export={tmp_path / 'p'}"])
    assert_stopped(tmp_path, "export", name, status, *capfd.readouterr())
    assert os.listdir(tmp_path / "p") == []
    assert main([*options(tmp_path, ()), f"--export={tmp_path / 'p'}", "--resume=auto"]) == 0
    assert (tmp_path / "p" / "predict_net.pb").is_file()


def launch(given, processes, *fault):
    """Return the status of a run in several processes, its output, and its errors."""
    program = [trainer_stops.__file__, *fault] if fault else ["-m", "netbuilder.tools.imagenet_trainer"]
    command = [sys.executable, "-m", "netbuilder.tools.launch", "-n", str(processes), *program, *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow  # in short: test_stopped_killed_and_resumed in test_trainer_processes.py
@pytest.mark.parametrize(
    "name, phase, outputs, rank",
    [
        case
        for case in itertools.product(SIGNALS, [*SAVED], FEW_OUTPUTS, [0, 1])
        if case[1::2] != ("checkpoint", 1)  # rank 0 writes
    ],
)
def test_a_signal_on_one_of_two_processes(tmp_path, whole, name, phase, outputs, rank):
    status, said, errors = launch(options(tmp_path, outputs), 2, phase, name, str(rank))
    assert_stopped(tmp_path, phase, name, status, said, errors, more=1)
    assert_resumes(tmp_path, outputs, whole, processes=2)


# Second signals.


def test_a_second_signal_acts_at_once(monkeypatch):
    monkeypatch.setattr("netbuilder.tools.training.stopping.SAME", 0.0)
    with pytest.raises(KeyboardInterrupt):
        with Stopping() as stopping:
            signal.raise_signal(signal.SIGINT)
            assert stopping.by == signal.SIGINT
            signal.raise_signal(signal.SIGINT)


def test_a_signal_that_comes_twice_at_the_same_time_is_one():
    with Stopping() as stopping:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert stopping.by == signal.SIGTERM


def test_a_second_hangup_has_no_effect(monkeypatch):
    """The system and the shell both send one when a terminal is closed, at any time after one another."""
    monkeypatch.setattr("netbuilder.tools.training.stopping.SAME", 0.0)
    with Stopping() as stopping:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
    assert stopping.by == signal.SIGHUP


def test_a_run_under_nohup_ignores_the_closed_terminal():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stopping() as stopping:
            signal.raise_signal(signal.SIGHUP)
        assert stopping.by is None
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_a_closed_terminal_leaves_a_checkpoint(tmp_path):
    """Standard output and error fail from then on, too."""
    controller, terminal = os.openpty()
    command = [sys.executable, "-m", "netbuilder.tools.imagenet_trainer", *options(tmp_path, ("metrics",))]
    program = f"""
import fcntl, os, signal, sys, termios
os.setsid()
fcntl.ioctl({terminal}, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
for number in range(3):
    os.dup2({terminal}, number)
os.close({terminal})
os.close({controller})
os.execv(sys.executable, {command + ["--epochs=100000"]!r})
"""
    with subprocess.Popen([sys.executable, "-c", program], pass_fds=(controller, terminal)) as process:
        os.close(terminal)
        text = b""
        while b"epoch 2/" not in text:
            text += os.read(controller, 4096)
        os.close(controller)
        assert process.wait(60) == 128 + signal.SIGHUP
    newest = CheckpointFolder(tmp_path / "c").paths()[-1]
    assert read_checkpoint(newest).step >= 2 * STEPS
    lines = [json.loads(line) for line in Path(tmp_path / "lines").read_text().splitlines()]
    assert lines[-1]["step"] == read_checkpoint(newest).step
