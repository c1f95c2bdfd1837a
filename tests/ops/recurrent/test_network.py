"""RecurrentNetwork and its gradient: hand-written step nets, compared with NumPy; numerical gradients; errors."""

import numpy as np
import pytest

from netbuilder.graph.blob_devices import place_operators
from netbuilder.ops.core.operator import decode, spec_of
from netbuilder.ops.core.renaming import rename_blobs
from netbuilder.ops.recurrent.network import RecurrentNetwork
from netbuilder.proto import ArgumentError, GradientError, NetDef, NetError, OperatorError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from on_gpu import gpus
from recurrent_steps import SAMPLES, STEPS, WIDTH, recurrent, reference, run, tanh_step, values, with_gradient
from switches import single

ENGINES = [pytest.param(None, id="engines"), pytest.param((), id="numpy")]


def numeric(v, name, weights, of=reference, step=1e-5):
    slope = np.zeros_like(v[name])
    for index in np.ndindex(slope.shape):
        ends = []
        for sign in (1, -1):
            moved = {key: value.copy() for key, value in v.items()}
            moved[name][index] += sign * step
            ends.append(sum((of(moved) * weight).sum() for weight in weights))
        slope[index] = (ends[0] - ends[1]) / (2 * step)
    return slope


@pytest.mark.parametrize("engines", ENGINES)
@pytest.mark.parametrize("shape", [(1, SAMPLES, WIDTH), (SAMPLES, WIDTH), (WIDTH,)], ids=str)
def test_forward(engines, shape):
    v = values()
    v["h0"] = np.random.default_rng(1).normal(size=shape)
    workspace = run([recurrent(tanh_step())], v, engines)
    want = reference(v)
    np.testing.assert_allclose(workspace.fetch("all"), want, rtol=1e-12)
    np.testing.assert_allclose(workspace.fetch("last"), want[-1:], rtol=1e-12)


@pytest.mark.parametrize("engines", ENGINES)
def test_a_sequence_of_no_steps(engines):
    v = values()
    v["seq"] = v["seq"][:0]
    ops, gradients = with_gradient(recurrent(tanh_step()), {"all": "d_all", "last": "d_last"})
    slope = np.random.default_rng(1).normal(size=(1, SAMPLES, WIDTH))
    workspace = run(ops, {**v, "d_all": np.zeros((0, SAMPLES, WIDTH)), "d_last": slope}, engines)
    assert workspace.fetch("all").shape == (0, SAMPLES, WIDTH)
    np.testing.assert_array_equal(workspace.fetch("last"), v["h0"])
    np.testing.assert_array_equal(workspace.fetch(gradients["h0"]), slope)
    assert not workspace.fetch(gradients["w"]).any()


@pytest.mark.parametrize("engines", ENGINES)
@pytest.mark.parametrize("shape", [(1, SAMPLES, WIDTH), (SAMPLES, WIDTH), (WIDTH,)], ids=str)
def test_gradient(engines, shape):
    v = values()
    r = np.random.default_rng(1)
    v["h0"] = r.normal(size=shape)
    d_all, d_last = r.normal(size=(STEPS, SAMPLES, WIDTH)), r.normal(size=(1, SAMPLES, WIDTH))
    ops, gradients = with_gradient(recurrent(tanh_step()), {"all": "d_all", "last": "d_last"})
    workspace = run(ops, {**v, "d_all": d_all, "d_last": d_last}, engines)
    weights = [d_all + np.concatenate([np.zeros_like(d_all[1:]), d_last])]
    for name in v:
        want = numeric(v, name, weights)
        np.testing.assert_allclose(workspace.fetch(gradients[name]), want, rtol=1e-6, atol=1e-8, err_msg=name)


def test_plain_kernels_and_bound_ones_agree():
    v = values(dtype=np.float32)
    ops, gradients = with_gradient(recurrent(tanh_step()), {"all": "d_all"})
    feeds = {**v, "d_all": np.ones((STEPS, SAMPLES, WIDTH), np.float32)}
    bound, plain = run(ops, feeds), run(ops, feeds, (), without=single("bound_kernels"))
    for name in ("all", "last", *gradients.values()):
        np.testing.assert_allclose(bound.fetch(name), plain.fetch(name), rtol=1e-5, atol=1e-6)


def test_nothing_is_kept_without_a_backward_step_net():
    v = values()
    states = (STEPS + 1) * SAMPLES * WIDTH * 8
    assert size_without_table(run([recurrent(tanh_step())], v)) == -(-states // 64) * 64


def test_outputs_without_gradients_are_omitted():
    ops, _ = with_gradient(recurrent(tanh_step()), {"last": "d_last"})
    assert list(ops[1].input)[:2] == ["d_last", "seq"]
    assert next(list(a.ints) for a in ops[1].arg if a.name == "outputs_with_grads") == [1]


def test_gradient_of_an_undeclared_output():
    with pytest.raises(GradientError, match=r"output 'last', which is not among outputs_with_grads \[0\]"):
        with_gradient(recurrent(tanh_step(), outputs_with_grads=[0]), {"all": "d_all", "last": "d_last"})


def test_invariant_work_is_done_once(monkeypatch):
    step = NetDef(
        name="step",
        op=[
            make_op("Tanh", ["b"], ["bias"]),
            make_op("FC", ["h_prev", "w", "bias"], ["s"], axis=2),
            make_op("Sum", ["s", "x"], ["h"]),
        ],
    )
    v = values()
    ops, gradients = with_gradient(recurrent(step), {"all": "d_all"})
    workspace = run(ops, {**v, "d_all": np.ones((STEPS, SAMPLES, WIDTH))})

    def plain(v):
        h, found = v["h0"][0], []
        for x in v["seq"]:
            h = x + h @ v["w"].T + np.tanh(v["b"])
            found.append(h)
        return np.stack(found)

    np.testing.assert_allclose(workspace.fetch("all"), plain(v), rtol=1e-12)
    for name in v:
        want = numeric(v, name, [1.0], plain)
        np.testing.assert_allclose(workspace.fetch(gradients[name]), want, rtol=1e-6, atol=1e-8, err_msg=name)


def test_windows_and_a_second_sequence():
    """h = tanh(h_prev + h_before + x + x_next + z), windows of two rows summed over axis 0."""
    step = NetDef(
        name="step",
        op=[
            make_op("ReduceFrontSum", ["two_h"], ["a"], num_reduce_dim=1),
            make_op("ReduceFrontSum", ["two_x"], ["c"], num_reduce_dim=1),
            make_op("ExpandDims", ["c"], ["e"], dims=[0]),
            make_op("ExpandDims", ["a"], ["d"], dims=[0]),
            make_op("Sum", ["d", "e", "z"], ["s"]),
            make_op("Tanh", ["s"], ["h"]),
        ],
    )
    op = recurrent(
        step,
        inputs=["z_seq", "h0", "seq"],
        link_internal=["two_h", "h", "two_x", "z"],
        link_external=["states", "states", "seq", "z_seq"],
        link_offset=[0, 2, 0, 0],
        link_window=[2, 1, 2, 1],
        alias_offset=[2, -1],
    )
    r = np.random.default_rng(3)
    v = {
        "z_seq": r.normal(size=(STEPS, SAMPLES, WIDTH)),
        "h0": r.normal(size=(2, SAMPLES, WIDTH)),
        "seq": r.normal(size=(STEPS + 1, SAMPLES, WIDTH)),
    }

    def plain(v):
        rows = list(v["h0"])
        for t in range(STEPS):
            rows.append(np.tanh(rows[-2] + rows[-1] + v["seq"][t] + v["seq"][t + 1] + v["z_seq"][t]))
        return np.stack(rows[2:])

    d_all = r.normal(size=(STEPS, SAMPLES, WIDTH))
    ops, gradients = with_gradient(op, {"all": "d_all"})
    workspace = run(ops, {**v, "d_all": d_all})
    np.testing.assert_allclose(workspace.fetch("all"), plain(v), rtol=1e-12)
    for name in v:
        want = numeric(v, name, [d_all], plain)
        np.testing.assert_allclose(workspace.fetch(gradients[name]), want, rtol=1e-6, atol=1e-8, err_msg=name)


def test_dropout_draws_a_new_mask_each_step_and_the_same_in_the_backward_pass():
    step = NetDef(
        name="step",
        op=[
            make_op("Sum", ["h_prev", "x"], ["s"]),
            make_op("Dropout", ["s"], ["h", "mask"], ratio=0.5, is_test=0),
        ],
    )
    op = recurrent(step, inputs=["seq", "h0"])
    ops, gradients = with_gradient(op, {"last": "d_last"})
    ones = {"seq": np.ones((STEPS, 50, 8), np.float32), "h0": np.zeros((1, 50, 8), np.float32)}
    workspace = run(ops, {**ones, "d_last": np.ones((1, 50, 8), np.float32)})
    shown = workspace.fetch("all") != 0
    assert all((shown[t] != shown[t + 1]).any() for t in range(STEPS - 1))
    d_seq = workspace.fetch(gradients["seq"])
    np.testing.assert_array_equal(d_seq[-1] != 0, shown[-1])
    np.testing.assert_array_equal(d_seq[-2] != 0, shown[-1] & shown[-2])


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"link_external": ["states", "states", "sequence"]}, NetError, "link_external names blob 'sequence'"),
        ({"alias_src": ["states", "other"]}, NetError, "alias_src names blob 'other', which is none of its states"),
        ({"initial_recurrent_state_ids": [9]}, NetError, "state 'states' has no initial value"),
        ({"initial_recurrent_state_ids": []}, ArgumentError, "must have the same length; got recurrent_states 1"),
        ({"link_offset": [1, 1, 0]}, NetError, "'h_prev' reads the rows from t \\+ 1 to t \\+ 1"),
        ({"link_window": [1, 1, 0]}, ArgumentError, "needs a window of at least 1"),
        ({"link_window": [1, 1, 2]}, NetError, "'x' reaches row 4 of 'seq', of shape \\(4, 3, 2\\)"),
        ({"link_offset": [0, 0, 0]}, NetError, "'h_prev' reads the rows"),
        ({"alias_offset": [5, -1]}, NetError, "output 'all' begins at row 5 of state 'states', which has 5"),
        ({"alias_offset": [9, -1]}, NetError, "output 'all' begins at row 9 of state 'states', which has 5"),
        ({"alias_dst": ["all", "end"]}, NetError, "output 'last' is not an alias of a state"),
        ({"param": [12], "param_grads": ["w_grad"]}, NetError, "param names input 12, and there are 4"),
        ({"step_net": None}, ArgumentError, "step_net, a net, must be given"),
        (
            {"step_net": tanh_step(make_op("Copy", ["nowhere"], ["y"]))},
            NetError,
            r"net 'step', operator 3: Copy \['nowhere'\] -> \['y'\] reads blob 'nowhere', which is neither linked",
        ),
        (
            {"step_net": tanh_step(make_op("Scale", ["x"], ["x"]))},
            NetError,
            "the step net overwrites 'x', which is linked to input 'seq'",
        ),
        ({"step_net": tanh_step(make_op("Scale", ["w"], ["w"]))}, NetError, "overwrites input 'w'"),
        (
            {"step_net": tanh_step(make_op("NoSuch", ["w"], ["y"]))},
            NetError,
            r"net 'outer', operator 0: Rec.*net 'step', operator 3: NoSuch \['w'\] -> \['y'\]: unknown",
        ),
        (
            {"step_net": tanh_step(make_op("If", ["w"], ["y"], then_net=NetDef()))},
            NetError,
            "operator 3: If .*: it runs Python, holds nets or keeps data between runs",
        ),
        (
            {"step_net": tanh_step(make_op("FC", ["h", "b", "b"], ["y"]))},
            NetError,
            r"net 'step', operator 3: FC \['h', 'b', 'b'\] -> \['y'\]: FC: ",
        ),
    ],
)
def test_refusals(changes, error, text):
    v = values()
    with pytest.raises(error, match=text):
        run([recurrent(**{"step": tanh_step(), **changes})], v)


def test_initial_state_of_other_samples():
    v = values()
    v["h0"] = np.zeros((1, 5, WIDTH))
    with pytest.raises(NetError, match="state 'states' begins with an input of shape .* it must have 3 samples"):
        run([recurrent(tanh_step())], v)


def test_errors_name_the_operator_and_the_step():
    lookup = make_op("Gather", ["table", "index"], ["y"])
    op = recurrent(
        tanh_step(lookup),
        inputs=["seq", "h0", "w", "b", "table", "indices"],
        link_internal=["h_prev", "h", "x", "index"],
        link_external=["states", "states", "seq", "indices"],
        link_offset=[0, 1, 0, 0],
    )
    v = values()
    feeds = {**v, "table": np.zeros((3, 2)), "indices": np.array([0, 1, 7, 0], np.int32)}
    with pytest.raises(
        OperatorError, match=r"net 'outer', operator 0: Rec.*net 'step', operator 3: Gather .*, in step 2: "
    ):
        run([op], feeds)


def lstm():
    """An LSTM over sequences of different lengths, and its feeds."""
    step = NetDef(
        name="step",
        op=[
            make_op("FC", ["h_prev", "w", "b"], ["gates"], axis=2),
            make_op("Sum", ["gates", "x"], ["gates"]),
            make_op("LSTMUnit", ["h_prev", "c_prev", "gates", "lengths", "timestep"], ["h", "c"], forget_bias=0.5),
        ],
    )
    op = recurrent(
        step,
        inputs=["seq", "h0", "c0", "w", "b", "lengths"],
        outputs=["all", "last", "cells", "work"],
        recurrent_states=["states", "memories"],
        initial_recurrent_state_ids=[1, 2],
        link_internal=["h_prev", "h", "c_prev", "c", "x"],
        link_external=["states", "states", "memories", "memories", "seq"],
        link_offset=[0, 1, 0, 1, 0],
        alias_src=["states", "states", "memories"],
        alias_dst=["all", "last", "cells"],
        alias_offset=[1, -1, 1],
        outputs_with_grads=[0, 2],
    )
    r = np.random.default_rng(4)
    shapes = {
        "seq": (STEPS, SAMPLES, 4 * WIDTH),
        "h0": (SAMPLES, WIDTH),
        "c0": (SAMPLES, WIDTH),
        "w": (4 * WIDTH, WIDTH),
    }
    shapes |= {"b": (4 * WIDTH,), "d_all": (STEPS, SAMPLES, WIDTH), "d_cells": (STEPS, SAMPLES, WIDTH)}
    feeds = {name: r.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return op, {**feeds, "lengths": np.array([STEPS, 1, 2], np.int32)}


def size_without_table(workspace):
    """The bytes of the last output but for the table at its end."""
    work = workspace.fetch("work")
    return work.size - 16 - int.from_bytes(work[-16:-8].tobytes(), "little")


FRESH = pytest.mark.parametrize("fresh", [False, True], ids=["computed again", "kept"])


def lstm_with_gradient(fresh):
    """Return the operators, what is fed, and the names of results; ``fresh``: gates are stored for the gradient."""
    op, feeds = lstm()
    ops, gradients = with_gradient(op, {"all": "d_all", "cells": "d_cells"})
    if fresh:
        ops, gradients = with_gradient(keeping(op, ops[-1]), {"all": "d_all", "cells": "d_cells"})
    return ops, feeds, ["all", "last", "cells", *gradients.values()]


@FRESH
def test_kernels_agree(fresh):
    """Plain and bound kernels, oneDNN and NumPy, gates stored or recomputed: one result."""
    ops, feeds, names = lstm_with_gradient(fresh)
    want = run(ops, feeds, (), without=single("bound_kernels"))
    kept = size_without_table(want) - 2 * 128  # in addition to the two states, (5, 3, 2) each
    assert kept == (384 if fresh else 0)  # the gates, (4, 1, 3, 8)
    for other in (run(ops, feeds), run(ops, feeds, ())):
        for name in names:
            np.testing.assert_allclose(other.fetch(name), want.fetch(name), rtol=1e-4, atol=1e-5, err_msg=name)
    ended = want.fetch("all")
    np.testing.assert_array_equal(ended[1:, 1], np.broadcast_to(ended[0, 1], ended[1:, 1].shape))


@pytest.mark.gpu
@FRESH
def test_kernels_of_gpus_agree(fresh):
    ops, feeds, names = lstm_with_gradient(fresh)
    net = NetDef(name="outer", op=ops, external_input=list(feeds))
    place_operators(net, make_device_option(1, 0))
    workspace, want = Workspace(), run(ops, feeds, ())
    for name, value in feeds.items():
        workspace.feed(name, value)
    workspace.create_net(net)
    workspace.run_net("outer", 2)
    for name in names:
        np.testing.assert_allclose(workspace.fetch(name), want.fetch(name), rtol=1e-4, atol=1e-5, err_msg=name)


def keeping(op, gradient):
    """``op`` with the backward step net of its gradient stored in it, reading the gates where that computed them."""
    kept = type(op)()
    kept.CopyFrom(op)
    for argument in gradient.arg:
        if argument.name.startswith(("backward_", "param")):
            kept.arg.add().CopyFrom(argument)
            if argument.name == "backward_step_net":
                made = kept.arg[-1].n.op
                own = [o for o in made if o.type.endswith("Gradient") or "_grad" in o.output[0]]
                del made[: len(made) - len(own)]
    return kept


def test_unread_values_are_not_kept():
    """A net with a gradient of its step stored runs as a predictor: nothing is written for the gradient."""
    op, feeds = lstm()
    op = keeping(op, with_gradient(op, {"all": "d_all"})[0][-1])
    net = NetDef(name="outer", op=[op], external_input=list(op.input), external_output=["all", "cells"])
    workspace = Workspace(threads=1)
    for name in op.input:
        workspace.feed(name, feeds[name])
    workspace.create_net(net, observable="outputs")
    workspace.run_net("outer", 2)
    want = run([op], {name: feeds[name] for name in op.input})
    for name in ("all", "cells"):
        np.testing.assert_array_equal(workspace.fetch(name), want.fetch(name))
    (plan,) = workspace.net("outer").plans
    assert plan.steps[0].outputs[-1] is None


@pytest.mark.parametrize("without", ["step_products", "step_copies", "step_products step_copies"])
def test_without_optimizations(without):
    op, feeds = lstm()
    ops, gradients = with_gradient(op, {"all": "d_all", "cells": "d_cells"})
    one, other = run(ops, feeds), run(ops, feeds, without=single(*without.split()))
    for name in ("all", "cells", *gradients.values()):
        np.testing.assert_allclose(one.fetch(name), other.fetch(name), rtol=1e-4, atol=1e-5, err_msg=name)


def test_an_output_of_a_states_name_shows_all_of_it():
    v = values()
    op = recurrent(tanh_step(), outputs=("all", "states", "last", "work"), outputs_with_grads=[0])
    ops, gradients = with_gradient(op, {"all": "d_all"})
    found = run(ops, {**v, "d_all": np.ones((STEPS, SAMPLES, WIDTH))})
    np.testing.assert_allclose(found.fetch("states")[1:], reference(v))
    np.testing.assert_array_equal(found.fetch("states")[0], v["h0"][0])
    np.testing.assert_allclose(found.fetch(gradients["w"]), numeric(v, "w", [1.0]), rtol=1e-4, atol=1e-7)


def test_gradients_of_parameters_have_the_usual_names_by_default():
    v = values()
    ops, gradients = with_gradient(recurrent(tanh_step(), outputs_with_grads=[0]), {"all": "d_all"})
    feeds = {**v, "d_all": np.ones((STEPS, SAMPLES, WIDTH))}
    want = run(ops, feeds).fetch(gradients["w"])
    backward = next(op for op in ops if op.type == "RecurrentNetworkGradient")
    args = {argument.name: argument for argument in backward.arg}
    names = [name.decode() for name in args["param_grads"].strings]
    params = [backward.input[len(args["outputs_with_grads"].ints) + i] for i in args["param"].ints]
    rename_blobs(args["backward_step_net"].n, {old: f"{new}_grad" for old, new in zip(names, params)})
    backward.arg.remove(args["param_grads"])
    np.testing.assert_allclose(run(ops, feeds).fetch(gradients["w"]), want, rtol=1e-12)


def test_flops_count_all_steps():
    op = decode(RecurrentNetwork, recurrent(tanh_step()))
    specs = [spec_of(value) for value in values().values()]
    product, elements = 2 * SAMPLES * WIDTH * WIDTH, SAMPLES * WIDTH
    assert op.flops(*specs) >= STEPS * product
    assert op.flops(*specs) <= STEPS * (product + 20 * elements)


@pytest.mark.emulated
def test_a_loop_of_capturable_kernels_is_captured():
    """The whole of a recurrent net and of its gradient are in one CUDA graph, as the kernels of all steps can be."""
    op, feeds = lstm()
    ops = with_gradient(op, {"all": "d_all"})[0]
    net = NetDef(name="outer", op=ops, external_input=list(feeds))
    place_operators(net, make_device_option(1, 0))
    found = []
    for without in ([], single("cuda_graphs")):
        with gpus(1) as machine:
            workspace = Workspace(engines=("CUDA",))
            for name, value in feeds.items():
                workspace.feed(name, value, make_device_option(1, 0))
            workspace.create_net(net, without=without)
            workspace.run_net("outer", 3)
            for step in range(2):
                workspace.feed(op.input[0], (step + 1) * feeds[op.input[0]])
                before = machine.counts.copy()
                workspace.run_net("outer")
                calls = machine.counts - before
            (plan,) = workspace.net("outer").plan_ahead()
            graphs = {step.node.first.op_def.type: each.graph for step, each in zip(plan.steps, plan.captured())}
            names = [name for made in ops for name in made.output if workspace.get(name).spec is not None]
            found.append({name: workspace.fetch(name) for name in names})
            if not without:
                assert graphs == {"RecurrentNetwork": 0, "RecurrentNetworkGradient": 0}
                assert calls == {"replays": 1, "synchronizations": 1}
            else:
                assert calls["launches"] > 20 and not calls["allocations"]
    for name in found[0]:
        np.testing.assert_array_equal(*(each[name] for each in found), err_msg=name)
