"""Plans: new shapes, observable blobs, in place, layouts shared between nets, fusion, dynamic operators."""

import weakref

import numpy as np
import pytest

from netbuilder.engines import onednn
from netbuilder.engines.onednn import autotune
from netbuilder.graph import Net
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.core.extensions import KeptForGradient
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute import executable
from netbuilder.runtime.plan import compiler
from netbuilder.runtime.plan.kernels_of_nodes import KernelsOfNodes
from netbuilder.runtime.plan.values import StepKind

ENGINES = [pytest.param((), id="numpy"), pytest.param(None, id="all")]

needs_onednn = pytest.mark.skipif(not onednn.available(), reason="needs oneDNN")


def net_of(*ops, name="net", inputs=()):
    net = NetDef(name=name)
    net.op.extend(ops)
    net.external_input.extend(inputs)
    return net


def convnet(name="net", update=True):
    """Conv, BN, Relu in place, pool, FC, softmax loss, backward, and an update of every parameter."""
    rng = np.random.default_rng(0)
    parameters = {
        "w1": rng.standard_normal((17, 3, 3, 3)).astype(np.float32) / 5,
        "s": np.ones(17, np.float32),
        "bias": np.zeros(17, np.float32),
        "w2": rng.standard_normal((16, 17, 3, 3)).astype(np.float32) / 12,
        "w3": rng.standard_normal((5, 16 * 4 * 4)).astype(np.float32) / 16,
        "b3": np.zeros(5, np.float32),
    }
    state = {
        "rm": np.zeros(17, np.float32),
        "rv": np.ones(17, np.float32),
        "lr": np.float32(-0.1),
        "one": np.float32(1),
    }
    forward = [
        make_op("Conv", ["x", "w1"], ["c1"], kernel=3, pad=1),
        make_op("SpatialBN", ["c1", "s", "bias", "rm", "rv"], ["n1", "rm", "rv", "sm", "siv"], is_test=0),
        make_op("Relu", ["n1"], ["n1"]),
        make_op("Conv", ["n1", "w2"], ["c2"], kernel=3, pad=1),
        make_op("MaxPool", ["c2"], ["p"], kernel=2, stride=2),
        make_op("FC", ["p", "w3", "b3"], ["f"]),
        make_op("SoftmaxWithLoss", ["f", "label"], ["softmax", "loss"]),
    ]
    backward = [make_op("ConstantFill", ["loss"], ["loss_grad"], value=1.0)]
    gradients = {"loss": "loss_grad"}
    for op in reversed(forward):
        d_outputs = {j: gradients.get(y) for j, y in enumerate(op.output)}
        made, d_inputs = operator_gradient(op, d_outputs)
        backward += made
        for i, blob in d_inputs.items():
            gradients[op.input[i]] = blob
    ops = forward + backward
    if update:
        ops += [make_op("WeightedSum", [p, "one", gradients[p], "lr"], [p]) for p in parameters]
    net = net_of(*ops, name=name, inputs=["x", "label", *parameters, *state])
    return net, parameters, state


def feed_all(ws, *dicts):
    for values in dicts:
        for name, value in values.items():
            ws.feed(name, value)


def batch(n, seed):
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((n, 3, 8, 8)).astype(np.float32), "label": rng.integers(0, 5, n).astype(np.int32)}


def train(steps, sizes=(4,), observable="all", **options):
    net, parameters, state = convnet()
    ws = Workspace(threads=1, **options)
    feed_all(ws, parameters, state)
    feed_all(ws, batch(sizes[0], 0))
    ws.create_net(net, observable=observable)
    for step in range(steps):
        feed_all(ws, batch(sizes[step % len(sizes)], step))
        ws.run_net("net")
    return ws, net, parameters


def test_engines_and_fusion_agree_with_plain_kernels():
    reference, net, parameters = train(4, engines=())
    names = {y for op in net.op for y in op.output}
    for options in ({"engines": None}, {"engines": None, "without": "fusion"}):
        ws, _, _ = train(4, **options)
        for name in sorted(names):
            want = reference.fetch(name)
            got = ws.fetch(name)
            assert got.dtype == want.dtype
            assert got.shape == want.shape, name
            scale = max(1e-3, float(np.abs(want).max()))
            assert float(np.abs(got - want).max()) <= 2e-4 * scale, (name, options)


@needs_onednn
def test_a_second_compilation_makes_what_the_layouts_of_parameters_change(monkeypatch):
    """The others are the kernels from before; what is replaced is freed."""
    inferred, asked, compiled, kept = [], [], [], []
    infer, choose, again = executable.infer_range, compiler.choose_kernel, executable.compile_again

    def inferring(*args):
        inferred.append(args[1])
        return infer(*args)

    def choosing(node, *args):
        asked[-1].update(part.op_def.type for part in node.parts)
        return choose(node, *args)

    def compiling(net, earlier, *args):
        before = [(step.node.first.op_def.type, weakref.ref(step.prepared)) for step in earlier.steps]
        asked.append(set())
        made = again(net, earlier, *args)
        compiled.append(made)
        used = {id(step.prepared) for step in made.steps}
        alive = [(kind, id(prepared) in used) for kind, get in before if (prepared := get()) is not None]
        assert [kind for kind, is_used in alive if not is_used] == []
        kept.append({kind for kind, _ in alive})
        return made

    asked.append(set())
    monkeypatch.setenv(autotune.SWITCH_VARIABLE, "0")
    monkeypatch.setattr(executable, "infer_range", inferring)
    monkeypatch.setattr(compiler, "choose_kernel", choosing)
    monkeypatch.setattr(executable, "compile_again", compiling)
    train(2)
    assert len(inferred) == 1, "shapes do not depend on the layouts of parameters"
    assert len(compiled) == 1
    assert {"SpatialBN", "MaxPool", "MaxPoolGradient", "SoftmaxWithLoss"} <= kept[0] & asked[0]
    assert asked[1] >= {"Conv", "ConvGradient", "WeightedSum"} and asked[1].isdisjoint(kept[0])


@needs_onednn
@pytest.mark.parametrize("observable", ["all", "outputs"])
def test_kernels_used_again_give_what_new_ones_give(monkeypatch, observable):
    monkeypatch.setenv(autotune.SWITCH_VARIABLE, "0")
    used, net, parameters = train(3, observable=observable)
    monkeypatch.setattr(KernelsOfNodes, "_fits", lambda *args: False)
    new, _, _ = train(3, observable=observable)
    names = {y for op in net.op for y in op.output} if observable == "all" else parameters
    for name in sorted(names):
        np.testing.assert_array_equal(used.fetch(name), new.fetch(name), err_msg=name)
    kernels = [[step.prepared.name for step in ws.net("net").plans[-1].steps] for ws in (used, new)]
    assert kernels[0] == kernels[1]


def test_shapes_that_alternate_give_what_each_alone_gives():
    mixed, _, parameters = train(6, sizes=(4, 7, 4, 2))
    plain, _, _ = train(6, sizes=(4, 7, 4, 2), engines=())
    for name in parameters:
        np.testing.assert_allclose(mixed.fetch(name), plain.fetch(name), rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("engines", ENGINES)
def test_shapes_seen_before_are_not_compiled_again(engines):
    ws, _, _ = train(4, sizes=(4, 7), engines=engines)
    made = [id(p) for p in ws.net("net").plans]
    for step in range(4):
        feed_all(ws, batch((4, 7)[step % 2], step))
        ws.run_net("net")
    assert [id(p) for p in ws.net("net").plans] == made
    assert len(made) == 2


@pytest.mark.parametrize("engines", ENGINES)
def test_fetch_between_steps_changes_nothing(engines):
    watched, net, parameters = train(1, engines=engines)
    quiet, _, _ = train(1, engines=engines)
    names = sorted({y for op in net.op for y in op.output})
    for step in range(1, 4):
        for ws in (watched, quiet):
            feed_all(ws, batch(4, step))
            ws.run_net("net")
        first = {name: watched.fetch(name) for name in names}
        again = {name: watched.fetch(name) for name in names}
        for name in names:
            np.testing.assert_array_equal(first[name], again[name])
    for name in parameters:
        np.testing.assert_array_equal(watched.fetch(name), quiet.fetch(name))


@needs_onednn
def test_a_fused_value_is_computed_when_fetched():
    """The gradient after the Relu is never written, yet it can be fetched, and another net can read it."""
    ws, _, _ = train(2)
    assert ws.get("n1_grad").lazy is not None, "the Relu's gradient was not joined with that of the normalization"
    plain, _, _ = train(2, without="fusion")
    np.testing.assert_allclose(ws.fetch("n1_grad"), plain.fetch("n1_grad"), rtol=1e-3, atol=1e-6)
    ws.run_net_once(net_of(make_op("Copy", ["n1_grad"], ["copied"]), name="reader", inputs=["n1_grad"]))
    np.testing.assert_array_equal(ws.fetch("copied"), ws.fetch("n1_grad"))
    feed_all(ws, batch(4, 9))
    ws.run_net("net")
    feed_all(plain, batch(4, 9))
    plain.run_net("net")
    np.testing.assert_allclose(ws.fetch("n1_grad"), plain.fetch("n1_grad"), rtol=2e-3, atol=1e-6)


@needs_onednn
def test_a_parameter_lives_in_one_layout_that_all_nets_share():
    ws, net, parameters = train(2)
    w1 = ws.get("w1")
    buffer, layout = w1.buffer, w1.spec.layout
    test = net_of(make_op("Conv", ["x", "w1"], ["t"], kernel=3, pad=1), name="test", inputs=["x", "w1"])
    ws.create_net(test)
    for step in range(3):
        feed_all(ws, batch(4, step))
        ws.run_net("net")
        ws.run_net("test")
        assert ws.get("w1").buffer is buffer
        assert ws.get("w1").spec.layout == layout
        reference = Workspace(engines=())
        reference.feed("x", ws.fetch("x"))
        reference.feed("w1", ws.fetch("w1"))
        reference.run_net_once(test)
        np.testing.assert_allclose(ws.fetch("t"), reference.fetch("t"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engines", ENGINES)
def test_feeding_a_parameter_keeps_its_place(engines):
    ws, _, parameters = train(2, engines=engines)
    fresh, _, _ = train(0, engines=engines)
    for name in [*parameters, "rm", "rv"]:
        ws.feed(name, fresh.fetch(name))
    for w in (ws, fresh):
        for step in range(2):
            feed_all(w, batch(4, step))
            w.run_net("net")
    for name in parameters:
        np.testing.assert_array_equal(ws.fetch(name), fresh.fetch(name))


@needs_onednn
def test_two_training_nets_over_the_same_parameters_do_not_fight():
    ws, net, parameters = train(2)
    other, _, _ = convnet(name="other")
    ws.create_net(other)
    for step in range(3):
        feed_all(ws, batch(4, step))
        ws.run_net("net")
        ws.run_net("other")
    plans = [id(p) for p in ws.net("net").plans + ws.net("other").plans]
    for step in range(3):
        feed_all(ws, batch(4, step))
        ws.run_net("net")
        ws.run_net("other")
    assert plans == [id(p) for p in ws.net("net").plans + ws.net("other").plans]


@pytest.mark.parametrize("engines", ENGINES)
def test_a_blob_read_and_then_overwritten_by_an_operator_that_cannot_work_in_place(engines):
    """Y = Y W: the product may not be written over its factor while it is read."""
    ws = Workspace(engines=engines)
    rng = np.random.default_rng(0)
    y, w = rng.standard_normal((6, 6)).astype(np.float32), rng.standard_normal((6, 6)).astype(np.float32)
    ws.feed("y", y)
    ws.feed("w", w)
    ws.feed("b", np.zeros(6, np.float32))
    # FC itself may not overwrite X; by a detour over another name the net may.
    net = net_of(make_op("FC", ["y", "w", "b"], ["z"]), make_op("Copy", ["z"], ["y"]), inputs=["y", "w", "b"])
    ws.create_net(net)
    ws.run_net("net", 3)
    np.testing.assert_allclose(ws.fetch("y"), y @ w.T @ w.T @ w.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engines", ENGINES)
def test_a_name_written_with_another_shape_than_it_had(engines):
    ws = Workspace(engines=engines)
    ws.feed("x", np.arange(6, dtype=np.float32).reshape(2, 3))
    ws.create_net(net_of(make_op("Transpose", ["x"], ["y"]), make_op("Copy", ["y"], ["x"]), inputs=["x"]))
    for _ in range(3):
        before = ws.fetch("x")
        ws.run_net("net")
        np.testing.assert_array_equal(ws.fetch("x"), before.T)


@pytest.mark.parametrize("engines", ENGINES)
def test_a_dynamic_operator_cuts_the_plan(engines):
    ws = Workspace(engines=engines)
    net = net_of(
        make_op("Relu", ["i"], ["r"]),
        make_op("Cast", ["r"], ["k"], to="int32"),
        make_op("Unique", ["k"], ["u"]),
        make_op("Cast", ["u"], ["v"], to="float"),
        make_op("Scale", ["v"], ["w"], scale=2.0),
        inputs=["i"],
    )
    ws.feed("i", np.float32([0]))
    ws.create_net(net)
    for values in ([3, 1, 3, -2], [5, 5, 5, 5], [1, 2, 3, 4], [3, 1, 3, -2], [7]):
        ws.feed("i", np.float32(values))
        ws.run_net("net")
        want = 2.0 * np.unique(np.maximum(values, 0))
        np.testing.assert_array_equal(ws.fetch("w"), want)


def test_the_same_run_twice_is_equal_to_the_bit():
    first, _, parameters = train(4)
    second, _, _ = train(4)
    for name in parameters:
        np.testing.assert_array_equal(first.fetch(name), second.fetch(name))


def test_a_replayed_step_allocates_no_arrays():
    import tracemalloc

    ws, _, _ = train(3)
    net = ws.net("net")
    net.run()
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    for _ in range(5):
        net.run()
    after = tracemalloc.take_snapshot()
    tracemalloc.stop()
    grown = sum(d.size_diff for d in after.compare_to(before, "filename") if d.size_diff > 0)
    assert grown < 20_000, grown


@pytest.mark.parametrize("engines", ENGINES)
def test_shapes_that_an_operator_knows_beforehand_do_not_cut_the_plan(engines):
    """Concat's extents and Reshape's old shape are inputs of their gradients, and known when the plan is made."""
    net = net_of(
        make_op("Concat", ["a", "b"], ["c", "extents"], axis=1),
        make_op("Relu", ["c"], ["r"]),
        make_op("Reshape", ["r"], ["flat", "old"], shape=[0, -1]),
        make_op("Reshape", ["flat", "old"], ["back", "unused"]),
        make_op("Split", ["back", "extents"], ["p", "q"], axis=1),
        inputs=["a", "b"],
    )
    ws = Workspace(engines=engines)
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        ws.feed(name, np.zeros((1, 1, 1, 1), np.float32))
    ws.create_net(net)
    for n, first, second in ((2, 16, 32), (3, 5, 7), (2, 16, 32)):
        a, b = (rng.standard_normal((n, c, 4, 4)).astype(np.float32) for c in (first, second))
        ws.feed("a", a)
        ws.feed("b", b)
        ws.run_net("net")
        np.testing.assert_array_equal(ws.fetch("p"), np.maximum(a, 0))
        np.testing.assert_array_equal(ws.fetch("q"), np.maximum(b, 0))
        assert ws.net("net").single_plan is not None, "the net was cut into several plans"


@pytest.mark.parametrize("engines", ENGINES)
def test_extents_fed_by_the_user_are_read_at_each_run(engines):
    ws = Workspace(engines=engines)
    ws.feed("x", np.arange(6, dtype=np.float32).reshape(1, 6))
    ws.run_net_once(net_of(make_op("Concat", ["x", "x"], ["c", "extents"], axis=1), name="first", inputs=["x"]))
    ws.create_net(net_of(make_op("Split", ["x", "extents"], ["p", "q"], axis=1), inputs=["x", "extents"]))
    for extents in ([2, 4], [5, 1], [3, 3]):
        ws.feed("extents", np.int32(extents))
        ws.run_net("net")
        assert [ws.fetch("p").shape[1], ws.fetch("q").shape[1]] == extents


@needs_onednn
def test_what_kernels_keep_for_gradients_is_in_the_arena():
    net = Net("kept")
    relu = net.Relu("x", "relu")
    net.AddExternalOutput(net.AveragedLoss(net.MaxPool(relu, "pool", kernel=2, stride=2), "loss"))
    net.AddGradientOperators(["loss"])
    workspace = Workspace()
    x = np.random.default_rng(0).standard_normal((2, 16, 8, 8), dtype=np.float32)
    workspace.feed("x", x)
    workspace.create_net(net, observable="outputs")
    workspace.run_net(net)
    (plan,) = workspace.net("kept").plans
    forward, backward = (next(i for i, step in enumerate(plan.steps)
                              if step.node.first.op.type == kind and step.kind is StepKind.COMPUTE)
                         for kind in ("MaxPool", "MaxPoolGradient"))  # fmt: skip
    (kept,) = [each for each in plan.memory.placed if each.what.startswith("kept by")]
    assert (kept.start, kept.end) == (forward, backward)
    (workspace_memory,) = plan.steps[forward].prepared.get(KeptForGradient).memory
    arena = plan.arena.memory(plan.memory.nbytes)
    assert np.shares_memory(workspace_memory.buffer, arena[kept.offset : kept.offset + kept.nbytes])
