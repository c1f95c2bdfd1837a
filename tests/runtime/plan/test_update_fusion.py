"""Joined updates: which operators become one call, and the same numbers, to the bit, as one by one."""

import numpy as np
import pytest

from netbuilder.graph import Net
from netbuilder.model import ModelHelper, brew
from netbuilder.optimizers import add_weight_decay, build_adagrad, build_adam, build_lion, build_rms_prop, build_sgd
from netbuilder.proto import NetDef, ShapeError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan import update_fusion
from netbuilder.runtime.profile.profiling import profile
from switches import single

SHAPES = {"a": (3,), "b": (300, 500), "c": (40, 5, 3), "d": (1,)}
DECAYED = ("b", "c")
LR = {"policy": "inv", "gamma": 0.5, "power": 1.0}


def make_model(build, decayed, **options):
    """Two layers, large enough for several threads, and a bias that no decay touches."""
    model = ModelHelper("model")
    hidden = brew.relu(model, brew.fc(model, "x", "fc1", 20, 300), "relu")
    scores = brew.fc(model, hidden, "fc2", 300, 500)
    loss = model.net.AveragedLoss(model.net.Mul([scores, scores], "square"), "loss")
    model.AddGradientOperators([loss])
    if decayed:
        add_weight_decay(model, 1e-2)
    build(model, **options)
    return model


def steps_of(workspace, name="net"):
    (plan,) = workspace.net(name).plans
    return [[part.op_def.type for part in step.node.parts] for step in plan.steps if not step.moves]


def updates_of(workspace, name="net"):
    kinds = {"MomentumSGDUpdate", "WeightedSum", "Adam", "Adagrad", "RmsProp", "MomentumSGD"}
    return [kinds_ for kinds_ in steps_of(workspace, name) if kinds.issuperset(kinds_)]


BUILDERS = {
    "momentum": (build_sgd, {"base_learning_rate": 0.1, "momentum": 0.9, "nesterov": False, **LR}),
    "Nesterov": (build_sgd, {"base_learning_rate": 0.1, "momentum": 0.9, "nesterov": True, **LR}),
    "SGD": (build_sgd, {"base_learning_rate": 0.1, **LR}),
    "Adam": (build_adam, {"base_learning_rate": 0.01, **LR}),
    "Adagrad": (build_adagrad, {"base_learning_rate": 0.1, **LR}),
    "Adagrad that forgets": (build_adagrad, {"base_learning_rate": 0.1, "decay": 0.9, **LR}),
    "RMSProp": (build_rms_prop, {"base_learning_rate": 0.01, "momentum": 0.5, "decay": 0.9, **LR}),
}


def pairs(values):
    """Return parameters: each two of optimizer, decay and value; other triples are slow."""
    return [
        pytest.param(optimizer, decay, value, marks=[pytest.mark.slow] * ((i + decay + k) % 2))
        for i, optimizer in enumerate(BUILDERS)
        for decay in (False, True)
        for k, value in enumerate(values)
    ]


def trained(model, fetch_at=(), steps=4, threads=2, refeed=(), **options):
    workspace = Workspace(threads=threads, seed=3)
    workspace.run_net_once(model.param_init_net)
    rng = np.random.default_rng(0)
    found = []
    workspace.feed("x", rng.standard_normal((4, 20), dtype=np.float32))
    workspace.create_net(model.net, **options)
    for step in range(steps):
        workspace.run_net(model.net)
        for name in refeed if step == 1 else ():
            workspace.feed(name, np.full_like(workspace.fetch(name), 0.25))
        if step in fetch_at:
            found.append({name: workspace.fetch(name) for name in observable(workspace)})
    return workspace, found


def observable(workspace):
    """Return the names of all arrays that can be fetched."""
    return [name for name in workspace.blobs() if not (blob := workspace.find(name)).is_empty
            and blob.spec is not None and blob.spec.dtype.kind in "fi"]  # fmt: skip


def same(got, want):
    assert len(got) == len(want) > 0
    for mine, theirs in zip(got, want):
        assert mine.keys() == theirs.keys()
        for name, value in theirs.items():
            np.testing.assert_array_equal(mine[name], value, err_msg=name)
            assert np.array_equal(np.signbit(mine[name]), np.signbit(value)), name


@pytest.mark.one_in(6)
@pytest.mark.parametrize("optimizer, decay, threads", pairs([1, 2]))
def test_the_same_to_the_bit(optimizer, decay, threads):
    build, options = BUILDERS[optimizer]
    model = make_model(build, decay, **options)
    workspace, joined = trained(model, fetch_at=(0, 1, 3), threads=threads)
    assert len(updates_of(workspace, model.net.Name())) == 1
    apart, one_by_one = trained(model, fetch_at=(0, 1, 3), threads=threads, without=single("joined_updates"))
    assert len(updates_of(apart, model.net.Name())) >= 4
    same(joined, one_by_one)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("optimizer", BUILDERS)
def test_what_is_not_observable_is_not_written(optimizer):
    build, options = BUILDERS[optimizer]
    model = make_model(build, True, **options)
    hidden, got = trained(model, fetch_at=(3,), observable="outputs")
    _, want = trained(model, fetch_at=(3,), without=single("joined_updates"), observable="outputs")
    same(got, want)
    (plan,) = hidden.net(model.net.Name()).plans
    (joined,) = [
        step for step in plan.steps if len(step.node.parts) > 3 and "WeightedSum" in step.node.parts[0].op.type
    ]
    assert not any(value.name.endswith("_grad") for value in joined.outputs)


def test_a_step_that_is_the_moment_is_copied_when_fetched():
    build, options = BUILDERS["momentum"]
    model = make_model(build, False, **options)
    workspace, _ = trained(model)
    assert workspace.find("fc2_w_grad").lazy is not None
    want = workspace.fetch("fc2_w_momentum")
    workspace.feed("fc2_w_momentum", np.zeros_like(want))  # what reads it is computed before
    np.testing.assert_array_equal(workspace.fetch("fc2_w_grad"), want)
    changed = {"fetch_at": (1, 3), "refeed": ["fc2_w_momentum", "fc2_w"]}
    same(trained(model, **changed)[1], trained(model, without=single("joined_updates"), **changed)[1])


def values(names=SHAPES, seed=1):
    rng = np.random.default_rng(seed)
    fed = {}
    for name in names:
        for part in ("", "_grad", "_momentum"):
            fed[name + part] = rng.standard_normal(SHAPES[name]).astype(np.float32)
    numbers = {"lr": 0.1, "one": 1.0, "wd": 0.01}
    return fed | {name: np.full(1, value, np.float32) for name, value in numbers.items()}


def decay(name, unit="one", **args):
    return make_op("WeightedSum", [f"{name}_grad", unit, name, "wd"], [f"{name}_grad"], **args)


def update(name, lr="lr", grad=None, **args):
    g = grad or f"{name}_grad"
    m = f"{name}_momentum"
    return make_op("MomentumSGDUpdate", [g, m, lr, name], [g, m, name], momentum=0.9, nesterov=1, **args)


def on(device, op):
    op.device_option.CopyFrom(make_device_option(0, device))
    return op


def both(ops, fed=None, runs=2, between=lambda ws: None, net_type="", threads=2, **options):
    """Run a net joined and not; return the kinds of the joined one's steps."""
    found = []
    fed = fed or values()
    net = NetDef(name="net", type=net_type, num_workers=4, external_input=fed)
    net.op.extend(ops)
    for without in (single("elementwise_chains"), single("elementwise_chains", "joined_updates")):
        workspace = Workspace(threads=threads)
        for name, value in fed.items():
            workspace.feed(name, value)
        workspace.create_net(net, without=without, **options)
        for _ in range(runs):
            workspace.run_net("net")
            between(workspace)
        found.append((workspace, {name: workspace.fetch(name) for name in observable(workspace)}))
    same([found[0][1]], [found[1][1]])
    return steps_of(found[0][0])


ALL = [*map(decay, DECAYED), *map(update, SHAPES)]
D, U = "WeightedSum", "MomentumSGDUpdate"


def test_all_updates_are_one_call():
    assert both(ALL) == [[D, D, U, U, U, U]]
    assert both(ALL, net_type="dag") == [[D, D, U, U, U, U]]


def test_a_unit_that_is_not_one():
    both(ALL, values() | {"one": np.full(1, 0.5, np.float32)})


def test_numbers_that_are_fed_between_the_steps():
    def between(workspace):
        workspace.feed("lr", workspace.fetch("lr") * 0.5)
        workspace.feed("one", 1.5 - workspace.fetch("one"))

    both(ALL, runs=4, between=between)


def test_two_lanes():
    ops = [on(i % 2, update(name)) for i, name in enumerate(SHAPES)]
    assert both(ops, net_type="dag") == [[U, U], [U, U]]


def test_operators_between():
    ops = [update("a"), make_op("Exp", ["lr"], ["e"]), update("c")]
    assert both(ops) == [["Exp"], [U, U]]  # independent
    ops = [update("a"), make_op("Exp", ["a"], ["e"]), update("c")]
    assert both(ops) == [[U], ["Exp"], [U]]  # it reads the parameter
    ops = [update("a"), make_op("Exp", ["a_grad"], ["a"]), update("c")]
    assert both(ops) == [[U], ["Exp"], [U]]  # and here it overwrites it
    ops = [update("a"), make_op("Scale", ["a_grad"], ["a_momentum"], scale=0.5), update("b")]
    assert both(ops) == [[U], ["Scale"], [U]]
    ops = [update("a"), make_op("Scale", ["lr"], ["lr"], scale=0.5), update("c")]
    assert both(ops) == [[U], ["Scale"], [U]]  # the rate is another one
    ops = [update("a"), update("b"), make_op("Exp", ["c"], ["e"], control_input=["a"]), update("c")]
    assert both(ops) == [[U], ["Exp"], [U, U]]  # an update that others wait for is not fused


def test_a_number_that_another_update_makes():
    ops = [make_op("WeightedSum", ["lr", "one", "wd", "wd"], ["lr"]), update("a"), update("b")]
    assert both(ops) == [[D], [U, U]]
    ops = [update("a"), update("b"), make_op("WeightedSum", ["lr", "one", "wd", "wd"], ["lr"])]
    assert both(ops) == [[U, U], [D]]


def test_a_parameter_with_two_gradients():
    fed = values() | {"g": values(seed=5)["b"]}
    assert both([decay("b"), update("b"), update("b", grad="g"), update("a")], fed) == [[D, U, U, U]]
    other = make_op("WeightedSum", ["g", "one", "b", "wd"], ["g"])  # two gradients with decay: two chains become one
    assert both([other, decay("b"), update("b"), update("b", grad="g")], fed) == [[D, D, U, U]]


def test_a_gradient_that_is_read_before_and_after():
    ops = [decay("b"), make_op("Exp", ["b_grad"], ["e"]), update("b"), update("a")]
    assert both(ops) == [[D], ["Exp"], [U, U]]
    ops = [decay("b"), update("b"), update("a"), make_op("Exp", ["b_grad"], ["e"])]
    assert both(ops) == [[D, U, U], ["Exp"]]


def test_other_sums_and_types_stay_apart():
    ops = [make_op("WeightedSum", ["b", "one", "b_grad", "wd"], ["s"]), update("a"), update("b")]
    assert both(ops) == [[D], [U, U]]
    fed = {name: value.astype(np.float64) for name, value in values().items()}
    assert both(ALL, fed) == [[D, D, U, U, U, U]]
    half = {name: value.astype(np.float16) for name, value in values(["a", "c"]).items()}
    assert both([update("a"), update("c")], half) == [[U, U]]


def test_sparse_updates_stay_apart():
    fed = values(["a", "b"]) | {"i": np.array([2, 0, 2], np.int32), "v": np.ones((3, 500), np.float32)}
    sparse = make_op("ScatterWeightedSum", ["b", "one", "i", "v", "lr"], ["b"])
    assert both([update("a"), sparse, update("b")], fed) == [["ScatterWeightedSum"], [U, U]]
    assert both([update("b"), sparse, update("a")], fed) == [[U], ["ScatterWeightedSum"], [U]]


def adam(name, counter):
    own = [name, f"{name}_momentum", f"{name}_second", f"{name}_grad", "lr", counter]
    return make_op("Adam", own, own[:3])


def test_errors_name_the_operator():
    fed = values(["a", "b", "c"])
    fed |= {f"{name}_second": np.ones(SHAPES[name], np.float32) for name in "abc"}
    fed |= {"i": np.zeros(1, np.int64), "wrong": np.full(1, -1, np.int64)}
    net = NetDef(name="net", external_input=fed)
    net.op.extend([adam("a", "i"), adam("b", "wrong"), adam("c", "i")])
    workspace = Workspace(threads=2)
    for name, value in fed.items():
        workspace.feed(name, value)
    workspace.create_net(net)
    with pytest.raises(ShapeError, match=r"net 'net', operator 1: Adam \['b', .*iter must be at least 0, got -1"):
        workspace.run_net("net")
    assert steps_of(workspace) == [["Adam"] * 3]
    workspace.feed("wrong", np.ones(1, np.int64))
    workspace.run_net("net")


def test_profile():
    build, options = BUILDERS["Nesterov"]
    model = make_model(build, True, **options)
    rows = {}
    for without in ([], single("joined_updates")):
        workspace, _ = trained(model, steps=1, without=without, observable="outputs")
        found = profile(workspace, model.net.Name(), runs=2)
        rows[not without] = [call for call in found.calls if "MomentumSGDUpdate" in call.kind or D in call.kind]
    (call,) = rows[True]
    assert call.kind == "WeightedSum x2+MomentumSGDUpdate x4"
    assert len(call.operators) == 6 and call.kernel.startswith("llvm updates")
    assert call.flops == sum(other.flops for other in rows[False])
    size = sum(np.prod(workspace.fetch(p).shape) for p in ("fc1_w", "fc1_b", "fc2_w", "fc2_b"))
    assert call.nbytes == 4 * (5 * size + 3)  # three read, two written; rate, decay, one


LAYERS = (7, 16, 3, 20, 1)  # parameters of which most do not fill a whole number of cache lines
DEEP_WEIGHTS = [f"fc{i}_w" for i in range(len(LAYERS) - 1)]
DEEP_BIASES = [f"fc{i}_b" for i in range(len(LAYERS) - 1)]


def deep_model(build, decayed=False, **options):
    """Small layers, of which the first two have parameters in blocked layouts, if any."""
    model = ModelHelper("deep")
    blob = "x"
    for i, (n_in, n_out) in enumerate(zip(LAYERS, LAYERS[1:])):
        blob = brew.relu(model, brew.fc(model, blob, f"fc{i}", n_in, n_out), f"relu{i}")
    loss = model.net.AveragedLoss(model.net.Mul([blob, blob], "square"), "loss")
    model.AddGradientOperators([loss])
    if decayed:
        add_weight_decay(model, 1e-2)
    build(model, **options)
    return model


def train_deep(model, fetch_at=(0, 1, 3), between=lambda ws, step: None, threads=1, **options):
    workspace = Workspace(threads=threads, seed=3)
    workspace.run_net_once(model.param_init_net)
    x = np.random.default_rng(0).standard_normal((4, LAYERS[0]), dtype=np.float32)
    workspace.feed("x", x)
    workspace.create_net(model.net, **options)
    found = []
    for step in range(4):
        workspace.run_net(model.net)
        if step in fetch_at:
            found.append({name: workspace.fetch(name) for name in observable(workspace)})
        between(workspace, step)
    return workspace, found


@pytest.mark.one_in(8)
@pytest.mark.parametrize("optimizer, decay, observed", pairs([None, "outputs"]))
def test_many_small_parameters_are_one_call(optimizer, decay, observed):
    build, options = BUILDERS[optimizer]
    model = deep_model(build, decay, **options)
    workspace, joined = train_deep(model, observable=observed)
    _, apart = train_deep(model, observable=observed, without=single("joined_updates"))
    same(joined, apart)
    assert len(updates_of(workspace, model.net.Name())) == 1


@pytest.mark.parametrize("early", [True, False])
def test_gradients_that_are_fed(early):
    """Before the first run, so that they have memory of their own, and later."""
    build, options = BUILDERS["momentum"]
    model = deep_model(build, **options)
    fetched = {}
    for without in ((), single("joined_updates")):
        workspace = Workspace(seed=3)
        workspace.run_net_once(model.param_init_net)
        workspace.feed("x", np.ones((2, LAYERS[0]), np.float32))
        gradient = np.full_like(workspace.fetch("fc1_w"), 7)
        if early:
            workspace.feed("fc1_w_grad", gradient)
        workspace.create_net(model.net, without=without)
        found = []
        for _ in range(3):
            workspace.run_net(model.net)
            found += [workspace.fetch(name) for name in (*DEEP_WEIGHTS, *DEEP_BIASES, "fc1_w_grad", "fc0_b_grad")]
            workspace.feed("fc1_w_grad", gradient)
            np.testing.assert_array_equal(workspace.fetch("fc1_w_grad"), gradient)
        fetched[without] = found
    for joined, apart in zip(*fetched.values()):
        np.testing.assert_array_equal(joined, apart)


def test_several_plans_update_the_same_parameters():
    build, options = BUILDERS["momentum"]
    model = deep_model(build, **options)

    def between(workspace, step):
        if step == 1:
            workspace.feed("fc1_w", np.full_like(workspace.fetch("fc1_w"), 0.125))
            workspace.feed("x", np.ones((2, LAYERS[0]), np.float32))  # another plan

    workspace, rows = train_deep(model, between=between)
    same(rows, train_deep(model, between=between, without=single("joined_updates"))[1])
    assert len(workspace.net(model.net).plans) == 2


def test_nets_that_write_parameters_are_planned_again_once():
    build, options = BUILDERS["momentum"]
    model = deep_model(build, **options)
    writer = Net("writer")
    for name in DEEP_WEIGHTS:
        writer.Scale("half_" + name, name, scale=2.0)

    def between(workspace, step):
        for name in DEEP_WEIGHTS:
            workspace.feed("half_" + name, workspace.fetch(name) / 4)
        if step == 0:
            workspace.create_net(writer)
        workspace.run_net(writer)
        between.plans.append((workspace.net(writer).plans[-1], workspace.net(model.net).plans[-1]))

    def early(workspace):
        """Plan the writing net before the parameters are moved."""
        for name in DEEP_WEIGHTS:
            workspace.feed("half_" + name, workspace.fetch(name) / 2)
        workspace.create_net(writer)
        workspace.run_net(writer)

    between.plans = []
    _, rows = train_deep(model, between=between)
    assert len(set(between.plans)) == 1  # no run makes the plans of the other net invalid
    same(rows, train_deep(model, between=between, without=single("joined_updates"))[1])

    workspace = Workspace(seed=3)
    workspace.run_net_once(model.param_init_net)
    early(workspace)
    workspace.feed("x", np.ones((2, LAYERS[0]), np.float32))
    workspace.create_net(model.net)
    plans = []
    for _ in range(3):
        workspace.run_net(model.net)
        workspace.run_net(writer)
        plans.append((workspace.net(writer).plans[-1], workspace.net(model.net).plans[-1]))
        for name in DEEP_WEIGHTS:
            np.testing.assert_array_equal(workspace.fetch(name), workspace.fetch("half_" + name) * 2)
    assert len(set(plans)) == 1


def test_blobs_that_share_memory_are_updated_there():
    build, options = BUILDERS["momentum"]
    model = deep_model(build, **options)
    coalesce = Net("coalesce")
    moments = [name + "_momentum" for name in (*DEEP_WEIGHTS, *DEEP_BIASES)]
    names = [*DEEP_WEIGHTS[:2], *moments]
    coalesce.UnsafeCoalesce(names, [*names, "vector"])
    workspace = Workspace(seed=3)
    workspace.run_net_once(model.param_init_net)
    workspace.feed("x", np.ones((2, LAYERS[0]), np.float32))
    workspace.create_net(coalesce)
    workspace.run_net(coalesce)
    workspace.create_net(model.net, observable="outputs")
    other = Workspace(seed=3)
    other.run_net_once(model.param_init_net)
    other.feed("x", np.ones((2, LAYERS[0]), np.float32))
    other.create_net(model.net, observable="outputs", without=single("joined_updates"))
    for _ in range(3):
        workspace.run_net(model.net)
        other.run_net(model.net)
        for name in (*DEEP_WEIGHTS, *DEEP_BIASES, *moments):
            np.testing.assert_array_equal(workspace.fetch(name), other.fetch(name))
        parts = np.concatenate([workspace.fetch(name).reshape(-1) for name in names])
        np.testing.assert_array_equal(workspace.fetch("vector"), parts)


def early_model(build, decayed, *, clipped=False, **options):
    """Four layers, the weights of two of which are the same blob."""
    model = ModelHelper("early")
    hidden = "x"
    for layer in range(4):
        made = brew.fc(model, hidden, f"fc{layer}", 40, 40)
        hidden = brew.relu(model, made, f"relu{layer}")
    hidden = model.net.FC([hidden, "fc1_w", "fc1_b"], "again")
    loss = model.net.AveragedLoss(model.net.Mul([hidden, hidden], "square"), "loss")
    model.AddGradientOperators([loss])
    if decayed:
        add_weight_decay(model, 1e-2)
    build(model, max_gradient_norm=0.1 if clipped else None, **options)
    return model


def train_early(model, **options):
    workspace = Workspace(threads=2, seed=3)
    workspace.run_net_once(model.param_init_net)
    workspace.feed("x", np.random.default_rng(0).standard_normal((4, 40), dtype=np.float32))
    workspace.create_net(model.net, observable="outputs", **options)
    found = []
    for _ in range(4):
        workspace.run_net(model.net)
        found.append({name: workspace.fetch(name) for name in observable(workspace) if not name.endswith("_grad")})
    (plan,) = workspace.net(model.net).plans
    return found, plan


def written(plan):
    return [[value.name for value in step.outputs if value is not None] for step in plan.steps]


@pytest.fixture
def every_layer(monkeypatch):
    """Update after each layer, small as it is."""
    monkeypatch.setattr(update_fusion, "EARLY_BYTES", 1)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("optimizer, decay, options", pairs([{}, {"engines": ("LLVM",)}]), ids=str)
def test_early_updates_compute_the_same_to_the_bit(every_layer, optimizer, decay, options):
    build, chosen = BUILDERS[optimizer]
    model = early_model(build, decay, **chosen)
    early, plan = train_early(model, **options)
    late, whole = train_early(model, without=single("early_updates"), **options)
    same(early, late)
    assert plan.memory.nbytes <= whole.memory.nbytes
    order = written(plan)
    at = {name: next(i for i, names in enumerate(order) if name in names) for layer in range(4)
          for name in (f"fc{layer}_w", f"fc{layer}_w_grad")}  # fmt: skip
    assert at["fc3_w_grad"] < at["fc3_w"] < at["fc2_w_grad"] < at["fc2_w"] < at["fc1_w"] < at["fc0_w_grad"]
    (shared,) = [
        i
        for i, step in enumerate(plan.steps)
        if any(part.op.type == "Sum" and part.outputs[0] == "fc1_w_grad" for part in step.node.parts)
    ]
    assert shared <= at["fc1_w"], "a parameter that two layers read is updated after both gradients"


def test_early_updates_need_less_memory(every_layer):
    model = early_model(BUILDERS["momentum"][0], False, **BUILDERS["momentum"][1])
    (_, plan), (_, whole) = train_early(model), train_early(model, without=single("early_updates"))
    assert plan.memory.live < 0.8 * whole.memory.live


def test_small_updates_are_not_divided():
    model = early_model(BUILDERS["SGD"][0], False, **BUILDERS["SGD"][1])
    (found, plan), (want, whole) = train_early(model), train_early(model, without=single("early_updates"))
    same(found, want)
    assert written(plan) == written(whole)


@pytest.mark.parametrize("kept", ["activations", "all"])
def test_updates_with_observable_gradients_come_last(every_layer, kept):
    model = early_model(BUILDERS["SGD"][0], False, **BUILDERS["SGD"][1])
    workspace = Workspace(threads=2, seed=3)
    workspace.run_net_once(model.param_init_net)
    workspace.feed("x", np.ones((4, 40), np.float32))
    workspace.create_net(model.net, observable=kept)
    workspace.run_net(model.net)
    assert len(updates_of(workspace, model.net)) == 1
    assert np.abs(workspace.fetch("fc0_w_grad")).max() > 0


def test_updates_that_need_all_gradients_come_last(every_layer):
    build, chosen = BUILDERS["SGD"]
    model = early_model(build, False, clipped=True, **chosen)
    (found, plan), (want, _) = train_early(model), train_early(model, without=single("early_updates"))
    same(found, want)
    order = written(plan)
    last_gradient = max(i for i, names in enumerate(order) if "fc0_w_grad" in names)
    assert all(f"fc{layer}_w" not in names for names in order[:last_gradient] for layer in range(4))


EDGES = (1, -1, 0.5, -0.5, 1e4, -1e4, 0, -0.0)  # moments, as multiples of the smallest normal number


def edges_of(kind):
    return (np.array(EDGES * 8) * np.finfo(kind).smallest_normal).astype(kind)


def assert_no_denormal(moments, name):
    size = np.abs(moments)
    assert ((size == 0) | (size >= np.finfo(moments.dtype).smallest_normal)).all() and (size[4::8] > 0).all(), name


@pytest.mark.parametrize("optimizer", [*BUILDERS, "Lion"])
def test_moments_of_weights_without_gradient_become_zero(optimizer):
    """Denormal numbers, which they would become first, are slow. What is not denormal is not changed."""
    build, options = (build_lion, {"base_learning_rate": 0.01}) if optimizer == "Lion" else BUILDERS[optimizer]
    model = ModelHelper("model")
    scores = brew.fc(model, "x", "fc", 1, 64)
    loss = model.net.AveragedLoss(scores, "loss")
    model.AddGradientOperators([loss])
    build(model, **options)
    workspace = Workspace()
    workspace.feed("x", np.zeros((1, 1), np.float32))
    workspace.run_net_once(model.param_init_net)
    own = [name for name in workspace.blobs() if name.startswith("fc_w_") and not name.endswith("_grad_o")]
    moments = [name for name in own if workspace.fetch(name).size == 64]
    assert moments or optimizer == "SGD"
    workspace.create_net(model.net)
    for name in moments:
        workspace.feed(name, edges_of(np.float32).reshape(workspace.fetch(name).shape))
    workspace.run_net(model.net)
    for name in moments:
        assert_no_denormal(workspace.fetch(name).ravel(), name)


def test_moments_in_float64_become_zero():
    net = Net("net")
    workspace = Workspace()
    for name in "ab":
        for blob, value in (("g", np.zeros(64)), ("m", edges_of(np.float64)), ("w", np.ones(64))):
            workspace.feed(blob + name, value)
        net.MomentumSGDUpdate(
            [f"g{name}", f"m{name}", "lr", f"w{name}"], [f"g{name}", f"m{name}", f"w{name}"], momentum=0.9
        )
    workspace.feed("lr", np.full(1, 0.1))
    workspace.create_net(net)
    workspace.run_net(net)
    for name in "ab":
        assert_no_denormal(workspace.fetch("m" + name), name)
