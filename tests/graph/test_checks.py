"""Checks of nets: each finding where it is planted, none in sound nets."""

import dataclasses
import warnings

import numpy as np
import pytest

import golden_data
from netbuilder import ModelHelper, Parallelize, Workspace, brew
from netbuilder.distributed import Rendezvous
from netbuilder.graph import DeviceScope, Net
from netbuilder.graph.checks import Finding, Rule, check_net, require_sound
from netbuilder.graph.observability import set_stored
from netbuilder.model import rnn
from netbuilder.optimizers import build_adam, build_sgd
from netbuilder.parallel import CreateNet, ParallelDo, Parallelize_CPU, RunInitNet
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, NetDef, NetError
from netbuilder.proto.arguments import make_argument, make_device_option, make_op
from netbuilder.tools.profiling.zoo import ZooOptions, image_shape
from netbuilder.tools.proof.table import MODELS
from netbuilder.tools.training.nets import NETS, add_net
from process_training import CASES, build_case
from toy_models import layers, scaled_loss, softmax_loss


def net_of(*ops, inputs=("x",), outputs=(), name="planted"):
    return NetDef(name=name, op=list(ops), external_input=inputs, external_output=outputs)


def only(found: list[Finding], rule: Rule) -> Finding:
    assert [finding.rule for finding in found] == [rule], found
    return found[0]


def step_net(*ops):
    """A net with an If whose branch has these operators."""
    inner = NetDef(name="branch", op=list(ops))
    return net_of(make_op("If", ["condition", "x"], [], then_net=inner), inputs=["condition", "x"])


@pytest.mark.parametrize("wrap", [net_of, step_net])
def test_an_unknown_operator(wrap):
    op = make_op("Reluu", ["x"], ["y"])
    op.debug_info = "train.py:7 in build"
    found = only(check_net(wrap(op)), Rule.UNKNOWN_OPERATOR)
    assert found.message.startswith("there is no operator 'Reluu'; did you mean ")
    assert (found.index, found.op_type, found.source) == (0, "Reluu", "train.py:7 in build")
    assert "train.py:7 in build" in str(found) and str(found).startswith("unknown-operator: net '")
    if wrap is step_net:
        assert found.net == "branch" and ", in operator 0 If of net 'planted'" in str(found)


@pytest.mark.parametrize("wrap", [net_of, step_net])
@pytest.mark.parametrize(
    "op, message",
    [
        (make_op("Softmax", ["x"], ["y"], axis="first"), "argument 'axis' must be int"),
        (make_op("FC", ["x"], ["y"]), "FC"),
        (make_op("FC", ["x", "x", "x"], ["x"]), "output 0 ('x') may not overwrite input 0"),
    ],
)
def test_an_operator_that_is_wrong_by_itself(op, message, wrap):
    op.debug_info = "train.py:7 in build"
    found = only(check_net(wrap(op)), Rule.OPERATOR)
    assert message in found.message and found.source == "train.py:7 in build"


def test_a_blob_that_nobody_writes():
    net = net_of(make_op("Relu", ["data"], ["a"]), make_op("Relu", ["hidden"], ["b"]), inputs=["data", "hiden"])
    found = only(check_net(net), Rule.DANGLING_BLOB)
    assert (found.index, found.blob) == (1, "hidden")
    assert "no earlier operator writes" in found.message and "did you mean 'hiden'?" in found.message


def test_a_blob_that_is_written_too_late():
    net = net_of(make_op("Relu", ["a"], ["b"]), make_op("Relu", ["x"], ["a"]))
    assert "operator 1 writes it later" in only(check_net(net), Rule.DANGLING_BLOB).message


def test_a_control_input_and_an_external_output_that_nobody_writes():
    net = net_of(make_op("Relu", ["x"], ["y"], control_input=["done"]), outputs=["y", "z"])
    first, second = check_net(net)
    assert first.rule is second.rule is Rule.DANGLING_BLOB
    assert "has the control input 'done'" in first.message and first.index == 0
    assert "external output 'z' is written by no operator" in second.message and second.index is None


def test_an_observable_blob_that_the_net_does_not_have():
    net = net_of(make_op("Relu", ["x"], ["hidden"]), make_op("Relu", ["hidden"], ["y"]), inputs=["x"], outputs=["y"])
    set_stored(net, "outputs", ["hidden", "gpu_1/hidden"])  # a name with the scope of a device stands for the blob
    assert not check_net(net)
    set_stored(net, "outputs", ["hidden", "hiden"])
    found = only(check_net(net), Rule.DANGLING_BLOB)
    assert found.blob == "hiden" and found.index is None
    assert "observable" in found.message and "did you mean 'hidden'?" in found.message


def test_a_blob_that_a_subgraph_reads():
    found = only(check_net(step_net(make_op("Relu", ["missing"], ["y"]))), Rule.DANGLING_BLOB)
    assert found.net == "branch" and found.blob == "missing"
    assert not check_net(step_net(make_op("Relu", ["x"], ["y"])))  # the branch reads blobs of the outer net


def test_an_output_that_a_branch_does_not_write():
    net = step_net(make_op("Relu", ["x"], ["y"]))
    branch = net.op[0].arg[0].n
    net.op[0].output.extend(["y", "z"])
    branch.external_output.extend(["y", "z"])
    found = only(check_net(net), Rule.DANGLING_BLOB)
    assert (found.net, found.blob, found.index) == ("branch", "z", None)
    assert "external output 'z' is written by no operator" in found.message
    branch.external_input.append("z")  # passed through
    assert not check_net(net)


def test_a_blob_that_a_step_net_reads():
    net, _ = lstm()
    recurrent = next(op for op in net.op if op.type == "RecurrentNetwork")
    step = next(argument.n for argument in recurrent.arg if argument.name == "step_net")
    step.op[0].input[0] = "nowhere"
    rules = {finding.rule: finding for finding in check_net(net)}
    assert rules[Rule.DANGLING_BLOB].blob == "nowhere" and rules[Rule.DANGLING_BLOB].net == step.name


@pytest.mark.parametrize("arguments", [{}, {"timestep": "t"}])
def test_the_number_of_a_step_is_known_in_its_net(arguments):
    step = NetDef(name="step", external_input=["x_t"], external_output=["h"])
    step.op.extend(
        [make_op("Cast", [arguments.get("timestep", "timestep")], ["n"], to=1), make_op("Copy", ["x_t"], ["h"])]
    )
    op = make_op(
        "RecurrentNetwork", ["x", "h0"], ["all", "work"], step_net=step, recurrent_states=["states"],
        initial_recurrent_state_ids=[1], link_internal=["x_t", "h"], link_external=["x", "states"], link_offset=[0, 1],
        alias_src=["states"], alias_dst=["all"], alias_offset=[1], **arguments,
    )  # fmt: skip
    assert not check_net(net_of(op, inputs=["x", "h0"]))


def test_an_input_without_a_value():
    net = net_of(make_op("FC", ["x", "w", "b"], ["y"]), inputs=["x", "w", "b"])
    init = net_of(make_op("ConstantFill", [], ["w"], shape=[3, 2]), inputs=[], name="init")
    found = only(check_net(net, init_net=init, inputs={"x": (4, 2)}), Rule.NO_VALUE)
    assert found.blob == "b" and "init net 'init'" in found.message
    assert not check_net(net, init_net=init)  # without inputs nothing says what will be fed


def test_shapes_that_do_not_fit():
    net = net_of(make_op("FC", ["x", "w", "b"], ["y"]), inputs=["x", "w", "b"])
    net.op[0].debug_info = "net.py:3 in build"
    shapes = {"x": (4, 2), "w": (3, 5), "b": (3,)}
    found = only(check_net(net, inputs=shapes), Rule.SHAPE)
    assert (found.net, found.index, found.source) == ("planted", 0, "net.py:3 in build") and "FC" in found.message
    assert not check_net(net, inputs={**shapes, "w": (3, 2)})


def test_all_shapes_that_do_not_fit():
    """What follows from a conflict alone is not reported; wrong arguments elsewhere do not hide it."""
    ops = [
        make_op("FC", ["x", "w", "b"], ["y"]), make_op("Add", ["y", "x"], ["after"]),
        make_op("Softmax", ["x"], ["p"], axis="first"), make_op("FC", ["long", "w", "b"], ["z"]),
        make_op("MatMul", ["x", "x"], ["product"]),
    ]  # fmt: skip
    net = net_of(*ops, inputs=["x", "w", "b", "long"])
    found = check_net(net, inputs={"x": (4, 2), "long": (4, 9), "w": (3, 5), "b": (3,)})
    assert [(each.rule, each.index) for each in found] == [
        (Rule.OPERATOR, 2), (Rule.SHAPE, 0), (Rule.SHAPE, 3), (Rule.SHAPE, 4),
    ]  # fmt: skip


def test_the_same_wrong_shape_on_each_replica():
    model, shapes = data_parallel()
    wrong = {name: (6, 4) if name.endswith("data") else shape for name, shape in shapes.items()}
    found = check_net(model.net, init_net=model.param_init_net, inputs=wrong)
    assert {finding.rule for finding in found} == {Rule.SHAPE}
    assert [finding.op_type for finding in found] == ["FC", "FC"]  # and not what follows, such as FCGradient


class TestShapesInside:
    """Shapes of nets inside operators follow from those around them."""

    shapes = {"condition": (1,), "x": (4, 2), "w": (3, 5), "b": (3,)}

    def branch(self, *ops):
        inner = NetDef(name="branch", op=list(ops))
        outer = make_op("If", ["condition", "x", "w", "b"], [], then_net=inner)
        return net_of(outer, inputs=list(self.shapes))

    def test_in_a_branch(self):
        ops = [make_op("Relu", ["x"], ["r"]), make_op("FC", ["r", "w", "b"], ["y"])]
        ops[1].debug_info = "net.py:3 in build"
        found = only(check_net(self.branch(*ops), inputs=self.shapes), Rule.SHAPE)
        assert (found.net, found.index, found.source) == ("branch", 1, "net.py:3 in build")
        assert not check_net(self.branch(*ops), inputs={**self.shapes, "x": (4, 5)})

    def test_in_a_loop(self):
        body = NetDef(name="body", op=[make_op("FC", ["x", "w", "b"], ["y"]), make_op("Copy", ["done"], ["condition"])])
        net = net_of(
            make_op("While", ["condition", "x", "w", "b", "done"], ["condition"], loop_net=body),
            inputs=[*self.shapes, "done"],
        )
        found = only(check_net(net, inputs={**self.shapes, "done": (1,)}), Rule.SHAPE)
        assert (found.net, found.op_type) == ("body", "FC")
        assert not check_net(net, inputs={**self.shapes, "done": (1,), "x": (4, 5)})

    def test_in_a_branch_of_a_branch(self):
        inner = NetDef(name="inner", op=[make_op("FC", ["x", "w", "b"], ["y"])])
        net = self.branch(make_op("If", ["condition", "x", "w", "b"], [], then_net=inner))
        found = only(check_net(net, inputs=self.shapes), Rule.SHAPE)
        assert found.net == "inner" and ", in operator 0 If of net 'branch', in operator 0 If" in str(found)

    def test_a_blob_that_is_written_before_and_after(self):
        net = self.branch(make_op("Add", ["x", "x"], ["y"]), make_op("FC", ["x", "w", "b"], ["z"]))
        net.op.insert(0, make_op("ConstantFill", [], ["x"], shape=[4, 5]))
        net.op.append(make_op("ConstantFill", [], ["x"], shape=[4, 9]))
        net.op[2].control_input.append("y")
        found = check_net(net, inputs=self.shapes)
        assert Rule.SHAPE not in {finding.rule for finding in found}

    def test_labels_without_a_type(self):
        net = step_net(make_op("SoftmaxWithLoss", ["x", "label"], ["p", "loss"]))
        net.op[0].input.append("label")
        net.external_input.append("label")
        assert not check_net(net, inputs={"condition": (1,), "x": (4, 2), "label": (4,)})

    def test_in_a_step_net(self):
        net, init = lstm()
        shapes = {"x": (5, 2, 3), "lengths": (2,), "h0": (1, 2, 4), "c0": (1, 2, 4), "target": (5, 2, 4)}
        assert not check_net(net, init_net=init, inputs=shapes)
        found = check_net(net, init_net=init, inputs={**shapes, "h0": (1, 2, 5)})
        first = found[0]
        assert (first.rule, first.op_type) == (Rule.SHAPE, "RecurrentNetwork")
        assert "operator 0: FC" in first.message and "test_checks.py" in first.source

    def test_in_a_parallel_block(self):
        model = parallel_block()
        shapes = {"x": (6, 3), "label": (6,)}
        assert not check_net(model.net, init_net=model.param_init_net, inputs=shapes)
        found = check_net(model.net, init_net=model.param_init_net, inputs={**shapes, "x": (6, 4)})
        assert (found[0].rule, found[0].op_type) == (Rule.SHAPE, "ParallelDo")
        assert "operator 0: FC" in found[0].message and "test_checks.py" in found[0].source


def parallel_block():
    """A training step of which ParallelDo has the forward pass."""
    model = ModelHelper("block")
    with ParallelDo(model, devices=[0, 1]) as block:
        scores = brew.fc(model, block.read_input("x"), "fc", 3, 4)
        _, loss = model.net.SoftmaxWithLoss([scores, block.read_input("label")], ["softmax", "loss"])
        loss = block.write_output(loss, merge="mean")
    model.AddGradientOperators([loss])
    build_sgd(model, 0.1)
    return model


def test_shapes_of_the_init_net():
    init = net_of(make_op("ConstantFill", [], ["w"], shape=[3]), make_op("MatMul", ["w", "w"], ["v"]), inputs=[])
    found = only(check_net(net_of(make_op("Relu", ["v"], ["y"]), inputs=["v"]), init_net=init), Rule.SHAPE)
    assert found.index == 1 and found.op_type == "MatMul"


class TestRaces:
    def test_two_writers(self):
        ops = [make_op("Relu", ["x"], ["y"]), make_op("Tanh", ["x"], ["y"])]
        ops[0].debug_info = "net.py:3 in build"
        found = only(check_net(net_of(*ops)), Rule.RACE)
        assert (found.index, found.blob) == (1, "y") and "operator 0 Relu, made at net.py:3 in build" in found.message
        assert "control input" in found.message

    def test_in_a_subgraph(self):
        ops = [make_op("Relu", ["x"], ["y"]), make_op("Tanh", ["x"], ["y"])]
        assert only(check_net(step_net(*ops)), Rule.RACE).net == "branch"

    def test_in_a_step_net(self):
        net, _ = lstm()
        recurrent = next(op for op in net.op if op.type == "RecurrentNetwork")
        step = next(argument.n for argument in recurrent.arg if argument.name == "step_net")
        step.op.add().CopyFrom(make_op("Tanh", ["input_t"], ["lstm/hidden_state"]))
        assert only(check_net(net), Rule.RACE).net == step.name

    def test_in_a_parallel_block(self):
        net = parallel_block().net.Proto()
        inner = next(argument.n for argument in net.op[0].arg if argument.name == "net")
        inner.op.extend(make_op(kind, inner.op[0].input[:1], ["block/more"]) for kind in ("Relu", "Tanh"))
        races = [finding for finding in check_net(net) if finding.rule is Rule.RACE]
        assert [(finding.net, finding.op_type) for finding in races] == [(inner.name, "Tanh")]

    def test_two_outputs_of_one_name(self):
        assert "twice" in only(check_net(net_of(make_op("Split", ["x"], ["y", "y"], axis=0))), Rule.RACE).message

    @pytest.mark.parametrize(
        "second",
        [
            [make_op("Relu", ["y"], ["y"])],  # in place
            [make_op("Relu", ["y"], ["z"]), make_op("Tanh", ["x"], ["y"])],  # read before it is overwritten
            [make_op("Tanh", ["x"], ["y"], control_input=["y"])],
            [make_op("Relu", ["x"], ["y"])],  # the same
        ],
    )
    def test_writers_with_an_order(self, second):
        assert not check_net(net_of(make_op("Relu", ["x"], ["y"]), *second))

    def test_equal_operators_that_draw_random_numbers(self):
        fill = make_op("UniformFill", [], ["y"], shape=[2])
        assert only(check_net(net_of(fill, fill)), Rule.RACE).index == 1


def no_input(model):
    pass


def data_parallel(update=lambda model: build_sgd(model, 0.1), devices=2, **options):
    """Return a model with two layers over CPU devices, and the shapes of its inputs."""

    model = ModelHelper("parallel")
    record = Parallelize_CPU(
        model, no_input, layers(5, 4, 3), optimizer_builder_fun=update, devices=list(range(devices)), **options
    )
    shapes = {"data": (6, 5), "label": (6,)}
    return model, {scope + name: shape for scope in record.devices.scopes for name, shape in shapes.items()}


def without(net, remove):
    """Return a copy of a net without the operators for which ``remove`` is true."""
    result = NetDef()
    result.CopyFrom(net)
    del result.op[:]
    result.op.extend(op for op in net.op if not remove(op))
    assert len(result.op) < len(net.op)
    return result


class TestDevices:
    def test_an_operator_that_reads_another_replica(self):
        model, _ = data_parallel()
        net = model.net.Proto()
        op = next(op for op in net.op if op.type == "Relu" and op.output[0].startswith("cpu_1/"))
        op.input[0] = "cpu_0/fc1"
        found = only(check_net(net), Rule.DEVICE)
        assert found.blob == "cpu_0/fc1" and "use 'cpu_1/fc1'" in found.message and found.source == op.debug_info

    def test_a_blob_of_another_gpu_in_a_net_without_a_record(self):
        first, second = (make_device_option(PROTO_CUDA, number) for number in (0, 1))
        ops = [
            make_op("Relu", ["x"], ["y"], device_option=first),
            make_op("Relu", ["y"], ["z"], device_option=second),
        ]
        assert "GPU 0" in only(check_net(net_of(*ops)), Rule.DEVICE).message

    @pytest.mark.parametrize("depth", [1, 2])
    def test_a_blob_of_another_gpu_inside_an_operator(self, depth):
        first, second = (make_device_option(PROTO_CUDA, number) for number in (0, 1))
        ops = [
            make_op("Relu", ["x"], ["y"], device_option=first),
            make_op("Relu", ["y"], ["z"], device_option=second),
        ]
        ops[1].debug_info = "net.py:3 in build"
        net = step_net(*ops)
        if depth == 2:
            net.op[0].arg[0].n.CopyFrom(NetDef(name="outer", op=step_net(*ops).op))
        found = only(check_net(net), Rule.DEVICE)
        assert (found.net, found.index, found.blob, found.source) == ("branch", 1, "y", "net.py:3 in build")
        assert "GPU 0" in found.message and "in operator 0 If" in str(found)

    def test_another_replica_inside_an_operator(self):
        model, _ = data_parallel()
        net = model.net.Proto()
        inner = NetDef(name="branch", op=[make_op("Relu", ["cpu_0/fc1"], ["cpu_1/more"])])
        inner.op[0].device_option.CopyFrom(make_device_option(PROTO_CPU, 1))
        op = make_op("If", ["cpu_1/condition", "cpu_0/fc1"], [], then_net=inner)
        op.device_option.CopyFrom(make_device_option(PROTO_CPU, 1))
        net.op.add().CopyFrom(op)
        found = check_net(net, available=["cpu_1/condition"])
        assert [(each.rule, each.net) for each in found] == [(Rule.DEVICE, net.name), (Rule.DEVICE, "branch")]

    @pytest.mark.parametrize("wrap", [net_of, step_net])
    def test_a_device_without_a_kernel(self, wrap):
        op = make_op("Relu", ["x"], ["y"], device_option=make_device_option(7, 0))
        assert "device type 7 is not supported" in only(check_net(wrap(op)), Rule.DEVICE).message

    def test_in_the_init_net(self):
        model, _ = data_parallel()
        init = model.param_init_net.Proto()
        op = next(op for op in init.op if op.output[0] == "cpu_1/fc1_w")
        op.output[0] = "cpu_0/fc1_w"
        assert Rule.DEVICE in {finding.rule for finding in check_net(model.net, init_net=init)}


class TestUpdates:
    def test_a_missing_allreduce(self):
        model, _ = data_parallel()

        def reduces(op):
            return op.type in ("Sum", "Copy", "Allreduce") and any(blob == "cpu_0/fc1_w_grad" for blob in op.input)

        net = without(model.net.Proto(), reduces)
        found = check_net(net)
        assert [finding.rule for finding in found] == [Rule.UNREDUCED_GRADIENT] * 2
        assert [finding.blob for finding in found] == ["cpu_0/fc1_w_grad", "cpu_1/fc1_w_grad"]
        first = found[0]
        assert "with gradients of cpu_0/ only" in first.message and "those of cpu_1/ do not reach it" in first.message
        assert "test_checks.py" in first.source and net.op[first.index].output[-1] == "cpu_0/fc1_w"

    def test_a_replica_that_is_left_out_of_the_sum(self):
        model, _ = data_parallel(devices=3)
        net = model.net.Proto()
        op = next(op for op in net.op if len(op.input) == 3 and op.input[0] == "cpu_0/fc2_b_grad")
        op.input.remove("cpu_1/fc2_b_grad")
        of_devices, *found = check_net(net)  # a sum over some replicas is no reduction, so it also is on a wrong device
        assert of_devices.rule is Rule.DEVICE
        assert {finding.rule for finding in found} == {Rule.UNREDUCED_GRADIENT}
        assert all("gradients of cpu_0/, cpu_2/ only" in finding.message for finding in found) and len(found) == 3

    def test_a_sparse_gradient(self):
        model = ModelHelper("sparse")
        proof = MODELS["embedding inside"]
        Parallelize_CPU(
            model, lambda model: None, lambda model, scale: proof.build(model, scale, None),
            optimizer_builder_fun=lambda model: build_sgd(model, 0.1), devices=[0, 1],
        )  # fmt: skip
        net = model.net.Proto()
        joins = [op for op in net.op if op.type == "Concat" and {blob[:6] for blob in op.input} == {"cpu_0/", "cpu_1/"}]
        for op in joins:
            op.input[1] = op.input[0]
        rules = {(finding.rule, finding.message.split("'")[1]) for finding in check_net(net)}
        assert rules == {(Rule.UNREDUCED_GRADIENT, f"cpu_{i}/table") for i in (0, 1)}

    def test_a_parameter_that_is_not_updated(self):
        model, _ = data_parallel()
        net = without(model.net.Proto(), lambda op: "cpu_1/fc2_w" in op.output)
        found = only(check_net(net), Rule.NOT_UPDATED)
        assert found.blob == "cpu_1/fc2_w" and "'cpu_1/fc2_w_grad'" in found.message and found.source

    @pytest.mark.parametrize("update", [lambda model: build_sgd(model, 0.1), lambda model: build_adam(model, 0.1)])
    def test_a_parameter_that_is_updated_twice(self, update):
        model, _ = data_parallel(update)
        net = model.net.Proto()
        op = next(op for op in net.op if "cpu_1/fc1_b" in op.output)
        first = list(net.op).index(op)
        net.op.add().CopyFrom(op)
        found = only(check_net(net), Rule.UPDATED_TWICE)
        assert found.index == len(net.op) - 1 and f"operator {first} {op.type}" in found.message
        assert "'cpu_1/fc1_b'" in found.message

    def test_two_optimizers_on_one_device(self):
        model = ModelHelper("one")
        model.AddGradientOperators([softmax_loss(model, brew.fc(model, "data", "fc", 3, 2))])
        build_sgd(model, 0.1)
        assert not check_net(model.net, init_net=model.param_init_net)
        model.net.updates_as_in_caffe2 = True  # a net of a script of Caffe2, where a second update is no error
        with pytest.warns(UserWarning, match="two steps per iteration"):
            build_adam(model, 0.1)
        found = check_net(model.net, init_net=model.param_init_net)
        assert {finding.rule for finding in found} == {Rule.UPDATED_TWICE}
        assert {finding.blob for finding in found} == {"fc_w", "fc_b"}

    def test_two_optimizers_after_a_parallel_block(self):
        model = parallel_block()
        assert not check_net(model.net, init_net=model.param_init_net)
        model.net.updates_as_in_caffe2 = True  # a net of a script of Caffe2, where a second update is no error
        with pytest.warns(UserWarning, match="two steps per iteration"):
            build_adam(model, 0.1)
        found = check_net(model.net, init_net=model.param_init_net)
        assert {(finding.rule, finding.blob) for finding in found} == {
            (Rule.UPDATED_TWICE, "fc_w"), (Rule.UPDATED_TWICE, "fc_b"),
        }  # fmt: skip

    def test_a_parameter_outside_the_replicas(self):
        case = CASES["a layer outside"]
        model, _ = build_case(case, 3, None)
        net = model.net.Proto()
        assert not check_net(net, init_net=model.param_init_net)
        op = next(op for op in net.op if op.type == "Sum" and "common_w_grad" in op.output)
        op.input[1] = op.input[0]
        found = [each for each in check_net(net) if each.rule is Rule.UNREDUCED_GRADIENT]
        assert [finding.blob for finding in found] == ["common_w"]
        assert "gradients of cpu_0/, cpu_2/ only" in found[0].message

    def test_a_frozen_parameter_is_no_finding(self):
        def forward(model, loss_scale):
            x = model.net.StopGradient(brew.fc(model, "data", "frozen", 5, 4), "stopped")
            return scaled_loss(model, brew.fc(model, x, "fc", 4, 3), loss_scale)

        model = ModelHelper("frozen")
        Parallelize_CPU(
            model,
            lambda model: None,
            forward,
            optimizer_builder_fun=lambda model: build_sgd(model, 0.1),
            devices=[0, 1],
        )
        assert not check_net(model.net, init_net=model.param_init_net)


class TestUpdatesInside:
    """A training step that updates its parameters in a branch."""

    def built(self, *updates, gradient=None, branches=("then_net",)):
        """A model over two devices whose update is an If with so many updates of each parameter in each branch."""

        def update(model):
            for param in model.GetParams():
                blobs = [str(param), "one", gradient or str(model.param_to_grad[param]), "rate"]
                nets = {}
                for name, count in zip(branches, updates):
                    ops = [make_op("WeightedSum", blobs, [str(param)])] * count or [make_op("Copy", ["one"], ["other"])]
                    nets[name] = NetDef(name=name, op=ops, external_output=[str(param)] if count else [])
                model.net.extend_ops([make_op("If", ["condition", *blobs], [str(param)], **nets)])

        model = ModelHelper("branches")
        Parallelize_CPU(model, no_input, layers(5, 3), update, devices=[0, 1])
        return model.net.Proto()

    def found(self, net):
        blobs = [f"cpu_{device}/{name}" for device in (0, 1) for name in ("data", "label")]
        everything = check_net(net, available=["condition", "one", "rate", *blobs])
        return [finding for finding in everything if finding.rule.value in ("updated-twice", "unreduced-gradient")]

    def test_once(self):
        assert not self.found(self.built(1))
        assert not self.found(self.built(1, 1, branches=("then_net", "else_net")))

    def test_twice_in_a_branch(self):
        found = self.found(self.built(0, 2, branches=("then_net", "else_net")))
        assert [(each.rule, each.net, each.index) for each in found] == [(Rule.UPDATED_TWICE, "else_net", 1)] * 4

    def test_in_a_branch_and_after_it(self):
        net = self.built(1)
        net.op.append(make_op("WeightedSum", ["cpu_1/fc1_w", "one", "cpu_1/fc1_w_grad", "rate"], ["cpu_1/fc1_w"]))
        found = only(self.found(net), Rule.UPDATED_TWICE)
        assert (found.blob, found.index, found.net) == ("cpu_1/fc1_w", len(net.op) - 1, net.name)

    def test_not_at_all(self):
        net = self.built(0)
        for op in net.op:
            if op.type == "If":
                del op.output[:]
        blobs = {finding.blob for finding in check_net(net) if finding.rule is Rule.NOT_UPDATED}
        assert blobs == {f"cpu_{device}/fc1_{name}" for device in (0, 1) for name in "wb"}

    def test_without_a_reduction(self):
        net = without(
            self.built(1), lambda op: op.type == "Sum" and op.input[:] == ["cpu_0/fc1_w_grad", "cpu_1/fc1_w_grad"]
        )
        found = self.found(without(net, lambda op: op.type == "Copy" and op.input[0] == "cpu_0/fc1_w_grad"))
        assert [(each.rule, each.net, each.blob) for each in found] == [
            (Rule.UNREDUCED_GRADIENT, "then_net", f"cpu_{device}/fc1_w_grad") for device in (0, 1)
        ]


class TestSeveralProcesses:
    """The nets of one process of two."""

    place = Rendezvous(2, 1)

    def built(self, name, devices=2, **options):
        model, record = build_case(
            dataclasses.replace(CASES[name], on_gpus=False, options={**CASES[name].options, **options}),
            devices,
            self.place,
        )
        inputs = [blob for name in CASES[name].inputs for blob in record.devices.copies(name)]
        return model, record, inputs

    @pytest.mark.one_in(6)
    @pytest.mark.parametrize("name, devices", [*((name, 2) for name in CASES), ("dense", 1), ("tables outside", 1)])
    def test_sound_nets(self, name, devices):
        model, _, inputs = self.built(name, devices)
        assert not check_net(model.net, init_net=model.param_init_net, available=inputs)

    @pytest.mark.parametrize("devices", [1, 2])
    def test_a_gradient_that_is_not_summed_over_the_processes(self, devices):
        model, record, _ = self.built("dense", devices, bucket_bytes=0)
        net = without(model.net.Proto(), lambda op: op.type == "AllreduceBucket" and "cpu_0/fc2_w_grad" in op.input)
        found = check_net(net)
        assert [(each.rule, each.blob) for each in found] == [
            (Rule.UNREDUCED_GRADIENT, blob) for blob in record.devices.copies("fc2_w_grad")
        ]
        assert "gradients of the replicas of this process only" in found[0].message
        assert "those of other processes do not reach it" in found[0].message and found[0].source

    def test_a_gradient_that_is_left_out_of_a_bucket(self):
        model, record, _ = self.built("dense", bucket_bytes=10**6)
        net = model.net.Proto()
        (op,) = [op for op in net.op if op.type == "AllreduceBucket"]
        place = list(op.output).index("cpu_0/fc1_w_grad")
        del op.output[place], op.input[place + 1]
        found = check_net(net)
        assert {each.blob for each in found} == set(record.devices.copies("fc1_w_grad"))
        assert {each.rule for each in found} == {Rule.UNREDUCED_GRADIENT}

    def test_a_gradient_that_is_summed_over_the_processes_only(self):
        """Other gradients of its bucket do not stand for it."""
        model, _, _ = self.built("dense", bucket_bytes=10**6)
        net = without(model.net.Proto(), lambda op: op.type == "Sum" and "cpu_1/fc1_w_grad" in op.input)
        found = check_net(net)
        assert {each.blob for each in found} == {"cpu_0/fc1_w_grad", "cpu_1/fc1_w_grad"}
        assert all("gradients of cpu_0/ only" in each.message for each in found)

    @pytest.mark.parametrize("name, gathered", [("tables inside", "one"), ("tables outside", "one")])
    def test_rows_that_are_not_gathered(self, name, gathered):
        model, record, _ = self.built(name)
        net = model.net.Proto()
        for op in net.op:
            if op.type == "Allgather":
                op.CopyFrom(make_op("Copy", [op.input[1]], op.output[:], device_option=op.device_option))
        found = [each for each in check_net(net) if each.rule is Rule.UNREDUCED_GRADIENT]
        updated = {each.message.split("'")[1] for each in found}
        assert (
            updated == {*record.blobs("one"), *record.blobs("two")}
            if record.parameters.count("one")
            else {"one", "two"}
        )

    def test_a_layer_outside(self):
        model, _, _ = self.built("a layer outside", bucket_bytes=0)
        net = without(model.net.Proto(), lambda op: op.type == "AllreduceBucket" and "common_b_grad" in op.input)
        assert only(check_net(net), Rule.UNREDUCED_GRADIENT).blob == "common_b"

    def test_a_common_world_that_nothing_makes(self):
        model, record, inputs = self.built("dense")
        world = record.world.common[0]
        init = without(model.param_init_net.Proto(), lambda op: world in op.output)
        rules = {
            (each.rule, each.blob) for each in check_net(model.net, init_net=init, inputs=dict.fromkeys(inputs, (6, 6)))
        }
        assert (Rule.DANGLING_BLOB, world) in rules and (Rule.NO_VALUE, world) in rules


SOUND = {
    "plain": {},
    "momentum": {"update": lambda model: build_sgd(model, 0.1, momentum=0.9)},
    "shared": {"shared_model": True},
    "micro-batches": {"accumulate_steps": 2},
    "shares": {"weighted_shares": True},
    "reduce, update, broadcast": {"reduce_update_broadcast": True},
    "shared gradients": {"optimize_gradient_memory": True},
    "one device": {"devices": 1},
    "four devices": {"devices": 4},
}


@pytest.mark.parametrize("options", SOUND.values(), ids=list(SOUND))
def test_ways_to_train(options):
    model, shapes = data_parallel(**options)
    assert not check_net(model.net, init_net=model.param_init_net, inputs=shapes)


# One net of each family; the others repeat the same blocks.
SMALL_NETS = (
    "mlp", "lenet", "alexnet", "vgg11", "vgg11-bn", "inception-v1-bn", "inception-v3", "overfeat", "squeezenet1.1",
    "shufflenet-g3", "shufflenet-v2-0.5x", "resnet8-cifar", "resnet18", "resnext50",
)  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in SMALL_NETS)) for name in NETS]
)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.one_in(8)
def test_nets_of_the_zoo(name, training):
    options = ZooOptions(batch=2, classes=10)
    model = ModelHelper(name, arg_scope={"order": "NCHW"})

    def forward(model, loss_scale):
        shape = image_shape(name, options)
        if not training:
            add_net(model, name, shape, options.classes, is_test=True)
            return []
        _, loss = add_net(model, name, shape, options.classes, is_test=False, label="label")
        return [model.net.Scale(loss, "scaled", scale=loss_scale)]

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "model .* has no update")
        record = Parallelize(
            model, lambda model: None, forward,
            optimizer_builder_fun=(lambda model: build_sgd(model, 0.1, momentum=0.9)) if training else None,
            devices=[0, 1], cpu_device=True,
        )  # fmt: skip
    shapes = {f"{scope}data": (2, *image_shape(name, options)) for scope in record.devices.scopes}
    shapes.update({f"{scope}label": (2,) for scope in record.devices.scopes if training})
    assert not check_net(model.net, init_net=model.param_init_net, inputs=shapes)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", MODELS)
def test_models_with_tables_and_recurrent_layers(name):
    proof, model = MODELS[name], ModelHelper(name)
    outside = None if proof.outside is None else proof.outside(model)
    record = Parallelize_CPU(
        model, lambda model: None, lambda model, scale: proof.build(model, scale, outside),
        optimizer_builder_fun=lambda model: build_adam(model, 0.1), devices=[0, 1], **proof.options,
    )  # fmt: skip
    batch = proof.batch(np.random.default_rng(0))
    shapes = {scope + blob: value for scope in record.devices.scopes for blob, value in batch.items()}
    assert not check_net(model.net, init_net=model.param_init_net, inputs=shapes)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("share", range(3))
def test_nets_of_caffe2(share):
    cases = [case for name in golden_data.nets()[share::3] if "net" in (case := golden_data.net(name)).protos]
    assert len(cases) > 10
    for case in cases:
        assert not check_net(case.main, init_net=case.protos.get("param_init_net")), case.name


def lstm():
    """Return the net and the init net of an LSTM, with its backward pass."""
    model = ModelHelper("lstm")
    output, *_ = rnn.LSTM(model, "x", "lengths", ("h0", "c0"), 3, 4, "lstm")
    loss = model.net.AveragedLoss(model.net.SquaredL2Distance([output, "target"], "distance"), "loss")
    model.AddGradientOperators([loss])
    return model.net.Proto(), model.param_init_net.Proto()


class TestCreateNet:
    def plant(self):
        return net_of(make_op("Relu", ["x"], ["y"]), make_op("Tanh", ["x"], ["y"]))

    def test_an_error(self):
        workspace = Workspace()
        workspace.feed("x", np.zeros(3, np.float32))
        with pytest.raises(NetError, match=r"the check found\n  race: net 'planted', operator 1: Tanh"):
            workspace.create_net(self.plant(), check=True)
        assert workspace.nets() == []
        workspace.create_net(self.plant())

    def test_a_warning(self):
        workspace = Workspace()
        workspace.feed("x", np.zeros(3, np.float32))
        with pytest.warns(UserWarning, match="race: net 'planted'"):
            workspace.create_net(self.plant(), check="warn")
        assert workspace.nets() == ["planted"]

    def test_shapes_of_blobs_that_have_values(self):
        workspace = Workspace()
        for name, shape in {"x": (4, 2), "w": (3, 5), "b": (3,)}.items():
            workspace.feed(name, np.zeros(shape, np.float32))
        net = net_of(make_op("FC", ["x", "w", "b"], ["y"]), inputs=["x", "w", "b"])
        with pytest.raises(NetError, match="shape: net 'planted', operator 0: FC"):
            workspace.create_net(net, check=True)

    def test_blobs_of_the_workspace_are_no_findings(self):
        workspace = Workspace()
        workspace.feed("there", np.zeros(3, np.float32))
        workspace.create_net(net_of(make_op("Relu", ["there"], ["y"])), check=True)

    def test_a_value_that_is_none(self):
        with pytest.raises(NetError, match="check must be True, False or 'warn', got 'error'"):
            Workspace().create_net(self.plant(), check="error")

    @pytest.mark.parametrize("steps", [1, 2])
    def test_a_parallel_model(self, steps):
        model, shapes = data_parallel(accumulate_steps=steps)
        workspace = Workspace()
        for name, shape in shapes.items():
            workspace.feed(name, np.zeros(shape, np.float32 if "data" in name else np.int32))
        RunInitNet(model, workspace=workspace)
        CreateNet(model, True, check=True, workspace=workspace)
        net = model.net.Proto()
        net.op.add().CopyFrom(next(op for op in net.op if "cpu_1/fc1_b" in op.output))
        with pytest.raises(NetError, match="updated-twice"):
            CreateNet(model, True, check=True, workspace=workspace)


def test_many_findings_are_cut_short():
    ops = [make_op("Relu", [f"missing{i}"], [f"y{i}"]) for i in range(8)]
    with pytest.raises(NetError, match="and 3 more"):
        require_sound(net_of(*ops))
    assert len(check_net(net_of(*ops))) == 8


def test_a_damaged_record():
    model, _ = data_parallel()
    net = model.net.Proto()
    next(argument for argument in net.arg if argument.name == "replica_device_type").CopyFrom(
        make_argument("replica_device_type", "cpu")
    )
    with pytest.raises(NetError, match="record of replicas is damaged"):
        check_net(net)


def test_nets_are_unchanged_and_may_be_net_objects():
    net = Net("small")
    with DeviceScope(make_device_option(PROTO_CPU, 0)):
        net.Relu("x", "y")
    before = net.Proto().SerializeToString()
    assert not check_net(net, inputs={"x": (3,)})
    assert net.Proto().SerializeToString() == before
