"""Products of a sequence's rows, one over all steps: the numbers of one a step, and how often products are called."""

import numpy as np
import pytest

from netbuilder import ModelHelper
from netbuilder.graph.blob_devices import place_operators
from netbuilder.model.rnn.recurrent import recurrent_net
from netbuilder.ops.core.operator import TensorSpec, decode
from netbuilder.ops.dense import fc, matmul
from netbuilder.ops.recurrent.forward import ForwardPlan
from netbuilder.ops.recurrent.network import RecurrentNetwork
from netbuilder.proto import PROTO_CUDA, NetDef
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan.optimizations import OPTIMIZATIONS
from netbuilder.runtime.plan.subgraph import SubgraphPlan
from recurrent_steps import recurrent, with_gradient
from switches import single

STEPS, SAMPLES, WIDTH = 5, 3, 4


def from_fc(net, x):
    return net.FC([x, "v", "c"], "from_x", axis=2)


def from_transposed(net, x):
    return net.FCTransposed([x, "vt", "c"], "from_x", axis=2)


def from_row(net, x):
    """The rows of all samples as one."""
    return net.Reshape(net.FC([x, "whole", "d"], "flat", axis=1), ["from_x", "shape"], shape=[1, SAMPLES, WIDTH])[0]


def from_matmul(net, x):
    product = net.MatMul([x, "v"], "flat", axis_a=2, trans_b=1)
    return net.Reshape(product, ["from_x", "shape"], shape=[1, SAMPLES, WIDTH])[0]


def overwritten(net, x):
    made = net.FC([x, "v", "c"], "from_x", axis=2)
    return net.Tanh(made, made)


WAYS = [from_fc, from_transposed, from_row, from_matmul, overwritten]


def feeds():
    rng = np.random.default_rng(0)
    shapes = {"seq": (STEPS, SAMPLES, WIDTH), "h0": (1, SAMPLES, WIDTH), "w": (WIDTH, WIDTH), "v": (WIDTH, WIDTH)}
    shapes |= {"b": (WIDTH,), "c": (WIDTH,), "d": (SAMPLES * WIDTH,), "whole": (SAMPLES * WIDTH,) * 2}
    found = {name: (0.5 * rng.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()}
    return {**found, "vt": found["v"].T.copy()}


def model_of(way, *, forward_only=False):
    """h = tanh(way(x) + h_prev W^T + b), and the gradients of the sum of squares."""
    model = ModelHelper("outer")
    step = ModelHelper("step", param_model=model)
    x, before = step.net.AddExternalInputs("x", "h_prev")
    for name in ("w", "b", "v", "c", "d", "whole", "vt"):
        step.net.AddExternalInput(name)
    total = step.net.Add([way(step.net, x), step.net.FC([before, "w", "b"], "from_h", axis=2)], "total")
    after = step.net.Tanh(total, "h")
    step.net.AddExternalOutput(after)
    everything, _ = recurrent_net(
        model.net, step.net, [(x, "seq")], [(before, "h0")], {before: after}, scope="", forward_only=forward_only
    )
    gradients = {}
    if not forward_only:
        gradients = model.AddGradientOperators([model.net.SumElements(model.net.Sqr(everything))])
    return model, [str(everything), *map(str, gradients.values())]


def run(model, names, **options):
    workspace = Workspace(threads=1, **options)
    for name, value in feeds().items():
        workspace.feed(name, value)
    workspace.create_net(model.net, observable="all")
    workspace.run_net(model.net)
    workspace.run_net(model.net)  # a replay gives the same
    return {name: workspace.fetch(name) for name in names}


def agree(found, want):
    for name, value in want.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("forward_only", [False, True], ids=["trained", "forward"])
@pytest.mark.parametrize("way", WAYS)
def test_the_numbers_of_one_a_step(way, forward_only):
    model, names = model_of(way, forward_only=forward_only)
    if not forward_only:
        assert {"seq_grad", "h0_grad", "w_grad"} < set(names)
    want = run(model, names, without=single("step_projections", "step_products"), engines=())
    agree(run(model, names), want)
    agree(run(model, names, engines=()), want)
    agree(run(model, names, without=single("bound_kernels"), engines=()), want)


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
def test_on_a_gpu(way):
    model, names = model_of(way)
    net = NetDef()
    net.CopyFrom(model.net.Proto())
    place_operators(net, make_device_option(PROTO_CUDA, 0))
    workspace = Workspace()
    for name, value in feeds().items():
        workspace.feed(name, value)
    workspace.run_net_once(net)
    agree({name: workspace.fetch(name) for name in names}, run(model, names, engines=()))


def plan_of(way, **options):
    model, _ = model_of(way, **options)
    op_def = next(op for op in model.net.Proto().op if op.type == "RecurrentNetwork")
    op = decode(RecurrentNetwork, op_def)
    specs = [TensorSpec(feeds()[name].shape, np.dtype(np.float32)) for name in op_def.input]
    return ForwardPlan(op, specs, project=True)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_done_before_the_loop(way):
    plan = plan_of(way)
    (each,) = plan.projections
    assert isinstance(each.operator.op, (fc.FC, fc.FCTransposed, matmul.MatMul)) and each.operator not in plan.body
    assert each.specs[each.joined.inputs[0]].shape[0] % STEPS == 0
    assert plan.memory.nbytes == ForwardPlan(plan.op, list(plan.inputs.values())).memory.nbytes


@pytest.mark.parametrize(
    "way",
    [
        lambda net, x: net.FC([net.Tanh(x, "own"), "v", "c"], "from_x", axis=2),
        lambda net, x: net.FC(["h_prev", "v", "c"], "from_x", axis=2),
    ],
    ids=["made by the step", "of a state"],
)
def test_what_stays_in_the_loop(way):
    assert plan_of(way, forward_only=True).projections == []


def test_rows_further_on():
    """A link that begins with a later row reads from there."""
    model = ModelHelper("outer")
    step = ModelHelper("step", param_model=model)
    first, x, before = step.net.AddExternalInputs("first", "x", "h_prev")
    step.net.AddExternalInput("v", "c")
    total = step.net.Add([step.net.FC([x, "v", "c"], "from_x", axis=2), step.net.Add([first, before])])
    after = step.net.Copy(total, "h")
    step.net.AddExternalOutput(after)
    recurrent_net(
        *(model.net, step.net, [(first, "seq"), (x, "longer")], [(before, "h0")], {before: after}), forward_only=True
    )
    recurrent = next(op for op in model.net.Proto().op if op.type == "RecurrentNetwork")
    next(a for a in recurrent.arg if a.name == "link_offset").ints[3] = 2
    values = feeds()
    longer = np.random.default_rng(1).normal(size=(STEPS + 2, SAMPLES, WIDTH)).astype(np.float32)
    workspace = Workspace(threads=1)
    for name, value in {**values, "longer": longer}.items():
        workspace.feed(name, value)
    workspace.run_net_once(model.net)
    rows = longer[2:] @ values["v"].T + values["c"] + values["seq"]
    want = values["h0"] + np.cumsum(rows, axis=0)
    np.testing.assert_allclose(workspace.fetch("h_all"), want, rtol=1e-4, atol=1e-5)


def test_gradients_of_the_sequence_wait(monkeypatch):
    made = []
    bind = SubgraphPlan.bind

    def counted(self, buffer_of, scratch, step=-1):
        made.extend((each.node.first.op_def.type, step) for each in self._steps)
        return bind(self, buffer_of, scratch, step)

    monkeypatch.setattr(SubgraphPlan, "bind", counted)
    model, names = model_of(from_fc)
    run(model, names)
    in_steps = [op for op, time in made if time >= 0]
    assert in_steps.count("FC") == STEPS  # of the state; that of the sequence is one
    assert made.count(("FC", -1)) == 1
    assert in_steps.count("FCTransposed") == STEPS and made.count(("FCGradient", -1)) == 2


@pytest.mark.parametrize("without", [[], [*OPTIMIZATIONS.values()]], ids=["optimized", "plain"])
@pytest.mark.parametrize("order", [("s", "k"), ("k", "s")])
def test_the_gradient_of_an_addend_that_is_the_same_in_all_steps(order, without):
    """It is that of the product's result in each step, which the product after the loop reads, too."""
    step = NetDef(name="step")
    step.op.extend([
        make_op("FC", ["h_prev", "w", "b"], ["s"], axis=2),
        make_op("Sum", order, ["with_k"]),
        make_op("Add", ["with_k", "x"], ["with_x"]),
        make_op("Tanh", ["with_x"], ["h"]),
    ])  # fmt: skip
    ops, gradients = with_gradient(recurrent(step, inputs=("seq", "h0", "w", "b", "k")), {"all": "d_all"})
    rng = np.random.default_rng(3)
    shapes = {"seq": (5, 8, 32), "h0": (1, 8, 32), "w": (32, 32), "b": (32,), "k": (1, 8, 32), "d_all": (5, 8, 32)}
    feeds = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    workspace = Workspace(threads=1)
    for name, value in feeds.items():
        workspace.feed(name, value)
    net = NetDef(name="outer", op=ops, external_input=list(feeds))
    workspace.create_net(net, observable="all", without=without)
    workspace.run_net("outer")
    hidden, d_next, wanted = workspace.fetch("all"), 0, 0
    for got, d_out in zip(hidden[::-1], feeds["d_all"][::-1]):
        d_sum = (1 - got**2) * (d_out + d_next)
        wanted, d_next = wanted + d_sum, d_sum @ feeds["w"]
    np.testing.assert_allclose(workspace.fetch(str(gradients["k"]))[0], wanted, rtol=1e-9)
    np.testing.assert_allclose(workspace.fetch(str(gradients["b"])), wanted.sum(0), rtol=1e-9)
