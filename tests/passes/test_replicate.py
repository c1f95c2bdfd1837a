"""Differentiating one replica and renaming the result gives the bytes that differentiating all of them gives."""

import pytest

from netbuilder import graph, optimizers, parallel
from netbuilder.graph import DeviceScope, NameScope, Net
from netbuilder.graph.devices import Devices
from netbuilder.graph.gradient_context import gradient_functions
from netbuilder.graph.gradients import as_references
from netbuilder.graph.net_names import reset_names
from netbuilder.graph.scope import CurrentDeviceScope
from netbuilder.model import Initializer, ModelHelper, ParameterSharing, brew
from netbuilder.ops.core import renaming
from netbuilder.ops.core.contexts import Sparse
from netbuilder.optimizers import reset_optimizer_instance_count
from netbuilder.parallel import backward
from netbuilder.passes.replicate import Template, replicated_backward
from netbuilder.proto import PROTO_CPU, DeviceOption, NetDef, NetError
from netbuilder.proto.arguments import make_device_option, make_op
from parallel_models import no_input
from toy_models import convnet, mlp


def losses(model, x, scale, label="label"):
    _, loss = model.net.SoftmaxWithLoss([x, label], ["softmax", "loss"])
    return [model.net.Scale(loss, "scaled", scale=scale)]


def normalized(model, scale):
    """Batch normalization, dropout, a residual sum, names that the net makes."""
    x = brew.conv(model, "data", "conv1", 3, 4, kernel=3, pad=1)
    y = model.net.Relu(brew.spatial_bn(model, x, "bn1", 4, is_test=False))
    y = brew.dropout(model, brew.sum(model, [x, y], "block"), "dropped", is_test=False, ratio=0.3)
    return losses(model, brew.fc(model, brew.average_pool(model, y, "pooled", kernel=8), "fc", 4, 4), scale)


def shared_weights(model, scale):
    x = brew.fc(model, "data", "first", 4, 4)
    with ParameterSharing({"b": "a"}):
        for scope in "ab":
            with NameScope(scope):
                x = brew.fc(model, x, "fc", 4, 4)
    return losses(model, x, scale)


def sparse(model, scale):
    """A table with two sparse gradients, and one with a sparse and a dense gradient."""
    both, mixed = (model.create_param(name, [9, 4], Initializer("XavierFill")) for name in ("both", "mixed"))
    rows = model.net.Gather([both, "ids"], "rows")
    x = model.net.Add([rows, model.net.SparseLengthsSum([both, "more_ids", "lengths"], "sums")], "x")
    x = model.net.Add([x, model.net.Gather([mixed, "ids"], "mixed_rows")], "y")
    return losses(model, model.net.MatMul([x, mixed], "scores", trans_b=1), scale)


def two_losses(model, scale):
    """The second one reads the first."""
    [first] = losses(model, brew.fc(model, "data", "fc", 4, 4), scale)
    return [first, model.net.Scale(first, "again", scale=2.0)]


def reads_outside(model, scale):
    """Each replica reads a blob that exists once, and that has no gradient."""
    rows = [brew.fc(model, "data", "fc", 4, 4), graph.BlobReference("rows")]
    return losses(model, model.net.Reshape(model.net.BatchGather(rows, "found"), ["z", "_"], shape=[-1, 4])[0], scale)


def on_the_host(model, scale, device=None):
    with DeviceScope(device or DeviceOption()):
        data = model.net.Copy("data", "copied")
    return losses(model, brew.fc(model, data, "fc", 4, 4), scale)


EQUAL = [mlp, convnet, normalized, shared_weights, sparse, two_losses, reads_outside, on_the_host]


def number():
    return CurrentDeviceScope().device_id


def other_operator(model, scale):
    x = brew.fc(model, "data", "fc", 4, 4)
    return losses(model, model.net.Tanh(x, "y") if number() == 1 else model.net.Sigmoid(x, "y"), scale)


def other_argument(model, scale):
    x = brew.fc(model, "data", "fc", 4, 4)
    return losses(model, model.net.LeakyRelu(x, "y", alpha=0.1 if number() < 2 else 0.2), scale)


def other_names(model, scale):
    return losses(model, model.net.Sigmoid(brew.fc(model, "data", "fc", 4, 4), f"y{number()}"), scale)


def other_length(model, scale):
    x = brew.fc(model, "data", "fc", 4, 4)
    return losses(model, model.net.Sigmoid(x, x) if number() == 1 else x, scale)


def other_order(model, scale):
    x = brew.fc(model, "data", "fc", 4, 4)
    y, z = (model.net.Sigmoid(x, name) for name in ("yz" if number() else "zy"))
    return losses(model, model.net.Add(sorted([y, z]), "sum"), scale)


def other_line(model, scale):
    x = brew.fc(model, "data", "fc", 4, 4)
    if number():
        return losses(model, model.net.Sigmoid(x, "y"), scale)
    return losses(model, model.net.Sigmoid(x, "y"), scale)


def gradient_leaves(model, scale):
    """The gradient of a blob outside the replicas is a sum over all of them."""
    return losses(model, model.net.Mul([brew.fc(model, "data", "fc", 4, 4), graph.BlobReference("mask")]), scale)


def writes_outside(model, scale):
    x = brew.fc(model, "data", "fc", 4, 4)
    model.net.Print(x, [])
    model.net.ConstantFill([], graph.BlobReference("mask"), shape=[1, 4])
    return losses(model, model.net.Mul([x, model.net.Copy(graph.BlobReference("mask"), "copied")], broadcast=1), scale)


def subgraphs(model, scale):
    x = brew.fc(model, "data", "fc", 4, 4)
    nets = [Net("then"), Net("else")]
    for net, factor in zip(nets, (2.0, 3.0)):
        net.AddExternalOutput(net.Scale(x, graph.ScopedBlobReference("y"), scale=factor))
    model.net.If(["condition", x], ["y"], then_net=nets[0].Proto(), else_net=nets[1].Proto())
    return losses(model, "y", scale)


UNEQUAL = [other_operator, other_argument, other_names, other_length, other_order, other_line]
CONNECTED = [gradient_leaves, writes_outside, subgraphs]


@pytest.fixture(autouse=True)
def taken(monkeypatch):
    """For each backward pass whether only one replica was differentiated."""
    made = []

    def watched(*args, whole=backward.replicated_backward):
        result = whole(*args)
        made.append(result is not None)
        return result

    monkeypatch.setattr(backward, "replicated_backward", watched)
    return made


def build(forward, ids, *, parallelize=parallel.Parallelize_CPU, **options):
    """Return all that a backward pass determines."""
    reset_names()
    reset_optimizer_instance_count()
    model = ModelHelper("model")
    options.setdefault("optimizer_builder_fun", lambda model: optimizers.build_adagrad(model, 0.1))
    try:
        parallelize(model, no_input, forward, devices=ids, **options)
    except NetError as error:
        return str(error)
    nets = [net.Proto().SerializeToString() for net in (model.net, model.param_init_net)]
    return [*nets, *([(str(k), str(v)) for k, v in found.items()] for found in (model.grad_map, model.param_to_grad))]


def build_whole(*args, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backward, "replicated_backward", lambda *args: None)
        return build(*args, **options)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("options", [{}, {"accumulate_steps": 2}, {"weighted_shares": True}], ids=str)
@pytest.mark.parametrize("ids", [[0, 1], [1, 0, 11, 3]], ids=str)
@pytest.mark.parametrize("forward", EQUAL)
def test_equal_replicas(forward, ids, options, taken):
    assert build(forward, ids, **options) == build_whole(forward, ids, **options)
    assert taken == [True]


@pytest.mark.filterwarnings("ignore:GPUs .* are not on this machine")
@pytest.mark.parametrize("forward", EQUAL)
def test_on_gpus(forward, taken):
    options = {"parallelize": parallel.Parallelize_GPU}
    assert build(forward, [2, 0, 5], **options) == build_whole(forward, [2, 0, 5], **options)
    assert taken == [True]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("forward", [*UNEQUAL, *CONNECTED])
def test_other_replicas_are_differentiated_each_by_itself(forward, taken):
    for ids in ([0, 1, 2], [2, 1, 0]):
        assert build(forward, ids) == build_whole(forward, ids)
    assert taken == [False, False]


def test_one_device(taken):
    assert build(normalized, [3]) == build_whole(normalized, [3])
    assert taken == []


def test_a_device_that_is_that_of_the_first_replica(taken):
    """The other replicas show whether it is the replica's own blob or always the same one."""

    def forward(model, scale):
        return on_the_host(model, scale, make_device_option(PROTO_CPU, 0))

    for ids in ([0, 1], [1, 2]):
        assert build(forward, ids) == build_whole(forward, ids)
    assert taken == [False, True]


def test_functions_of_users_are_called_for_each_operator(monkeypatch, taken):
    calls = []

    def gradient(op, given):
        calls.append(op.output[0])
        return [], [given[0]]

    def forward(model, scale):
        return losses(model, model.net.Ceil(brew.fc(model, "data", "fc", 4, 4), "y"), scale)

    monkeypatch.setitem(gradient_functions, "Ceil", gradient)
    build(forward, [0, 1])
    assert calls == ["cpu_1/y", "cpu_0/y"] and taken == [False]


def test_an_error_names_the_operator_in_the_whole_net(taken):
    def forward(model, scale):
        return losses(model, model.net.Ceil(brew.fc(model, "data", "fc", 4, 4), "y"), scale)

    found = build(forward, [0, 1])
    assert found == build_whole(forward, [0, 1]) and "cpu_1/y" in found and "operator 5 Ceil" in found
    assert taken == []


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [
        ({"cpu_0/y": "cpu_0/dy", "cpu_1/y": "cpu_1/dy"}, True),
        ({"cpu_0/y": "cpu_0/dy", "cpu_1/y": "cpu_1/other"}, False),
        ({"cpu_0/y": "cpu_0/dy"}, False),
        ({"cpu_1/y": "cpu_1/dy"}, False),
        (
            {
                f"cpu_{i}/{blob}": given
                for i in (0, 1)
                for blob, given in (("y", f"cpu_{i}/dy"), ("table", (f"cpu_{i}/rows", f"cpu_{i}/values")))
            },
            True,
        ),
    ],
)
def test_seeds(seeds, expected):
    devices = Devices(PROTO_CPU, (0, 1))
    net = Net(NetDef())
    for scope, option in zip(("cpu_0", "cpu_1"), devices.options):
        with NameScope(scope), DeviceScope(option):
            net.Gather(["table", "ids"], "x")
            net.Copy("x", "y")
    given = {loss: gradient if isinstance(gradient, str) else Sparse(*gradient) for loss, gradient in seeds.items()}
    made = replicated_backward(net.Proto().op, given, devices)
    assert (made is not None) == expected
    if made is not None:
        start = net.op_len
        found = net.AddGradientOperators(seeds)
        assert made[0] == list(net.Proto().op[start:])
        assert as_references(made[1]) == found and list(made[1]) == list(map(str, found))


def test_a_template_is_made_again_with_other_names():
    op = make_op("Add", ["a", "b"], ["a_sum"], name="mine", axis=1)
    op.control_input.append("a")
    made = Template(op).operator({"a": "x", "b": "b", "a_sum": "x_sum"})
    expected = make_op("Add", ["x", "b"], ["x_sum"], name="mine", axis=1)
    expected.control_input.append("x")
    assert made == expected and op.input == ["a", "b"]


def test_a_template_has_the_names_in_subgraphs():
    inner = NetDef(op=[make_op("Relu", ["a"], ["a_sum"])], external_input=["a"], external_output=["a_sum"])
    op = make_op("If", ["condition", "a"], ["a_sum"], then_net=inner)
    made = Template(op).operator({"a": "x", "condition": "condition", "a_sum": "x_sum"})
    [net] = renaming.subgraphs(made)
    assert (net.op[0].input, net.op[0].output, made.output) == (["x"], ["x_sum"], ["x_sum"])
    assert inner.op[0].input == ["a"]
