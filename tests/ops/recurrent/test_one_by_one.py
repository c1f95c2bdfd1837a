"""Step nets whose shapes depend on data, compared with NumPy; links, shared blobs, errors."""

import numpy as np
import pytest

from netbuilder.graph.blob_devices import place_operators
from netbuilder.graph.gradients import differentiate
from netbuilder.proto import NetDef, ShapeError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace

STEPS, SAMPLES = 4, 2


def growing_step(*more):
    """h = h_prev + x + the sum of the first t + 1 of the doubled values."""
    return NetDef(
        name="step",
        op=[
            make_op("Scale", ["values"], ["doubled"], scale=2.0),
            make_op("Add", ["t", "one"], ["end"]),
            make_op("Slice", ["doubled", "zero", "end"], ["cut"]),
            make_op("SumElements", ["cut"], ["total"]),
            make_op("Reshape", ["x"], ["x_flat", "x_shape"], shape=[-1]),
            make_op("Add", ["x_flat", "total"], ["shifted"], broadcast=1),
            make_op("Reshape", ["h_prev"], ["h_flat", "h_shape"], shape=[SAMPLES]),
            make_op("Add", ["shifted", "h_flat"], ["h"]),
            *more,
        ],
    )


def recurrent(step, **args):
    return make_op(
        "RecurrentNetwork",
        ["seq", "h0", "values", "zero", "one"],
        ["all", "last", "work"],
        **{
            "step_net": step,
            "timestep": "t",
            "recurrent_states": ["states"],
            "initial_recurrent_state_ids": [1],
            "link_internal": ["h_prev", "h", "x"],
            "link_external": ["states", "states", "seq"],
            "link_offset": [0, 1, 0],
            "alias_src": ["states", "states"],
            "alias_dst": ["all", "last"],
            "alias_offset": [1, -1],
            **args,
        },
    )


def feeds():
    r = np.random.default_rng(3)
    return {
        "seq": r.normal(size=(STEPS, SAMPLES, 1)).astype(np.float32),
        "h0": r.normal(size=(1, SAMPLES, 1)).astype(np.float32),
        "values": r.normal(size=6).astype(np.float32),
        "zero": np.array([0], np.int32),
        "one": np.array([1], np.int32),
    }


def run(op, given, engines=None):
    workspace = Workspace(engines=engines, threads=1)
    for name, value in given.items():
        workspace.feed(name, value)
    net = NetDef(name="outer", op=[op], external_input=list(given))
    workspace.create_net(net)
    workspace.run_net("outer")
    workspace.run_net("outer")
    return workspace


def reference(v):
    added = v["seq"][:, :, 0] + 2 * np.cumsum(v["values"])[:STEPS, None]
    return (v["h0"][0, :, 0] + np.cumsum(added, 0))[..., None]


@pytest.mark.parametrize("engines", [None, ()])
def test_shapes_may_differ_from_step_to_step(engines):
    given = feeds()
    workspace = run(recurrent(growing_step()), given, engines)
    np.testing.assert_allclose(workspace.fetch("all"), reference(given), rtol=1e-5)
    np.testing.assert_allclose(workspace.fetch("last"), reference(given)[-1:], rtol=1e-5)
    np.testing.assert_array_equal(workspace.fetch("values"), given["values"])


@pytest.mark.gpu
def test_on_a_gpu():
    given = feeds()
    net = NetDef(name="outer", op=[recurrent(growing_step())], external_input=list(given))
    place_operators(net, make_device_option(1, 0))
    workspace = Workspace()
    for name, value in given.items():
        workspace.feed(name, value)
    workspace.run_net_once(net)
    np.testing.assert_allclose(workspace.fetch("all"), reference(given), rtol=1e-5)


def nested_step():
    """h = h_prev + x + the last value of a cumulative sum, by a net within, of the first t + 1 doubled values."""
    inner = NetDef(name="inner", op=[make_op("Add", ["c_prev", "v"], ["c"])])
    cumulated = make_op(
        "RecurrentNetwork",
        ["rows", "c0"],
        ["sums", "kept"],
        step_net=inner,
        timestep="s",
        recurrent_states=["c_states"],
        initial_recurrent_state_ids=[1],
        link_internal=["c_prev", "c", "v"],
        link_external=["c_states", "c_states", "rows"],
        link_offset=[0, 1, 0],
        alias_src=["c_states"],
        alias_dst=["sums"],
        alias_offset=[-1],
    )
    step = growing_step()
    operators = list(step.op)
    operators[3:4] = [
        make_op("Reshape", ["cut"], ["rows", "cut_shape"], shape=[-1, 1, 1]),
        make_op("ConstantFill", [], ["c0"], shape=[1, 1, 1]),
        cumulated,
        make_op("Reshape", ["sums"], ["total", "sums_shape"], shape=[1]),
    ]
    return NetDef(name="step", op=operators)


@pytest.mark.parametrize("engines", [None, ()])
def test_a_recurrent_network_within_has_other_shapes_in_each_step(engines):
    given = feeds()
    workspace = run(recurrent(nested_step()), given, engines)
    exact = {name: value.astype(np.float64) for name, value in given.items()}
    np.testing.assert_allclose(workspace.fetch("all"), reference(exact), rtol=1e-5)
    np.testing.assert_allclose(workspace.fetch("last"), reference(exact)[-1:], rtol=1e-5)


@pytest.mark.gpu
def test_a_recurrent_network_within_on_a_gpu():
    given = feeds()
    net = NetDef(name="outer", op=[recurrent(nested_step())], external_input=list(given))
    place_operators(net, make_device_option(1, 0))
    workspace = Workspace()
    for name, value in given.items():
        workspace.feed(name, value)
    workspace.run_net_once(net)
    np.testing.assert_allclose(workspace.fetch("all"), reference(given), rtol=1e-5)


def test_what_fails_within_says_where():
    step = nested_step()
    step.op[4].ClearField("arg")  # the initial state
    step.op[4].CopyFrom(make_op("ConstantFill", [], ["c0"], shape=[1, 3, 1]))
    where = (
        r"net 'outer', operator 0: .*net 'step', operator 5: RecurrentNetwork .*, in step 0: RecurrentNetwork: state"
    )
    with pytest.raises(ShapeError, match=where + " 'c_states' begins with an input of shape"):
        run(recurrent(step), feeds())


def test_random_numbers_differ_from_step_to_step():
    noise = make_op("GaussianFill", [], ["noise"], shape=[SAMPLES])
    step = growing_step(noise, make_op("Add", ["noise", "noise"], ["h2"]))
    op = recurrent(
        step,
        recurrent_states=["states", "noises"],
        initial_recurrent_state_ids=[1, 1],
        link_internal=["h_prev", "h", "x", "h2"],
        link_external=["states", "states", "seq", "noises"],
        link_offset=[0, 1, 0, 1],
        alias_src=["states", "noises"],
    )
    del op.arg[[a.name for a in op.arg].index("alias_offset")].ints[:]
    op.arg[[a.name for a in op.arg].index("alias_offset")].ints.extend([1, 1])
    drawn = run(op, feeds()).fetch("last")
    assert len(np.unique(drawn)) == STEPS * SAMPLES


def test_what_fails_says_which_operator_in_which_step():
    given = feeds()
    given["values"] = given["values"][:0]  # 0 beyond its end is cut, and there is nothing to add
    given["one"] = np.array([-1], np.int32)  # ends at -1, then at 0, 1 ...
    assert run(recurrent(growing_step()), given).fetch("all").shape == (STEPS, SAMPLES, 1)
    given["zero"] = np.array([2], np.int32)
    given["values"] = np.zeros(6, np.float32)
    with pytest.raises(
        ShapeError,
        match=r"net 'outer', operator 0: Rec.*net 'step', operator 2: Slice .*, in step 1: .* slice .* from 2",
    ):
        run(recurrent(growing_step()), given)


def test_links_want_as_many_elements():
    step = growing_step()
    step.op[-1].output[0] = "other"
    step.op.append(make_op("Slice", ["other", "zero", "one"], ["h"]))
    with pytest.raises(ShapeError, match=r"'h' has shape \(1,\) .* takes shape \(1, 2, 1\)"):
        run(recurrent(step), feeds())


def test_refusals():
    with pytest.raises(ShapeError, match="it runs Python, holds nets or keeps data"):
        run(recurrent(growing_step(make_op("If", ["one"], ["y"], then_net=NetDef(name="n")))), feeds())
    net = NetDef(name="outer", op=[recurrent(growing_step())], external_input=list(feeds()))
    backward = NetDef(name="back", op=[make_op("Copy", ["h_grad"], ["x_grad"])])
    with pytest.raises(ShapeError, match="cannot be in a step net that has a gradient"):
        links = {"backward_link_internal": ["h_grad"], "backward_link_external": ["states_grad"]}
        op = recurrent(growing_step(), backward_step_net=backward, backward_link_offset=[1], **links)
        run(op, feeds())
    done = differentiate(net, {"all": "all_grad"})
    workspace = Workspace(threads=1)
    for name, value in {**feeds(), "all_grad": np.ones((STEPS, SAMPLES, 1), np.float32)}.items():
        workspace.feed(name, value)
    with pytest.raises(ShapeError, match="cannot be in a step net that has a gradient"):
        workspace.run_net_once(NetDef(name="both", op=[*net.op, *done.net.op], external_input=list(workspace.blobs())))
