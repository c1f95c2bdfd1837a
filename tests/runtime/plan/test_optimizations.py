"""Optimizations by name: where they can be switched off, the error for unknown names, and that each is really off."""

import re

import numpy as np
import pytest

from command_parsers import parser_of
from house import ROOT
from netbuilder.engines import onednn
from netbuilder.engines.engine import Engine, find_engine
from netbuilder.engines.fusion import Fusion
from netbuilder.ops.core.registry import CPU
from netbuilder.proto import NetDef, NetError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan.compiler import PHASES
from netbuilder.runtime.plan.fusion import fuse
from netbuilder.runtime.plan.graph import PlanGraph
from netbuilder.runtime.plan.optimizations import (
    ALL,
    GROUPS,
    OPTIMIZATIONS,
    VARIABLE,
    check_without,
    from_environment,
    members,
    optimization,
)
from netbuilder.runtime.plan.options import PlanOptions
from netbuilder.tools import benchmark, profile
from netbuilder.tools.training import options
from switches import single

FUSIONS = members(["fusion"])

needs_onednn = pytest.mark.skipif(not onednn.available(), reason="needs oneDNN")
RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def net_of(*ops, outputs=()):
    net = NetDef(name="net", external_output=outputs)
    net.op.extend(ops)
    return net


def created(net, feeds, *, of_workspace=(), **given):
    workspace = Workspace(threads=1, without=of_workspace)
    for name, value in feeds.items():
        workspace.feed(name, value)
    workspace.create_net(net, **given)
    workspace.run_net("net")
    return workspace


def steps_of(workspace):
    return workspace.net("net").plans[-1].steps


def kinds_of(workspace):
    return ["+".join(part.op_def.type for part in step.node.parts) for step in steps_of(workspace) if not step.moves]


RELU = net_of(make_op("Relu", ["x"], ["y"]))
X = {"x": np.float32([-1, 2])}


@pytest.mark.parametrize(
    "names", [["memory", "fusion"], "memory,fusion", " memory , fusion,", ("fusion", "memory"), {"fusion", "memory"}]
)
def test_names(names):
    assert check_without(names, "here") == {"memory", "fusion"}


def test_groups():
    assert check_without("all", "here") == set(GROUPS) == {each.group for each in OPTIMIZATIONS.values()}
    assert members(check_without("all", "here")) == set(OPTIMIZATIONS.values())
    assert members(check_without(["fusion", *single("reuse")], "here")) == {*FUSIONS, *single("reuse")}
    assert not {*GROUPS, ALL} & set(OPTIMIZATIONS)


@pytest.mark.parametrize(
    "name, hint", [("fusoin", "; did you mean 'fusion'?"), ("bn_relu", "; bn_relu belongs to fusion")]
)
def test_other_names_are_refused_everywhere(name, hint, monkeypatch, capsys):
    said = re.escape(
        f": no group of optimizations is called {name!r}; the groups are fusion, memory, layouts, threads, gpu, "
        f"measured, and all for all of them{hint}"
    )
    with pytest.raises(NetError, match="Workspace" + said):
        Workspace(without=[name])
    with pytest.raises(NetError, match="net 'net'" + said):
        created(RELU, X, without=name)
    for command in (profile.main, benchmark.main, options.parse):
        with pytest.raises(SystemExit):
            command(["mlp", "--without", name])
        assert re.search("--without" + said, capsys.readouterr().err)
    monkeypatch.setenv(VARIABLE, f"memory,{name}")
    with pytest.raises(NetError, match=VARIABLE + said):
        created(RELU, X)


def test_who_decides(monkeypatch):
    def off(**given):
        return created(RELU, X, **given).net("net").options.without

    assert off() == set()
    assert off(of_workspace=["memory"]) == {"memory"}
    assert off(of_workspace=["memory"], without=None) == {"memory"}
    assert off(of_workspace=["memory"], without="layouts") == {"layouts"}
    assert off(of_workspace=["memory"], without=()) == set()
    assert off(without="all") == set(GROUPS)
    monkeypatch.setenv(VARIABLE, "gpu, memory")
    assert from_environment() == {"gpu", "memory"}
    assert off(without=["layouts"]) == {"layouts", "gpu", "memory"}


def test_a_workspace_has_those_of_its_parent():
    parent = Workspace(without="fusion", threads=3, engines=())
    child = Workspace(parent=parent)
    assert (child.without, child.threads, child.engines) == ({"fusion"}, 3, ())
    other = Workspace(parent=parent, without="memory", threads=2)
    assert (other.without, other.threads, other.engines) == ({"memory"}, 2, ())


def test_other_options_switch_optimizations_off():
    assert not PlanOptions().off
    assert PlanOptions(deterministic=True).off == {*single("atomic_sums", "measured_choices")}
    assert PlanOptions(find_nan="nan").off == {*FUSIONS, *single("unread_outputs")}
    assert PlanOptions(find_nan=True, without="gpu").of_subgraph("all").off == {
        *FUSIONS, *single("unread_outputs", "atomic_sums", "cuda_graphs"),
    }  # fmt: skip


def test_a_net_keeps_what_it_stores_unless_something_is_given():
    net = NetDef(name="net")
    for name, value in (("activation_dtype", b"bfloat16"), ("allow_tf32", 1), ("memory_budget", b"60%")):
        field = {bytes: "s", int: "i"}[type(value)]
        net.arg.add(name=name, **{field: value})
    stored = PlanOptions().of_net(net, dtype=None)
    assert (stored.dtype, stored.allow_tf32, stored.memory_budget) == ("bfloat16", True, 0.6)
    assert stored.observable_default == "outputs", "with a budget"
    given = PlanOptions().of_net(net, dtype="float32", allow_tf32=False, memory_budget="1GiB")
    assert (given.dtype, given.allow_tf32, given.memory_budget) == ("float32", False, 1 << 30)


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"engines": "ONEDNN"}, "engines must be a tuple of names among .*, got 'ONEDNN'"),
        ({"threads": 0}, "threads must be a whole number, 1 or more, got 0"),
        ({"dtype": "float8"}, "activations must be stored as one of float32, bfloat16, float16; got 'float8'"),
        ({"allow_tf32": "no"}, "allow_tf32 must be True or False, got 'no'"),
        ({"deterministic": 2}, "deterministic must be True or False, got 2"),
        ({"memory_budget": 0}, "memory_budget must be a number of bytes"),
        ({"find_nan": "inf"}, r"find_nan must be True, False or 'nan' \(for NaN only\), got 'inf'"),
        ({"memory_budget": 0.5, "without": "memory"}, "a memory_budget needs values that share memory"),
    ],
)
def test_options_check_themselves(wrong, said):
    with pytest.raises(NetError, match=f"PlanOptions: {said}"):
        PlanOptions(**wrong)
    with pytest.raises(NetError, match=f"net 'net': {said}"):
        PlanOptions().of_net(NetDef(name="net"), **wrong)


def test_commands_take_them():
    assert options.parse(["--cpu", "--without", "memory,gpu"]).without == {"memory", "gpu"}
    assert options.parse(["--cpu"]).without == frozenset()
    assert parser_of(profile).parse(["mlp", "--without", "fusion"]).without == {"fusion"}
    assert parser_of(benchmark).parse(["mlp", "--without", "all"]).without == set(GROUPS)


def test_a_held_net_goes_without_too():
    inner = net_of(make_op("FC", ["x", "w", "b"], ["y"]), make_op("Relu", ["y"], ["y"]), outputs=["y"])
    inner.external_input.extend(["x", "w", "b"])
    net = net_of(make_op("If", ["yes", "x", "w", "b"], ["y"], then_net=inner))
    feeds = {"x": floats(4, 3), "w": floats(2, 3), "b": floats(2), "yes": np.array(True)}
    for without in ((), single("fc_relu", "inplace")):
        got = created(net, feeds, without=without).fetch("y")
        np.testing.assert_allclose(got, np.maximum(feeds["x"] @ feeds["w"].T + feeds["b"], 0), rtol=1e-4, atol=1e-6)


IMAGES = {
    "x": floats(2, 16, 9, 9), "w": floats(16, 16, 3, 3) / 12, "b": floats(16), "s": floats(16), "m": floats(16),
    "v": np.abs(floats(16)) + 0.5, "fx": floats(4, 6), "fw": floats(5, 6), "fb": floats(5),
}  # fmt: skip
CONV, OTHER = (make_op("Conv", ["x", "w", "b"], [y], kernel=3, pad=1) for y in "cd")
JOINED = {
    "bn_relu": [make_op("SpatialBN", ["x", "s", "b", "m", "v"], ["c"], is_test=1), make_op("Relu", ["c"], ["y"])],
    "fc_relu": [make_op("FC", ["fx", "fw", "fb"], ["c"]), make_op("Relu", ["c"], ["y"])],
    "conv_relu": [CONV, make_op("Relu", ["c"], ["y"])],
    "conv_sum": [CONV, OTHER, make_op("Sum", ["c", "d"], ["y"])],
    "gradients_of_add": [CONV, make_op("AddGradient", ["c", "c", "x"], ["d", "e"]), make_op("Mul", ["d", "e"], ["y"])],
    "dropout_in_test_mode": [CONV, make_op("Dropout", ["c"], ["d"], is_test=1), make_op("Exp", ["d"], ["y"])],
}


class EngineOf(Engine):
    """An engine with one fusion."""

    def __init__(self, fusion):
        self.fusion = fusion

    def fusions(self):
        return [self.fusion]


def test_a_fusion_of_an_unknown_optimization_is_refused():
    fusion = Fusion("Scale: x -> s; Relu: s -> y", "x -> y", lambda op, ctx, x: None, "bn_rely")
    with pytest.raises(NetError, match="fusion of Scale, Relu: no optimization is called 'bn_rely'; did you mean"):
        fuse(PlanGraph("net", [], [], {}, {}, frozenset(), PlanOptions(), {CPU: [EngineOf(fusion)]}, ()))


def test_there_is_a_net_for_each_fusion():
    elsewhere = {
        "bn_relu_gradient",
        "conv_bn",
        "elementwise_chains",
        "engine_fusions",
        "joined_exchanges",
        "joined_small_kernels",
        "joined_updates",
        "relu_gradient_stats",
        "step_products",
        "step_projections",
        "unstored_activations",
        "zero_bias_gradients",
    }  # tests of their own
    assert set(JOINED) == {each.name for each in FUSIONS} - elsewhere, (
        "add a net that the optimization changes to JOINED"
    )


@needs_onednn
@pytest.mark.parametrize("name", JOINED)
def test_each_fusion_goes_alone(name):
    net = net_of(*JOINED[name], outputs=["y"])
    on = created(net, IMAGES, observable="outputs")
    off = created(net, IMAGES, observable="outputs", without=single(name, "elementwise_chains"))
    others = created(net, IMAGES, observable="outputs", without=FUSIONS - {*single(name)})
    apart = [op.type for op in net.op]
    assert kinds_of(off) == apart
    assert kinds_of(on) == kinds_of(others) != apart
    slow = [[step.prepared.name for step in steps_of(each) if " ref" in step.prepared.name] for each in (on, off)]
    assert len(slow[0]) <= len(slow[1]), f"{slow[0]} are the library's reference kernels, slower than {name} apart"
    np.testing.assert_allclose(on.fetch("y"), off.fetch("y"), rtol=1e-4, atol=1e-4)


def moves_of(workspace):
    return [(step.what, step.inputs[0].name) for step in steps_of(workspace) if step.moves]


@needs_onednn
def test_values_lie_plain_without_blocked_layouts():
    net = net_of(CONV, make_op("Conv", ["c", "w", "b"], ["y"], kernel=3, pad=1))
    on, off = created(net, IMAGES), created(net, IMAGES, without=single("blocked_layouts"))
    assert on.get("c").spec.layout is not None and off.get("c").spec.layout is None
    assert ("restore", "c") in moves_of(off) and not any(what == "restore" for what, _ in moves_of(on))
    assert np.array_equal(on.fetch("y"), off.fetch("y"))


@needs_onednn
def test_copies_are_made_for_each_reader_without_shared_copies():
    net = net_of(CONV, OTHER)
    assert [name for _, name in moves_of(created(net, IMAGES))].count("w") == 1
    assert [name for _, name in moves_of(created(net, IMAGES, without=single("shared_copies")))].count("w") == 2


@needs_onednn
def test_constants_are_reordered_in_each_run_without():
    for without, steps in (((), 0), (single("constants"), 1)):
        workspace = created(net_of(CONV), IMAGES, constants=["w"], without=without)
        assert [name for _, name in moves_of(workspace)].count("w") == steps


@needs_onednn
def test_a_parameter_keeps_its_buffer_without_owned_layouts():
    net = net_of(
        CONV, make_op("ConvGradient", ["x", "w", "c"], ["w_grad", "b_grad", "x_grad"], kernel=3, pad=1),
        make_op("WeightedSum", ["w", "one", "w_grad", "rate"], ["w"]),
    )  # fmt: skip
    feeds = {**IMAGES, "one": np.float32([1]), "rate": np.float32([-0.01])}
    on, off = created(net, feeds), created(net, feeds, without=single("owned_layouts"))
    assert on.get("w").spec.layout is not None and off.get("w").spec.layout is None
    assert np.array_equal(on.fetch("w"), off.fetch("w"))


@pytest.mark.parametrize("engines", [(), None])
def test_nothing_is_overwritten_without_inplace(engines):
    net = net_of(make_op("Exp", ["x"], ["y"]), make_op("Relu", ["y"], ["y"]), make_op("Sigmoid", ["y"], ["y"]))
    buffers = []
    for without in (single("elementwise_chains"), single("elementwise_chains", "inplace")):
        workspace = created(net, X, without=without, engines=engines)
        np.testing.assert_allclose(workspace.fetch("y"), 1 / (1 + np.exp(-np.exp(X["x"]))), rtol=1e-6)
        buffers.append(len({id(step.outputs[0].buffer) for step in steps_of(workspace)}))
    assert buffers == [1, 3]


def test_known_extents_keep_a_net_in_one_plan():
    net = net_of(
        make_op("Concat", ["x", "x"], ["c", "extents"], axis=0), make_op("Split", ["c", "extents"], ["y", "z"])
    )
    net.op[1].arg.add(name="axis", i=0)
    assert created(net, X).net("net").single_plan is not None
    cut = created(net, X, without=single("known_extents"))
    assert cut.net("net").single_plan is None
    assert np.array_equal(cut.fetch("z"), X["x"])


def test_plain_kernels_without_bound_kernels():
    net = net_of(make_op("Copy", ["x"], ["y"]))
    names = [
        {step.prepared.name for step in steps_of(created(net, X, without=without, engines=()))}
        for without in ((), single("bound_kernels"))
    ]
    assert names[0] != {"plain"} and names[1] == {"plain"}


@pytest.mark.parametrize("lanes, kind", [(1, "simple"), (2, "dag")])
def test_threads_by_work(lanes, kind):
    """A plan of small operators has one thread a lane; one large operator, or switching it off, keeps them all."""
    for rows, without, threads in ((4, (), lanes), (4, single("threads_by_work"), 8), (5000, (), 8)):
        workspace = Workspace(threads=8)
        workspace.feed("x", np.ones((rows, 64), np.float32))
        net = NetDef(name="net", type=kind, num_workers=lanes, external_input=["x"])
        for k in range(lanes):
            net.op.append(make_op("Softmax", ["x"], [f"y{k}"], device_option=make_device_option(0, k)))
        workspace.create_net(net, without=without)
        workspace.run_net("net")
        (plan,) = workspace.net("net").plans
        assert plan.options.threads == threads
        np.testing.assert_allclose(workspace.fetch("y0"), np.full((rows, 64), 1 / 64), rtol=1e-5)


def test_kept_plans():
    for without, kept in (((), 2), (single("kept_plans"), 1)):
        workspace = created(RELU, X, without=without)
        for count in (3, 2, 3):
            workspace.feed("x", -np.ones(count, np.float32))
            workspace.run_net("net")
            assert np.array_equal(workspace.fetch("y"), np.zeros(count))
        assert len(workspace.net("net").plans) == kept


@needs_onednn
@pytest.mark.parametrize("name", ["kept_maxima", "kept_for_gradients"])
def test_what_is_kept_for_gradients(name):
    net = net_of(
        make_op("Relu", ["x"], ["c"]), make_op("MaxPool", ["c"], ["y"], kernel=3, stride=3),
        make_op("MaxPoolGradient", ["c", "y", "y"], ["g"], kernel=3, stride=3),
    )  # fmt: skip
    on, off = created(net, IMAGES), created(net, IMAGES, without=single(name))
    assert steps_of(on)[-1].inputs[:2] == [None, None]
    assert steps_of(off)[-1].inputs[0] is not None
    seen = on.fetch("c") > 0
    assert np.array_equal(on.fetch("g")[seen], off.fetch("g")[seen])


def test_the_page_lists_all():
    page = (ROOT / "docs" / "optimizations.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \| (.*?) \| .* \|$", page, re.M) == [*GROUPS.items()]


def test_kernels_ask_for_names_that_there_are():
    asked = set()
    for folder in ("ops", "netbuilder"):
        for path in (ROOT / folder).rglob("*.py"):
            asked.update(re.findall(r"enabled\(\"(\w+)\"\)", path.read_text(encoding="utf-8")))
    asked |= {fusion.optimization for name in ("ONEDNN", "CUDNN") for fusion in find_engine(name).fusions()}
    asked.add("engine_fusions")
    asked |= {phase.optimization for phase in PHASES} - {""}
    assert asked == set(OPTIMIZATIONS)


def test_a_name_that_there_is_not_is_no_optimization():
    with pytest.raises(NetError, match="no optimization is called 'inplce'; did you mean 'inplace'"):
        PlanOptions().enabled("inplce")
    with pytest.raises(NetError, match="no optimization is called 'inplce'; did you mean 'inplace'"):
        optimization("inplce", "PlanOptions")
