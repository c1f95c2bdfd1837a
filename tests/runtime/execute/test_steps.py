"""Plans of nets: iterations, stop blobs, steps inside steps."""

import numpy as np
import pytest

from netbuilder.proto import ExecutionStep, NetDef, NetError, PlanDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace


def counter(name):
    net = NetDef(name=name)
    net.external_input.append(f"{name}_n")
    net.op.append(make_op("Iter", [f"{name}_n"], [f"{name}_n"]))
    return net


def run(step, *nets):
    ws = Workspace()
    for net in nets:
        ws.feed(f"{net.name}_n", np.int64([0]))
    ws.feed("limit", np.int64([3]))
    ws.run_plan(PlanDef(name="plan", network=nets, execution_step=[step]))
    return ws


def test_iterations_and_substeps():
    inner = ExecutionStep(name="inner", network=["a"], num_iter=3)
    once = ExecutionStep(name="once", network=["b"], only_once=True)
    ws = run(ExecutionStep(name="outer", substep=[inner, once], num_iter=2), counter("a"), counter("b"))
    assert ws.fetch("a_n").tolist() == [6]
    assert ws.fetch("b_n").tolist() == [1]


def test_a_step_that_runs_only_once_does_so_wherever_it_is():
    once = ExecutionStep(name="once", substep=[ExecutionStep(network=["a"], only_once=True)])
    often = ExecutionStep(name="often", network=["b"])
    for together in (False, True):
        outer = ExecutionStep(name="outer", substep=[once, often], num_iter=5, concurrent_substeps=together)
        ws = run(outer, counter("a"), counter("b"))
        assert ws.fetch("a_n").tolist() == [1] and ws.fetch("b_n").tolist() == [5]


def test_a_substep_repeats_while_the_others_run():
    """The others end when it has run four times: each 20 ms, so at once, and not only at their end."""
    waits = NetDef(name="waits", external_input=["b_n", "enough"])
    waits.op.append(make_op("GE", ["b_n", "enough"], ["stop"]))
    others = ExecutionStep(name="others", network=["waits"], num_iter=100_000, should_stop_blob="stop")
    timed = ExecutionStep(name="timed", network=["b"], run_every_ms=20)
    workspace = Workspace()
    workspace.feed("b_n", np.int64([0]))
    workspace.feed("enough", np.int64([4]))
    step = ExecutionStep(name="s", substep=[others, timed])
    workspace.run_plan(PlanDef(name="plan", network=[waits, counter("b")], execution_step=[step]))
    assert workspace.fetch("b_n")[0] >= 4


def test_a_report_that_fails_is_raised_when_the_step_ends():
    step = ExecutionStep(network=["a"], num_iter=12, run_every_ms=100, report_net="missing", report_interval=1)
    with pytest.raises(NetError, match="no net 'missing'"):
        run(step, counter("a"))


def test_a_stop_blob_ends_the_step():
    net = counter("a")
    net.external_input.append("limit")
    net.op.append(make_op("GE", ["a_n", "limit"], ["stop"]))
    ws = run(ExecutionStep(name="s", network=["a"], should_stop_blob="stop"), net)
    assert ws.fetch("a_n").tolist() == [3]


def test_substeps_side_by_side_and_their_errors():
    steps = [ExecutionStep(name=n, network=[n], num_iter=10) for n in ("a", "b")]
    ws = run(ExecutionStep(name="s", substep=steps, concurrent_substeps=True), counter("a"), counter("b"))
    assert ws.fetch("a_n").tolist() == ws.fetch("b_n").tolist() == [10]
    steps[1].network[0] = "missing"
    with pytest.raises(NetError, match="no net 'missing'"):
        run(ExecutionStep(name="s", substep=steps, concurrent_substeps=True), counter("a"))


def test_a_stop_blob_must_exist_and_hold_one_value():
    with pytest.raises(NetError, match="should_stop_blob 'nothing' does not exist"):
        run(ExecutionStep(name="s", network=["a"], should_stop_blob="nothing"), counter("a"))
    with pytest.raises(NetError, match="step 's': should_stop_blob 'a_n' must be of type bool, got int64"):
        run(ExecutionStep(name="s", network=["a"], should_stop_blob="a_n"), counter("a"))


def test_a_step_has_nets_or_substeps():
    step = ExecutionStep(name="s", network=["a"], substep=[ExecutionStep(network=["a"])])
    with pytest.raises(NetError, match="both substeps and nets"):
        run(step, counter("a"))
