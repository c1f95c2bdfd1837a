"""Callbacks of netbuilder-train: their events, states in checkpoints, and --callback."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from netbuilder.exchange import CheckpointFolder, read_checkpoint, write_checkpoint
from netbuilder.proto import NetError
from netbuilder.tools import compare
from netbuilder.tools.imagenet_trainer import main
from netbuilder.tools.training.callbacks import Callback
from netbuilder.tools.training.options import parse
from netbuilder.tools.training.run import Run, usual_callbacks
from small_training import BASE, images

EVENTS = [name for name, of in vars(Callback).items() if callable(of) and not name.startswith("__")]
TRAIN = ["--cpu", "--model=mlp", "--batch=192", "--epochs=2", "--learning-rate=0.02"]
STEPS = 8  # of an epoch of the digits

MODULE = '''
import numpy as np

from netbuilder.tools.training.callbacks import Callback


class Decay(Callback):
    """Multiplies a weight after each step by a factor that changes with the steps, as only its state says."""

    name = "decay"

    def __init__(self, options):
        self.scope = f"cpu_{options.devices[0]}/"
        self.factor = 1.0

    def after_step(self, run):
        self.factor *= 0.99
        for scope in run.model.record.devices.scopes:
            blob = scope + "fc2_w"
            run.model.workspace.feed(blob, (run.model.workspace.fetch(blob) * self.factor).astype(np.float32))

    def state_dict(self):
        return {"factor": self.factor}

    def load_state_dict(self, state):
        self.factor = state["factor"]


class StopAfter(Callback):
    def __init__(self, options):
        pass

    def stops(self, run):
        return run.steps_done == 4


def number(options):
    return 3
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module in the current folder with callbacks; its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    (tmp_path / "own_callbacks.py").write_text(MODULE)
    yield "own_callbacks"
    sys.modules.pop("own_callbacks", None)


class Recorder(Callback):
    """Notes each event."""

    def __init__(self, stop_at=None, end_after=None):
        self.events, self._stop_at, self._end_after = [], stop_at, end_after

    def stops(self, run):
        return run.steps_done == self._stop_at

    def ends(self, run):
        return run.epochs_done == self._end_after


def _noting(event):
    def note(self, run, *given):
        self.events.append((event, run.steps_done))

    return note


for name in EVENTS:
    if name not in ("stops", "ends", "runs_batch", "state_dict", "load_state_dict"):
        setattr(Recorder, name, _noting(name))


def trained(*callbacks, more=()):
    options = parse([*BASE, *more])
    run = Run(options, images(), images(13), [*usual_callbacks(options), *callbacks])
    return run, run.train()


def test_the_events_of_a_run():
    seen = Recorder()
    run, found = trained(seen)
    assert found is not None and run.epochs_done == 2 and run.steps == 4
    names = [event for event, _ in seen.events]
    assert names[:4] == ["before_training", "before_epoch", "before_batch", "after_plan"]
    assert names[-1] == "after_training" and names.count("after_plan") == 1
    for event, times in {"before_epoch": 2, "before_batch": 8, "after_step": 8, "after_results": 8, "after_epoch": 2,
                         "after_evaluated_batch": 4}.items():  # fmt: skip
        assert names.count(event) == times, event
    assert [steps for event, steps in seen.events if event == "after_step"] == list(range(1, 9))
    assert [steps for event, steps in seen.events if event == "after_epoch"] == [4, 8]


def test_micro_batches_are_batches_of_one_step():
    seen = Recorder()
    trained(seen, more=["--accumulate-steps=3"])
    names = [event for event, _ in seen.events]
    assert (names.count("before_batch"), names.count("after_step"), names.count("after_results")) == (24, 8, 8)


def test_a_callback_ends_or_stops_the_run():
    seen = Recorder(end_after=1)
    run, found = trained(seen)
    assert run.epochs_done == 1 and found is not None and not run.stopped
    seen = Recorder(stop_at=3)
    run, found = trained(seen)
    assert run.stopped and found is None and run.steps_done == 3
    assert seen.events[-1] == ("after_training", 3)


def test_a_callback_runs_the_batches():
    ran = []

    class Own(Callback):
        def runs_batch(self, run):
            return lambda: (ran.append(run.step), run.model.run())

    _, found = trained(Own())
    _, usual = trained()
    assert found == usual and len(ran) >= 2  # the steps that are not timed


def test_training_is_in_the_context_of_the_callbacks():
    left = []

    class Own(Callback):
        def __enter__(self):
            left.append("entered")
            return self

        def __exit__(self, kind, error, trace):
            left.append(kind)

        def after_step(self, run):
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        trained(Own())
    assert left == ["entered", OSError]


def test_names_are_different():
    with pytest.raises(NetError, match="two have the same name"):
        trained(Recorder(), Recorder())


def test_states_are_in_checkpoints(tmp_path):
    class Count(Callback):
        name = "count"
        steps = 0

        def after_step(self, run):
            self.steps += 1

        def state_dict(self):
            return {"steps": self.steps}

        def load_state_dict(self, state):
            self.steps = state["steps"]

    options = parse(BASE)
    first, second = Count(), Count()
    run = Run(options, images(), images(13), [first])
    run.train_epoch(1)
    write_checkpoint(tmp_path / "c.minidb", run.checkpoint())
    again = Run(options, images(), images(13), [second, Recorder()])  # one that the checkpoint does not know
    again.resume(read_checkpoint(tmp_path / "c.minidb"), "it")
    assert second.steps == 4
    Run(options, images(), images(13), []).resume(read_checkpoint(tmp_path / "c.minidb"), "it")  # without it

    class Other(Count):
        def load_state_dict(self, state):
            self.steps = state["other"]

    with pytest.raises(NetError, match=r"'it': the callback count cannot continue from its state \{'steps': 4\}: KeyE"):
        Run(options, images(), images(13), [Other()]).resume(read_checkpoint(tmp_path / "c.minidb"), "it")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("devices", ["0", "0,1"])
def test_a_stopped_run_continues_to_the_bit_with_the_callbacks_state(module, tmp_path, devices, capsys):
    given = [*TRAIN, f"--devices={devices}", f"--callback={module}:Decay"]
    assert main([*given, f"--checkpoint={tmp_path / 'whole'}"]) == 0
    parts = [*given, f"--checkpoint={tmp_path / 'parts'}"]
    assert main([*parts, "--checkpoint-every-steps=5", "--checkpoint-every-epochs=1"]) == 0
    kept = CheckpointFolder(tmp_path / "parts").paths()
    for path in kept:
        if read_checkpoint(path).step > 10:
            path.unlink()
    assert main([*parts, "--resume=auto"]) == 0
    assert "resumed from" in capsys.readouterr().out
    whole, found = (read_checkpoint(CheckpointFolder(tmp_path / name).paths()[-1]) for name in ("whole", "parts"))
    assert found.step == whole.step == 2 * STEPS and found.state == whole.state
    assert found.state["callbacks"]["decay"] == {"factor": pytest.approx(0.99**16)}
    for name, value in whole.blobs.items():
        np.testing.assert_array_equal(found.blobs[name], value, err_msg=name)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("devices", ["0", "0,1"])
def test_a_callback_that_stops_a_run_which_can_be_resumed(module, tmp_path, devices, capsys):
    given = [*TRAIN, f"--devices={devices}", f"--checkpoint={tmp_path / 'c'}"]
    assert main([*given, f"--callback={module}:StopAfter"]) == 0
    said = capsys.readouterr().out
    (path,) = CheckpointFolder(tmp_path / "c").paths()
    assert f"stopped by a callback after 4 steps, saved to {path}; to resume:" in said
    assert main([*given, "--resume=auto"]) == 0
    assert "accuracy on 359 held-out images" in capsys.readouterr().out


def test_callbacks_of_the_command_line_and_of_a_file(module, tmp_path):
    (tmp_path / "options.toml").write_text(f'cpu = true\ncallback = ["{module}:Decay", "{module}:StopAfter"]\n')
    options = parse(["--config=options.toml"])
    assert options.callback == (f"{module}:Decay", f"{module}:StopAfter")
    assert options.effective["callback"] == options.callback
    assert "callback" not in parse(["--cpu"]).effective


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Decay", "--callback must be MODULE:FUNCTION, such as my_callbacks:Sparsity; got 'Decay'"),
        ("own_callbacks:", "--callback must be MODULE:FUNCTION"),
        ("own_calbacks:Decay", "--callback: the module 'own_calbacks' of 'own_calbacks:Decay' cannot be imported: No"),
        ("own_callbacks:Decai", "--callback: 'own_callbacks' has no function 'Decai'; did you mean 'Decay'?"),
        ("own_callbacks:number", "--callback: own_callbacks:number must return a netbuilder.tools.training.callbacks."
         "Callback, got int"),
    ],
)  # fmt: skip
def test_wrong_names(module, text, message, tmp_path, capsys):
    assert main([*TRAIN, f"--callback={text}", f"--out={tmp_path / 'out'}"]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_compare_has_no_callbacks(capsys):
    with pytest.raises(SystemExit):
        compare.main(["--cpu", "--devices=0,1", "--callback=a:b"])
    assert "--callback: netbuilder-compare runs no callbacks; omit it" in capsys.readouterr().err
