"""netbuilder-train --step-limit: a run that hangs prints what its threads do, and ends."""

import subprocess
import sys
import time

import pytest

from netbuilder.tools.training.options import parse
from netbuilder.tools.training.step_timeout import STATUS, StepTimeout
from waiting import HANG, wait_until


def test_steps_in_time():
    ended = []
    with StepTimeout(HANG, end=ended.append) as limit:
        for _ in range(3):
            time.sleep(0.01)
            limit.after_step()
    assert not ended


def test_a_step_that_takes_too_long(capfd):
    ended = []
    with StepTimeout(0.5, HANG, end=ended.append) as limit:
        limit.after_step()
        wait_until(lambda: ended)
    assert ended == [STATUS]
    said = capfd.readouterr().err
    assert "step 2 of this run has not finished after 0.5 s (--step-limit)" in said
    assert "test_a_step_that_takes_too_long" in said  # where the main thread is


def test_without_a_limit_nothing_watches():
    with StepTimeout(None) as limit:
        limit.after_step()
        assert limit.thread is None


def test_the_first_step_has_ten_times_as_long():
    assert StepTimeout(2.0).first_limit == 20.0
    assert StepTimeout(2.0, 5.0).first_limit == 5.0


def test_a_run_that_takes_too_long_ends(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "netbuilder.tools.imagenet_trainer", "--cpu", "--model=resnet20-cifar", "--data=digits",
         "--step-limit=60", "--first-step-limit=0.002"],
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=HANG,
    )  # fmt: skip
    assert done.returncode == STATUS
    assert "step 1 of this run has not finished after 0.002 s (--first-step-limit)" in done.stderr
    assert "Thread 0x" in done.stderr


@pytest.mark.parametrize("option", ["--step-limit=0", "--step-limit=-1", "--first-step-limit=5"])
def test_limits_that_make_no_sense(option, capsys):
    with pytest.raises(SystemExit):
        parse(["--cpu", option])
    assert option.split("=")[0] in capsys.readouterr().err
