"""Modules context, *_context, timeout_guard and experiment_util."""

import argparse
import subprocess
import sys
import threading

import pytest
from caffe2.python import context, experiment_util, optimizer_context, regularizer, regularizer_context, timeout_guard
from caffe2.python.optimizer import SgdOptimizer

from netbuilder.proto import ArgumentError, NetError
from waiting import HANG


class Color(context.Managed):
    pass


class Size(context.DefaultManaged):
    pass


def test_the_innermost_object_is_current():
    with Color() as red:
        with Color() as blue:
            assert Color.current() is blue
            assert Color.current(red) is red
        assert Color.current() is red
    assert Color.current(required=False) is None
    with pytest.raises(NetError, match="no Color is current"):
        Color.current()
    with pytest.raises(TypeError, match="value must be a Color, got 3"):
        Color.current(3)


def test_threads_and_classes_have_stacks_of_their_own():
    seen = []
    with Color():
        thread = threading.Thread(target=lambda: seen.append(Color.current(required=False)))
        thread.start()
        thread.join()
        assert isinstance(Size.current(), Size)
        assert Size.current() is Size.current()
    assert seen == [None]


def test_objects_decorate_functions():
    red = Color()
    assert red(lambda: Color.current())() is red


def test_optimizers_and_regularizers_by_name():
    one, other = SgdOptimizer(0.1), SgdOptimizer(0.2)
    with optimizer_context.UseOptimizer(one), optimizer_context.UseOptimizer({"fast": other}):
        current = optimizer_context.OptimizerContext.current()
        assert current.has_optimizer("DEFAULT") and current.get_optimizer("DEFAULT") is one
        assert current.get_optimizer("fast") is other
    assert not optimizer_context.OptimizerContext.current().has_optimizer("DEFAULT")
    with pytest.raises(ArgumentError, match="has no 'slow'; it has nothing"):
        optimizer_context.OptimizerContext.current().get_optimizer("slow")
    with pytest.raises(TypeError, match="UseRegularizer: the argument must be Regularizers by name, got 'DEFAULT'"):
        regularizer_context.UseRegularizer(one)
    with regularizer_context.UseRegularizer(regularizer.L1Norm(0.1)):
        assert regularizer_context.RegularizerContext.current().has_regularizer("DEFAULT")


# A process started in the background may have been told to ignore interrupts.
GUARDED = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from netbuilder.caffe2.python import timeout_guard
with timeout_guard.CompleteInTimeOrDie({seconds}):
    time.sleep({sleeps})
print("done")
"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seconds, sleeps, ends", [(3000, 0, True), (0.3, 3000, False)])
def test_a_block_that_takes_too_long_ends_the_process(seconds, sleeps, ends):
    code = GUARDED.format(seconds=seconds, sleeps=sleeps)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG)
    assert ("done" in done.stdout) is ends
    assert (done.returncode == 0) is ends
    if not ends:
        assert "not done in 0.3 seconds" in done.stderr
        assert "KeyboardInterrupt" in done.stderr


def test_times_are_above_zero():
    with (
        pytest.raises(ArgumentError, match="positive number of seconds, got 0"),
        timeout_guard.CompleteInTimeOrDie(0),
    ):
        pass
    with pytest.raises(ArgumentError, match="got -1"):
        timeout_guard.EuthanizeIfNecessary(-1)


class Kept(experiment_util.ExternalLogger):
    def __init__(self):
        self.seen = []

    def set_runtime_args(self, runtime_args):
        self.seen.append(runtime_args)

    def log(self, log_dict):
        self.seen.append(list(log_dict))


COLUMNS = [
    "time_spent", "cumulative_time_spent", "input_count", "cumulative_input_count", "cumulative_batch_count",
    "inputs_per_sec", "accuracy", "loss",
]  # fmt: skip


def test_a_trainers_log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = Kept()
    log = experiment_util.ModelTrainerLog("run", argparse.Namespace(a=1), [kept])
    log.log(32, 1, {"loss": 1.5, "accuracy": 0.5})
    log.log(96, 2, {"loss": 1.25, "accuracy": 0.75})
    log.logstr("end")
    (path,) = tmp_path.iterdir()
    assert path.name == log.filename and path.name.startswith("run_2")
    head, names, first, second, end = path.read_text().splitlines()
    assert head == "# Namespace(a=1)"
    assert names.split(",") == COLUMNS == kept.seen[1]
    assert first.split(",")[2:5] == ["32", "32", "1"] and first.endswith(",0.5,1.5")
    assert second.split(",")[2:5] == ["64", "96", "2"] and second.endswith(",0.75,1.25")
    assert end == "end"
    assert kept.seen[0]["a"] == 1 and kept.seen[0]["experiment_id"] + ".log" == path.name
