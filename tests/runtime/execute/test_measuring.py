"""When open choices between kernels are measured, and what follows from them."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest

from netbuilder.engines import onednn
from netbuilder.model import ModelHelper, brew
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute import measuring

_clock = [0.0]


@pytest.fixture(autouse=True)
def time_left(monkeypatch):
    """Let the process have all its time for measuring, by a clock that only what is measured moves on."""
    monkeypatch.setattr(measuring, "time", SimpleNamespace(perf_counter=lambda: _clock[0]))
    monkeypatch.setattr(measuring.Spent, "seconds", 0.0)


class Choice:
    """A choice whose rounds take a given time."""

    def __init__(self, key, worth=1, *, rounds=2, seconds=0.5, differs=False):
        self.key, self.worth, self.expected, self._differs = key, worth, seconds, differs
        self.rounds, self.left = rounds, rounds

    @property
    def known(self):
        return self.left == 0

    @property
    def started(self):
        return self.left < self.rounds

    @property
    def differs(self):
        return self.known and self._differs

    def keep(self):
        assert self.started

    def advance(self, lend, limit):
        with lend(8) as memory:
            assert memory.nbytes == 8
        assert self.left
        _clock[0] += self.expected
        self.left -= 1


@contextlib.contextmanager
def lend(nbytes):
    yield np.zeros(nbytes, np.uint8)


def test_before_runs_the_process_has_two_seconds_in_all():
    small, large, other = Choice("small", 1), Choice("large", 9, rounds=3), Choice("other", 5, seconds=1.5)
    assert not measuring.measure_before_run([small, large, other], lend)
    assert (large.left, other.left, small.left) == (0, 2, 1)  # those worth most first, if there is time for a round
    later = Choice("later")
    assert not measuring.measure_before_run([later], lend)
    assert later.left == 2


def test_a_choice_that_differs_asks_for_another_plan():
    assert measuring.measure_before_run([Choice("a"), Choice("b", differs=True)], lend)


class Net:
    forgotten = 0

    def forget_plans(self):
        self.forgotten += 1


def run(each, net, seconds):
    each.run_starts(net)
    _clock[0] += seconds
    each.run_ends()


def test_between_runs_a_twentieth_of_their_time():
    each, net = measuring.MeasuringBetweenRuns(), Net()
    choices = [Choice("a", 1), Choice("b", 2, differs=True)]
    each.add(choices, lend)
    left = []
    for _ in range(41):
        run(each, net, 1.0)
        left.append(sum(choice.left for choice in choices))
    assert left[8] == 4 and left[9] == 3 and left[19] == 2 and left[29] == 1 and left[39] == 0
    assert net.forgotten == 1  # at the beginning of the run after the last was measured
    run(each, net, 100.0)
    assert net.forgotten == 1


def test_one_that_was_begun_is_finished_first():
    each, net = measuring.MeasuringBetweenRuns(), Net()
    begun = Choice("begun", 1, rounds=3)
    begun.advance(lend, 0)
    each.add([begun, Choice("large", 9)], lend)
    run(each, net, 20.0)
    assert begun.known


def test_without_a_difference_the_plans_stay():
    each, net = measuring.MeasuringBetweenRuns(), Net()
    each.add([Choice("a")], lend)
    assert not each.measure_all(net)
    run(each, net, 1.0)
    assert net.forgotten == 0


needs_onednn = pytest.mark.skipif(not onednn.available(), reason="needs oneDNN")


@pytest.fixture
def chosen(tmp_path, monkeypatch):
    """Let convolutions have choices; return a function that says which candidate is to be the fastest."""
    from netbuilder.engines.onednn import autotune, convolutions

    monkeypatch.setenv("NETBUILDER_MEASURE", "1")
    monkeypatch.setenv("NETBUILDER_CACHE", str(tmp_path))
    monkeypatch.setattr(convolutions, "WORTH_MEASURING", 0)
    autotune.take_open()
    best = []

    def result(choice):
        kernels = list(choice._kernels)
        return next((name for name in best if name in kernels), kernels[0])

    monkeypatch.setattr(autotune.OpenFastest, "result", result)
    return best


def training():
    model = ModelHelper("net")
    y = brew.conv(model, "x", "y", 16, 32, kernel=3, pad=1)
    loss = model.net.AveragedLoss(model.net.Sqr(y, "squares"), "loss")
    model.AddGradientOperators([loss])
    workspace = Workspace(seed=3, threads=1)
    workspace.run_net_once(model.param_init_net)
    workspace.feed("x", np.random.default_rng(0).standard_normal((4, 16, 12, 12)).astype(np.float32))
    workspace.create_net(model.net)
    return workspace, workspace.net(model.net)


def still_open(net):
    measuring = net._measuring
    return measuring._choices if measuring is not None else {}


def names(net):
    return [step.prepared.name for plan in net.plans for step in plan.steps]


@needs_onednn
def test_a_net_is_planned_again_when_its_choices_are_known(chosen, monkeypatch):
    monkeypatch.setattr(measuring.Spent, "seconds", 2.0)
    workspace, net = training()
    net.run()
    want = {name: workspace.fetch(name) for name in ("y", "y_w_grad", "loss")}
    before = names(net)
    assert still_open(net)
    chosen.append("winograd")
    net.measure_choices()
    assert not still_open(net)
    np.testing.assert_array_equal(workspace.fetch("y"), want["y"])  # what the last run left
    net.run()
    assert names(net) != before
    for name, value in want.items():
        np.testing.assert_allclose(workspace.fetch(name), value, rtol=1e-3, atol=1e-5)
    _other, again = training()
    again.run()
    assert names(again) == names(net) and not still_open(again)  # the choices are on file


@needs_onednn
def test_while_there_is_time_choices_are_measured_before_the_first_run(chosen):
    chosen.append("winograd")
    workspace, net = training()
    net.run()
    assert not still_open(net)
    assert any("matmul" in name for name in names(net))


@needs_onednn
@pytest.mark.parametrize("off", ["NETBUILDER_MEASURE", "NETBUILDER_WITHOUT"])
def test_where_measuring_is_off_nothing_is_open(off, chosen, monkeypatch):
    monkeypatch.setenv(off, "0" if off == "NETBUILDER_MEASURE" else "measured")
    workspace, net = training()
    for _ in range(3):
        net.run()
    assert not still_open(net)
