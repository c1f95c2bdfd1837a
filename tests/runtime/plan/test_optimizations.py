"""Optimizations by name: where they can be switched off, the error for unknown names, and that each is really off."""

import re

import numpy as np
import pytest

from house import ROOT
from netbuilder.engines import onednn
from netbuilder.engines.engine import Engine, Fusion, Pattern, find_engine
from netbuilder.ops.core.registry import CPU
from netbuilder.proto import NetDef, NetError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan.compiler import PHASES
from netbuilder.runtime.plan.fusion import fuse
from netbuilder.runtime.plan.graph import PlanGraph
from netbuilder.runtime.plan.optimizations import (
    FUSIONS,
    GROUPS,
    OPTIMIZATIONS,
    VARIABLE,
    check_without,
    from_environment,
)
from netbuilder.runtime.plan.options import PlanOptions
from netbuilder.tools import benchmark, profile
from netbuilder.tools.training import options

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
    return workspace.net("net")._plans[0][-1].steps


def kinds_of(workspace):
    return ["+".join(part.op_def.type for part in step.node.parts) for step in steps_of(workspace) if not step.moves]


RELU = net_of(make_op("Relu", ["x"], ["y"]))
X = {"x": np.float32([-1, 2])}


@pytest.mark.parametrize("names", [["reuse", "bn_relu"], "reuse,bn_relu", " reuse , bn_relu,", ("bn_relu", "reuse")])
def test_names(names):
    assert check_without(names, "here") == {"reuse", "bn_relu"}


def test_groups():
    assert check_without("all", "here") == set(OPTIMIZATIONS)
    assert check_without(["fusion", "reuse"], "here") == {*FUSIONS, "reuse"}
    assert not set(GROUPS) & set(OPTIMIZATIONS)


def test_unknown_names_are_refused_everywhere(monkeypatch, capsys):
    said = r": no optimization is called 'bn_rely'; the names are bn_relu, .*, all, fusion.*; did you mean 'bn_relu'\?"
    with pytest.raises(NetError, match="Workspace" + said):
        Workspace(without=["bn_rely"])
    with pytest.raises(NetError, match="net 'net'" + said):
        created(RELU, X, without="bn_rely")
    for command in (profile.main, benchmark.main, options.parse):
        with pytest.raises(SystemExit):
            command(["mlp", "--without", "bn_rely"])
        assert re.search("--without" + said, capsys.readouterr().err)
    monkeypatch.setenv(VARIABLE, "reuse,bn_rely")
    with pytest.raises(NetError, match=VARIABLE + said):
        created(RELU, X)


def test_who_decides(monkeypatch):
    def off(**given):
        return created(RELU, X, **given).net("net").options.without - {"reuse"}

    assert off() == set()
    assert off(of_workspace=["inplace"]) == {"inplace"}
    assert off(of_workspace=["inplace"], without=["constants"]) == {"constants"}
    assert off(of_workspace=["inplace"], without=()) == set()
    assert off(fuse=False) == FUSIONS
    assert off(without="all", fuse=True) == set(OPTIMIZATIONS) - FUSIONS - {"reuse"}
    monkeypatch.setenv(VARIABLE, "kept_plans, inplace")
    assert from_environment() == {"kept_plans", "inplace"}
    assert off(without=["constants"]) == {"constants", "kept_plans", "inplace"}
    monkeypatch.delenv(VARIABLE)
    assert Workspace(fuse=False).without == FUSIONS
    net = created(RELU, X, observable="outputs").net("net")
    assert net.options.enabled("reuse")
    assert not created(RELU, X, observable="outputs", reuse=False).net("net").options.enabled("reuse")


def test_commands_take_them():
    assert options.parse(["--cpu", "--without", "reuse,inplace"]).without == {"reuse", "inplace"}
    assert options.parse(["--cpu"]).without == frozenset()
    assert profile._parser().parse_args(["mlp", "--without", "fusion"]).without == FUSIONS
    assert benchmark._parser().parse_args(["mlp", "--without", "all"]).without == set(OPTIMIZATIONS)


def test_a_held_net_goes_without_too():
    inner = net_of(make_op("FC", ["x", "w", "b"], ["y"]), make_op("Relu", ["y"], ["y"]), outputs=["y"])
    inner.external_input.extend(["x", "w", "b"])
    net = net_of(make_op("If", ["yes", "x", "w", "b"], ["y"], then_net=inner))
    feeds = {"x": floats(4, 3), "w": floats(2, 3), "b": floats(2), "yes": np.array(True)}
    for without in ((), ("fc_relu", "inplace")):
        got = created(net, feeds, without=without).fetch("y")
        np.testing.assert_allclose(got, np.maximum(feeds["x"] @ feeds["w"].T + feeds["b"], 0), rtol=1e-4, atol=1e-6)


IMAGES = {
    "x": floats(2, 16, 9, 9), "w": floats(16, 16, 3, 3) / 12, "b": floats(16), "s": floats(16), "m": floats(16),
    "v": np.abs(floats(16)) + 0.5, "fx": floats(4, 6), "fw": floats(5, 6), "fb": floats(5),
}  # fmt: skip
CONV, OTHER = (make_op("Conv", ["x", "w", "b"], [y], kernel=3, pad=1) for y in "cd")
JOINED = {
    "bn_relu": [make_op("SpatialBN", ["x", "s", "b", "m", "v"], ["c"], is_test=1), make_op("Relu", ["c"], ["y"])],
    "sum_relu": [make_op("Sum", ["x", "x"], ["c"]), make_op("Relu", ["c"], ["y"])],
    "fc_relu": [make_op("FC", ["fx", "fw", "fb"], ["c"]), make_op("Relu", ["c"], ["y"])],
    "conv_relu": [CONV, make_op("Relu", ["c"], ["y"])],
    "conv_sum": [CONV, OTHER, make_op("Sum", ["c", "d"], ["y"])],
    "dropout_in_test_mode": [CONV, make_op("Dropout", ["c"], ["d"], is_test=1), make_op("Exp", ["d"], ["y"])],
}


class EngineOf(Engine):
    """An engine with one fusion."""

    def __init__(self, fusion):
        self.fusion = fusion

    def fusions(self):
        return [self.fusion]


def test_a_fusion_of_an_unknown_optimization_is_refused():
    fusion = Fusion(Pattern.CHAIN, ("Scale",), "Relu", lambda op, ctx, x: None, "bn_rely")
    with pytest.raises(NetError, match="fusion of Scale, Relu: no optimization is called 'bn_rely'; .*; did you mean"):
        fuse(PlanGraph("net", [], [], {}, {}, frozenset(), PlanOptions(), {CPU: [EngineOf(fusion)]}, ()))


def test_there_is_a_net_for_each_fusion():
    elsewhere = {
        "bn_relu_gradient",
        "elementwise_chains",
        "engine_fusions",
        "joined_exchanges",
        "joined_small_kernels",
        "joined_updates",
        "relu_gradient_stats",
    }  # tests of their own
    assert set(JOINED) == FUSIONS - elsewhere, "add a net that the optimization changes to JOINED"


@needs_onednn
@pytest.mark.parametrize("name", JOINED)
def test_each_fusion_goes_alone(name):
    net = net_of(*JOINED[name], outputs=["y"])
    on = created(net, IMAGES, observable="outputs")
    off = created(net, IMAGES, observable="outputs", without=[name, "elementwise_chains"])
    others = created(net, IMAGES, observable="outputs", without=FUSIONS - {name})
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
    on, off = created(net, IMAGES), created(net, IMAGES, without=["blocked_layouts"])
    assert on.get("c").spec.layout is not None and off.get("c").spec.layout is None
    assert ("restore", "c") in moves_of(off) and not any(what == "restore" for what, _ in moves_of(on))
    assert np.array_equal(on.fetch("y"), off.fetch("y"))


@needs_onednn
def test_copies_are_made_for_each_reader_without_shared_copies():
    net = net_of(CONV, OTHER)
    assert [name for _, name in moves_of(created(net, IMAGES))].count("w") == 1
    assert [name for _, name in moves_of(created(net, IMAGES, without=["shared_copies"]))].count("w") == 2


@needs_onednn
def test_constants_are_reordered_in_each_run_without():
    for without, steps in (((), 0), (("constants",), 1)):
        workspace = created(net_of(CONV), IMAGES, constants=["w"], without=without)
        assert [name for _, name in moves_of(workspace)].count("w") == steps


@needs_onednn
def test_a_parameter_keeps_its_buffer_without_owned_layouts():
    net = net_of(
        CONV, make_op("ConvGradient", ["x", "w", "c"], ["w_grad", "b_grad", "x_grad"], kernel=3, pad=1),
        make_op("WeightedSum", ["w", "one", "w_grad", "rate"], ["w"]),
    )  # fmt: skip
    feeds = {**IMAGES, "one": np.float32([1]), "rate": np.float32([-0.01])}
    on, off = created(net, feeds), created(net, feeds, without=["owned_layouts"])
    assert on.get("w").spec.layout is not None and off.get("w").spec.layout is None
    assert np.array_equal(on.fetch("w"), off.fetch("w"))


@pytest.mark.parametrize("engines", [(), None])
def test_nothing_is_overwritten_without_inplace(engines):
    net = net_of(make_op("Exp", ["x"], ["y"]), make_op("Relu", ["y"], ["y"]), make_op("Sigmoid", ["y"], ["y"]))
    buffers = []
    for without in (("elementwise_chains",), ("elementwise_chains", "inplace")):
        workspace = created(net, X, without=without, engines=engines)
        np.testing.assert_allclose(workspace.fetch("y"), 1 / (1 + np.exp(-np.exp(X["x"]))), rtol=1e-6)
        buffers.append(len({id(step.outputs[0].buffer) for step in steps_of(workspace)}))
    assert buffers == [1, 3]


def test_known_extents_keep_a_net_in_one_plan():
    net = net_of(
        make_op("Concat", ["x", "x"], ["c", "extents"], axis=0), make_op("Split", ["c", "extents"], ["y", "z"])
    )
    net.op[1].arg.add(name="axis", i=0)
    assert created(net, X).net("net")._single is not None
    cut = created(net, X, without=["known_extents"])
    assert cut.net("net")._single is None
    assert np.array_equal(cut.fetch("z"), X["x"])


def test_plain_kernels_without_bound_kernels():
    net = net_of(make_op("Copy", ["x"], ["y"]))
    names = [
        {step.prepared.name for step in steps_of(created(net, X, without=without, engines=()))}
        for without in ((), ("bound_kernels",))
    ]
    assert names[0] != {"plain"} and names[1] == {"plain"}


@pytest.mark.parametrize("lanes, kind", [(1, "simple"), (2, "dag")])
def test_threads_by_work(lanes, kind):
    """A plan of small operators has one thread a lane; one large operator, or switching it off, keeps them all."""
    for rows, without, threads in ((4, (), lanes), (4, ("threads_by_work",), 8), (5000, (), 8)):
        workspace = Workspace(threads=8)
        workspace.feed("x", np.ones((rows, 64), np.float32))
        net = NetDef(name="net", type=kind, num_workers=lanes, external_input=["x"])
        for k in range(lanes):
            net.op.append(make_op("Softmax", ["x"], [f"y{k}"], device_option=make_device_option(0, k)))
        workspace.create_net(net, without=without)
        workspace.run_net("net")
        (plan,) = workspace.net("net")._plans[0]
        assert plan.options.threads == threads
        np.testing.assert_allclose(workspace.fetch("y0"), np.full((rows, 64), 1 / 64), rtol=1e-5)


def test_kept_plans():
    for without, kept in (((), 2), (("kept_plans",), 1)):
        workspace = created(RELU, X, without=without)
        for count in (3, 2, 3):
            workspace.feed("x", -np.ones(count, np.float32))
            workspace.run_net("net")
            assert np.array_equal(workspace.fetch("y"), np.zeros(count))
        assert len(workspace.net("net")._plans[0]) == kept


@needs_onednn
@pytest.mark.parametrize("name", ["kept_maxima", "kept_for_gradients"])
def test_what_is_kept_for_gradients(name):
    net = net_of(
        make_op("Relu", ["x"], ["c"]), make_op("MaxPool", ["c"], ["y"], kernel=3, stride=3),
        make_op("MaxPoolGradient", ["c", "y", "y"], ["g"], kernel=3, stride=3),
    )  # fmt: skip
    on, off = created(net, IMAGES), created(net, IMAGES, without=[name])
    assert steps_of(on)[-1].inputs[:2] == [None, None]
    assert steps_of(off)[-1].inputs[0] is not None
    seen = on.fetch("c") > 0
    assert np.array_equal(on.fetch("g")[seen], off.fetch("g")[seen])


def test_the_page_lists_all():
    page = (ROOT / "docs" / "optimizations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", page, re.M)
    want = [
        (name, each.what, f"within {each.bound:g}" if each.bound else "the same to the bit")
        for name, each in OPTIMIZATIONS.items()
    ]
    assert rows == want


def test_kernels_ask_for_names_that_there_are():
    asked = set()
    for folder in ("ops", "netbuilder"):
        for path in (ROOT / folder).rglob("*.py"):
            asked.update(re.findall(r"enabled\(\"(\w+)\"\)", path.read_text(encoding="utf-8")))
    asked |= {fusion.optimization for fusion in find_engine("ONEDNN").fusions()} | {"engine_fusions"}
    asked |= {phase.optimization for phase in PHASES} - {""}
    assert asked == set(OPTIMIZATIONS)


def test_a_name_that_there_is_not_is_no_optimization():
    with pytest.raises(NetError, match="no optimization is called 'inplce'; .*; did you mean 'inplace'"):
        PlanOptions().enabled("inplce")
    with pytest.raises(NetError, match="no optimization is called 'inplce'; .*; did you mean 'inplace'"):
        PlanOptions(without=frozenset({"inplce"}))
