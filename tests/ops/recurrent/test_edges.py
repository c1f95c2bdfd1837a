"""RecurrentNetwork at its edges: no steps, states as outputs, parameters named by default, rows of the same step."""

from __future__ import annotations

import numpy as np
import pytest

from netbuilder.graph.gradients import GradientRegistry
from netbuilder.proto import GradientError, NetDef, NetError
from netbuilder.proto.arguments import make_op
from recurrent_steps import SAMPLES, STEPS, WIDTH, recurrent, reference, run, tanh_step, values, with_gradient


def test_no_steps():
    """An empty sequence: the last state is the initial one, which gets its whole gradient."""
    v = values()
    v["seq"] = v["seq"][:0]
    ops, gradients = with_gradient(recurrent(tanh_step()), {"last": "d_last"})
    d_last = np.random.default_rng(1).normal(size=(1, SAMPLES, WIDTH))
    workspace = run(ops, {**v, "d_last": d_last})
    assert workspace.fetch("all").shape == (0, SAMPLES, WIDTH)
    np.testing.assert_array_equal(workspace.fetch("last"), v["h0"])
    np.testing.assert_array_equal(workspace.fetch(gradients["h0"]), d_last)
    assert workspace.fetch(gradients["seq"]).shape == (0, SAMPLES, WIDTH)
    assert not workspace.fetch(gradients["w"]).any() and not workspace.fetch(gradients["b"]).any()


def test_a_state_may_be_an_output():
    """All rows of the state, the initial one first; the gradients are those without it."""
    v = values()
    d_all = np.random.default_rng(1).normal(size=(STEPS, SAMPLES, WIDTH))
    found = []
    for outputs in (("all", "states", "last", "work"), ("all", "last", "work")):
        op = recurrent(tanh_step(), outputs=outputs, outputs_with_grads=[0])
        ops, gradients = with_gradient(op, {"all": "d_all"})
        workspace = run(ops, {**v, "d_all": d_all})
        found.append([workspace.fetch(gradients[name]) for name in v])
        if "states" in outputs:
            np.testing.assert_allclose(workspace.fetch("states"), np.concatenate([v["h0"], reference(v)]), rtol=1e-12)
    for one, other in zip(*found):
        np.testing.assert_array_equal(one, other)


def test_gradients_of_parameters_are_found_by_their_inputs_names():
    """A backward step net of one's own and no ``param_grads``: "w_grad" and "b_grad" are summed over the steps."""
    v = values()
    d_all = np.random.default_rng(1).normal(size=(STEPS, SAMPLES, WIDTH))
    ops, gradients = with_gradient(recurrent(tanh_step()), {"all": "d_all"})
    expected = run(ops, {**v, "d_all": d_all})
    made, _ = GradientRegistry.GetBackwardPass(list(tanh_step().op), {"h": "h_grad"})
    given = recurrent(
        tanh_step(),
        param=[2, 3],
        backward_step_net=NetDef(name="backward", op=made),
        backward_link_internal=["h_prev_grad", "h_grad", "s_grad"],
        backward_link_external=["states_grad", "states_grad", "seq_grad"],
        backward_link_offset=[0, 1, 0],
        outputs_with_grads=[0],
    )
    ops, own = with_gradient(given, {"all": "d_all"})
    workspace = run(ops, {**v, "d_all": d_all})
    for name in v:
        np.testing.assert_allclose(
            workspace.fetch(own[name]), expected.fetch(gradients[name]), rtol=1e-9, atol=1e-12, err_msg=name
        )


def _running_sums(read_first=False):
    """A step that copies its element into the state, then adds up the last two rows, its own among them."""
    ops = [make_op("Copy", ["x"], ["h"]), make_op("ReduceSum", ["two"], ["y"], axes=[0], keepdims=1)]
    return recurrent(
        NetDef(name="step", op=ops[::-1] if read_first else ops),
        inputs=("seq", "h0", "y0"),
        outputs=("all", "sums", "work"),
        recurrent_states=["states", "sums_states"],
        initial_recurrent_state_ids=[1, 2],
        link_internal=["x", "h", "two", "y"],
        link_external=["seq", "states", "states", "sums_states"],
        link_offset=[0, 1, 0, 1],
        link_window=[1, 1, 2, 1],
        alias_src=["states", "sums_states"],
        alias_dst=["all", "sums"],
        alias_offset=[1, 1],
        outputs_with_grads=[1],
    )


def test_a_step_may_read_rows_that_it_has_written():
    v = values()
    given = {"seq": v["seq"], "h0": v["h0"], "y0": np.zeros_like(v["h0"])}
    workspace = run([_running_sums()], given)
    rows = np.concatenate([v["h0"], v["seq"]])
    np.testing.assert_allclose(workspace.fetch("sums"), rows[1:] + rows[:-1], rtol=1e-12)
    with pytest.raises(GradientError, match=r"reads as \['two'\] rows of a state that it has written in the same step"):
        with_gradient(_running_sums(), {"sums": "d_sums"})
    with pytest.raises(NetError, match="'two' reads the rows"):
        run([_running_sums(read_first=True)], given)


def test_gradients_of_other_outputs_are_not_read():
    """For a single operator only ``outputs_with_grads`` matter, even if other gradients are named."""
    op = recurrent(tanh_step(), outputs_with_grads=[0])
    made, found = GradientRegistry.GetGradientForOp(op, ["d_all", "d_last", "d_work"])
    assert made[0].input[0] == "d_all" and "d_last" not in made[0].input
    assert [str(blob) for blob in found] == ["seq_grad", "h0_grad", "w_grad", "b_grad"]
